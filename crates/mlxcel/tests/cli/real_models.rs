//! The default model, if `MLXCEL_TEST_SMOLLM2` says where it lies; `cargo xtask test` fetches it and says so.

use std::io::Read as _;
use std::process::Stdio;

use crate::support::{finished, fixture, ids, mlxcel, read_json, run, run_json};

/// The model's path; without it a test has nothing to show and says so.
pub fn model(variable: &str) -> Option<String> {
    let path = std::env::var(variable).ok();
    if path.is_none() {
        println!("not run, since {variable} is not set: `cargo xtask test` sets it");
    }
    path
}

#[test]
fn smollm2_goes_on_as_llama_cpp_does_on_the_same_weights_in_f32() {
    let Some(model) = model("MLXCEL_TEST_SMOLLM2") else { return };
    let oracle = read_json(&fixture("smollm2/oracle.json"));
    let cases = oracle["cases"].as_array().expect("cases");
    assert_eq!(cases.len(), 10);
    for case in cases {
        let text = |name: &str| case[name].as_str().expect(name);
        let mut flags = vec![
            "generate",
            "-m",
            &model,
            "--temp",
            "0",
            "-n",
            "64",
            "--dtype",
            "f32",
            "--products",
            "exact",
        ];
        flags.extend(["-p", text("prompt")]);
        if case["chat"] == false {
            flags.push("--no-chat-template");
        }
        if let Some(system) = case["system"].as_str() {
            flags.extend(["--system", system]);
        }
        let got = run_json(&flags);
        assert_eq!(ids(&got["prompt_tokens"]), ids(&case["prompt_tokens"]), "{}", text("name"));
        assert_eq!(ids(&got["tokens"]), ids(&case["tokens"]), "{}", text("name"));
        assert_eq!(got["text"], case["text"], "{}", text("name"));
    }
}

#[test]
fn a_chat_with_smollm2_streams_and_ends() {
    let Some(model) = model("MLXCEL_TEST_SMOLLM2") else { return };
    let flags = ["generate", "-m", &model, "--temp", "0", "-n", "-1"];
    let prompt = ["-p", "Explain what a compiler does, in two sentences."];
    let mut command = mlxcel(&[&flags[..], &prompt].concat());
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("runs");
    let mut stdout = child.stdout.take().expect("piped");
    let mut first = [0; 1];
    stdout.read_exact(&mut first).expect("text comes");
    assert!(child.try_wait().expect("the child is ours").is_none(), "text comes before the end");
    let mut rest = String::new();
    stdout.read_to_string(&mut rest).expect("text is UTF-8");
    let done = finished(child.wait_with_output().expect("ends"));
    assert_eq!(done.code, Some(0), "{}", done.stderr);
    let answer = format!("{}{rest}", char::from(first[0]));
    assert!(answer.contains("compiler") && answer.ends_with(".\n"), "{answer}");
    assert!(!answer.contains("<|"), "no control token is shown: {answer}");
}

#[test]
fn smollm2_is_inspected_without_reading_its_weights() {
    let Some(model) = model("MLXCEL_TEST_SMOLLM2") else { return };
    let got = run_json(&["inspect", &model]);
    assert_eq!((&got["family"], &got["layers"]), (&"llama".into(), &30.into()));
    assert_eq!(got["parameters"], 134_515_008);
    let plan = run(&["inspect", &model, "--plan"]);
    assert_eq!(plan.code, Some(0), "{}", plan.stderr);
}

/// The opening chapter of a novel of 1813.
const TEXT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/texts/pride-and-prejudice.txt");

#[test]
fn fast_products_foretell_a_text_as_well_as_exact_ones() {
    let Some(model) = model("MLXCEL_TEST_SMOLLM2") else { return };
    let perplexity = |products: &str| -> f64 {
        let flags = ["perplexity", "-m", &model, "--file", TEXT, "--chunk", "256"];
        let got = run_json(&[&flags[..], &["--products", products]].concat());
        assert_eq!(got["tokens"], 4 * 127, "the second halves of four chunks");
        got["perplexity"].as_f64().expect("a number")
    };
    let (exact, fast) = (perplexity("exact"), perplexity("fast"));
    assert!((fast / exact - 1.0).abs() < 0.005, "exact {exact}, fast {fast}");
}
