"""Compares answers with transformers': `judge.py OUT FILE…`, where OUT is what `oracle.py` wrote and each file holds what a program
printed: the object of `mlxcel generate --json`, or a line with `ours:` or `greedy` before the ids. Places count as certain where
the likeliest token is further ahead in f32 than bf16 is from f32; those are for answers whose every step was fed OUT's tokens."""

import json
import pathlib
import re
import sys


def tokens(text):
    for line in text.splitlines():
        if line.startswith("{"):
            return json.loads(line)["tokens"]
        if found := re.match(r"(?:ours:|greedy)\s+(.*)", line):
            return [int(id) for id in re.findall(r"\d+", found[1])]
    return []


oracle = json.loads(pathlib.Path(f"{sys.argv[1]}.json").read_text())
for name in sys.argv[2:]:
    ours = tokens(pathlib.Path(name).read_text(errors="replace"))
    same = [a == b for a, b in zip(ours, oracle["best"])]
    begin = same.index(False) if False in same else len(same)
    print(f"{name}: {sum(same)}/{len(same)} equal, the first {begin} of them in a row")
    for times in (1, 2):
        pairs = zip(same, oracle["margin"], oracle["error"])
        certain = [right for right, margin, error in pairs if margin > times * error]
        print(f"  certain (margin over {times} x bf16 error): {sum(certain)}/{len(certain)} equal")
