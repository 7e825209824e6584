"""What transformers answers in f32: `oracle.py MODEL OUT [COUNT]`, after the prompt 5, 42, 79, … of 32 ids. Writes OUT.tokens, a line
of the prompt's ids and one of the greedy answer's, and OUT.json, which has for every place of the answer the likeliest token, how far
its logit is ahead of the next, and how far logits computed in bf16 are from those in f32 at most. OUT-forced.* are the same for
drawn tokens in the answer's place: models of random weights tend to repeat one token, which shows little. `judge.py` reads both."""

import json
import pathlib
import random
import sys

import torch
from transformers import AutoModelForCausalLM

PROMPT = [i * 37 % 1000 + 5 for i in range(32)]


def write(out, answer, exact, rounded):
    top = exact.topk(2).values
    found = dict(
        best=exact.argmax(-1).tolist(),
        margin=(top[:, 0] - top[:, 1]).tolist(),
        error=(rounded - exact).abs().amax(-1).tolist(),
    )
    pathlib.Path(f"{out}.json").write_text(json.dumps(found))
    lines = (" ".join(map(str, ids)) for ids in (PROMPT, answer))
    pathlib.Path(f"{out}.tokens").write_text("\n".join(lines) + "\n")
    same, kinds = sum(a == b for a, b in zip(answer, found["best"])), len(set(found["best"]))
    off = max(found["error"])
    print(f"{out}: transformers has {kinds} different tokens at {len(answer)} places, {same} as fed; bf16 is {off:.4f} off at most")


@torch.no_grad()
def main():
    folder, out, count = sys.argv[1], sys.argv[2], int((sys.argv[3:] or ["48"])[0])
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.backends.cuda.matmul.allow_tf32 = False
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval().to(device)
    model.generation_config.pad_token_id, model.generation_config.eos_token_id = 0, None
    ids = torch.tensor([PROMPT], device=device)
    limits = dict(max_new_tokens=count, min_new_tokens=count, do_sample=False)
    greedy = model.generate(ids, attention_mask=torch.ones_like(ids), **limits)[0, len(PROMPT) :].tolist()
    drawn = random.Random(0).sample(range(300, 30_000), count)
    answers = {out: greedy, f"{out}-forced": drawn}

    # The place before a token is where it is foretold.
    def logits(answer):
        return model(torch.tensor([PROMPT + answer], device=device)).logits[0, len(PROMPT) - 1 : -1].float()

    exact = {name: logits(answer) for name, answer in answers.items()}
    model.to(torch.bfloat16)
    for name, answer in answers.items():
        write(name, answer, exact[name], logits(answer))


main()
