//! What a person types, told apart: a message, a command, or something that goes on in the next line. It reads no
//! terminal and runs no command.

use std::borrow::Cow;

use anyhow::Result;

use super::command::{self, Command};

/// Begins and ends a text of several lines.
const QUOTES: &str = "\"\"\"";

#[derive(Debug, PartialEq, Eq)]
pub enum Input {
    Nothing,
    Message(String),
    Command(Command),
}

/// Whether Enter ends the input; else it begins another line.
pub fn is_complete(text: &str) -> bool {
    match quoted(text) {
        Some(rest) => rest.trim_end().ends_with(QUOTES),
        None => text.bytes().rev().take_while(|&b| b == b'\\').count().is_multiple_of(2),
    }
}

/// What follows the opening quotes of a message, or of a command's text.
fn quoted(text: &str) -> Option<&str> {
    let text = text.trim_start();
    let argument = match text.strip_prefix('/') {
        Some(command) => command.split_once(char::is_whitespace)?.1.trim_start(),
        None => text,
    };
    argument.strip_prefix(QUOTES)
}

/// A text without the quotes around it, or without the backslashes that joined its lines.
pub fn unquoted(text: &str) -> String {
    let inner = text.trim().strip_prefix(QUOTES).map(|rest| rest.strip_suffix(QUOTES).unwrap_or(rest));
    match inner {
        Some(inner) => inner.strip_prefix('\n').unwrap_or(inner).trim_end_matches('\n').to_string(),
        None => text.replace("\\\n", "\n"),
    }
}

/// A slash begins a command, two of them a message that begins with one.
pub fn parse(text: &str) -> Result<Input> {
    let start = text.trim_start();
    if start.starts_with('/') && !start.starts_with("//") {
        return command::parse(start.trim_end()).map(Input::Command);
    }
    let message = unquoted(start.strip_prefix('/').unwrap_or(text));
    Ok(if message.trim().is_empty() { Input::Nothing } else { Input::Message(message) })
}

/// A model's text as a terminal may show it: whatever could move the cursor or give orders to the terminal, besides line
/// breaks and tabs, becomes a replacement character.
pub fn printable(text: &str) -> Cow<'_, str> {
    let is_order = |c: char| c.is_control() && c != '\n' && c != '\t';
    if text.contains(is_order) { text.replace(is_order, "\u{fffd}").into() } else { text.into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(text: &str) -> String {
        match parse(text).unwrap() {
            Input::Message(text) => text,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn quotes_hold_several_lines_together() {
        for open in ["\"\"\"", "\"\"\"a", "\"\"\"a\nb", "  \"\"\"a \"\"\" b", "/system \"\"\"a\n"] {
            assert!(!is_complete(open), "{open}");
        }
        for done in
            ["", "a", "\"\"\"a\"\"\"", "\"\"\"\na\nb\n\"\"\" ", "what is \"\"\" in Python?", "/set stop"]
        {
            assert!(is_complete(done), "{done}");
        }
        assert_eq!(message("\"\"\"a\nb\"\"\""), "a\nb");
        assert_eq!(message("\"\"\"\n  a \\\nb\n\"\"\""), "  a \\\nb");
        assert_eq!(parse("\"\"\"\n\"\"\"").unwrap(), Input::Nothing);
    }

    #[test]
    fn a_backslash_at_the_end_of_a_line_goes_on_in_the_next_one() {
        assert!(!is_complete("a\\") && !is_complete("a\\\nb\\") && !is_complete("\\\\\\"));
        assert!(is_complete("a\\\nb") && is_complete("C:\\\\"));
        assert_eq!(message("a\\\nb\\\nc"), "a\nb\nc");
    }

    #[test]
    fn two_slashes_begin_a_message_with_one() {
        assert_eq!(message("//usr/bin is what?"), "/usr/bin is what?");
        assert_eq!(message(" 5/2?"), " 5/2?");
        assert_eq!(parse("   \n").unwrap(), Input::Nothing);
        assert!(parse("/usr/bin is what?").unwrap_err().to_string().contains("//"));
    }

    #[test]
    fn orders_to_the_terminal_are_not_shown() {
        assert_eq!(
            printable("a\u{1b}[2J\rb\u{9b}c\u{7f}\n\t→ 👋🏽"),
            "a\u{fffd}[2J\u{fffd}b\u{fffd}c\u{fffd}\n\t→ 👋🏽"
        );
        assert!(matches!(printable("plain\n"), Cow::Borrowed(_)));
    }
}
