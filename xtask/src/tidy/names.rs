//! Rule: files, folders and modules are named for what they hold, not "utils", and replaced, not numbered.

use super::{File, Finding};

/// Names that say nothing.
const EMPTY_NAMES: [&str; 7] = ["util", "utils", "helper", "helpers", "common", "misc", "stuff"];

/// Endings of names that stand beside what they should have replaced.
const VERSION_ENDINGS: [&str; 4] = ["_v2", "_v3", "_new", "_old"];

/// Checks a source file's path and the modules it declares.
pub(crate) fn check(file: &File) -> Vec<Finding> {
    // Model families carry the names their publishers gave them.
    let published = file.path.starts_with("crates/mlxcel-models/src/families/");
    if published || !file.path.ends_with(".rs") && !file.path.ends_with(".py") {
        return Vec::new();
    }
    let parts = file.path.split('/').map(|part| part.split('.').next().unwrap_or(part));
    let mut findings: Vec<_> = parts.filter(|part| is_poor(part)).map(|part| poor(file, 0, part)).collect();
    for (number, line) in file.text.lines().enumerate() {
        if let Some(name) = declared_module(line).filter(|name| is_poor(name)) {
            findings.push(poor(file, number + 1, name));
        }
    }
    findings
}

fn is_poor(name: &str) -> bool {
    EMPTY_NAMES.contains(&name) || VERSION_ENDINGS.iter().any(|ending| name.ends_with(ending))
}

fn poor(file: &File, line: usize, name: &str) -> Finding {
    file.finding(line, format!("the name '{name}' does not say what is in it"))
}

/// The name in `mod name;` or `pub(crate) mod name {`.
fn declared_module(line: &str) -> Option<&str> {
    let mut words = line.split_whitespace();
    let mut word = words.next()?;
    if word.starts_with("pub") {
        word = words.next()?;
    }
    (word == "mod").then(|| words.next())?.map(|name| name.trim_end_matches([';', '{']))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(path: &str, text: &str) -> Vec<String> {
        check(&File { path: path.into(), text: text.into() }).iter().map(Finding::to_string).collect()
    }

    #[test]
    fn names_that_say_nothing_are_found_in_paths_and_declarations() {
        assert_eq!(said("a/utils.rs", "").len(), 1);
        assert_eq!(said("a/common/mod.rs", "").len(), 1);
        assert_eq!(said("a/graph_v2.rs", "").len(), 1);
        assert_eq!(said("a/helpers.py", "").len(), 1);
        let text = "//! x\nmod misc;\n    pub(crate) mod helpers {\n";
        assert_eq!(said("a.rs", text).len(), 2);
        assert!(said("a.rs", text)[0].starts_with("a.rs:2: "));
    }

    #[test]
    fn names_that_say_something_are_fine() {
        assert!(
            said("a/commonplace.rs", "mod utilities_of_state;\nlet modulo = 1;\npub fn common() {}\n")
                .is_empty()
        );
        assert!(said("docs/common.md", "").is_empty());
        assert!(said("crates/mlxcel-models/src/families/deepseek_v3.rs", "").is_empty());
    }
}
