"""Greedy tokens of llama.cpp: `llama_cpp.py FILE TOKENS COUNT`.

TOKENS is the prompt as token ids with commas between them. Prints the ids of at most COUNT tokens as a JSON list. Needs
the package `xllamacpp` on PYTHONPATH.
"""

import json
import os
import sys
import urllib.request


def quiet():
    """llama.cpp tells its story on stdout too; only the answer belongs there."""
    answer = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    return answer


def server_for(path):
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = path
    params.n_ctx = 512
    params.n_parallel = 1
    params.n_gpu_layers = 0
    params.cpuparams.n_threads = 1
    params.warmup = False
    params.verbosity = 0
    params.cache_type_k = xllamacpp.ggml_type.GGML_TYPE_F32
    params.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
    params.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
    return xllamacpp.Server(params)


def post(address, body):
    """The native route: only it returns token ids."""
    request = urllib.request.Request(address, json.dumps(body).encode(), {"Content-Type": "application/json"})
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with direct.open(request) as answer:
        return json.loads(answer.read())


def main(path, prompt, count):
    answer = quiet()
    server = server_for(path)
    request = {
        "prompt": [int(token) for token in prompt.split(",")],
        "n_predict": int(count),
        "temperature": 0.0,
        "cache_prompt": False,
        "return_tokens": True,
    }
    reply = post(f"{server.listening_address}/completion", request)
    print(json.dumps(reply["tokens"]), file=answer, flush=True)
    # The server's threads need no farewell.
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
