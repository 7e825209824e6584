//! What `convert` writes, read by llama.cpp itself, if `MLXCEL_TEST_XLLAMACPP` says where its Python package lies;
//! `cargo xtask test` fetches it and says so. `llama_cpp.py` asks it for tokens.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

use crate::convert::{MADE, as_judged};
use crate::real_models::model;
use crate::support::{comma_separated, finished, fixture, ids, read_json, run_json};

const COUNT: usize = 24;

/// How much likelier our token may be than the one that llama.cpp prefers, as a difference of logarithms. Files with
/// quantised weights need it: llama.cpp rounds activations to 8 bits before it multiplies them, we do not.
const MARGIN: f64 = 0.3;

/// How many of [`COUNT`] tokens may be such close calls.
const CLOSE_CALLS: usize = 3;

/// "The first thing to know about rivers is that", in the tokens of SmolLM2.
const PROMPT: &[u32] = &[504, 808, 2775, 288, 699, 563, 7626, 314, 338];

/// llama.cpp, as a package of Python.
struct LlamaCpp {
    package: PathBuf,
}

impl LlamaCpp {
    fn find() -> Option<LlamaCpp> {
        Some(LlamaCpp { package: model("MLXCEL_TEST_XLLAMACPP")?.into() })
    }

    /// Its greedy tokens after `prompt`.
    fn tokens(&self, file: &Path, prompt: &[u32]) -> Vec<u32> {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cli/llama_cpp.py");
        let mut python = Command::new("python3");
        python.arg(script).arg(file).args([comma_separated(prompt), COUNT.to_string()]);
        python.env("PYTHONPATH", self.package.parent().expect("a package lies in a folder"));
        python.env("PYTHONDONTWRITEBYTECODE", "1");
        let output = python.output().unwrap_or_else(|e| {
            panic!(
                "python3 cannot be run ({e}): install Python 3.10 or later, which llama.cpp is asked through"
            )
        });
        let done = finished(output);
        assert_eq!(done.code, Some(0), "llama.cpp on {}: {}", file.display(), done.stderr);
        serde_json::from_str(&done.stdout).unwrap_or_else(|e| panic!("{e}: {} {}", done.stdout, done.stderr))
    }
}

fn text(path: &Path) -> &str {
    path.to_str().expect("temporary paths are UTF-8")
}

fn convert(model: &str, out: &Path, kind: &str) {
    run_json(&["convert", "-m", model, "-o", text(out), "--type", kind]);
}

/// Our greedy tokens after `prompt`, and for each the chances of the likeliest ones.
fn ours(file: &Path, prompt: &[u32], count: usize) -> (Vec<u32>, Vec<Vec<(u32, f64)>>) {
    let (prompt, count) = (comma_separated(prompt), count.to_string());
    let flags = [
        "--prompt-tokens",
        &prompt,
        "-n",
        &count,
        "--temp",
        "0",
        "--dtype",
        "f32",
        "--products",
        "exact",
        "--top-logprobs",
        "8",
    ];
    let got = run_json(&[&["generate", "-m", text(file)], &flags[..]].concat());
    let chance = |entry: &serde_json::Value| {
        let id = entry["token"].as_u64().expect("a token").try_into().expect("an id");
        (id, entry["logprob"].as_f64().expect("a number"))
    };
    let steps = got["logprobs"].as_array().expect("asked for").iter();
    let likeliest =
        |step: &serde_json::Value| step["top"].as_array().expect("asked for").iter().map(chance).collect();
    (ids(&got["tokens"]), steps.map(likeliest).collect())
}

/// At how many places our choice is another than that of llama.cpp, which must be close calls. After each we go on as
/// llama.cpp did.
fn close_calls(file: &Path, prompt: &[u32], theirs: &[u32]) -> usize {
    let (mut at, mut found) = (0, 0);
    while at < theirs.len() {
        let seen = [prompt, &theirs[..at]].concat();
        let (tokens, chances) = ours(file, &seen, theirs.len() - at);
        let Some(same) = tokens.iter().zip(&theirs[at..]).position(|(a, b)| a != b) else { break };
        let wanted = theirs[at + same];
        let best = chances[same][0].1;
        let chance = chances[same].iter().find(|(id, _)| *id == wanted);
        let behind = chance.map_or(f64::INFINITY, |(_, chance)| best - chance);
        let what = format!("token {}: {wanted} of llama.cpp", at + same);
        assert!(behind < MARGIN, "{what} is less likely than {} by {behind}", tokens[same]);
        println!("{what} is {behind:.3} behind {}", tokens[same]);
        at += same + 1;
        found += 1;
    }
    found
}

#[test]
fn llama_cpp_reads_what_we_convert_and_chooses_the_same_tokens() {
    check_converted(&[("f16", 0), ("bf16", 0), ("q8_0", CLOSE_CALLS), ("q6_k", CLOSE_CALLS)]);
}

#[test]
fn llama_cpp_reads_what_we_convert_to_four_bits_and_chooses_the_same_tokens() {
    check_converted(&[("q4_0", CLOSE_CALLS), ("q4_1", CLOSE_CALLS), ("q4_k", CLOSE_CALLS)]);
}

/// Types, and how many tokens of each may be others.
fn check_converted(kinds: &[(&str, usize)]) {
    let (Some(llama_cpp), Some(model)) = (LlamaCpp::find(), model("MLXCEL_TEST_SMOLLM2")) else { return };
    let out = TempDir::new().expect("a temporary folder");
    let folder = out.path().join("folder");
    convert(&model, &folder, "f16");
    for &(kind, allowed) in kinds {
        let file = out.path().join("converted.gguf");
        convert(text(&folder), &file, kind);
        let theirs = llama_cpp.tokens(&file, PROMPT);
        assert_eq!(theirs.len(), COUNT, "{kind}: the prompt is one that goes on");
        println!("{kind}");
        let found = close_calls(&file, PROMPT, &theirs);
        assert!(found <= allowed, "{kind}: {found} of {COUNT} tokens are others than those of llama.cpp");
        // Without its rounding of activations, llama.cpp has no other choice than ours.
        let exact = out.path().join("exact.gguf");
        convert(text(&file), &exact, "f32");
        let (tokens, _) = ours(&file, PROMPT, COUNT);
        assert_eq!(llama_cpp.tokens(&exact, PROMPT), tokens, "{kind}: the same weights in f32");
        for file in [file, exact] {
            fs::remove_file(&file).expect("it was written");
        }
    }
}

/// llama.cpp chooses the factors of long contexts by how much room it was given, transformers by how much there is.
const CHOSEN_OTHERWISE: &str = "phi3-longrope";

#[test]
fn llama_cpp_gives_the_tokens_of_transformers_on_every_family_we_convert() {
    let Some(llama_cpp) = LlamaCpp::find() else { return };
    for made in MADE.iter().filter(|made| made.0 != CHOSEN_OTHERWISE) {
        let folder = as_judged(*made);
        let file = folder.path().join("converted.gguf");
        convert(text(folder.path()), &file, "f32");
        let golden = read_json(&fixture(&format!("gguf/{}.json", made.0)));
        let case = &golden["cases"][0];
        let tokens = llama_cpp.tokens(&file, &ids(&case["prompt"]));
        assert_eq!(tokens, ids(&case["tokens"])[..COUNT], "{}, {}", made.0, case["name"]);
    }
}
