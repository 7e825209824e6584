//! Rules: files and functions stay small enough to read in one go, and a model family stays one short file.

use super::{
    File, Finding,
    allow::{Allow, PATH},
    source::{Source, block_end},
};

const FILE_LINES_MAX: usize = 600;
const FUNCTION_LINES_MAX: usize = 70;
const FAMILY_LINES_MAX: usize = 150;
const FAMILIES: &str = "crates/mlxcel-models/src/families/";

/// Checks the length of a source file.
pub(crate) fn check_file(file: &File, allow: &Allow) -> Option<Finding> {
    if !file.path.ends_with(".rs") && !file.path.ends_with(".py") {
        return None;
    }
    let is_family = file.path.starts_with(FAMILIES) && file.name() != "mod.rs";
    let (what, max) =
        if is_family { ("a model family", FAMILY_LINES_MAX) } else { ("a file", FILE_LINES_MAX) };
    let lines = file.text.lines().count();
    if lines <= max || allow.file(&file.path) {
        return None;
    }
    Some(file.finding(0, format!("has {lines} lines; {what} has at most {max} unless {PATH} says why")))
}

/// Checks the length of every function of a Rust file, from `fn` to the closing brace.
pub(crate) fn check_functions(file: &File, source: &Source, allow: &Allow) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (name, start, end) in functions(source) {
        let first = source.line(start);
        let lines = source.line(end) - first + 1;
        if lines > FUNCTION_LINES_MAX && !allow.function(&file.path, name) {
            let rule = format!("a function has at most {FUNCTION_LINES_MAX} unless {PATH} says why");
            findings.push(file.finding(first, format!("{name} has {lines} lines; {rule}")));
        }
    }
    findings
}

/// The name, start and end of every function that has a body.
fn functions(source: &Source) -> impl Iterator<Item = (&str, usize, usize)> {
    source.words("fn").filter_map(|start| {
        let rest = source.code[start + 2..].trim_start();
        let length = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
        // A function pointer type has no name.
        let name = rest.get(..length).filter(|name| !name.is_empty())?;
        let (end, body) = block_end(&source.code, start)?;
        body.map(|_| (name, start, end))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(path: &str, text: String) -> File {
        File { path: path.into(), text }
    }

    fn long_functions(text: &str, allow: &Allow) -> Vec<Finding> {
        let source = Source::new(text);
        check_functions(&file("a.rs", text.into()), &source, allow)
    }

    #[test]
    fn a_long_file_is_found_unless_a_reason_is_given() {
        let long = file("a.rs", "x\n".repeat(601));
        assert!(check_file(&long, &Allow::default()).unwrap().message.contains("has 601 lines"));
        assert_eq!(check_file(&long, &Allow::parse("[files]\n'a.rs' = 'a table'").unwrap()), None);
        assert_eq!(check_file(&file("a.rs", "x\n".repeat(600)), &Allow::default()), None);
        assert_eq!(check_file(&file("a.json", "x\n".repeat(601)), &Allow::default()), None);
    }

    #[test]
    fn a_model_family_is_shorter_than_other_files() {
        let family = |lines: usize| file("crates/mlxcel-models/src/families/llama.rs", "x\n".repeat(lines));
        assert_eq!(check_file(&family(150), &Allow::default()), None);
        assert!(check_file(&family(151), &Allow::default()).unwrap().message.contains("a model family"));
        let registry = file("crates/mlxcel-models/src/families/mod.rs", "x\n".repeat(151));
        assert_eq!(check_file(&registry, &Allow::default()), None);
    }

    #[test]
    fn a_long_function_is_found_with_its_line_unless_a_reason_is_given() {
        let text = format!(
            "fn short() {{}}\nimpl X {{\n    pub fn long() {{\n{}    }}\n}}\n",
            "let x = '{';\n".repeat(69)
        );
        let found = long_functions(&text, &Allow::default());
        assert_eq!(found.len(), 1);
        assert!(found[0].to_string().starts_with("a.rs:3: long has 71 lines"), "{}", found[0]);
        assert!(
            long_functions(&text, &Allow::parse("[functions]\n'a.rs::long' = 'a table'").unwrap()).is_empty()
        );
    }

    #[test]
    fn a_function_of_seventy_lines_and_one_without_a_body_are_fine() {
        let body = "x();\n".repeat(68);
        let text = format!(
            "trait T {{\n fn none(&self) -> [u8; {{ 3 }}];\n}}\ntype F = fn(u8);\nfn just<T>(f: fn(T)) where T: X {{\n{body}}}\n"
        );
        assert!(long_functions(&text, &Allow::default()).is_empty());
    }
}
