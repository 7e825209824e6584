//! `embed`: vectors of a tiny encoder in every form of input and output, what is refused, and all-MiniLM-L6-v2
//! against sentence-transformers, if `MLXCEL_TEST_MINILM` says where it lies.

use std::fs;
use std::io::Write as _;
use std::process::Stdio;

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::real_models::model;
use crate::support::{Finished, ModelCopy, finished, fixture, mlxcel, read_json, run, run_json};

/// The tiny encoder with a vocabulary of letters, each a token between [CLS] and [SEP].
fn tiny() -> TempDir {
    let folder = TempDir::new().expect("a temporary folder");
    for name in ["config.json", "model.safetensors"] {
        let from = fixture("golden/bert/f32").join(name);
        fs::copy(from, folder.path().join(name)).expect("fixtures are readable");
    }
    let vocabulary: serde_json::Map<String, Value> = ["[UNK]", "[CLS]", "[SEP]"]
        .into_iter()
        .map(str::to_string)
        .chain(('a'..='z').map(String::from))
        .zip(0u32..)
        .map(|(token, id)| (token, id.into()))
        .collect();
    let special = |id: u32, content: &str| {
        json!({ "id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
                "normalized": false, "special": true })
    };
    let tokenizer = json!({
        "version": "1.0", "truncation": null, "padding": null, "normalizer": null, "decoder": null,
        "added_tokens": [special(0, "[UNK]"), special(1, "[CLS]"), special(2, "[SEP]")],
        "pre_tokenizer": { "type": "Whitespace" },
        "post_processor": { "type": "BertProcessing", "sep": ["[SEP]", 2], "cls": ["[CLS]", 1] },
        "model": { "type": "WordLevel", "vocab": vocabulary, "unk_token": "[UNK]" },
    });
    fs::write(folder.path().join("tokenizer.json"), tokenizer.to_string()).expect("written");
    folder
}

fn argument(folder: &TempDir) -> &str {
    folder.path().to_str().expect("UTF-8")
}

fn vector(value: &Value) -> Vec<f32> {
    serde_json::from_value(value.clone()).expect("numbers")
}

