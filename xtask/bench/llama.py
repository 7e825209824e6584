"""Measures llama.cpp as `mlxcel bench` measures ours: `llama.py MODEL.gguf --threads N --repetitions N TEST...`.

A test is `pp:TOKENS:DEPTH:SEQUENCES` or `tg:TOKENS:DEPTH:SEQUENCES`. Prints one JSON object: the tokens for each second of
every repetition, by test. The library is the one that the package xllamacpp brings; it is called through its C
functions, without a server or a sampler. Parameters are left as llama.cpp has them, except for the size of the context,
the number of sequences and the threads.
"""

import argparse
import ctypes
import json
import pathlib
import random
import time

import xllamacpp

STEP_TOKENS_MAX = 512
WARM_UP_TOKENS = 4


class Parameters(ctypes.Structure):
    """More than any version has; only the first four words of the context's are touched."""

    _fields_ = [("words", ctypes.c_uint32 * 256)]


class Batch(ctypes.Structure):
    _fields_ = [
        ("n_tokens", ctypes.c_int32),
        ("token", ctypes.POINTER(ctypes.c_int32)),
        ("embd", ctypes.c_void_p),
        ("pos", ctypes.POINTER(ctypes.c_int32)),
        ("n_seq_id", ctypes.POINTER(ctypes.c_int32)),
        ("seq_id", ctypes.POINTER(ctypes.POINTER(ctypes.c_int32))),
        ("logits", ctypes.POINTER(ctypes.c_int8)),
    ]


LOG_CALLBACK = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)
POINTER, INT = ctypes.c_void_p, ctypes.c_int32
FUNCTIONS = {
    "llama_log_set": (None, [LOG_CALLBACK, POINTER]),
    "llama_backend_init": (None, []),
    "llama_model_default_params": (Parameters, []),
    "llama_model_load_from_file": (POINTER, [ctypes.c_char_p, Parameters]),
    "llama_model_get_vocab": (POINTER, [POINTER]),
    "llama_vocab_n_tokens": (INT, [POINTER]),
    "llama_context_default_params": (Parameters, []),
    "llama_init_from_model": (POINTER, [POINTER, Parameters]),
    "llama_free": (None, [POINTER]),
    "llama_set_n_threads": (None, [POINTER, INT, INT]),
    "llama_get_memory": (POINTER, [POINTER]),
    "llama_memory_seq_rm": (ctypes.c_bool, [POINTER, INT, INT, INT]),
    "llama_memory_seq_cp": (None, [POINTER, INT, INT, INT, INT]),
    "llama_batch_init": (Batch, [INT, INT, INT]),
    "llama_decode": (INT, [POINTER, Batch]),
    "llama_synchronize": (None, [POINTER]),
}


def library():
    found = sorted(pathlib.Path(xllamacpp.__file__).parent.glob("xllamacpp*.so"))
    loaded = ctypes.CDLL(str(found[0]))
    for name, (result, arguments) in FUNCTIONS.items():
        function = getattr(loaded, name)
        function.restype, function.argtypes = result, arguments
    return loaded


class Peer:
    def __init__(self, path, threads):
        self.llama = library()
        self.silence = LOG_CALLBACK(lambda *_: None)
        self.llama.llama_log_set(self.silence, None)
        self.llama.llama_backend_init()
        self.model = self.llama.llama_model_load_from_file(path.encode(), self.llama.llama_model_default_params())
        if not self.model:
            raise SystemExit(f"llama.cpp cannot load {path}")
        self.vocabulary = self.llama.llama_vocab_n_tokens(self.llama.llama_model_get_vocab(self.model))
        self.threads = threads
        self.random = random.Random(0)
        self.batch = self.llama.llama_batch_init(STEP_TOKENS_MAX, 0, 1)

    def open(self, tokens, sequences):
        """A context of so many sequences, each with room for so many tokens."""
        parameters = self.llama.llama_context_default_params()
        # The only layout that is relied on, so a version with another one is found out.
        if list(parameters.words[:4]) != [512, 2048, 512, 1]:
            raise SystemExit("the parameters of this llama.cpp begin with other fields than expected")
        parameters.words[0] = (tokens + 255) // 256 * 256 * sequences
        parameters.words[3] = sequences
        self.context = self.llama.llama_init_from_model(self.model, parameters)
        if not self.context:
            raise SystemExit("llama.cpp has no memory for the context")
        self.llama.llama_set_n_threads(self.context, self.threads, self.threads)
        self.memory = self.llama.llama_get_memory(self.context)

    def close(self):
        self.llama.llama_free(self.context)

    def prepare(self, start, tokens, sequences, answered):
        """Puts the new tokens of every sequence into the batch."""
        batch, at = self.batch, 0
        for sequence in range(sequences):
            for i in range(tokens):
                batch.token[at] = self.random.randrange(self.vocabulary)
                batch.pos[at] = start + i
                batch.n_seq_id[at] = 1
                batch.seq_id[at][0] = sequence
                batch.logits[at] = answered and i == tokens - 1
                at += 1
        batch.n_tokens = at

    def decode(self):
        if self.llama.llama_decode(self.context, self.batch) != 0:
            raise SystemExit("llama.cpp cannot decode the batch")
        self.llama.llama_synchronize(self.context)

    def prompt(self, start, tokens):
        """Seconds of a prompt of one sequence."""
        seconds = 0.0
        for at in range(start, start + tokens, STEP_TOKENS_MAX):
            count = min(STEP_TOKENS_MAX, start + tokens - at)
            self.prepare(at, count, 1, at + count == start + tokens)
            begun = time.perf_counter()
            self.decode()
            seconds += time.perf_counter() - begun
        return seconds

    def generate(self, start, tokens, sequences):
        """Seconds of so many tokens, one after the other, of every sequence."""
        begun = time.perf_counter()
        for at in range(start, start + tokens):
            self.prepare(at, 1, sequences, True)
            self.decode()
        return time.perf_counter() - begun

    def reset(self, depth, sequences):
        for sequence in range(sequences):
            self.llama.llama_memory_seq_rm(self.memory, sequence, depth, -1)

    def measure(self, test, repetitions):
        kind, *numbers = test.split(":")
        tokens, depth, sequences = map(int, numbers)
        self.open(depth + tokens, sequences)
        if depth:
            self.prompt(0, depth)
            for sequence in range(1, sequences):
                self.llama.llama_memory_seq_cp(self.memory, 0, sequence, -1, -1)
        speeds = []
        for repetition in range(-1, repetitions):
            self.reset(depth, sequences)
            if kind == "pp":
                seconds = self.prompt(depth, tokens)
            else:
                seconds = self.generate(depth, tokens if repetition >= 0 else min(tokens, WARM_UP_TOKENS), sequences)
            if repetition >= 0:
                speeds.append(tokens * sequences / seconds)
        self.close()
        return speeds


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--repetitions", type=int, required=True)
    parser.add_argument("tests", nargs="+")
    arguments = parser.parse_args()
    peer = Peer(arguments.model, arguments.threads)
    print(json.dumps({test: peer.measure(test, arguments.repetitions) for test in arguments.tests}))


if __name__ == "__main__":
    main()
