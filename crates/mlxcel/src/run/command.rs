//! The commands of a chat: their names, what they take, and what `/help` says of them. The chat does what they mean.

use std::path::PathBuf;

use anyhow::{Result, anyhow, ensure};

use super::input::unquoted;
use super::saved::place;

#[derive(Debug, PartialEq, Eq)]
pub enum Command {
    Help,
    /// Nothing shows the message, an empty text takes it away.
    System(Option<String>),
    Save(PathBuf),
    Load(PathBuf),
    /// A name and a value; nothing lists all.
    Set(Option<(String, String)>),
    Stats,
    Clear,
    Bye,
}

/// Each command, what it takes, and what it does.
const COMMANDS: [(&str, &str, &str); 8] = [
    ("help", "", "show this; /? does the same"),
    ("system", "TEXT", "set the system message; without TEXT show it, with \"\" take it away"),
    ("save", "FILE", "write conversation and settings to a file"),
    ("load", "FILE", "go on with a conversation from a file"),
    ("set", "NAME VALUE", "change a setting; alone, list all of them"),
    ("stats", "", "tell how the last answer went"),
    ("clear", "", "forget the conversation; keep system message and settings"),
    ("bye", "", "leave; Ctrl-D does the same"),
];

/// Other names that people try.
const SYNONYMS: [(&str, &str); 3] = [("?", "help"), ("exit", "bye"), ("quit", "bye")];

pub fn help() -> String {
    let line =
        |(name, takes, what): (&str, &str, &str)| format!("  {:18} {what}\n", format!("/{name} {takes}"));
    COMMANDS.map(line).concat()
        + "\n  \"\"\" begins and ends a text of several lines; a line that ends with \\ goes on in the next one.\n  // \
           begins a message with a slash. Ctrl-C stops an answer.\n"
}

/// Reads a line that begins with a slash.
pub fn parse(line: &str) -> Result<Command> {
    let (name, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
    let name = name.strip_prefix('/').unwrap_or(name);
    let name = SYNONYMS.iter().find(|(synonym, _)| *synonym == name).map_or(name, |(_, meant)| meant);
    let rest = rest.trim();
    let file = || {
        ensure!(!rest.is_empty(), "/{name} needs the name of a file: /{name} FILE");
        Ok(place(rest))
    };
    let alone = |command: Command| {
        ensure!(rest.is_empty(), "/{name} takes nothing, but got '{rest}'");
        Ok(command)
    };
    match name {
        "help" => Ok(Command::Help),
        "system" if rest == "\"\"" => Ok(Command::System(Some(String::new()))),
        "system" => Ok(Command::System((!rest.is_empty()).then(|| unquoted(rest)))),
        "save" => Ok(Command::Save(file()?)),
        "load" => Ok(Command::Load(file()?)),
        "set" if rest.is_empty() => Ok(Command::Set(None)),
        "set" => {
            let (setting, value) = rest.split_once(char::is_whitespace).unwrap_or((rest, ""));
            Ok(Command::Set(Some((setting.to_string(), value.trim().to_string()))))
        }
        "stats" => alone(Command::Stats),
        "clear" => alone(Command::Clear),
        "bye" => alone(Command::Bye),
        _ => Err(unknown(name)),
    }
}

fn unknown(name: &str) -> anyhow::Error {
    let distance = |known: &str| strsim::damerau_levenshtein(name, known);
    let nearest = COMMANDS.iter().map(|(known, ..)| *known).min_by_key(|known| distance(known));
    let advice = match nearest.filter(|known| distance(known) <= 2.min(known.len() - 1)) {
        Some(known) => format!("did you mean /{known}?"),
        None => "/? lists them".to_string(),
    };
    anyhow!("there is no command '/{name}': {advice} A message that begins with a slash takes two: //")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_is_read_and_in_the_help() {
        let lines = [
            ("/help", Command::Help),
            ("/system Be kind.", Command::System(Some("Be kind.".to_string()))),
            ("/save a b.json", Command::Save("a b.json".into())),
            ("/load x", Command::Load("x".into())),
            ("/set temp 0.5", Command::Set(Some(("temp".to_string(), "0.5".to_string())))),
            ("/stats", Command::Stats),
            ("/clear", Command::Clear),
            ("/bye", Command::Bye),
        ];
        for ((line, command), (name, ..)) in lines.into_iter().zip(COMMANDS) {
            assert!(line.starts_with(&format!("/{name}")) && help().contains(&format!("  /{name} ")));
            assert_eq!(parse(line).unwrap(), command);
        }
        assert_eq!(parse("/?").unwrap(), Command::Help);
        assert_eq!(parse("/quit").unwrap(), Command::Bye);
    }

    #[test]
    fn arguments_may_be_left_out_where_that_means_something() {
        assert_eq!(parse("/system").unwrap(), Command::System(None));
        assert_eq!(parse("/system \"\"").unwrap(), Command::System(Some(String::new())));
        assert_eq!(parse("/system \"\"\"a\nb\"\"\"").unwrap(), Command::System(Some("a\nb".to_string())));
        assert_eq!(parse("/set").unwrap(), Command::Set(None));
        assert_eq!(parse("/set stop").unwrap(), Command::Set(Some(("stop".to_string(), String::new()))));
        assert!(parse("/save").unwrap_err().to_string().contains("/save FILE"));
        assert!(parse("/clear all").unwrap_err().to_string().contains("'all'"));
    }

    #[test]
    fn an_unknown_command_is_told_the_nearest_one() {
        for (line, meant) in [("/hlep", "/help"), ("/stat", "/stats"), ("/byе", "/bye"), ("/laod x", "/load")]
        {
            let refused = parse(line).unwrap_err().to_string();
            assert!(refused.contains(&format!("did you mean {meant}?")), "{refused}");
        }
        for line in ["/", "/frobnicate", "/usr/bin/x"] {
            let refused = parse(line).unwrap_err().to_string();
            assert!(refused.contains("/? lists them") && refused.contains("//"), "{refused}");
        }
    }
}
