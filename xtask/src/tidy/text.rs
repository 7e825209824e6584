//! Rules on every text file: clean line ends, nothing that holds on one machine only, links that lead somewhere.

use super::{File, Finding};

/// Folders of particular machines. Split so that this file does not break its own rule.
const MACHINE_FOLDERS: [&str; 5] = [
    concat!("/", "work"),
    concat!("/", "root"),
    concat!("/", "tmp/"),
    concat!("/", "home/"),
    concat!("/", "Users/"),
];

/// Registries are reached through the user's own clients or configuration, never by name.
const REGISTRY_HOSTS: [&str; 5] = [
    concat!("pypi", ".org"),
    concat!("pythonhosted", ".org"),
    concat!("crates", ".io"),
    concat!("npmjs", ".org"),
    concat!("npmjs", ".com"),
];

/// Applies the rules of this file. `exists` says whether a path from the root leads to something.
pub(crate) fn check(file: &File, exists: &dyn Fn(&str) -> bool) -> Vec<Finding> {
    let mut findings = Vec::new();
    if !file.text.is_empty() && !file.text.ends_with('\n') {
        findings.push(file.finding(0, "does not end with a line break"));
    }
    for (number, line) in file.text.split('\n').enumerate() {
        findings.extend(check_line(line).into_iter().map(|message| file.finding(number + 1, message)));
    }
    if file.path.ends_with(".md") {
        findings.extend(dead_links(file, exists));
    }
    if file.path.ends_with(".py") || file.path.ends_with(".md") || file.path == ".ci/run" {
        findings.extend(promises(file));
    }
    findings
}

fn check_line(line: &str) -> Vec<String> {
    let mut messages = Vec::new();
    if line.ends_with([' ', '\t', '\r']) {
        messages.push("has trailing whitespace".to_owned());
    }
    for folder in MACHINE_FOLDERS {
        if line.match_indices(folder).any(|(at, _)| is_machine_folder(line, at, folder)) {
            messages.push(format!("names '{folder}', which is a folder of one machine"));
        }
    }
    for host in REGISTRY_HOSTS {
        if line.to_ascii_lowercase().contains(host) {
            messages.push(format!("names the registry '{host}'"));
        }
    }
    messages
}

/// Whether a path begins here and is the folder itself or inside it.
fn is_machine_folder(line: &str, at: usize, folder: &str) -> bool {
    let part_of_name = |c: char| c.is_alphanumeric() || matches!(c, '_' | '-' | '.');
    let inside_path =
        line[..at].chars().next_back().is_some_and(|c| part_of_name(c) || matches!(c, '/' | '}' | ')' | '~'));
    let longer_name = line[at + folder.len()..].chars().next().is_some_and(|c| part_of_name(c) && c != '.');
    !inside_path && (folder.ends_with('/') || !longer_name)
}

/// What Rust files promise in comments is found elsewhere; here it is every other language's turn.
fn promises(file: &File) -> impl Iterator<Item = Finding> + '_ {
    let words = [concat!("TO", "DO"), concat!("FIX", "ME")];
    let lines = file.text.lines().enumerate();
    let found = lines.filter(move |(_, line)| {
        line.split(|c: char| !c.is_alphanumeric()).any(|part| words.contains(&part))
    });
    found.map(|(number, _)| file.finding(number + 1, "promises work: do it or leave it out"))
}

/// Links of a Markdown file to files that do not exist.
fn dead_links<'a>(file: &'a File, exists: &'a dyn Fn(&str) -> bool) -> impl Iterator<Item = Finding> + 'a {
    let folder = file.path.rsplit_once('/').map_or("", |(folder, _)| folder);
    links(&file.text).filter_map(move |(line, target)| {
        let target = target.split(['#', '?']).next()?;
        if target.is_empty() || target.contains("://") || target.starts_with("mailto:") {
            return None;
        }
        (!exists(&resolve(folder, target)))
            .then(|| file.finding(line, format!("links to '{target}', which does not exist")))
    })
}

