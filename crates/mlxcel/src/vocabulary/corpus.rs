//! The vocabularies that come with llama.cpp, where `MLXCEL_TEST_LLAMA_CPP` says they lie (`cargo xtask test` fetches
//! them and says so), with the ids that llama.cpp's own tests expect.

use std::fs;
use std::path::{Path, PathBuf};

use mlxcel_text::{EncodeOptions, Error, SpecialText, SpecialTokens, Tokenizer};

use super::open_tokenizer;

const VARIABLE: &str = "MLXCEL_TEST_LLAMA_CPP";

/// The corpus; without it a test has nothing to show and says so.
fn corpus() -> Option<PathBuf> {
    let folder = std::env::var_os(VARIABLE).map(PathBuf::from);
    if folder.is_none() {
        println!("not run, since {VARIABLE} is not set: `cargo xtask test` sets it");
    }
    folder
}

fn vocabularies(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
    let paths = entries.map(|entry| entry.expect("a readable folder").path());
    let mut found: Vec<PathBuf> =
        paths.filter(|path| path.extension().is_some_and(|e| e == "gguf")).collect();
    found.sort();
    found
}

fn beside(path: &Path, suffix: &str) -> PathBuf {
    PathBuf::from(format!("{}{suffix}", path.display()))
}

fn open(path: &Path) -> Tokenizer {
    let tokenizer = open_tokenizer(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    tokenizer.unwrap_or_else(|| panic!("{} has no vocabulary", path.display()))
}

const PLAIN: EncodeOptions =
    EncodeOptions { special_tokens: SpecialTokens::AsText, add_special_tokens: false };

/// The texts and ids beside a vocabulary.
fn cases(path: &Path) -> Vec<(String, Vec<u32>)> {
    let read = |suffix| fs::read_to_string(beside(path, suffix)).expect("a readable text");
    let (texts, lines) = (read(".inp"), read(".out"));
    let ids = |line: &str| line.split_whitespace().map(|id| id.parse().expect("an id")).collect();
    texts.split("\n__ggml_vocab_test__\n").map(str::to_owned).zip(lines.lines().map(ids)).collect()
}

#[test]
fn every_vocabulary_with_expected_ids_encodes_to_them() {
    let Some(folder) = corpus() else { return };
    let with_ids: Vec<PathBuf> =
        vocabularies(&folder).into_iter().filter(|path| beside(path, ".out").exists()).collect();
    assert_eq!(with_ids.len(), 15, "the corpus is not the one that was pinned");
    for path in with_ids {
        let tokenizer = open(&path);
        let cases = cases(&path);
        assert!(cases.len() >= 46, "{}", path.display());
        for (text, expected) in cases {
            let tokens = tokenizer.encode_with_offsets(&text, PLAIN).expect("encodable");
            let ids: Vec<u32> = tokens.iter().map(|token| token.id).collect();
            assert_eq!(ids, expected, "{}: {text:?}", path.display());
            let mut end = 0;
            for token in tokens {
                assert!(end <= token.start && token.start <= token.end, "{}: {text:?}", path.display());
                end = token.end;
            }
            assert!(end <= text.len(), "{}: {text:?}", path.display());
        }
    }
}

#[test]
fn vocabularies_without_expected_ids_give_the_text_back() {
    let Some(folder) = corpus() else { return };
    let texts = cases(&folder.join("ggml-vocab-gpt-2.gguf"));
    for name in ["aquila", "baichuan", "gpt-neox"] {
        let tokenizer = open(&folder.join(format!("ggml-vocab-{name}.gguf")));
        for (text, _) in &texts {
            let ids = tokenizer.encode(text, PLAIN).expect("encodable");
            assert_eq!(&tokenizer.decode(&ids, SpecialText::Show).expect("decodable"), text, "{name}");
        }
    }
}

#[test]
fn a_unigram_vocabulary_is_refused_by_its_name() {
    let Some(folder) = corpus() else { return };
    let error = open_tokenizer(&folder.join("ggml-vocab-nomic-bert-moe.gguf")).expect_err("not known");
    let error = error.downcast_ref::<Error>().expect("the tokenizer's own error");
    assert!(matches!(error, Error::UnknownVocabulary { model } if model == "t5"), "{error}");
}
