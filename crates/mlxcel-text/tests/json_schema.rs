//! The official JSON Schema test suite (draft 2020-12), where `MLXCEL_TEST_JSON_SCHEMA` says it lies (`cargo xtask test`
//! fetches it and says so).
//!
//! A schema that cannot be enforced is refused. One that is enforced must never allow what the suite calls invalid.
//! It may allow less than is valid: fields come in the order of the schema.

mod support;

use std::path::PathBuf;
use std::sync::Arc;

use mlxcel_text::{GrammarLimits, GrammarSource, Grammars, Vocabulary};
use serde_json::Value;

const VARIABLE: &str = "MLXCEL_TEST_JSON_SCHEMA";

/// What the suite comes to; a new version of the grammar library may change it, for the better.
const ENFORCED: usize = 149;
const ALLOWED: usize = 313;
const VALID: usize = 336;

fn follows(grammars: &Grammars, source: &GrammarSource, text: &str) -> bool {
    let mut matcher = grammars.get(source).expect("compiled before").matcher();
    let tokens =
        grammars.vocabulary().tokenizer().encode(text, support::plain()).expect("any text has tokens");
    tokens.iter().all(|&token| !matcher.is_complete() && matcher.accept(token).is_ok())
        && matcher.may_end().expect("a position")
}

fn groups(folder: PathBuf) -> Vec<(String, Value)> {
    let mut groups = Vec::new();
    for entry in std::fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        let name = path.file_stem().expect("a name").to_string_lossy().into_owned();
        let Some(text) = path.is_file().then(|| std::fs::read(&path).expect("a file")) else { continue };
        let file: Vec<Value> = serde_json::from_slice(&text).expect("groups of tests");
        groups.extend(file.into_iter().map(|group| (name.clone(), group)));
    }
    groups.sort_by_key(|(name, group)| (name.clone(), group["description"].to_string()));
    groups
}

#[test]
fn what_is_enforced_never_allows_what_is_invalid() {
    let Some(folder) = std::env::var_os(VARIABLE).map(PathBuf::from) else {
        println!("not run, since {VARIABLE} is not set: `cargo xtask test` sets it");
        return;
    };
    let tokenizer = support::folder("bpe");
    let vocabulary = Vocabulary::new(&tokenizer, tokenizer.vocab_size(), &tokenizer.end_ids());
    let grammars = Grammars::new(Arc::new(vocabulary.expect("a small vocabulary")), GrammarLimits::default());
    let (mut enforced, mut valid, mut allowed, mut lenient) = (0, 0, 0, Vec::new());
    for (name, group) in groups(folder) {
        let source = GrammarSource::JsonSchema(group["schema"].clone());
        if grammars.get(&source).is_err() {
            continue;
        }
        enforced += 1;
        for test in group["tests"].as_array().expect("tests") {
            let follows = follows(&grammars, &source, &test["data"].to_string());
            let is_valid = test["valid"] == true;
            valid += usize::from(is_valid);
            allowed += usize::from(is_valid && follows);
            if follows && !is_valid {
                let part = |value: &Value| value.as_str().unwrap_or_default().to_owned();
                lenient.push(format!(
                    "{name}: {}: {}",
                    part(&group["description"]),
                    part(&test["description"])
                ));
            }
        }
    }
    assert_eq!(lenient, Vec::<String>::new(), "invalid, and allowed");
    assert_eq!((enforced, allowed, valid), (ENFORCED, ALLOWED, VALID));
}
