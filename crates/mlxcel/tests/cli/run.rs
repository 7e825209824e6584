//! `run` without a terminal: one question, one answer. Conversations are held in `terminal`.

use std::io::Write as _;
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use crate::streams::closed_pipe;
use crate::support::{
    Finished, ModelCopy, comma_separated, finished, fixture_argument, mlxcel, run, run_json,
};
use crate::text::{message, opening, spelled};

/// Greedy answers of a few tokens.
const FLAGS: [&str; 5] = ["--temp", "0", "-n", "24", "--ignore-eos"];

/// What is answered to `input` on standard input.
fn piped(arguments: &[&str], input: &[u8]) -> Finished {
    let mut command = mlxcel(arguments);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("the binary runs");
    // Who refuses the arguments does not read.
    let _ = child.stdin.take().expect("piped").write_all(input);
    finished(child.wait_with_output().expect("it ends"))
}

/// What `generate` makes of the same ids.
fn generated(model: &ModelCopy, prompt: &[u32]) -> String {
    let prompt = comma_separated(prompt);
    let flags = [&["generate", "-m", model.argument(), "--prompt-tokens", &prompt], &FLAGS[..]].concat();
    spelled(&run_json(&flags)["tokens"])
}

#[test]
fn a_prompt_is_answered_once_as_generate_answers_it() {
    let model = ModelCopy::with_chat();
    let expected = generated(&model, &[message("user", "Hé, 漢字 👋🏽?"), opening()].concat());
    let name = model.argument();
    let ways: [(&[&str], &str); 5] = [
        (&[name, "Hé, 漢字 👋🏽?"], ""),
        (&[name, "Hé,", "漢字", "👋🏽?"], ""),
        (&["-m", name, "Hé, 漢字", "👋🏽?"], ""),
        (&[name], "Hé, 漢字 👋🏽?\n"),
        (&["-m", name], "Hé, 漢字 👋🏽?"),
    ];
    for (words, input) in ways {
        let done = piped(&[&["run"], words, &FLAGS].concat(), input.as_bytes());
        assert_eq!(
            (done.code, done.stdout.trim_end_matches('\n')),
            (Some(0), expected.trim_end_matches('\n'))
        );
        assert!(done.stdout.ends_with('\n') && !done.stdout.contains(">>>"), "{}", done.stdout);
        assert!(done.stderr.starts_with("note: the answer is cut after 24 tokens"), "{}", done.stderr);
    }
}

#[test]
fn all_of_standard_input_is_one_message_after_the_prompt() {
    let model = ModelCopy::with_chat();
    let text = "Sum up:\n\none\n\n/help is no command here\n\"\"\" neither";
    let ids = [message("system", "Be kind."), message("user", text), opening()].concat();
    let flags = [&["run", model.argument(), "--system", "Be kind.", "Sum up:"], &FLAGS[..]].concat();
    let done = piped(&flags, b"one\n\n/help is no command here\n\"\"\" neither\n");
    assert_eq!(done.stdout.trim_end_matches('\n'), generated(&model, &ids).trim_end_matches('\n'));
}

#[test]
fn without_a_template_a_text_goes_on_and_that_is_said() {
    let model = ModelCopy::with_tokenizer();
    let expected = generated(&model, &crate::text::bytes("Once upon"));
    let done = run(&[&["run", model.argument(), "Once upon"], &FLAGS[..]].concat());
    assert_eq!(done.stdout.trim_end_matches('\n'), expected.trim_end_matches('\n'));
    assert!(done.stderr.starts_with("note: the model has no chat template"), "{}", done.stderr);
    let with_template = ModelCopy::with_chat();
    let flags = ["run", with_template.argument(), "Once upon", "--no-chat-template"];
    let done = run(&[&flags[..], &FLAGS].concat());
    assert_eq!(done.stdout.trim_end_matches('\n'), expected.trim_end_matches('\n'));
    assert!(!done.stderr.contains("template"), "{}", done.stderr);
}

fn refuses(done: &Finished, parts: &[&str]) {
    assert_eq!((done.code, done.stdout.as_str()), (Some(1), ""), "{}", done.stderr);
    assert_eq!(done.stderr.lines().count(), 1, "{}", done.stderr);
    for part in parts {
        assert!(done.stderr.contains(part), "'{part}' is not in: {}", done.stderr);
    }
}

