//! `mlxcel tokenize`, on the tokenizer whose tokens are bytes: every id and every place can be told by hand.

use std::fs;
use std::io::Write as _;
use std::process::Stdio;

use serde_json::{Value, json};

use crate::support::{Finished, ModelCopy, finished, mlxcel, run, run_json};

/// A folder with a tokenizer and nothing else.
fn tokenizer() -> ModelCopy {
    let model = ModelCopy::with_tokenizer();
    model.remove("model.safetensors");
    model.remove("config.json");
    model
}

fn tokenize(model: &ModelCopy, arguments: &[&str]) -> Finished {
    run(&[&["tokenize", "-m", model.argument()], arguments].concat())
}

/// With bytes on standard input.
fn piped(model: &ModelCopy, arguments: &[&str], input: &[u8]) -> Finished {
    let mut command = mlxcel(&[&["tokenize", "-m", model.argument()], arguments].concat());
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("runs");
    child.stdin.take().expect("piped").write_all(input).expect("is read");
    finished(child.wait_with_output().expect("ends"))
}

fn printed(done: &Finished) -> &str {
    assert_eq!(done.code, Some(0), "{}", done.stderr);
    assert_eq!(done.stderr, "");
    &done.stdout
}

fn refused(done: &Finished, parts: &[&str]) {
    assert_eq!((done.code, done.stdout.as_str()), (Some(1), ""), "{}", done.stderr);
    assert_eq!(done.stderr.lines().count(), 1, "{}", done.stderr);
    for part in parts {
        assert!(done.stderr.contains(part), "'{part}' is not in: {}", done.stderr);
    }
}

#[test]
fn a_text_becomes_its_ids_without_any_weights() {
    let model = tokenizer();
    assert_eq!(printed(&tokenize(&model, &["Hé"])), "72,195,169\n");
    assert_eq!(printed(&tokenize(&model, &["Hé", "--ids"])), "[72, 195, 169]\n");
    assert_eq!(printed(&tokenize(&model, &["Hé", "--show-count"])), "72,195,169\n3 tokens\n");
}

#[test]
fn the_table_shows_places_and_pieces_and_obeys_no_escape() {
    let model = tokenizer();
    let expected = " id  start  end  piece
 97      0    1  \"a\"
195      1    2  \"\\xc3\"
169      2    3  \"\\xa9\"
 27      3    4  \"\\u{1b}\"
 10      4    5  \"\\n\"
257      5   15  \"<|im_end|>\"
";
    assert_eq!(printed(&tokenize(&model, &["aé\u{1b}\n<|im_end|>", "--show", "--special"])), expected);
}

#[test]
fn json_has_every_token_with_its_piece_and_bytes() {
    let model = tokenizer();
    let got = run_json(&["tokenize", "-m", model.argument(), "xé"]);
    let expected = json!({ "count": 3, "tokens": [
        { "id": 120, "piece": "x", "start": 0, "end": 1 },
        { "id": 195, "piece": [195], "start": 1, "end": 2 },
        { "id": 169, "piece": [169], "start": 2, "end": 3 },
    ]});
    assert_eq!(got, expected);
    let got = run_json(&["tokenize", "-m", model.argument(), "--decode", "72,105"]);
    assert_eq!(got, json!({ "ids": [72, 105], "text": "Hi" }));
}

#[test]
fn control_tokens_in_the_text_are_text_unless_asked_for() {
    let model = tokenizer();
    let spelled: Vec<String> = "<|im_end|>".bytes().map(|byte| byte.to_string()).collect();
    assert_eq!(printed(&tokenize(&model, &["<|im_end|>"])), spelled.join(",") + "\n");
    assert_eq!(printed(&tokenize(&model, &["<|im_end|>", "--special"])), "257\n");
    assert_eq!(printed(&tokenize(&model, &["--decode", "72,257,105"])), "Hi\n");
    assert_eq!(printed(&tokenize(&model, &["--decode", "72,257,105", "--special"])), "H<|im_end|>i\n");
}

#[test]
fn what_the_model_wants_around_a_text_can_be_left_out() {
    let model = tokenizer();
    let path = model.path().join("tokenizer.json");
    let mut content: Value = serde_json::from_slice(&fs::read(&path).expect("read")).expect("JSON");
    let special = |id: u32, text: &str| json!({ text: { "id": text, "ids": [id], "tokens": [text] } });
    let piece = |kind: &str, id: &str| json!({ kind: { "id": id, "type_id": 0 } });
    let single = [piece("SpecialToken", "<|im_start|>"), piece("Sequence", "A")];
    content["post_processor"] = json!({ "type": "TemplateProcessing", "single": single, "pair": [],
                                        "special_tokens": special(256, "<|im_start|>") });
    model.write("tokenizer.json", &content);
    assert_eq!(printed(&tokenize(&model, &["a"])), "256,97\n");
    assert_eq!(printed(&tokenize(&model, &["a", "--no-bos"])), "97\n");
    assert_eq!(
        printed(&tokenize(&model, &["a", "--show"])).lines().nth(1),
        Some("256      0    0  \"<|im_start|>\"")
    );
}

