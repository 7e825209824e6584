//! Drawing tokens: seeds, penalties, and the limits of the flags.

use mlxcel_weights::Checkpoint;
use serde_json::Value;

use crate::support::{comma_separated, fixture, fixture_argument, ids, read_json, run, run_json};

fn generate(flags: &[&str]) -> Value {
    let model = fixture_argument("golden/llama/f32");
    run_json(&[&["generate", "-m", &model, "--ignore-eos", "-n", "32"], flags].concat())
}

#[test]
fn a_seed_makes_draws_reproducible() {
    let draw =
        |seed: &str| ids(&generate(&["--prompt-tokens", "9", "--temp", "1.5", "--seed", seed])["tokens"]);
    assert_eq!(draw("7"), draw("7"));
    assert_ne!(draw("7"), draw("8"));
}

#[test]
fn without_a_seed_another_one_is_taken_and_told() {
    let hot = ["--prompt-tokens", "9", "--temp", "2", "--top-k", "0"];
    let (first, second) = (generate(&hot), generate(&hot));
    assert_ne!(first["seed"], second["seed"]);
    let again = generate(&[&hot[..], &["--seed", &first["seed"].to_string()]].concat());
    assert_eq!(again["tokens"], first["tokens"]);
}

#[test]
fn the_host_draws_what_the_engine_draws() {
    let flags = ["--prompt-tokens", "9", "--temp", "1.2", "--top-k", "50", "--top-p", "0.9", "--seed", "3"];
    let on_engine = generate(&flags);
    // Logits are needed on the host for probabilities, so the token is drawn there too.
    let on_host = generate(&[&flags[..], &["--top-logprobs", "0"]].concat());
    assert_eq!(on_engine["tokens"], on_host["tokens"]);
    assert_eq!(on_host["logprobs"][0]["top"], serde_json::json!([]));
}

/// The likeliest token when logits of seen tokens are divided by five if positive and multiplied if negative.
fn likeliest_penalised(logits: &[f32], seen: &[u32]) -> u32 {
    let penalised = (0u32..).zip(logits).map(|(id, &l)| match seen.contains(&id) {
        false => (id, l),
        true => (id, if l > 0.0 { l / 5.0 } else { l * 5.0 }),
    });
    penalised.max_by(|a, b| a.1.total_cmp(&b.1)).expect("a vocabulary").0
}

#[test]
fn the_repetition_penalty_makes_seen_tokens_less_likely() {
    let golden = read_json(&fixture("golden/llama/f32/golden.json"));
    let expected = Checkpoint::open(fixture("golden/llama/f32/logits.safetensors")).expect("golden logits");
    let mut changed = 0;
    for case in golden["cases"].as_array().expect("cases") {
        let rows = expected.tensor(case["name"].as_str().expect("a name")).expect("logits of the case");
        let tokens = ids(&case["tokens"]);
        for (n, logits) in rows.to_f32().chunks(rows.shape[1]).enumerate().step_by(7) {
            // Token n of the answer follows the prompt and the tokens before it.
            let seen = [ids(&case["prompt"]), tokens[..n].to_vec()].concat();
            let flags = ["--temp", "0", "--repetition-penalty", "5", "--prompt-tokens"];
            let got = generate(&[&flags[..], &[&comma_separated(&seen)]].concat());
            let expected = likeliest_penalised(logits, &seen);
            assert_eq!(ids(&got["tokens"])[0], expected, "{}, token {n}", case["name"]);
            changed += usize::from(expected != tokens[n]);
        }
    }
    assert!(changed > 0, "the penalty changes some choice");
}

#[test]
fn impossible_numbers_are_refused_with_what_is_allowed() {
    let refused = [
        (["--temp", "nan"], "from 0 to 100"),
        (["--temp", "inf"], "from 0 to 100"),
        (["--temp", "-1"], "from 0 to 100"),
        (["--top-p", "1.5"], "from 0 to 1"),
        (["--top-p", "NaN"], "from 0 to 1"),
        (["--min-p", "-0.5"], "from 0 to 1"),
        (["--repetition-penalty", "0"], "from 0.01 to 100"),
        (["--top-k", "-1"], "0..=2147483647"),
        (["--top-k", "4294967295"], "0..=2147483647"),
        (["--seed", "4294967296"], "0..=4294967295"),
        (["-n", "-2"], "-1..=2147483647"),
        (["-n", "1.5"], "invalid digit"),
        (["--threads", "0"], "1..=1024"),
        (["--prompt-tokens", "1,x"], "'x' is not a token id"),
        (["--prompt-tokens", ""], "at least one"),
    ];
    for ([flag, value], allowed) in refused {
        let argument = format!("{flag}={value}");
        let prompt: &[&str] = if flag == "--prompt-tokens" { &[] } else { &["--prompt-tokens", "1"] };
        // A short flag takes its value as the next argument.
        let flags: &[&str] = if flag == "-n" { &[flag, value] } else { &[&argument] };
        let done = run(&[&["generate", "-m", "nowhere"], prompt, flags].concat());
        assert_eq!(done.code, Some(2), "{argument}: {}", done.stderr);
        assert!(done.stderr.contains(allowed), "{argument}: {}", done.stderr);
        assert_eq!(done.stdout, "");
    }
}