#[test]
fn what_cannot_be_asked_is_refused_in_one_line() {
    let model = ModelCopy::with_chat();
    let name = model.argument();
    refuses(&piped(&["run", name], b""), &["the prompt is empty", "standard input"]);
    refuses(&piped(&["run", name], b"\xff\xfe"), &["standard input", "not UTF-8"]);
    refuses(&run(&["run", name, "Hi", "-c", "513"]), &["-c 513", "512 tokens", "smaller"]);
    let long = "x".repeat(600);
    let tokens = |text: &str| format!("{} tokens", message("user", text).len() + opening().len());
    refuses(&run(&["run", name, &long]), &[&tokens(&long), "room for 512", "shorten"]);
    refuses(
        &run(&["run", name, "Hi", "-c", "20"]),
        &[&tokens("Hi"), "room for 20", "larger -c", "up to 512"],
    );
    refuses(&run(&["run", name, "Hi", "--stop", ""]), &["stop string 0 is empty"]);
    let bare = fixture_argument("golden/llama/f32");
    refuses(&run(&["run", &bare, "Hi"]), &["no tokenizer", "--prompt-tokens"]);
    let base = ModelCopy::with_tokenizer();
    refuses(&run(&["run", base.argument(), "Hi", "--system", "x"]), &["no chat template", "--system"]);
    refuses(&run(&["run", "no/such/model", "Hi"]), &["no/such/model"]);
    assert_eq!(run(&["run", name, "-c", "1"]).code, Some(2));
    assert_eq!(run(&["run", name, "--temp", "NaN"]).code, Some(2));
}

#[test]
fn an_answer_that_fills_the_context_says_so_with_the_count() {
    let model = ModelCopy::with_chat();
    let done = run(&["run", model.argument(), "Hi", "-c", "40", "--ignore-eos"]);
    assert_eq!(done.code, Some(0));
    assert!(done.stderr.contains("the 40 tokens of the context are full"), "{}", done.stderr);
    assert!(done.stderr.contains("up to 512"), "{}", done.stderr);
}

#[test]
fn weights_that_are_no_numbers_are_noticed() {
    let model = ModelCopy::with_chat();
    let path = model.path().join("model.safetensors");
    let mut bytes = std::fs::read(&path).expect("the fixture is there");
    let header = 8 + u64::from_le_bytes(bytes[..8].try_into().expect("eight")) as usize;
    let entries: Value = serde_json::from_slice(&bytes[8..header]).expect("a header");
    let start = header + entries["model.norm.weight"]["data_offsets"][0].as_u64().expect("a place") as usize;
    bytes[start..start + 4].copy_from_slice(&f32::NAN.to_le_bytes());
    std::fs::write(&path, bytes).expect("written");
    for temperature in ["0", "0.8"] {
        let flags = ["-p", "Hi", "--temp", temperature];
        refuses(&run(&[&["generate", "-m", model.argument()], &flags[..]].concat()), &["NaN", "weights"]);
        refuses(&run(&["run", model.argument(), "Hi", "--temp", temperature]), &["NaN", "weights"]);
    }
}

#[test]
fn a_closed_pipe_ends_an_answer_quietly() {
    let model = ModelCopy::with_chat();
    let flags = ["run", model.argument(), "Hi", "--ignore-eos"];
    let child = mlxcel(&flags).stdin(Stdio::null()).stdout(closed_pipe()).stderr(Stdio::piped()).spawn();
    let done = finished(child.expect("runs").wait_with_output().expect("ends"));
    assert_eq!((done.code, done.stderr.as_str()), (Some(0), ""));
}

/// A model that is not done with an answer before a test is.
fn endless() -> ModelCopy {
    let model = ModelCopy::with_chat();
    model.configure("max_position_embeddings", json!(1_000_000));
    model
}

#[cfg(unix)]
#[test]
fn each_signal_ends_an_answer_with_its_own_code() {
    use std::io::Read as _;
    let model = endless();
    let run = ["run", model.argument(), "Hi", "-c", "1000000", "--ignore-eos"];
    let generate = ["generate", "-m", model.argument(), "-p", "Hi", "-n", "900000", "--ignore-eos"];
    for (arguments, signal, code) in
        [(&run[..], "INT", 130), (&run, "TERM", 143), (&run, "HUP", 129), (&generate, "TERM", 143)]
    {
        let mut child =
            mlxcel(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).spawn().expect("the binary runs");
        let mut stdout = child.stdout.take().expect("piped");
        stdout.read_exact(&mut [0; 8]).expect("an answer comes");
        let kill = format!("kill -{signal} {}", child.id());
        assert!(Command::new("sh").args(["-c", &kill]).status().expect("sh is there").success());
        let mut rest = Vec::new();
        stdout.read_to_end(&mut rest).expect("it can be read");
        assert_eq!(child.wait().expect("it ends").code(), Some(code), "{arguments:?} {signal}");
    }
}
