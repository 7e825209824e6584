//! The reference as one markdown page.

use std::fmt::Write as _;

use clap::{Arg, Command};

use super::{full_name, visible};
use crate::environment::VARIABLES;
use crate::exit;

const INTRODUCTION: &str = "\
<!-- Written by `mlxcel manual --format markdown`; to change it, change the definitions of the arguments. -->
# Command line

`mlxcel COMMAND --help` says the same; `mlxcel manual --out FOLDER` writes it as man pages, and `mlxcel completions SHELL`
prints completions for bash, zsh, fish, PowerShell and elvish.
";

const OUTPUT: &str = "\
Answers go to standard output; notes, progress and errors go to standard error. Colour and moving progress appear on a
terminal only. `--json` prints one object on one line.
";

pub fn document(root: &Command) -> String {
    let mut page = INTRODUCTION.to_string();
    page.push_str("\n| command | what it does |\n|---|---|\n");
    for command in visible(root).into_iter().skip(1) {
        let name = full_name(command);
        let _ = writeln!(page, "| [`{name}`](#{}) | {} |", name.replace(' ', "-"), about(command));
    }
    page.push_str("\n## Output and exit codes\n\n");
    page.push_str(OUTPUT);
    page.push_str("\n| code | when |\n|---|---|\n");
    for exit::Code { code, meaning } in exit::CODES {
        let _ = writeln!(page, "| {code} | {meaning} |");
    }
    let _ = writeln!(page, "\n{}", exit::NOTE);
    page.push_str("\n## Environment\n\n| variable | what it does |\n|---|---|\n");
    for variable in VARIABLES {
        let _ = writeln!(page, "| `{}` | {} |", variable.name, variable.meaning);
    }
    for command in visible(root).into_iter().skip(1) {
        describe(command, &mut page);
    }
    page
}

fn describe(command: &Command, page: &mut String) {
    let _ = writeln!(page, "\n## {}\n\n{}\n", full_name(command), long_about(command));
    let usage = command.clone().render_usage().to_string();
    let _ = writeln!(page, "```text\n{}\n```", usage.trim_start_matches("Usage: "));
    for (heading, arguments) in groups(command) {
        let _ = writeln!(page, "\n**{heading}**\n");
        for argument in arguments {
            let _ = writeln!(page, "- {}", line(argument));
        }
    }
    if let Some(text) = command.get_after_help().map(ToString::to_string) {
        let lines: Vec<&str> =
            text.lines().filter(|line| *line != "Examples:").map(str::trim_start).collect();
        let _ = writeln!(page, "\n**Examples**\n\n```sh\n{}\n```", lines.join("\n"));
    }
}

fn about(command: &Command) -> String {
    sentence(command.get_about().map(ToString::to_string).unwrap_or_default())
}

fn long_about(command: &Command) -> String {
    command.get_long_about().map_or_else(|| about(command), |text| sentence(text.to_string()))
}

/// The parser takes the full stop off; here it is needed, since other sentences follow.
fn sentence(text: String) -> String {
    if text.is_empty() || text.ends_with(['.', ']']) { text } else { text + "." }
}

/// Arguments under their headings, as `--help` groups them: arguments without one first. What every command has is
/// left out.
fn groups(command: &Command) -> Vec<(String, Vec<&Arg>)> {
    let mut groups: Vec<(String, Vec<&Arg>)> = Vec::new();
    let listed = command.get_arguments().filter(|a| !a.is_hide_set() && !is_everywhere(a));
    for argument in listed {
        let plain = if argument.is_positional() { "Arguments" } else { "Options" };
        let heading = argument.get_help_heading().unwrap_or(plain);
        match groups.iter_mut().find(|(name, _)| name == heading) {
            Some((_, group)) => group.push(argument),
            None => groups.push((heading.to_string(), vec![argument])),
        }
    }
    groups
}

fn is_everywhere(argument: &Arg) -> bool {
    matches!(argument.get_id().as_str(), "help" | "version" | "color")
}

fn line(argument: &Arg) -> String {
    let help = argument.get_long_help().or(argument.get_help()).map(ToString::to_string).unwrap_or_default();
    let mut line =
        format!("`{}` {}", spelled(argument), sentence(help.replace("\n\n", " ").replace('\n', " ")));
    let values: Vec<String> = argument
        .get_possible_values()
        .iter()
        .filter(|value| !value.is_hide_set())
        .map(|value| format!("`{}`", value.get_name()))
        .collect();
    if !values.is_empty() && argument.get_action().takes_values() {
        let _ = write!(line, " One of {}.", values.join(", "));
    }
    let defaults: Vec<_> = argument.get_default_values().iter().map(|v| v.to_string_lossy()).collect();
    if !defaults.is_empty() && argument.get_action().takes_values() {
        let _ = write!(line, " Default: `{}`.", defaults.join(" "));
    }
    line
}

/// The flag with its value, as it is typed.
fn spelled(argument: &Arg) -> String {
    let names = argument.get_value_names().unwrap_or_default();
    let value = names.iter().map(|name| name.as_str()).collect::<Vec<_>>().join(" ");
    if argument.is_positional() {
        return value;
    }
    let short = argument.get_short().map(|c| format!("-{c}"));
    let long = argument.get_long().map(|name| format!("--{name}"));
    let flags = short.into_iter().chain(long).collect::<Vec<_>>().join(", ");
    if argument.get_action().takes_values() { format!("{flags} {value}") } else { flags }
}
