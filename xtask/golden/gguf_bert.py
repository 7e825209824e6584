"""The GGUF form of the BERT fixture: `fixtures/gguf/bert.gguf`, the weights of `fixtures/golden/bert/f32`.

Its expected embeddings are those of that folder: mean pooling is what the metadata asks for.
"""

import gguf
import numpy as np

import encoder
import folder
import gguf_models
import gguf_names

MEAN = 1
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def add_keys(writer, config):
    for key, value in gguf_models.common_keys(config).items():
        gguf_models.add_key(writer, f"bert.{key}", value)
    writer.add_causal_attention(False)
    writer.add_pooling_type(gguf.PoolingType(MEAN))


def add_vocabulary(writer, config):
    """A WordPiece vocabulary in llama.cpp's form, where a leading mark stands for the start of a word."""
    size = config["vocab_size"]
    writer.add_token_type_count(config["type_vocab_size"])
    writer.add_tokenizer_model("bert")
    writer.add_tokenizer_pre("default")
    writer.add_token_list((SPECIAL + [f"\u2581w{index}" for index in range(size)])[:size])
    writer.add_token_types([3] * len(SPECIAL) + [1] * (size - len(SPECIAL)))
    writer.add_unk_token_id(1)
    writer.add_bos_token_id(2)
    writer.add_sep_token_id(3)
    writer.add_pad_token_id(0)


def make(_name):
    source = folder.ROOT / encoder.BERT.name / "f32"
    config = folder.read_config(source)
    gguf_models.ROOT.mkdir(parents=True, exist_ok=True)
    writer = gguf.GGUFWriter(gguf_models.ROOT / "bert.gguf", "bert")
    writer.add_name("tiny")
    writer.add_file_type(0)
    add_keys(writer, config)
    add_vocabulary(writer, config)
    for name, tensor in folder.read_tensors(source).items():
        if not name.startswith("pooler."):
            target = gguf_names.rename(name, gguf_names.BERT_BLOCK, gguf_names.BERT_TOP)
            writer.add_tensor(target, np.ascontiguousarray(tensor.numpy()))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    print("gguf bert: done", flush=True)
