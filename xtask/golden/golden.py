"""Makes the golden fixtures: `golden.py FAMILY...` or `golden.py all`; `rope` stands for the rotary variants,
`gguf-*` for the files under fixtures/gguf, `minilm` for real sentence embeddings. Deterministic for the pinned versions."""

import sys
import warnings

import torch
import transformers

import decoder_embeddings
import dense
import encoder
import gguf_bert
import gguf_dequant
import gguf_models
import gguf_quant
import minilm
import moe
import rope
import variants

MAKERS = {family.name: (variants.make, family) for family in dense.FAMILIES + moe.FAMILIES}
MAKERS["bert"] = (encoder.make, encoder.BERT)
MAKERS["decoder-embeddings"] = (decoder_embeddings.make, "decoder-embeddings")
MAKERS["rope"] = (rope.make, "rope")
MAKERS["gguf-dequant"] = (gguf_dequant.make, "gguf-dequant")
MAKERS["gguf-models"] = (gguf_models.make, "gguf-models")
MAKERS["gguf-bert"] = (gguf_bert.make, "gguf-bert")
MAKERS["gguf-quant"] = (gguf_quant.make, "gguf-quant")
MAKERS["minilm"] = (minilm.make, "minilm")


def main(names):
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore")
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    chosen = list(MAKERS) if names == ["all"] else names
    unknown = [name for name in chosen if name not in MAKERS]
    if unknown or not chosen:
        raise SystemExit(f"usage: golden.py FAMILY... | all; known: {' '.join(MAKERS)}; unknown: {unknown}")
    for name in chosen:
        make, what = MAKERS[name]
        make(what)


if __name__ == "__main__":
    main(sys.argv[1:])
