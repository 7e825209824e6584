//! Rules on Rust code: a file says what it is, nothing is left half done, and nothing panics by convenience.

use super::{
    File, Finding,
    source::{Source, is_whole_word},
};

/// Words in comments that promise work instead of doing it.
const PROMISES: [&str; 4] = ["TODO", "FIXME", "HACK", "XXX"];

/// Macros that mark code as unfinished or under examination.
const UNFINISHED: [&str; 3] = ["todo!", "unimplemented!", "dbg!"];

/// The crates that alone may ask which system they are compiled for; the second one is for tests only.
const PLATFORM: [&str; 2] = ["crates/mlxcel-platform/", "crates/emulator/"];

/// How code asks for, or reaches into, one system. `cfg!(…)`, which chooses between values and compiles everywhere, is
/// not among them.
const OF_ONE_SYSTEM: [&str; 13] = [
    "#[cfg(unix",
    "#[cfg(not(unix",
    "#[cfg(all(unix",
    "#[cfg(windows",
    "#[cfg(not(windows",
    "#[cfg(all(windows",
    "#[cfg(target_os",
    "#[cfg(not(target_os",
    "#[cfg(all(target_os",
    "#[cfg_attr(unix",
    "#[cfg_attr(windows",
    "#[cfg_attr(target_os",
    "std::os::",
];

/// Where modules are left out of Windows: those of models that several machines share, for which nothing is there.
const SHARING: [&str; 3] = [
    "crates/mlxcel/src/parallel/mod.rs",
    "crates/mlxcel-cuda/src/lib.rs",
    "crates/mlxcel-cuda/tests/conformance.rs",
];

/// The modules that exist for tests only: files declared by `#[cfg(test)] mod name;`.
#[derive(Default)]
pub(crate) struct TestModules(Vec<String>);

impl TestModules {
    /// Adds what one file declares.
    pub(crate) fn declare(&mut self, file: &File, source: &Source) {
        let (folder, name) = file.path.rsplit_once('/').unwrap_or(("", &file.path));
        let folder = match name {
            "lib.rs" | "main.rs" | "mod.rs" => folder.to_owned(),
            name => format!("{folder}/{}", name.trim_end_matches(".rs")),
        };
        for at in source.words("mod").filter(|at| source.is_test(*at)) {
            let declared = source.code[at + 3..].split([';', '{']).next().unwrap_or_default().trim();
            self.0.push(format!("{folder}/{declared}"));
        }
    }

    /// Whether a file holds nothing but tests, by declaration or by where it lies.
    fn contains(&self, path: &str) -> bool {
        let declared = |module: &String| {
            path.strip_prefix(module.as_str()).is_some_and(|rest| rest == ".rs" || rest.starts_with('/'))
        };
        let folders = ["tests", "benches", "fuzz", "examples"];
        path.split('/').any(|part| folders.contains(&part)) || self.0.iter().any(declared)
    }
}

/// Applies the rules of this file.
pub(crate) fn check(file: &File, source: &Source, tests: &TestModules) -> Vec<Finding> {
    let mut findings = Vec::new();
    if !file.text.starts_with("//!") {
        findings.push(file.finding(1, "does not begin with //! and a sentence that says what it is"));
    }
    for promise in PROMISES {
        let found = source.comments.match_indices(promise).map(|(at, _)| at);
        for at in found.filter(|at| is_whole_word(&source.comments, *at, promise.len())) {
            findings.push(file.finding(source.line(at), format!("{promise}: do it or leave it out")));
        }
    }
    for name in UNFINISHED {
        findings
            .extend(source.words(name).map(|at| file.finding(source.line(at), format!("{name} is left in"))));
    }
    for (at, _) in source.code.match_indices("#[ignore") {
        findings.push(file.finding(source.line(at), "a test is ignored"));
    }
    findings.extend(examples(file, source));
    if !tests.contains(&file.path) {
        findings.extend(unwraps(file, source));
        findings.extend(of_one_system(file, source));
    }
    findings
}

/// Rule: code in comments is not run, so it says that it is text; what is to be run is a test. Code is fenced, or set in
/// behind an empty line.
fn examples<'a>(file: &'a File, source: &'a Source) -> impl Iterator<Item = Finding> + 'a {
    let (mut is_fenced, mut is_behind_empty) = (false, false);
    let lines = source.comments.lines().enumerate();
    let found = lines.filter(move |(_, line)| {
        let line = line.trim_start();
        let Some(comment) = line.strip_prefix("///").or_else(|| line.strip_prefix("//!")) else {
            (is_fenced, is_behind_empty) = (false, false);
            return false;
        };
        let fence = comment.trim().strip_prefix("```").or_else(|| comment.trim().strip_prefix("~~~"));
        let is_set_in = !is_fenced && is_behind_empty && comment.starts_with("     ");
        is_behind_empty = comment.trim().is_empty();
        let begins = fence.filter(|_| !is_fenced);
        is_fenced ^= fence.is_some();
        is_set_in || begins.is_some_and(|language| language != "text")
    });
    found.map(|(number, _)| {
        file.finding(number + 1, "an example that nothing runs: make it a test, or ```text")
    })
}

fn unwraps<'a>(file: &'a File, source: &'a Source) -> impl Iterator<Item = Finding> + 'a {
    let found = source.code.match_indices(".unwrap()").map(|(at, _)| at).filter(|at| !source.is_test(*at));
    found.map(|at| file.finding(source.line(at), "unwrap outside of tests; use ? or expect with the reason"))
}

