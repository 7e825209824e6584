//! Help, short and long, of every command there is, and colour.

use std::collections::BTreeSet;

use crate::snapshot::{check, folder, transcript};
use crate::support::{finished, mlxcel, run};

/// Every command as it is typed, the bare program first; found by asking it.
pub fn commands() -> Vec<Vec<String>> {
    let mut all: Vec<Vec<String>> = vec![Vec::new()];
    let mut next = 0;
    while let Some(command) = all.get(next).cloned() {
        next += 1;
        all.extend(children(&help(&command, "--help")).map(|name| [&command[..], &[name]].concat()));
    }
    all
}

pub fn help(command: &[String], flag: &str) -> String {
    let arguments: Vec<&str> = command.iter().map(String::as_str).chain([flag]).collect();
    let done = run(&arguments);
    assert_eq!((done.code, done.stderr.as_str()), (Some(0), ""), "{command:?}");
    done.stdout
}

/// The names in the list of commands.
fn children(help: &str) -> impl Iterator<Item = String> {
    let lines = help.lines().skip_while(|line| *line != "Commands:").skip(1);
    let entries = lines.take_while(|line| !line.is_empty());
    let names = entries.filter(|line| line.starts_with("  ") && !line.starts_with("   "));
    names
        .filter_map(|line| line.split_whitespace().next().map(str::to_string))
        .collect::<Vec<_>>()
        .into_iter()
}

#[test]
fn the_help_of_every_command_is_as_pinned() {
    let mut expected = BTreeSet::new();
    for command in commands() {
        let name = if command.is_empty() { "mlxcel".to_string() } else { command.join("-") };
        let words: Vec<&str> = command.iter().map(String::as_str).collect();
        let shown = |flag| transcript(&[&words[..], &[flag]].concat(), &[]);
        check(&format!("help/{name}"), &format!("{}\n{}", shown("-h"), shown("--help")));
        expected.insert(format!("{name}.txt"));
    }
    assert!(expected.len() >= 6, "{expected:?}");
    let files = std::fs::read_dir(folder().join("help")).expect("the folder is there");
    let there: BTreeSet<String> =
        files.map(|file| file.expect("readable").file_name().into_string().expect("UTF-8")).collect();
    assert_eq!(there, expected, "one file for each command, and no others");
}

#[test]
fn every_command_ends_its_help_with_examples_that_it_understands() {
    let all = commands();
    for command in &all {
        let text = help(command, "--help");
        let examples: Vec<&str> = text
            .lines()
            .skip_while(|line| *line != "Examples:")
            .skip(1)
            .take_while(|l| !l.is_empty())
            .collect();
        assert!(!examples.is_empty(), "{command:?} has no examples");
        for example in examples {
            let words: Vec<&str> = example.split_whitespace().skip_while(|word| *word != "mlxcel").collect();
            // The longest command that the words begin with: some have commands of their own.
            let named = |command: &&Vec<String>| words.get(1..=command.len()).is_some_and(|w| w == *command);
            let Some(name) = all.iter().filter(named).max_by_key(|command| command.len()) else { continue };
            if name.is_empty() {
                continue;
            }
            let of_example = help(name, "--help");
            let flags = words.iter().take_while(|word| **word != "|").filter(|word| word.starts_with("--"));
            for flag in flags.map(|flag| flag.split('=').next().unwrap_or(flag)) {
                assert!(of_example.contains(flag), "'{example}': {name:?} has no {flag}");
            }
        }
    }
}

/// Whether there are control sequences in what `variables` and `flags` make of an error.
fn is_coloured(variables: &[(&str, &str)], flags: &[&str]) -> [bool; 2] {
    [&["inspect", "no/such/model"][..], &["dance"]].map(|arguments| {
        let mut command = mlxcel(&[flags, arguments].concat());
        let done = finished(command.envs(variables.iter().copied()).output().expect("runs"));
        assert_ne!(done.code, Some(0));
        done.stderr.contains('\x1b')
    })
}

#[test]
fn there_is_colour_only_where_it_was_asked_for() {
    assert_eq!(is_coloured(&[], &[]), [false; 2], "a pipe is no terminal");
    assert_eq!(is_coloured(&[], &["--color", "always"]), [true; 2]);
    assert_eq!(is_coloured(&[], &["--color=never"]), [false; 2]);
    assert_eq!(is_coloured(&[("CLICOLOR_FORCE", "1")], &[]), [true; 2]);
    assert_eq!(is_coloured(&[("CLICOLOR_FORCE", "1"), ("NO_COLOR", "1")], &[]), [false; 2]);
    assert_eq!(is_coloured(&[("CLICOLOR_FORCE", "1")], &["--color=never"]), [false; 2]);
    assert_eq!(is_coloured(&[("NO_COLOR", "1")], &["--color=always"]), [true; 2]);
}