/// The targets of inline links and of link definitions with their lines, outside of code blocks.
fn links(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut in_code = false;
    let prose = text.lines().enumerate().filter(move |(_, line)| {
        let fence = line.trim_start().starts_with("```");
        in_code ^= fence;
        !in_code && !fence
    });
    prose.flat_map(|(number, line)| {
        let inline = line.split("](").skip(1).filter_map(|rest| rest.split(')').next());
        let definition =
            line.strip_prefix('[').and_then(|rest| rest.split_once("]: ")).map(|(_, target)| target);
        let targets = inline.chain(definition).filter_map(|target| target.split_whitespace().next());
        targets.map(move |target| (number + 1, target.trim_matches(['<', '>'])))
    })
}

/// A link's target as a path from the root.
fn resolve(folder: &str, target: &str) -> String {
    let mut parts: Vec<&str> = if target.starts_with('/') { Vec::new() } else { folder.split('/').collect() };
    for part in target.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    parts.retain(|part| !part.is_empty());
    parts.join("/")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(path: &str, text: &str) -> Vec<String> {
        let there = |path: &str| ["docs/a.md", "README.md", "docs"].contains(&path);
        check(&File { path: path.into(), text: text.into() }, &there).iter().map(Finding::to_string).collect()
    }

    #[test]
    fn unclean_line_ends_are_found() {
        assert_eq!(said("a.rs", "a \n"), ["a.rs:1: has trailing whitespace"]);
        assert_eq!(said("a.rs", "a\nb\t\n"), ["a.rs:2: has trailing whitespace"]);
        assert_eq!(said("a.rs", "a\r\n").len(), 1);
        assert_eq!(said("a.rs", "a\nb"), ["a.rs: does not end with a line break"]);
        assert!(said("a.rs", "").is_empty() && said("a.rs", "a\n\nb\n").is_empty());
    }

    #[test]
    fn folders_of_one_machine_are_found() {
        for folder in MACHINE_FOLDERS {
            let name = folder.trim_end_matches('/');
            assert_eq!(said("a.rs", &format!("let a = \"{name}/x\";\n")).len(), 1, "{folder}");
            assert_eq!(said("a.md", &format!("cd {name}/x.\n")).len(), 1, "{folder}");
            assert!(said("a.rs", &format!("b{name}/x ..{name}/x {name}space/x\n")).is_empty(), "{folder}");
        }
        assert_eq!(said("a.md", &format!("in {}.\n", MACHINE_FOLDERS[0])).len(), 1);
    }

    #[test]
    fn registries_are_found_by_name() {
        for host in REGISTRY_HOSTS {
            assert_eq!(
                said("a.toml", &format!("x = \"https://{}/simple\"\n", host.to_uppercase())).len(),
                1,
                "{host}"
            );
        }
    }

    #[test]
    fn links_to_nothing_are_found() {
        let text = "[a](docs/a.md#part) [b](https://host.test/gone.md) [c](#here)\n[d](docs/gone.md \"title\")\n\n[e]: gone.md\n";
        assert_eq!(
            said("README.md", text),
            [
                "README.md:2: links to 'docs/gone.md', which does not exist",
                "README.md:4: links to 'gone.md', which does not exist",
            ]
        );
        assert!(said("docs/b.md", "[a](a.md) [r](../README.md) [d](.) [x](/README.md)\n").is_empty());
        assert!(said("a.md", "```\n[a](gone.md)\n```\n").is_empty());
    }

    #[test]
    fn promises_are_found_in_other_languages_too() {
        let promise = concat!("TO", "DO");
        assert_eq!(said("a.py", &format!("# {promise}: later\n")).len(), 1);
        assert_eq!(said(".ci/run", &format!("# ({promise})\n")).len(), 1);
        assert!(said("a.py", &format!("# {promise}S\n")).is_empty());
    }
}
