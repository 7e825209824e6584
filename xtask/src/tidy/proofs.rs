//! Tests that a document names as proofs exist. It does not know what they prove.

use super::{File, Finding};

/// The document whose tables name tests.
const DOCUMENT: &str = "docs/hardening.md";

/// Shorter names in code spans are fields and flags.
const WORDS_MIN: usize = 4;

pub(crate) fn check(files: &[File]) -> Vec<Finding> {
    let Some(document) = files.iter().find(|file| file.path == DOCUMENT) else { return vec![] };
    let rust: Vec<&File> = files.iter().filter(|file| file.path.ends_with(".rs")).collect();
    let exists = |name: &str| {
        let (function, row, printed) = (format!("fn {name}("), format!("{name}:"), format!("{name} ... ok"));
        let is_there = |file: &&File| [&function, &row, &printed].iter().any(|way| file.text.contains(*way));
        rust.iter().any(is_there)
    };
    let missing = proofs(&document.text).filter(|(_, name)| !exists(name));
    missing
        .map(|(line, name)| {
            let message = format!("there is no test `{name}`; name the one that shows it");
            Finding { path: document.path.clone(), line, message }
        })
        .collect()
}

/// The names of tests in code spans, with their lines.
fn proofs(text: &str) -> impl Iterator<Item = (usize, &str)> {
    text.lines().enumerate().flat_map(|(i, line)| {
        let spans = line.split('`').skip(1).step_by(2);
        let is_test = |name: &&str| {
            name.split('_').count() >= WORDS_MIN
                && name.chars().all(|c| c == '_' || c.is_ascii_lowercase() || c.is_ascii_digit())
        };
        spans.filter(is_test).map(move |name| (i + 1, name))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_proof_that_is_not_there_is_found() {
        let file = |path: &str, text: &str| File { path: path.to_string(), text: text.to_string() };
        let document = file(DOCUMENT, "| `max_tokens` | `it_is_as_said` |\n| x | `it_is_not_there` |\n");
        let code = file("crates/x/tests/a.rs", "fn it_is_as_said() {}");
        let findings = check(&[document, code]);
        assert_eq!(findings.len(), 1);
        assert_eq!((findings[0].line, findings[0].message.contains("it_is_not_there")), (2, true));
    }
}
