"""Sentence embeddings of all-MiniLM-L6-v2 as sentence-transformers computes them. MLXCEL_TEST_MINILM names the model's
folder, as `cargo xtask test` prints it."""

import json
import os
import pathlib

LONG = " ".join(f"Sentence {n} tells how the river bends around hill number {n}." for n in range(1, 31))

TEXTS = [
    ("plain", "The quick brown fox jumps over the lazy dog."),
    ("one-word", "compiler"),
    ("empty", ""),
    ("blank", "  \t "),
    ("german", "Die Größe des Hauses überraschte die Gäste am späten Abend."),
    ("chinese", "机器学习让计算机从数据中学习。"),
    ("arabic", "تعلم الآلة فرع من الذكاء الاصطناعي"),
    ("emoji", "I ❤️ parsing 🦀🚀, naïvely!"),
    ("code", "fn main() { println!(\"{}\", 1 + 2); } // add"),
    ("numbers", "3.14159 + 2,71828 = 5.86 (approximately), 1e-5"),
    ("two-lines", "first line\nsecond line"),
    ("long", LONG),
]


def vector(row):
    return [round(float(x), 8) for x in row]


def make(_):
    # Imported here, since nothing else needs it and it is slow to come up.
    import sentence_transformers

    model = sentence_transformers.SentenceTransformer(os.environ["MLXCEL_TEST_MINILM"], device="cpu")
    model.eval()
    texts = [text for _, text in TEXTS]
    rows = model.encode(texts, batch_size=1)
    cases = [
        {"name": name, "text": text, "tokens": len(model.tokenizer(text)["input_ids"]), "embedding": vector(row)}
        for (name, text), row in zip(TEXTS, rows, strict=True)
    ]
    transformer, pooling = model[0], model[1]
    other = {}
    for mode in ["mean", "cls", "max", "lasttoken"]:
        own = sentence_transformers.models.Pooling(pooling.get_embedding_dimension(), pooling_mode=mode)
        bare = sentence_transformers.SentenceTransformer(modules=[transformer, own], device="cpu")
        other[mode] = vector(bare.encode([TEXTS[0][1]])[0])
    short = model.encode([TEXTS[0][1]], truncate_dim=64, normalize_embeddings=True)[0]
    out = pathlib.Path("fixtures/minilm/oracle.json")
    out.parent.mkdir(exist_ok=True)
    content = {
        "sentence_transformers": sentence_transformers.__version__,
        "max_tokens": model.max_seq_length,
        "cases": cases,
        "not_normalised": other,
        "first_64": vector(short),
    }
    out.write_text(json.dumps(content, ensure_ascii=False, separators=(",", ":")) + "\n")
