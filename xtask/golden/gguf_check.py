"""Runs the GGUF fixtures in llama.cpp and says how far its greedy tokens agree: `gguf_check.py NAME...`.

Not part of making the fixtures; a second opinion on names, layout and metadata. Quantised files agree only roughly,
since llama.cpp also rounds activations.
"""

import json
import pathlib
import sys
import urllib.request

import xllamacpp

ROOT = pathlib.Path(__file__).resolve().parents[2] / "fixtures" / "gguf"


def server_for(path):
    params = xllamacpp.CommonParams()
    params.model.path = str(path)
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


def agreement(server, case):
    request = {
        "prompt": case["prompt"],
        "n_predict": len(case["tokens"]),
        "temperature": 0.0,
        "top_k": 1,
        "ignore_eos": True,
        "cache_prompt": False,
        "return_tokens": True,
    }
    tokens = post(f"{server.listening_address}/completion", request)["tokens"]
    same = [ours == theirs for ours, theirs in zip(case["tokens"], tokens)]
    return same.index(False) if False in same else len(same)


def main(chosen):
    for path in sorted(ROOT.glob("*.gguf")):
        if path.stem == "bert" or (chosen and path.stem not in chosen):
            continue
        server = server_for(path)
        golden = json.loads(path.with_suffix(".json").read_text())
        found = {case["name"]: agreement(server, case) for case in golden["cases"]}
        print(path.stem, found, flush=True)
        del server


if __name__ == "__main__":
    main(sys.argv[1:])
