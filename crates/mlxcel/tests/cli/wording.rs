//! Representative errors and tables, word for word. What they mean is other tests' business.

use crate::snapshot::{check, transcript};
use crate::support::{ModelCopy, fixture, fixture_argument};

/// Transcripts, with what stands for the places that differ between machines.
fn transcripts(cases: &[&[&str]], places: &[(&str, &str)]) -> String {
    let fixtures = fixture("");
    let fixtures = fixtures.to_str().expect("UTF-8").trim_end_matches('/');
    let places = [&[(fixtures, "FIXTURES")], places].concat();
    cases.iter().map(|arguments| transcript(arguments, &places)).collect::<Vec<_>>().join("\n")
}

#[test]
fn errors_about_arguments_are_as_pinned() {
    let cases: &[&[&str]] = &[
        &["dance"],
        &["generat", "-p", "Hi"],
        &["generate"],
        &["generate", "-p", "Hi", "--temp", "hot"],
        &["generate", "-p", "Hi", "--top-k", "-1"],
        &["generate", "-p", "Hi", "--prompt-file", "x"],
        &["generate", "-p", "Hi", "--engine", "abacus"],
        &["generate", "-p", "Hi", "--prompt-tokens", "1,x"],
        &["inspect"],
        &["inspect", "x", "--graph", "--plan"],
        &["embed", "a", "--file", "b"],
        &["embed", "a", "--json", "--jsonl"],
        &["embed", "a", "--dimensions", "0"],
        &["embed", "a", "--pooling", "max"],
        &["completions", "tcsh"],
        &["devices", "--colour", "never"],
    ];
    check("errors/arguments", &transcripts(cases, &[]));
}

#[test]
fn errors_about_models_and_texts_are_as_pinned() {
    let llama = fixture_argument("golden/llama/f32");
    let bert = fixture_argument("golden/bert/f32");
    let broken = ModelCopy::llama();
    broken.configure("model_type", "mystery".into());
    let empty = tempfile::tempdir().expect("a temporary folder");
    let empty = empty.path().to_str().expect("UTF-8");
    let cases: &[&[&str]] = &[
        &["inspect", "no/such/model"],
        &["inspect", empty],
        &["inspect", broken.argument()],
        &["inspect", &llama, "--ctx-size", "1000"],
        &["generate", "-m", &bert, "--prompt-tokens", "1"],
        &["generate", "-m", &llama, "-p", "Hi"],
        &["generate", "-m", &llama, "--prompt-tokens", "999"],
        &["generate", "-m", &llama, "--prompt-tokens", "1", "--device", "cuda"],
        &["generate", "-m", &llama, "--prompt-file", "no/such/file"],
        &["embed", "-m", &bert, "a"],
        &["embed", "-m", &llama, "a"],
        &["embed", "-m", &bert, "--file", "no/such/file"],
        &["manual", "--out", &format!("{llama}/config.json")],
    ];
    check("errors/models", &transcripts(cases, &[(broken.argument(), "BROKEN"), (empty, "EMPTY")]));
}

/// Numbers about memory and their units are the machine's and the engine's own, and not wording.
fn without_memory(text: &str) -> String {
    let line = |line: &str| match (line.split_once("yes: "), line.starts_with("memory ")) {
        (Some((start, _)), _) => format!("{start}yes: …\n"),
        (None, true) => line.split_inclusive(' ').map(without_number).collect::<String>() + "\n",
        (None, false) => format!("{line}\n"),
    };
    text.lines().map(line).collect()
}

fn without_number(word: &str) -> String {
    let unit = word.trim_end_matches([' ', ',']);
    if word.starts_with(|c: char| c.is_ascii_digit()) {
        "… ".to_string()
    } else if ["kB", "MB", "GB"].contains(&unit) {
        word.replace(unit, "B")
    } else {
        word.to_string()
    }
}

#[test]
fn tables_are_as_pinned() {
    let models = [
        "golden/llama/f32",
        "golden/llama/q4",
        "golden/mamba/f32",
        "golden/bert/f32",
        "gguf/llama-quant.gguf",
    ];
    let models = models.map(fixture_argument);
    let cases: Vec<[&str; 2]> = models.iter().map(|model| ["inspect", model.as_str()]).collect();
    let cases: Vec<&[&str]> = cases.iter().map(|case| &case[..]).collect();
    check("tables/inspect", &without_memory(&transcripts(&cases, &[])));
    let plan = fixture_argument("golden/qwen3/f32");
    check("tables/plan", &transcripts(&[&["inspect", &plan, "--plan"]], &[]));
}
