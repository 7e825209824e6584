//! stories15M, if `MLXCEL_TEST_STORIES15M` says where it lies: a checkpoint in llama2.c's format, brought to a
//! safetensors folder, against transformers in f32.
//!
//! The file is seven `i32` (dim, hidden_dim, n_layers, n_heads, n_kv_heads, vocab_size, seq_len), then f32 weights in a
//! fixed order, each kind for all layers together. A negative vocabulary says that the output layer is stored.

use std::fs;
use std::path::Path;

use serde_json::{Map, Value, json};
use tempfile::TempDir;

use crate::real_models::model;
use crate::support::{comma_separated, fixture, ids, read_json, run_json};

#[test]
fn stories15m_goes_on_as_in_transformers() {
    let Some(file) = model("MLXCEL_TEST_STORIES15M") else { return };
    let folder = TempDir::new().expect("a temporary folder can be made");
    convert(&fs::read(&file).expect("the file is readable"), folder.path());
    let oracle = read_json(&fixture("stories15m/oracle.json"));
    for case in oracle["cases"].as_array().expect("cases") {
        let prompt = comma_separated(&ids(&case["prompt_tokens"]));
        let model = folder.path().to_str().expect("UTF-8");
        let flags = ["generate", "-m", model, "--temp", "0", "-n", "64", "--dtype", "f32", "--ignore-eos"];
        let got = run_json(&[&flags[..], &["--prompt-tokens", &prompt]].concat());
        assert_eq!(ids(&got["tokens"]), ids(&case["tokens"]), "{}", case["name"]);
    }
}

/// Weights of one kind: the name within a layer, and the shape.
type Kind = (&'static str, [usize; 2]);

struct Sizes {
    dim: usize,
    hidden: usize,
    layers: usize,
    heads: usize,
    kv_heads: usize,
    vocabulary: usize,
    context: usize,
    is_tied: bool,
}

impl Sizes {
    fn read(header: &[u8]) -> Self {
        let numbers: Vec<i32> =
            header.chunks(4).map(|b| i32::from_le_bytes(b.try_into().expect("four"))).collect();
        let size = |i: usize| numbers[i].unsigned_abs() as usize;
        let [dim, hidden, layers, heads, kv_heads, vocabulary, context] = std::array::from_fn(size);
        Sizes { dim, hidden, layers, heads, kv_heads, vocabulary, context, is_tied: numbers[5] > 0 }
    }

    fn head(&self) -> usize {
        self.dim / self.heads
    }

    /// In the order of the file.
    fn kinds(&self) -> [Kind; 9] {
        let kv = self.kv_heads * self.head();
        [
            ("input_layernorm", [1, self.dim]),
            ("self_attn.q_proj", [self.dim, self.dim]),
            ("self_attn.k_proj", [kv, self.dim]),
            ("self_attn.v_proj", [kv, self.dim]),
            ("self_attn.o_proj", [self.dim, self.dim]),
            ("post_attention_layernorm", [1, self.dim]),
            ("mlp.gate_proj", [self.hidden, self.dim]),
            ("mlp.down_proj", [self.dim, self.hidden]),
            ("mlp.up_proj", [self.hidden, self.dim]),
        ]
    }

    fn config(&self) -> Value {
        json!({
            "model_type": "llama", "hidden_size": self.dim, "intermediate_size": self.hidden,
            "num_hidden_layers": self.layers, "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads, "vocab_size": self.vocabulary,
            "max_position_embeddings": self.context, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
            "tie_word_embeddings": self.is_tied, "hidden_act": "silu", "bos_token_id": 1, "eos_token_id": 2,
        })
    }
}

/// Writes `config.json` and `model.safetensors`.
fn convert(file: &[u8], folder: &Path) {
    let (header, mut rest) = file.split_at(28);
    let sizes = Sizes::read(header);
    let mut take = |elements: usize| {
        let (part, after) = rest.split_at(4 * elements);
        rest = after;
        part
    };
    let mut tensors = Safetensors::default();
    tensors.add(
        "model.embed_tokens.weight",
        &[sizes.vocabulary, sizes.dim],
        take(sizes.vocabulary * sizes.dim),
    );
    for (name, [rows, columns]) in sizes.kinds() {
        for layer in 0..sizes.layers {
            let part = take(rows * columns);
            let part = match name {
                "self_attn.q_proj" | "self_attn.k_proj" => halves(part, columns, sizes.head()),
                _ => part.to_vec(),
            };
            let shape: &[usize] = if rows == 1 { &[columns] } else { &[rows, columns] };
            tensors.add(&format!("model.layers.{layer}.{name}.weight"), shape, &part);
        }
    }
    tensors.add("model.norm.weight", &[sizes.dim], take(sizes.dim));
    // The sines and cosines of all positions, which everybody computes.
    take(sizes.context * sizes.head());
    if !sizes.is_tied {
        tensors.add("lm_head.weight", &[sizes.vocabulary, sizes.dim], take(sizes.vocabulary * sizes.dim));
    }
    assert!(rest.is_empty(), "{} bytes are left over", rest.len());
    tensors.write(&folder.join("model.safetensors"));
    fs::write(folder.join("config.json"), sizes.config().to_string()).expect("written");
}

/// Rows for a rotation of neighbours become rows for a rotation of halves: within a head, first the even ones.
fn halves(bytes: &[u8], columns: usize, head: usize) -> Vec<u8> {
    let rows: Vec<&[u8]> = bytes.chunks(4 * columns).collect();
    let of_head = |rows: &[&[u8]]| {
        [0, 1].map(|odd| rows.iter().skip(odd).step_by(2).copied().collect::<Vec<_>>().concat())
    };
    rows.chunks(head).flat_map(of_head).collect::<Vec<_>>().concat()
}

#[derive(Default)]
struct Safetensors {
    header: Map<String, Value>,
    data: Vec<u8>,
}

impl Safetensors {
    fn add(&mut self, name: &str, shape: &[usize], bytes: &[u8]) {
        let begin = self.data.len();
        self.data.extend_from_slice(bytes);
        let entry = json!({ "dtype": "F32", "shape": shape, "data_offsets": [begin, self.data.len()] });
        self.header.insert(name.to_string(), entry);
    }

    fn write(self, path: &Path) {
        let header = Value::from(self.header).to_string();
        let length = (header.len() as u64).to_le_bytes();
        fs::write(path, [&length[..], header.as_bytes(), &self.data].concat()).expect("written");
    }
}