fn distance(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

fn with_input(arguments: &[&str], input: &str) -> Finished {
    let mut command = mlxcel(arguments);
    let streams = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = streams.spawn().expect("runs");
    child.stdin.take().expect("piped").write_all(input.as_bytes()).expect("is read");
    finished(child.wait_with_output().expect("ends"))
}

fn refuses(arguments: &[&str], parts: &[&str]) {
    let done = run(arguments);
    assert_eq!((done.code, done.stdout.as_str()), (Some(1), ""), "{arguments:?}");
    assert_eq!(done.stderr.lines().count(), 1, "{}", done.stderr);
    for part in parts {
        assert!(done.stderr.contains(part), "'{part}' is not in: {}", done.stderr);
    }
}

#[test]
fn arguments_lines_and_json_lines_give_the_same_vectors() {
    let folder = tiny();
    let model = argument(&folder);
    let texts = ["a b c", "", "z", "q w e r t y"];
    let got = run_json(&[&["embed", "-m", model], &texts[..]].concat());
    let rows = got["embeddings"].as_array().expect("rows");
    let vectors: Vec<Vec<f32>> = rows.iter().map(|row| vector(&row["embedding"])).collect();
    assert_eq!(rows.iter().map(|r| r["tokens"].as_u64().expect("a count")).collect::<Vec<_>>(), [5, 2, 3, 8]);
    assert_eq!(got["dimensions"], vectors[0].len());
    for v in &vectors {
        assert!((v.iter().map(|x| x * x).sum::<f32>() - 1.0).abs() < 1e-5, "the length is 1");
    }

    let plain = with_input(&["embed", "-m", model], &(texts.join("\n") + "\n"));
    let numbers = |line: &str| line.split(' ').map(|n| n.parse().expect("a number")).collect::<Vec<f32>>();
    assert_eq!(plain.stdout.lines().map(numbers).collect::<Vec<_>>(), vectors);

    let file = folder.path().join("texts.jsonl");
    let lines =
        texts.map(|text| json!({ "id": format!("n{}", text.len()), "text": text, "more": 1 }).to_string());
    fs::write(&file, lines.join("\n")).expect("written");
    let done = run(&["embed", "-m", model, "--jsonl", "--jsonl-file", file.to_str().expect("UTF-8")]);
    let rows: Vec<Value> = done.stdout.lines().map(|l| serde_json::from_str(l).expect("an object")).collect();
    assert_eq!(rows.iter().map(|row| vector(&row["embedding"])).collect::<Vec<_>>(), vectors);
    assert_eq!(
        rows.iter().map(|row| row["id"].as_str().expect("a name")).collect::<Vec<_>>(),
        ["n5", "n0", "n1", "n11"]
    );
}

#[test]
fn a_text_in_a_batch_has_the_vector_it_has_alone() {
    let folder = tiny();
    let texts: Vec<String> =
        (0..70).map(|n| "a b c d e f g h ".repeat(n % 5 + 1)[n % 7..].to_string()).collect();
    let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
    let all =
        |size| run_json(&[&["embed", "-m", argument(&folder), "--batch-size", size], &texts[..]].concat());
    let rows = |report: &Value| -> Vec<Vec<f32>> {
        report["embeddings"].as_array().expect("rows").iter().map(|row| vector(&row["embedding"])).collect()
    };
    let (alone, together) = (rows(&all("1")), rows(&all("64")));
    assert_eq!(alone.len(), texts.len());
    for (a, b) in alone.iter().zip(&together) {
        assert!(distance(a, b) <= 1e-6);
    }
}

#[test]
fn a_text_that_is_too_long_is_cut_only_if_asked() {
    let folder = tiny();
    fs::write(folder.path().join("sentence_bert_config.json"), r#"{"max_seq_length": 8}"#).expect("written");
    let long = "a b c d e f g h";
    let flags = ["embed", "-m", argument(&folder), "a", long];
    refuses(&flags, &["text 2", "10 tokens", "8", "--truncate"]);
    let done = run(&[&flags[..], &["--truncate", "--json"]].concat());
    assert_eq!(done.stderr, "note: 1 text was cut to 8 tokens\n");
    let got: Value = serde_json::from_str(&done.stdout).expect("JSON");
    let cut = &got["embeddings"][1];
    assert_eq!((&cut["tokens"], &cut["truncated"]), (&8.into(), &true.into()));
    assert_eq!(got["embeddings"][0]["truncated"], false);
    let short = run_json(&["embed", "-m", argument(&folder), "a b c d e f"]);
    assert!(distance(&vector(&cut["embedding"]), &vector(&short["embeddings"][0]["embedding"])) <= 1e-6);
}

#[test]
fn fewer_dimensions_are_the_first_ones_brought_to_length_one() {
    let folder = tiny();
    let flags = ["embed", "-m", argument(&folder), "a b"];
    let get = |more: &[&str]| vector(&run_json(&[&flags[..], more].concat())["embeddings"][0]["embedding"]);
    let (whole, bare) = (get(&[]), get(&["--no-normalize"]));
    assert!(distance(&whole, &bare) > 0.01, "the model's own vectors are longer or shorter than 1");
    assert_eq!(get(&["--no-normalize", "--dimensions", "5"]), bare[..5]);
    let length = whole[..5].iter().map(|x| x * x).sum::<f32>().sqrt();
    let wanted: Vec<f32> = whole[..5].iter().map(|x| x / length).collect();
    assert!(distance(&get(&["--dimensions", "5"]), &wanted) < 1e-6);
    let many = (whole.len() + 1).to_string();
    refuses(&[&flags[..], &["--dimensions", &many]].concat(), &[&many, &whole.len().to_string()]);
}

#[test]
fn a_prefix_stands_before_every_text() {
    let folder = tiny();
    let with = run_json(&["embed", "-m", argument(&folder), "--prefix", "q ", "a", "b"]);
    let written = run_json(&["embed", "-m", argument(&folder), "q a", "q b"]);
    assert_eq!(with["embeddings"], written["embeddings"]);
}

#[test]
fn a_decoder_makes_embeddings_once_its_pooling_is_chosen() {
    let model = ModelCopy::with_tokenizer();
    let flags = ["embed", "-m", model.argument(), "Hi", "Hello"];
    refuses(&flags, &["llama", "--pooling"]);
    let get = |pooling| run_json(&[&flags[..], &["--pooling", pooling]].concat())["embeddings"].clone();
    let (last, mean) = (get("last"), get("mean"));
    assert!(distance(&vector(&last[1]["embedding"]), &vector(&mean[1]["embedding"])) > 0.01);
    refuses(&["embed", "-m", model.argument(), "--pooling", "last", ""], &["text 1 is empty"]);
}

#[test]
fn input_that_is_no_text_is_refused_with_its_place() {
    let folder = tiny();
    let model = argument(&folder);
    let file = folder.path().join("input");
    fs::write(&file, b"{\"text\":\"a\"}\n{\"txt\":\"b\"}\n").expect("written");
    let path = file.to_str().expect("UTF-8");
    refuses(&["embed", "-m", model, "--json", "--jsonl-file", path], &["line 2", "input", "\"text\""]);
    fs::write(&file, b"\xff\n").expect("written");
    refuses(&["embed", "-m", model, "--file", path], &["line 1", "UTF-8"]);
    refuses(&["embed", "-m", model, "--file", "no/such/file"], &["no/such/file"]);
    let bare = crate::support::fixture_argument("golden/bert/f32");
    refuses(&["embed", "-m", &bare, "a"], &["no tokenizer"]);
}

#[test]
fn no_texts_are_no_vectors() {
    let folder = tiny();
    let done = with_input(&["embed", "-m", argument(&folder), "--json"], "");
    let got: Value = serde_json::from_str(&done.stdout).expect("JSON");
    assert_eq!((done.code, &got["embeddings"]), (Some(0), &json!([])));
    assert_eq!(with_input(&["embed", "-m", argument(&folder)], "").stdout, "");
}

#[test]
fn minilm_gives_the_vectors_of_sentence_transformers() {
    let Some(path) = model("MLXCEL_TEST_MINILM") else { return };
    let oracle = read_json(&fixture("minilm/oracle.json"));
    let cases = oracle["cases"].as_array().expect("cases");
    assert_eq!(cases.len(), 12);
    let texts: Vec<&str> = cases.iter().map(|case| case["text"].as_str().expect("a text")).collect();
    let get = |flags: &[&str], texts: &[&str]| {
        run_json(&[&["embed", "-m", &path], flags, texts].concat())["embeddings"].clone()
    };
    for size in ["1", "32"] {
        let rows = get(&["--truncate", "--batch-size", size], &texts);
        for (case, row) in cases.iter().zip(rows.as_array().expect("rows")) {
            let tokens = case["tokens"].as_u64().min(oracle["max_tokens"].as_u64());
            assert_eq!(row["tokens"].as_u64(), tokens, "{}", case["name"]);
            let error = distance(&vector(&row["embedding"]), &vector(&case["embedding"]));
            assert!(error <= 1e-5, "{}: off by {error:e}", case["name"]);
        }
    }
    for (ours, theirs) in [("mean", "mean"), ("cls", "cls"), ("last", "lasttoken")] {
        let rows = get(&["--pooling", ours, "--no-normalize"], &texts[..1]);
        let error = distance(&vector(&rows[0]["embedding"]), &vector(&oracle["not_normalised"][theirs]));
        assert!(error <= 1e-5, "{ours}: off by {error:e}");
    }
    let rows = get(&["--dimensions", "64"], &texts[..1]);
    assert!(distance(&vector(&rows[0]["embedding"]), &vector(&oracle["first_64"])) <= 1e-5);
}