/// Rule: what differs between systems is in one crate. The C types that are the same everywhere may be used.
fn of_one_system<'a>(file: &'a File, source: &'a Source) -> Vec<Finding> {
    if PLATFORM.iter().any(|crate_| file.path.starts_with(crate_)) || SHARING.contains(&file.path.as_str()) {
        return vec![];
    }
    let found = OF_ONE_SYSTEM.iter().flat_map(|word| source.code.match_indices(word));
    let found = found.map(|(at, _)| at).filter(|at| !source.is_test(*at));
    found
        .map(|at| file.finding(source.line(at), format!("code for one system belongs in {}", PLATFORM[0])))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said_of(path: &str, text: &str) -> Vec<String> {
        let file = File { path: path.into(), text: text.into() };
        check(&file, &Source::new(text), &TestModules::default()).iter().map(Finding::to_string).collect()
    }

    fn said(text: &str) -> Vec<String> {
        said_of("a/src/b.rs", &format!("//! x\n{text}"))
    }

    #[test]
    fn a_file_that_does_not_say_what_it_is_is_found() {
        assert_eq!(said_of("a.rs", "use x;\n").len(), 1);
        assert_eq!(said_of("a.rs", "// x\n").len(), 1);
        assert!(said_of("a.rs", "//! x\n").is_empty());
    }

    #[test]
    fn promises_are_found_in_comments_only() {
        for promise in PROMISES {
            assert_eq!(said(&format!("// {promise}: later\n/* ({promise}) */\n")).len(), 2, "{promise}");
            assert!(
                said(&format!("let a = \"{promise}\";\nlet {promise} = b;\n// {promise}S\n")).is_empty(),
                "{promise}"
            );
        }
    }

    #[test]
    fn unfinished_code_is_found() {
        for name in UNFINISHED {
            assert_eq!(
                said(&format!("fn a() {{ {name}(\"x\") }}\n")),
                [format!("a/src/b.rs:2: {name} is left in")]
            );
            assert!(said(&format!("// {name}()\nmy_{name}(x);\n")).is_empty(), "{name}");
        }
    }

    #[test]
    fn ignored_tests_are_found() {
        assert_eq!(said("#[ignore]\nfn a() {}\n#[ignore = \"slow\"]\nfn b() {}\n").len(), 2);
    }

    #[test]
    fn examples_that_nothing_runs_are_found() {
        let text =
            "/// x\n/// ```\n/// a();\n/// ```\nfn a() {}\n    //! ```rust\n    //! b();\n    //! ```\n";
        let message = "an example that nothing runs: make it a test, or ```text";
        assert_eq!(said(text), [3, 7].map(|line| format!("a/src/b.rs:{line}: {message}")));
        assert_eq!(said("/// x\n///\n///     a();\nfn a() {}\n/// ~~~\n/// a();\n/// ~~~\n").len(), 2);
        assert!(said("/// ```text\n///\n///     a\n/// ```\n// ``` of no documentation\n").is_empty());
    }

    #[test]
    fn code_for_one_system_is_found_outside_of_its_crate() {
        let text = "//! x\n#[cfg(unix)]\nuse std::os::unix::fs;\n#[cfg(not(windows))]\nconst A: u8 = 1;\n";
        assert_eq!(said_of("a/src/b.rs", text).len(), 3);
        for path in ["crates/mlxcel-platform/src/b.rs", "a/tests/b.rs"] {
            assert!(said_of(path, text).is_empty(), "{path}");
        }
        assert!(said("const A: &str = if cfg!(windows) { \"a\" } else { \"b\" };\n").is_empty());
        assert!(said("#[cfg(test)]\nmod tests {\n #[cfg(unix)]\n fn a() {}\n}\n").is_empty());
    }

    #[test]
    fn files_declared_for_tests_are_told_from_the_rest() {
        let text = "mod code;\n#[cfg(test)]\nmod testing;\n#[cfg(test)]\nmod tests { mod inner; }\n";
        let mut modules = TestModules::default();
        modules.declare(&File { path: "a/src/lib.rs".into(), text: text.into() }, &Source::new(text));
        modules.declare(&File { path: "a/src/pass.rs".into(), text: text.into() }, &Source::new(text));
        for path in ["a/src/testing.rs", "a/src/testing/deep.rs", "a/src/pass/testing.rs", "a/tests/b.rs"] {
            assert!(modules.contains(path), "{path}");
        }
        for path in ["a/src/code.rs", "a/src/pass/code.rs", "a/src/testing_more.rs", "b/src/testing.rs"] {
            assert!(!modules.contains(path), "{path}");
        }
    }

    #[test]
    fn unwrap_is_found_outside_of_tests() {
        let text = "fn a() { b().unwrap(); }\n#[cfg(test)]\nmod tests {\n fn c() { d().unwrap(); }\n}\n";
        assert_eq!(said(text).len(), 1);
        assert!(said(text)[0].starts_with("a/src/b.rs:2: unwrap"));
        assert!(said_of("a/tests/b.rs", &format!("//! x\n{text}")).is_empty());
        assert!(said("// .unwrap()\na.unwrap_or(b).expect(\".unwrap()\");\n").is_empty());
    }
}