#[test]
fn files_and_standard_input_are_taken_as_they_are() {
    let model = tokenizer();
    let file = model.path().join("text.txt");
    fs::write(&file, b"a\0\r\n").expect("written");
    assert_eq!(printed(&tokenize(&model, &["--file", file.to_str().expect("UTF-8")])), "97,0,13,10\n");
    assert_eq!(printed(&piped(&model, &[], b"b\n")), "98,10\n");
    assert_eq!(printed(&piped(&model, &["--file", "-"], b"b")), "98\n");
    assert_eq!(printed(&piped(&model, &["--decode", "-"], b"[72, 105]\n")), "Hi\n");
}

#[test]
fn no_text_is_no_tokens_and_no_error() {
    let model = tokenizer();
    assert_eq!(printed(&tokenize(&model, &[""])), "\n");
    assert_eq!(printed(&piped(&model, &["--ids"], b"")), "[]\n");
    assert_eq!(printed(&piped(&model, &["--decode", "-"], b"")), "\n");
    assert_eq!(run_json(&["tokenize", "-m", model.argument(), ""]), json!({ "count": 0, "tokens": [] }));
}

#[test]
fn half_a_character_decodes_to_its_sign_and_never_to_broken_output() {
    let model = tokenizer();
    assert_eq!(printed(&tokenize(&model, &["--decode", "72,195"])), "H\u{fffd}\n");
    assert_eq!(printed(&tokenize(&model, &["--decode", "195 169"])), "é\n");
}

#[test]
fn ids_outside_the_vocabulary_are_named_with_its_size() {
    let model = tokenizer();
    for id in ["258", "4294967295"] {
        refused(&tokenize(&model, &["--decode", id]), &[&format!("token {id}"), "258 tokens", "0 to 257"]);
    }
    refused(&piped(&model, &["--decode", "-"], b"1,x\x1b"), &["standard input", "'x\\u{1b}'", "1,2,3"]);
    for ids in ["x", "-1", "4294967296", "1.5"] {
        let done = tokenize(&model, &[&format!("--decode={ids}")]);
        assert_eq!((done.code, done.stdout.as_str()), (Some(2), ""), "{ids}");
        assert!(done.stderr.contains("is not a token id"), "{}", done.stderr);
    }
}

#[test]
fn what_cannot_be_read_is_named_with_what_to_do() {
    let model = tokenizer();
    let path = |name: &str| model.path().join(name).to_str().expect("UTF-8").to_owned();
    refused(&tokenize(&model, &["--file", &path("missing")]), &["missing", "--file"]);
    refused(&tokenize(&model, &["--file", model.argument()]), &["cannot read", model.argument()]);
    fs::write(path("binary"), b"ab\xff").expect("written");
    refused(&tokenize(&model, &["--file", &path("binary")]), &["binary", "byte 2", "UTF-8"]);
    refused(&piped(&model, &[], b"\xc3"), &["standard input", "byte 0", "UTF-8"]);
}

#[test]
fn a_model_without_a_tokenizer_is_told_what_to_give() {
    let model = ModelCopy::llama();
    refused(&tokenize(&model, &["a"]), &[model.argument(), "no tokenizer", "tokenizer.json"]);
    let model = tokenizer();
    fs::write(model.path().join("tokenizer.json"), "{}").expect("written");
    refused(&tokenize(&model, &["a"]), &["tokenizer.json"]);
    model.remove("tokenizer.json");
    refused(&tokenize(&model, &["a"]), &[model.argument()]);
}

#[test]
fn wrong_usage_exits_with_two() {
    for arguments in [
        &["a", "--file", "b"][..],
        &["a", "--decode", "1"],
        &["--decode", "1", "--show"],
        &["--decode", "1", "--no-bos"],
        &["a", "--show", "--json"],
        &["a", "--ids", "--show"],
    ] {
        let done = run(&[&["tokenize"], arguments].concat());
        assert_eq!((done.code, done.stdout.as_str()), (Some(2), ""), "{arguments:?}");
    }
}
