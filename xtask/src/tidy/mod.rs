//! `cargo xtask tidy`: the rules of this project that no compiler checks.
//!
//! Each rule is a function from files to findings, in a file with its neighbours and with a test on a planted
//! violation. What a rule may let pass stands in `xtask/tidy-allow.toml` with a reason.

mod allow;
mod code;
mod layers;
mod names;
mod proofs;
mod size;
mod source;
mod text;

use std::{fmt, fs, path::Path, process::Command};

use anyhow::{Context as _, Result, bail, ensure};

use crate::shell;
use allow::Allow;

/// A text file of the project, by its path from the root with forward slashes.
pub(crate) struct File {
    path: String,
    text: String,
}

/// One violation of one rule. Line 0 means the file as a whole.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Finding {
    path: String,
    line: usize,
    message: String,
}

/// The endings of what is read as text; everything else is data.
const TEXT_ENDINGS: [&str; 10] =
    [".rs", ".toml", ".md", ".json", ".txt", ".py", ".sh", ".yml", ".yaml", ".gitignore"];

/// Text files without an ending.
const TEXT_NAMES: [&str; 4] = [".ci/run", "LICENSE", "LICENSE-MIT", "LICENSE-APACHE"];

/// Folders of data that others wrote and tests must take as it is.
const DATA_FOLDERS: [&str; 2] = ["fixtures", "corpus"];

/// Checks the whole project and prints every finding.
pub(crate) fn run() -> Result<()> {
    eprintln!("xtask: tidy");
    let root = shell::root();
    let mut findings = Vec::new();
    let files = load(&root, &mut findings)?;
    let allow = Allow::load(&root.join(allow::PATH))?;
    findings.extend(check(&files, &allow, &|path| root.join(path).exists())?);
    findings.sort();
    for finding in &findings {
        println!("{finding}");
    }
    ensure!(findings.is_empty(), "{} findings", findings.len());
    eprintln!("xtask: tidy: {} files are in order", files.len());
    Ok(())
}

/// Applies every rule. `exists` says whether a path from the root leads to something.
fn check(files: &[File], allow: &Allow, exists: &dyn Fn(&str) -> bool) -> Result<Vec<Finding>> {
    let mut findings = layers::check(files)?;
    findings.extend(proofs::check(files));
    for file in files {
        findings.extend(text::check(file, exists));
        findings.extend(names::check(file));
        findings.extend(size::check_file(file, allow));
    }
    let rust = files.iter().filter(|file| file.path.ends_with(".rs"));
    let sources: Vec<_> = rust.map(|file| (file, source::Source::new(&file.text))).collect();
    let mut tests = code::TestModules::default();
    for (file, source) in &sources {
        tests.declare(file, source);
    }
    for (file, source) in &sources {
        findings.extend(code::check(file, source, &tests));
        findings.extend(size::check_functions(file, source, allow));
    }
    findings.extend(allow.unused());
    Ok(findings)
}

/// Reads every text file that git knows or would add.
fn load(root: &Path, findings: &mut Vec<Finding>) -> Result<Vec<File>> {
    let mut files = Vec::new();
    for path in list(root)? {
        if !is_text(&path) || !root.join(&path).is_file() {
            continue;
        }
        let bytes = fs::read(root.join(&path)).with_context(|| format!("cannot read {path}"))?;
        match decode(&path, bytes) {
            Ok(file) => files.push(file),
            Err(finding) => findings.push(finding),
        }
    }
    Ok(files)
}

fn list(root: &Path) -> Result<Vec<String>> {
    let mut command = Command::new("git");
    command.current_dir(root).args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"]);
    let output = command.output().context("cannot run git")?;
    if !output.status.success() {
        bail!("git cannot list the files: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    let names = output.stdout.split(|byte| *byte == 0).filter(|name| !name.is_empty());
    Ok(names.map(|name| String::from_utf8_lossy(name).into_owned()).collect())
}

fn is_text(path: &str) -> bool {
    let known = TEXT_ENDINGS.iter().any(|ending| path.ends_with(ending)) || TEXT_NAMES.contains(&path);
    known && !path.split('/').any(|folder| DATA_FOLDERS.contains(&folder))
}

/// Rule: text is UTF-8.
fn decode(path: &str, bytes: Vec<u8>) -> std::result::Result<File, Finding> {
    let path = path.to_owned();
    match String::from_utf8(bytes) {
        Ok(text) => Ok(File { path, text }),
        Err(error) => {
            let valid = &error.as_bytes()[..error.utf8_error().valid_up_to()];
            let line = 1 + valid.iter().filter(|byte| **byte == b'\n').count();
            Err(Finding { path, line, message: "is not UTF-8".to_owned() })
        }
    }
}

impl File {
    fn finding(&self, line: usize, message: impl Into<String>) -> Finding {
        Finding { path: self.path.clone(), line, message: message.into() }
    }

    /// The file's name without folders.
    fn name(&self) -> &str {
        self.path.rsplit('/').next().unwrap_or(&self.path)
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            0 => write!(f, "{}: {}", self.path, self.message),
            line => write!(f, "{}:{line}: {}", self.path, self.message),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_that_is_not_utf8_is_found_with_its_line() {
        let finding = decode("a.md", b"fine\nnot \xff fine\n".to_vec()).err().unwrap();
        assert_eq!(finding.to_string(), "a.md:2: is not UTF-8");
    }

    #[test]
    fn data_is_not_read_as_text() {
        assert!(is_text("crates/a/src/lib.rs") && is_text(".ci/run") && is_text("README.md"));
        assert!(!is_text("fixtures/llama/config.json") && !is_text("a/model.gguf") && !is_text("Cargo.lock"));
    }

    #[test]
    fn all_rules_are_applied_to_all_files() {
        let file = |path: &str, text: &str| File { path: path.into(), text: text.into() };
        let files = [
            file(
                "crates/mlxcel-ir/Cargo.toml",
                "[package]\nname = \"mlxcel-ir\"\n[dependencies]\nmlxcel-hub = \"1\"\n",
            ),
            file("crates/mlxcel-hub/Cargo.toml", "[package]\nname = \"mlxcel-hub\"\n"),
            file("a/utils.rs", "fn f() { x.unwrap() } \n"),
            file("b.md", "[gone](gone.md)\n"),
        ];
        let findings = check(&files, &Allow::default(), &|_| false).unwrap();
        let said: Vec<_> = findings.iter().map(Finding::to_string).collect();
        for part in ["may not use mlxcel-hub", "utils", "unwrap", "trailing", "//!", "gone.md"] {
            assert!(said.iter().any(|line| line.contains(part)), "{part} is not in {said:?}");
        }
    }
}
