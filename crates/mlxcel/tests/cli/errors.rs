//! What can go wrong, each with its sentence and exit code. No error leaves anything on stdout.

use std::fs;

use serde_json::json;

use crate::support::{ModelCopy, comma_separated, fixture_argument, read_json, run};

/// One line on stderr that contains all of `parts`, and exit code 1.
fn refuses(arguments: &[&str], parts: &[&str]) {
    let done = run(arguments);
    assert_eq!(done.code, Some(1), "{arguments:?}: {}", done.stderr);
    assert_eq!(done.stdout, "", "{arguments:?}");
    assert_eq!(done.stderr.lines().count(), 1, "{arguments:?}: {}", done.stderr);
    assert!(done.stderr.starts_with("error: "), "{}", done.stderr);
    for part in parts {
        assert!(done.stderr.contains(part), "'{part}' is not in: {}", done.stderr);
    }
}

const TOKENS: [&str; 2] = ["--prompt-tokens", "1"];

fn refuses_model(model: &str, parts: &[&str]) {
    refuses(&[&["generate", "-m", model], &TOKENS[..]].concat(), parts);
    refuses(&["inspect", model], parts);
}

#[test]
fn a_model_that_is_not_there_is_named_with_what_can_be_given() {
    refuses_model("no/such/model", &["'no/such/model'", "smollm2", "give -m a model folder"]);
}

#[test]
fn a_file_that_is_no_model_is_refused() {
    let model = ModelCopy::llama();
    let file = model.path().join("config.json");
    refuses_model(file.to_str().expect("UTF-8"), &["config.json", "not a .gguf"]);
}

#[test]
fn a_folder_without_weights_is_told_what_is_missing() {
    let model = ModelCopy::llama();
    model.remove("model.safetensors");
    refuses_model(model.argument(), &[model.argument(), "model.safetensors", ".gguf"]);
}

#[test]
fn weights_without_a_configuration_are_told_what_to_add() {
    let model = ModelCopy::llama();
    model.remove("config.json");
    refuses_model(model.argument(), &[model.argument(), "config.json", "put it beside them"]);
}

#[test]
fn an_unknown_family_is_refused_with_the_known_ones() {
    let model = ModelCopy::llama();
    model.configure("model_type", json!("mystery"));
    refuses_model(model.argument(), &["'mystery'", "llama", "qwen3", "mamba"]);
}

#[test]
fn a_damaged_file_is_refused_by_name() {
    let model = ModelCopy::llama();
    fs::write(model.path().join("model.safetensors"), b"\xff\xff\xff\xff\xff\xff\xff\xff{}")
        .expect("written");
    refuses_model(model.argument(), &["model.safetensors"]);
    let file = model.path().join("x.gguf");
    fs::write(&file, b"GGUF").expect("written");
    refuses_model(file.to_str().expect("UTF-8"), &["x.gguf"]);
}

#[test]
fn an_encoder_cannot_generate() {
    let bert = fixture_argument("golden/bert/f32");
    refuses(&[&["generate", "-m", &bert], &TOKENS[..]].concat(), &["bert", "embeddings", "decoder"]);
}

#[test]
fn text_for_a_model_without_a_tokenizer_is_refused() {
    let model = ModelCopy::llama();
    refuses(&["generate", "-m", model.argument(), "-p", "Hi"], &["no tokenizer", "--prompt-tokens"]);
    let stop = ["generate", "-m", model.argument(), "--prompt-tokens", "1", "--stop", "x"];
    refuses(&stop, &["no tokenizer", "--stop"]);
}

#[test]
fn a_system_message_without_a_template_is_refused() {
    let model = ModelCopy::with_tokenizer();
    refuses(
        &["generate", "-m", model.argument(), "-p", "Hi", "--system", "Be kind."],
        &["--system", "template"],
    );
}

#[test]
fn a_template_that_fails_says_how_to_go_on_without() {
    let model = ModelCopy::with_tokenizer();
    model.write("tokenizer_config.json", &json!({ "chat_template": "{{ raise_exception('no users') }}" }));
    refuses(&["generate", "-m", model.argument(), "-p", "Hi"], &["no users", "--no-chat-template"]);
}

#[test]
fn tokens_outside_the_vocabulary_are_named_with_its_size() {
    let llama = fixture_argument("golden/llama/f32");
    for id in ["263", "4294967295"] {
        let ids = format!("1,{id},2");
        refuses(
            &["generate", "-m", &llama, "--prompt-tokens", &ids],
            &[&format!("token {id}"), "263 tokens", "262"],
        );
    }
    refuses(
        &["generate", "-m", &llama, "--prompt-tokens", "1", "--json", "--top-logprobs", "264"],
        &["264", "263"],
    );
}

