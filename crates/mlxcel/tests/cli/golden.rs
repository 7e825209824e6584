//! Every decoder of the golden fixtures through the binary, against what transformers computed.

use std::path::{Path, PathBuf};

use mlxcel_weights::Checkpoint;
use serde_json::Value;

use crate::support::{ModelCopy, comma_separated, fixture, fixture_argument, ids, read_json, run_json};

const FLAGS: [&str; 10] =
    ["-n", "48", "--temp", "0", "--ignore-eos", "--dtype", "f32", "--products", "exact", "--prompt-tokens"];

/// Folders of fixtures that hold a decoder's weights.
fn decoders() -> Vec<PathBuf> {
    let list = |folder: &Path| -> Vec<PathBuf> {
        let entries = std::fs::read_dir(folder).expect("fixtures are there");
        entries.map(|entry| entry.expect("a readable entry").path()).filter(|path| path.is_dir()).collect()
    };
    let families = list(&fixture("golden")).into_iter().filter(|family| !family.ends_with("bert"));
    let mut folders: Vec<PathBuf> = families.flat_map(|family| list(&family)).collect();
    folders.retain(|folder| folder.join("model.safetensors").exists());
    folders.sort();
    folders
}

fn cases(golden: &Value) -> &Vec<Value> {
    golden["cases"].as_array().expect("a golden has cases")
}

#[test]
fn greedy_tokens_of_every_decoder_equal_those_of_transformers() {
    let folders = decoders();
    assert!(folders.len() > 60, "{} fixtures", folders.len());
    for folder in folders {
        let model = folder.to_str().expect("the workspace's path is UTF-8");
        for case in cases(&read_json(&folder.join("golden.json"))) {
            let prompt = comma_separated(&ids(&case["prompt"]));
            let got = run_json(&[&["generate", "-m", model], &FLAGS[..], &[&prompt]].concat());
            let what = format!("{model}, {}", case["name"]);
            assert_eq!(got["tokens"], case["tokens"], "{what}");
            assert_eq!(got["prompt_tokens"], case["prompt"], "{what}");
            assert_eq!(got["finish_reason"], "length", "{what}");
            assert_eq!(got["text"], Value::Null, "{what}");
        }
    }
}

#[test]
fn a_gguf_file_gives_the_tokens_of_transformers() {
    for name in ["llama", "llama-quant", "qwen3moe", "mamba"] {
        let file = fixture_argument(&format!("gguf/{name}.gguf"));
        for case in cases(&read_json(&fixture(&format!("gguf/{name}.json")))) {
            let prompt = comma_separated(&ids(&case["prompt"]));
            let got = run_json(&[&["generate", "-m", &file], &FLAGS[..], &[&prompt]].concat());
            assert_eq!(got["tokens"], case["tokens"], "{name}, {}", case["name"]);
        }
    }
}

#[test]
fn the_reference_engine_gives_the_same_tokens() {
    let folder = fixture("golden/llama/f32");
    let golden = read_json(&folder.join("golden.json"));
    let case = &cases(&golden)[0];
    let prompt = comma_separated(&ids(&case["prompt"]));
    let model = fixture_argument("golden/llama/f32");
    let got =
        run_json(&[&["generate", "-m", &model, "--engine", "reference"], &FLAGS[..], &[&prompt]].concat());
    assert_eq!(got["tokens"], case["tokens"]);
    assert_eq!(got["engine"], "reference");
}

/// The logarithms of the softmax.
fn log_softmax(logits: &[f32]) -> Vec<f64> {
    let top = logits.iter().fold(f64::MIN, |m, &l| m.max(l.into()));
    let sum: f64 = logits.iter().map(|&l| (f64::from(l) - top).exp()).sum();
    logits.iter().map(|&l| f64::from(l) - top - sum.ln()).collect()
}

