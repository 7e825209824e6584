//! What is made from the definition of the arguments: `docs/cli.md`, man pages, completions; and the table of
//! environment variables, which has to name every one that the sources read.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use crate::help::{commands, help};
use crate::snapshot::check_file;
use crate::support::run;

fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn stdout(arguments: &[&str]) -> String {
    let done = run(arguments);
    assert_eq!((done.code, done.stderr.as_str()), (Some(0), ""), "{arguments:?}");
    done.stdout
}

/// The long flags that a help text lists.
fn flags(help: &str) -> BTreeSet<String> {
    let words =
        help.lines().filter(|line| line.trim_start().starts_with('-')).flat_map(str::split_whitespace);
    let long = words.filter_map(|word| word.strip_prefix("--")).map(|w| w.trim_end_matches(',').to_string());
    long.filter(|word| !word.is_empty()).collect()
}

#[test]
fn the_page_of_all_commands_is_what_the_program_writes() {
    check_file(&workspace().join("docs/cli.md"), &stdout(&["manual", "--format", "markdown"]));
}

#[test]
fn markdown_and_man_pages_have_every_command_and_flag() {
    let page = stdout(&["manual", "--format", "markdown"]);
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("man1");
    stdout(&["manual", "--out", path.to_str().expect("UTF-8")]);
    let all = commands();
    assert_eq!(fs::read_dir(&path).expect("written").count(), all.len(), "one page for each command");
    for command in all {
        let name = ["mlxcel"].into_iter().chain(command.iter().map(String::as_str)).collect::<Vec<_>>();
        let man = fs::read_to_string(path.join(format!("{}.1", name.join("-")))).expect("a page");
        for section in ["NAME", "SYNOPSIS", "EXAMPLES", "EXIT STATUS", "ENVIRONMENT"] {
            let lines = [format!(".SH {section}"), format!(".SH \"{section}\"")];
            assert!(man.lines().any(|line| lines.contains(&line.to_string())), "{name:?}: {section}");
        }
        let heading = format!("\n## {}\n", name.join(" "));
        let section = page.split_once(&heading).map(|(_, rest)| rest.split("\n## ").next().unwrap_or(rest));
        assert!(section.is_some() || command.is_empty(), "{heading}");
        for flag in flags(&help(&command, "-h")) {
            assert!(man.contains(&format!("\\-\\-{}", flag.replace('-', "\\-"))), "{name:?}: --{flag}");
            let is_everywhere = ["help", "version", "color"].contains(&flag.as_str());
            let is_there = section.is_some_and(|text| text.contains(&format!("--{flag}")));
            assert!(is_everywhere || is_there, "{name:?}: --{flag}");
        }
    }
}

#[test]
fn completions_know_every_command_and_flag_in_every_shell() {
    for shell in ["bash", "zsh", "fish", "powershell", "elvish"] {
        let script = stdout(&["completions", shell]);
        for command in commands() {
            let name = command.last().map_or("mlxcel", String::as_str);
            assert!(script.contains(name), "{shell}: {name}");
            for flag in flags(&help(&command, "-h")) {
                assert!(script.contains(&flag), "{shell}: {command:?} --{flag}");
            }
        }
    }
}

#[test]
fn a_place_that_cannot_be_written_to_is_named() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("file");
    fs::write(&file, "").expect("written");
    let (file, below) = (file.to_str().expect("UTF-8"), file.join("below"));
    for arguments in [
        &["manual", "--out", file][..],
        &["manual", "--out", below.to_str().expect("UTF-8")],
        &["manual", "--format", "markdown", "--out", folder.path().to_str().expect("UTF-8")],
    ] {
        let done = run(arguments);
        assert_eq!((done.code, done.stdout.as_str()), (Some(1), ""), "{arguments:?}");
        assert!(
            done.stderr.contains(arguments[arguments.len() - 1]) && done.stderr.contains("; give "),
            "{done:?}"
        );
    }
}

/// Rust sources below a folder.
fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("the workspace is readable") {
        let path = entry.expect("readable").path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|e| e == "rs") {
            found.push(path);
        }
    }
}

/// String literals in a source that name an environment variable: those handed to a function that reads one, and
/// those with a prefix that only variables have.
fn variables(source: &str) -> BTreeSet<String> {
    const PREFIXES: [&str; 9] =
        ["MLXCEL_", "HF_", "HUGGING", "PIP_", "UV_", "XDG_", "CLICOLOR", "TRANSFORMERS_", "NO_COLOR"];
    let code = source.split("#[cfg(test)]\nmod tests").next().unwrap_or(source);
    let mut found = BTreeSet::new();
    let mut parts = code.split('"');
    let mut before = parts.next().unwrap_or_default();
    while let (Some(literal), Some(after)) = (parts.next(), parts.next()) {
        // Variables that only tests read are for CONTRIBUTING.md.
        let is_name = literal.len() > 1
            && !literal.starts_with("MLXCEL_TEST_")
            && literal.bytes().all(|b| b.is_ascii_uppercase() || b.is_ascii_digit() || b == b'_');
        let is_read = ["var(", "var_os(", "get("].iter().any(|call| before.ends_with(call));
        if is_name && (is_read || PREFIXES.iter().any(|prefix| literal.starts_with(prefix))) {
            found.insert(literal.to_string());
        }
        before = after;
    }
    found
}

#[test]
fn every_environment_variable_that_is_read_is_documented() {
    let page = stdout(&["manual", "--format", "markdown"]);
    let table =
        page.split_once("\n## Environment\n").map(|(_, rest)| rest.split("\n## ").next().unwrap_or(rest));
    let rows =
        table.expect("a section").lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next());
    let documented: BTreeSet<&str> = rows.collect();
    assert!(documented.len() > 10, "{documented:?}");
    let mut files = Vec::new();
    for entry in fs::read_dir(workspace().join("crates")).expect("the workspace is readable") {
        let source = entry.expect("readable").path().join("src");
        if source.is_dir() && !source.starts_with(workspace().join("crates/conformance")) {
            sources(&source, &mut files);
        }
    }
    let mut read = BTreeSet::new();
    for file in &files {
        for name in variables(&fs::read_to_string(file).expect("UTF-8")) {
            assert!(
                documented.contains(name.as_str()),
                "{} reads {name}; say what it does in crates/mlxcel/src/environment.rs",
                file.display()
            );
            read.insert(name);
        }
    }
    assert!(read.contains("MLXCEL_CACHE") && read.contains("PIP_INDEX_URL"), "{read:?}");
}