/// A tokenizer of another model.
#[test]
fn a_tokenizer_with_more_tokens_than_the_model_is_found_out() {
    let model = ModelCopy::with_tokenizer();
    let mut tokenizer = read_json(&model.path().join("tokenizer.json"));
    tokenizer["model"]["vocab"]["H"] = json!(300);
    model.write("tokenizer.json", &tokenizer);
    let said = ["token 300", "263 tokens"];
    refuses(&["generate", "-m", model.argument(), "-p", "Hi", "--no-chat-template"], &said);
    refuses(&["embed", "-m", model.argument(), "--pooling", "mean", "Hi"], &said);
}

#[test]
fn a_prompt_longer_than_the_context_is_refused_with_both_counts() {
    let llama = fixture_argument("golden/llama/f32");
    for length in [512, 513, 51_200] {
        let ids = comma_separated(&vec![1; length]);
        let counts = [&format!("{length} tokens"), "512", "shorten"];
        refuses(&["generate", "-m", &llama, "--prompt-tokens", &ids], &counts);
    }
    let fits = comma_separated(&vec![1; 511]);
    let done = run(&["generate", "-m", &llama, "--prompt-tokens", &fits, "--ignore-eos"]);
    assert_eq!(done.code, Some(0), "{}", done.stderr);
    assert_eq!(done.stdout.split_whitespace().count(), 1, "there is room for one token");
}

#[test]
fn an_empty_prompt_is_refused() {
    let model = ModelCopy::with_chat();
    refuses(&["generate", "-m", model.argument(), "-p", ""], &["the prompt is empty", "-p"]);
    let file = model.path().join("prompt.txt");
    fs::write(&file, "\n").expect("written");
    let path = file.to_str().expect("UTF-8");
    refuses(&["generate", "-m", model.argument(), "--prompt-file", path], &["the prompt is empty"]);
}

#[test]
fn a_prompt_file_that_cannot_be_read_is_named() {
    let model = ModelCopy::with_chat();
    let missing = model.path().join("missing.txt");
    let missing = missing.to_str().expect("UTF-8");
    refuses(&["generate", "-m", model.argument(), "--prompt-file", missing], &["missing.txt"]);
    refuses(
        &["generate", "-m", model.argument(), "--prompt-file", model.argument()],
        &["cannot read the prompt"],
    );
    let binary = model.path().join("binary.txt");
    fs::write(&binary, [0xff, 0xfe]).expect("written");
    let binary = binary.to_str().expect("UTF-8");
    refuses(&["generate", "-m", model.argument(), "--prompt-file", binary], &["binary.txt", "UTF-8"]);
}

#[test]
fn a_device_that_is_not_there_is_refused_with_what_exists() {
    let llama = fixture_argument("golden/llama/f32");
    refuses(
        &[&["generate", "-m", &llama, "--device", "cuda:0"], &TOKENS[..]].concat(),
        &["'cuda:0'", "one of: cpu"],
    );
    let flags = ["generate", "-m", &llama, "--engine", "reference", "--threads", "2"];
    refuses(&[&flags, &TOKENS[..]].concat(), &["reference", "one thread"]);
}

#[test]
fn an_empty_stop_string_is_refused() {
    let model = ModelCopy::with_chat();
    refuses(&["generate", "-m", model.argument(), "-p", "Hi", "--stop", ""], &["stop string 0 is empty"]);
}

#[test]
fn wrong_usage_exits_with_two_and_says_how_to_ask() {
    for arguments in [
        &["generate"][..],
        &["generate", "-p", "a", "--prompt-file", "b"],
        &["generate", "-p", "a", "--prompt-tokens", "1"],
        &["generate", "-p", "a", "--top-logprobs", "2"],
        &["generate", "-p", "a", "--engine", "abacus"],
        &["generate", "-p", "a", "--dtype", "f8"],
        &["generate", "-p", "a", "--system", "b", "--no-chat-template"],
        &["inspect"],
        &["inspect", "x", "--graph", "--plan"],
        &["dance"],
        &[],
    ] {
        let done = run(arguments);
        assert_eq!(done.code, Some(2), "{arguments:?}");
        assert_eq!(done.stdout, "", "{arguments:?}");
        assert!(done.stderr.contains("--help"), "{arguments:?}: {}", done.stderr);
    }
}