#[test]
fn reported_probabilities_are_those_of_the_golden_logits() {
    for family in ["llama", "gemma2", "mamba", "gpt_oss", "deepseek_v3"] {
        let folder = fixture(&format!("golden/{family}/f32"));
        let expected =
            Checkpoint::open(folder.join("logits.safetensors")).expect("golden logits are readable");
        for case in cases(&read_json(&folder.join("golden.json"))) {
            let rows = expected.tensor(case["name"].as_str().expect("a name")).expect("logits of the case");
            let prompt = comma_separated(&ids(&case["prompt"]));
            let model = folder.to_str().expect("UTF-8");
            let flags = [&["generate", "-m", model, "--top-logprobs", "4"], &FLAGS[..], &[&prompt]].concat();
            let got = run_json(&flags);
            assert_eq!(got["tokens"], case["tokens"], "{family}");
            let entries = got["logprobs"].as_array().expect("logprobs were asked for");
            assert_eq!(entries.len(), 48);
            for (entry, row) in entries.iter().zip(rows.to_f32().chunks(rows.shape[1])) {
                check_entry(entry, &log_softmax(row));
            }
        }
    }
}

fn check_entry(entry: &Value, expected: &[f64]) {
    let close = |reported: &Value| {
        let token = reported["token"].as_u64().expect("an id") as usize;
        let logprob = reported["logprob"].as_f64().expect("a number");
        assert!((logprob - expected[token]).abs() < 1e-3, "{reported} but {}", expected[token]);
        logprob
    };
    close(entry);
    let top: Vec<f64> = entry["top"].as_array().expect("alternatives").iter().map(close).collect();
    assert_eq!(entry["top"][0]["token"], entry["token"], "at temperature 0 the likeliest is chosen");
    assert!(top.len() == 4 && top.is_sorted_by(|a, b| a >= b), "{top:?}");
    let better = expected.iter().filter(|&&l| l > top[3] + 1e-3).count();
    assert!(better <= 3, "the four likeliest are reported");
}

#[test]
fn an_open_end_goes_to_the_end_of_the_context() {
    let model = ModelCopy::llama();
    model.configure("max_position_embeddings", 40.into());
    let flags = ["generate", "-m", model.argument(), "--prompt-tokens", "5,6,7", "--ignore-eos", "-n"];
    for n in ["-1", "2000000000"] {
        let got = run_json(&[&flags[..], &[n]].concat());
        assert_eq!(got["tokens"].as_array().map(Vec::len), Some(37));
        assert_eq!(got["finish_reason"], "length");
    }
}

#[test]
fn a_prompt_of_several_chunks_goes_on_as_token_by_token() {
    let llama = ModelCopy::llama();
    llama.configure("max_position_embeddings", 2048.into());
    let mamba = fixture_argument("golden/mamba/f32");
    for model in [llama.argument(), &mamba] {
        let go_on = |prompt: &[u32], n: usize| {
            let (prompt, n) = (comma_separated(prompt), n.to_string());
            let flags = ["generate", "-m", model, "--temp", "0", "--ignore-eos", "-n", &n];
            ids(&run_json(&[&flags[..], &["--prompt-tokens", &prompt]].concat())["tokens"])
        };
        let prompt: Vec<u32> = (0..500).map(|i| (i * i + 7 * i) % 263).collect();
        let answer = go_on(&prompt, 600);
        for known in [20, 560] {
            let longer = [&prompt, &answer[..known]].concat();
            assert_eq!(
                go_on(&longer, 40),
                answer[known..known + 40],
                "{model} after {} tokens",
                longer.len()
            );
        }
    }
}

#[test]
fn a_token_that_ends_a_text_ends_the_answer() {
    let golden = read_json(&fixture("golden/llama/f32/golden.json"));
    let case = &cases(&golden)[0];
    let (prompt, tokens) = (comma_separated(&ids(&case["prompt"])), ids(&case["tokens"]));
    let model = ModelCopy::llama();
    model.configure("eos_token_id", serde_json::json!([261, tokens[4]]));
    let flags = ["generate", "-m", model.argument(), "--temp", "0", "-n", "48", "--prompt-tokens", &prompt];
    let got = run_json(&flags);
    assert_eq!(ids(&got["tokens"]), tokens[..5]);
    assert_eq!(got["finish_reason"], "stop");
    let got = run_json(&[&flags[..], &["--ignore-eos"]].concat());
    assert_eq!(ids(&got["tokens"]), tokens);
    assert_eq!(got["finish_reason"], "length");
}
