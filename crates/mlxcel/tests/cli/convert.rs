//! `mlxcel convert`, against files that other programs made of the same weights and against what transformers computed
//! with them.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use mlxcel_ir::DType;
use mlxcel_models::export::StoredRows;
use mlxcel_weights::write::{NewTensor, write_safetensors};
use mlxcel_weights::{Checkpoint, GgufMetadata, GgufValue};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::{ModelCopy, comma_separated, fixture, fixture_argument, ids, read_json, run, run_json};

fn text(path: &Path) -> &str {
    path.to_str().expect("temporary paths are UTF-8")
}

/// Converts, and gives what the command reports.
fn convert(model: &str, out: &Path, flags: &[&str]) -> Value {
    run_json(&[&["convert", "-m", model, "-o", text(out)], flags].concat())
}

fn open(path: &Path) -> Checkpoint {
    Checkpoint::open(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// The greedy tokens of every case of a golden are those of transformers.
fn check_tokens(model: &Path, golden: &Value) {
    for case in golden["cases"].as_array().expect("a golden has cases") {
        let prompt = comma_separated(&ids(&case["prompt"]));
        let flags = [
            "-n",
            "48",
            "--temp",
            "0",
            "--ignore-eos",
            "--dtype",
            "f32",
            "--products",
            "exact",
            "--prompt-tokens",
            &prompt,
        ];
        let got = run_json(&[&["generate", "-m", text(model)], &flags[..]].concat());
        assert_eq!(got["tokens"], case["tokens"], "{}, {}", model.display(), case["name"]);
    }
}

/// A fixture in GGUF, the weights it was made of, and the endings of tensors that its configuration leaves out.
pub type Made<'a> = (&'a str, &'a str, &'a [&'a str]);

const PROJECTIONS: &[&str] = &["_proj.bias"];

/// From `xtask/golden/gguf_files.py`; `qwen3moe` has weights of its own.
pub const MADE: &[Made<'static>] = &[
    ("llama", "llama/f32", &[]),
    ("qwen2", "qwen2/f32", &[]),
    ("qwen3", "qwen3/f32", PROJECTIONS),
    ("gemma2", "gemma2/f32", &[]),
    ("gemma3", "gemma3_text/f32", &[]),
    ("phi3", "phi3/f32", &[]),
    ("phi3-longrope", "phi3/rope-longrope", &[]),
    ("gpt2", "gpt2/f32", &[]),
    ("gptneox", "gpt_neox/f32", &[]),
    ("gpt-oss", "gpt_oss/f32", &[]),
    ("mixtral", "mixtral/f32", &[]),
    ("olmo2", "olmo2/f32", &["bias"]),
    ("granite", "granite/f32", &[]),
    ("smollm3", "smollm3/f32", PROJECTIONS),
    ("starcoder2", "starcoder2/f32", &[]),
    ("stablelm", "stablelm/f32", &[]),
    ("command-r", "cohere/f32", &["bias", "q_norm.weight", "k_norm.weight"]),
    ("deepseek2", "deepseek_v3/f32", &["_proj.bias", "_mqa.bias"]),
    ("mamba", "mamba/f32", &["in_proj.bias", "out_proj.bias"]),
    ("llama-linear", "llama/rope-linear", &[]),
    ("llama-yarn", "llama/rope-yarn", &[]),
    ("llama-llama3", "llama/rope-llama3", &[]),
];

/// The golden weights with the configuration that the GGUF fixture was made with.
pub fn as_judged((name, weights, dropped): Made<'_>) -> TempDir {
    let folder = TempDir::new().expect("a temporary folder");
    let golden = read_json(&fixture(&format!("gguf/{name}.json")));
    fs::write(folder.path().join("config.json"), golden["config"].to_string()).expect("writable");
    let source = open(&fixture(&format!("golden/{weights}")));
    let kept = source.names().filter(|n| !dropped.iter().any(|ending| n.ends_with(ending)));
    let copy = |name: &str| {
        let tensor = source.tensor(name).expect("listed");
        let (dtype, shape) = (tensor.dtype, tensor.shape.clone());
        NewTensor { name: name.to_string(), dtype, shape, rows: Box::new(StoredRows(tensor)) }
    };
    let tensors: Vec<NewTensor> = kept.map(copy).collect();
    let mut file = File::create(folder.path().join("model.safetensors")).expect("writable");
    write_safetensors(&mut file, &tensors, &mut ()).expect("a sound checkpoint");
    folder
}

/// What the fixtures have besides: names chosen for them, and a key that only older converters write.
fn is_free(key: &str) -> bool {
    key.starts_with("tokenizer.") || key == "general.name" || key == "mamba.attention.layer_norm_epsilon"
}

fn check_metadata(name: &str, ours: &GgufMetadata, theirs: &GgufMetadata) {
    for (key, value) in theirs.iter().filter(|(key, _)| !is_free(key)) {
        let found = ours.get(key);
        let close = match (found, value) {
            (Some(GgufValue::F32(a)), GgufValue::F32(b)) => (a - b).abs() <= 1e-6 * b.abs(),
            (found, value) => found == Some(value),
        };
        assert!(close, "{name}: {key} is {found:?}, expected {value:?}");
    }
}

#[test]
fn every_family_becomes_the_gguf_file_that_the_gguf_package_wrote() {
    for made in MADE {
        let name = made.0;
        let folder = as_judged(*made);
        let out = folder.path().join("out.gguf");
        convert(text(folder.path()), &out, &["--type", "f32"]);
        let (ours, theirs) = (open(&out), open(&fixture(&format!("gguf/{name}.gguf"))));
        check_metadata(name, ours.metadata().expect("GGUF"), theirs.metadata().expect("GGUF"));
        assert_eq!(ours.names().collect::<Vec<_>>(), theirs.names().collect::<Vec<_>>(), "{name}");
        for tensor in theirs.names() {
            let (a, b) = (ours.tensor(tensor).expect("listed"), theirs.tensor(tensor).expect("listed"));
            assert_eq!((a.dtype, &a.shape), (b.dtype, &b.shape), "{name}: {tensor}");
            let (a, b) = (a.to_f32(), b.to_f32());
            let worst = a.iter().zip(&b).map(|(a, b)| (a - b).abs() / b.abs().max(1e-3)).fold(0.0, f32::max);
            assert!(worst <= 1e-6, "{name}: {tensor} is off by {worst:e}");
        }
    }
}

#[test]
fn converted_models_give_the_tokens_of_transformers() {
    let out = TempDir::new().expect("a temporary folder");
    for variant in ["llama/f32", "llama/q4", "llama/bf16", "mixtral/f32-fused", "mamba/f32", "gpt2/f32"] {
        let model = fixture_argument(&format!("golden/{variant}"));
        let golden = read_json(&fixture(&format!("golden/{variant}/golden.json")));
        let name = variant.replace('/', "-");
        if !variant.starts_with("mamba") {
            let file = out.path().join(format!("{name}.gguf"));
            convert(&model, &file, &["--type", "f32"]);
            check_tokens(&file, &golden);
        }
        let folder = out.path().join(&name);
        let report = convert(&model, &folder, &["--type", "f32", "--shard-size", "40KB"]);
        assert!(folder.join("model.safetensors.index.json").exists(), "{report}");
        check_tokens(&folder, &golden);
    }
}

#[test]
fn an_affine_folder_has_the_settings_of_mlx_and_weights_near_the_original() {
    let out = TempDir::new().expect("a temporary folder");
    let source = open(&fixture("golden/llama/f32"));
    for (kind, bits, step) in [("affine2", 2, 1.0), ("affine4", 4, 0.2), ("affine8", 8, 0.012)] {
        let folder = out.path().join(kind);
        convert(&fixture_argument("golden/llama/f32"), &folder, &["--type", kind, "--group-size", "32"]);
        let config = read_json(&folder.join("config.json"));
        assert_eq!(config["quantization"], json!({ "group_size": 32, "bits": bits, "mode": "affine" }));
        let ours = open(&folder);
        let mut quantised = 0;
        for name in source.names() {
            let (a, b) = (ours.tensor(name).expect("kept"), source.tensor(name).expect("listed"));
            quantised += usize::from(a.dtype.is_quant());
            let is_matrix = b.shape.len() == 2 && b.shape[1].is_multiple_of(32);
            assert_eq!(a.dtype.is_quant(), is_matrix, "{name}");
            let (a, b) = (a.to_f32(), b.to_f32());
            let largest = b.iter().fold(0f32, |m, v| m.max(v.abs()));
            let worst = a.iter().zip(&b).fold(0f32, |m, (a, b)| m.max((a - b).abs()));
            assert!(worst <= step * largest, "{kind} {name}: off by {worst} of {largest}");
        }
        assert!(quantised > 10);
        let got = run_json(&[
            "generate",
            "-m",
            text(&folder),
            "--prompt-tokens",
            "5,6,7",
            "-n",
            "4",
            "--ignore-eos",
        ]);
        assert_eq!(got["tokens"].as_array().map(Vec::len), Some(4));
    }
}

#[test]
fn a_type_that_rows_do_not_divide_into_is_replaced_and_said() {
    let out = TempDir::new().expect("a temporary folder");
    let report =
        convert(&fixture_argument("golden/llama/f32"), &out.path().join("q.gguf"), &["--type", "q4_k"]);
    let notes = report["notes"].to_string();
    assert!(notes.contains("do not divide into blocks of q4_k, written as q5_0"), "{notes}");
    assert!(report["tensors"]["q5_0"].as_u64().is_some(), "{report}");
}

/// One configuration of each family.
fn configurations() -> Vec<PathBuf> {
    let families = fs::read_dir(fixture("golden")).expect("fixtures are there");
    let folders = families.map(|f| f.expect("readable").path().join("f32/config.json"));
    let mut found: Vec<PathBuf> = folders.filter(|path| path.exists()).collect();
    found.sort();
    found
}

#[test]
fn random_weights_of_every_family_run_and_depend_on_the_seed_alone() {
    let out = TempDir::new().expect("a temporary folder");
    let all = configurations();
    assert!(all.len() > 20, "{} families", all.len());
    for config in all {
        let make = |name: &str, seed: &str| {
            let folder = out.path().join(name);
            run_json(&["convert", "--random", text(&config), "-o", text(&folder), "--seed", seed, "--force"]);
            folder
        };
        let [first, again, other] = [make("a", "1"), make("b", "1"), make("c", "2")];
        let bytes = |folder: &Path| fs::read(folder.join("model.safetensors")).expect("written");
        assert!(bytes(&first) == bytes(&again), "{}", config.display());
        assert!(bytes(&first) != bytes(&other), "{}", config.display());
        if config.components().any(|c| c.as_os_str() == "bert") {
            continue;
        }
        let flags =
            ["--prompt-tokens", "5,6,7", "-n", "3", "--ignore-eos", "--temp", "0", "--top-logprobs", "1"];
        let got = run_json(&[&["generate", "-m", text(&first)], &flags[..]].concat());
        let chances = got["logprobs"].as_array().expect("asked for").iter().map(|l| l["logprob"].as_f64());
        assert!(chances.flatten().filter(|l| l.is_finite()).count() == 3, "{}: {got}", config.display());
    }
}

#[test]
fn a_random_gguf_file_has_placeholder_tokens_and_says_so() {
    let out = TempDir::new().expect("a temporary folder");
    let file = out.path().join("r.gguf");
    let config = fixture_argument("golden/qwen2/f32/config.json");
    let flags = ["--group-size", "32"];
    let base = ["convert", "--random", &config, "-o", text(&file), "--type", "q8_0"];
    // A window that GGUF cannot express is in the way of this configuration.
    let done = run(&[&base[..], &flags].concat());
    assert_eq!(done.code, Some(1));
    assert!(done.stderr.contains("use_sliding_window"), "{}", done.stderr);
    let shape = out.path().join("config.json");
    let mut plain = read_json(Path::new(&config));
    plain["use_sliding_window"] = false.into();
    fs::write(&shape, plain.to_string()).expect("writable");
    let report = run_json(&["convert", "--random", text(&shape), "-o", text(&file), "--type", "q8_0"]);
    assert!(report["notes"].to_string().contains("placeholder tokens"), "{report}");
    let checkpoint = open(&file);
    let tokens = checkpoint.metadata().expect("GGUF").strings("tokenizer.ggml.tokens").expect("a list");
    let rows = checkpoint.info("token_embd.weight").expect("an embedding").1[0];
    assert_eq!(tokens.len(), rows, "as many tokens as embeddings");
    let (dtype, _) = checkpoint.info("blk.0.ffn_norm.weight").expect("a norm");
    assert_eq!(dtype, DType::F32);
}

fn refused(arguments: &[&str]) -> String {
    let done = run(&[&["convert"], arguments].concat());
    assert_eq!((done.code, done.stdout.as_str()), (Some(1), ""), "{arguments:?}");
    done.stderr
}

#[test]
fn what_is_there_is_replaced_only_when_asked_for() {
    let out = TempDir::new().expect("a temporary folder");
    let model = fixture_argument("golden/llama/f32");
    let (file, folder) = (out.path().join("x.gguf"), out.path().join("x"));
    for path in [&file, &folder] {
        convert(&model, path, &[]);
        assert!(refused(&["-m", &model, "-o", text(path)]).contains("exists already"));
        convert(&model, path, &["--force"]);
    }
    fs::create_dir(folder.join("photos")).expect("writable");
    assert!(refused(&["-m", &model, "-o", text(&folder), "--force"]).contains("holds more than a model"));
    assert!(folder.join("photos").exists() && folder.join("config.json").exists(), "nothing was touched");
    let left: Vec<_> = fs::read_dir(out.path()).expect("readable").collect();
    assert_eq!(left.len(), 2, "no temporary file is left: {left:?}");
}

#[test]
fn what_cannot_be_done_is_said_before_anything_is_written() {
    let out = TempDir::new().expect("a temporary folder");
    let (file, folder) = (out.path().join("x.gguf"), out.path().join("x"));
    let (file, folder) = (text(&file), text(&folder));
    let golden = |name: &str| fixture_argument(&format!("golden/{name}"));
    let copy = ModelCopy::llama();
    for (arguments, said) in [
        (vec!["-m", &golden("olmo/f32"), "-o", file], "'olmo' models cannot be converted from or to GGUF"),
        (vec!["-m", &golden("qwen3/f32"), "-o", file], "cannot say that 'attention_bias' is true"),
        (vec!["-m", &golden("llama/rope-dynamic"), "-o", file], "'rope_type' is dynamic"),
        (vec!["-m", &golden("llama/f32"), "-o", file, "--type", "affine4"], "GGUF files cannot hold affine4"),
        (
            vec!["-m", &golden("llama/f32"), "-o", folder, "--type", "q4_k"],
            "safetensors files cannot hold q4_k",
        ),
        (vec!["-m", copy.argument(), "-o", copy.argument()], "is what would be converted"),
        (vec!["-m", &golden("llama/f32"), "-o", "no/such/folder/x"], "does not exist"),
        (vec!["--random", "no-such.json", "-o", folder], "no-such.json cannot be read"),
    ] {
        let stderr = refused(&arguments);
        assert!(stderr.contains(said), "{arguments:?}: {stderr}");
    }
    assert_eq!(fs::read_dir(out.path()).expect("readable").count(), 0, "nothing was written");
}

#[test]
fn the_files_of_a_tokenizer_come_along() {
    let model = ModelCopy::with_chat();
    let out = TempDir::new().expect("a temporary folder");
    let folder = out.path().join("x");
    convert(model.argument(), &folder, &["--type", "bf16"]);
    for name in ["tokenizer.json", "tokenizer_config.json"] {
        let [old, new] = [model.path(), &folder].map(|f| fs::read(f.join(name)).expect("copied"));
        assert_eq!(old, new, "{name}");
    }
    assert_eq!(open(&folder).info("model.norm.weight").expect("kept").0, DType::BF16);
}

#[test]
fn a_gguf_file_becomes_a_folder_that_gives_the_tokens_of_transformers() {
    let out = TempDir::new().expect("a temporary folder");
    let others = ["qwen3moe", "llama-quant"];
    for name in MADE.iter().map(|made| made.0).chain(others).filter(|name| *name != "llama-llama3") {
        let folder = out.path().join(name);
        convert(&fixture_argument(&format!("gguf/{name}.gguf")), &folder, &["--type", "f32"]);
        check_tokens(&folder, &read_json(&fixture(&format!("gguf/{name}.json"))));
    }
    let folder = out.path().join("again");
    let stderr = refused(&["-m", &fixture_argument("gguf/llama-llama3.gguf"), "-o", text(&folder)]);
    assert!(stderr.contains("rope_freqs.weight"), "{stderr}");
}

#[test]
fn a_pooling_that_a_gguf_file_would_lose_is_refused() {
    let folder = TempDir::new().unwrap();
    for name in ["config.json", "model.safetensors"] {
        std::fs::copy(fixture("golden/bert/f32").join(name), folder.path().join(name)).unwrap();
    }
    std::fs::create_dir(folder.path().join("1_Pooling")).unwrap();
    let settings = folder.path().join("1_Pooling/config.json");
    std::fs::write(&settings, r#"{ "pooling_mode_cls_token": true }"#).unwrap();
    let (from, to) = (folder.path().to_str().unwrap(), folder.path().join("x.gguf"));
    let done = run(&["convert", "-m", from, "-o", to.to_str().unwrap()]);
    assert_eq!(done.code, Some(1), "{}", done.stderr);
    assert!(done.stderr.contains("another pooling than the mean"), "{}", done.stderr);
    assert!(!to.exists());
}
