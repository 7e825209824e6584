//! How a request can fail, by kind. Texts of the server are bounded and have no control characters, since they end up
//! on a terminal.

use std::time::Duration;

/// Characters of a server's message that are kept.
const MESSAGE_CHARS_MAX: usize = 300;

#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Failure {
    #[error("cannot connect: {0}")]
    Connect(String),
    #[error("HTTP {status}: {message}")]
    Status { status: u16, message: String },
    #[error("the server reported an error in the stream: {0}")]
    Reported(String),
    #[error("the connection was cut: {0}")]
    Cut(String),
    #[error("the stream ended without [DONE]")]
    NoDone,
    #[error("the answer is not understood: {0}")]
    Malformed(String),
    #[error("no whole answer within {} s; give a longer --timeout", .0.as_secs_f64())]
    Timeout(Duration),
}

impl Failure {
    /// What failures are counted by.
    pub fn kind(&self) -> String {
        match self {
            Failure::Connect(_) => "no connection".to_string(),
            Failure::Status { status, .. } => format!("HTTP {status}"),
            Failure::Reported(_) => "error in the stream".to_string(),
            Failure::Cut(_) => "cut stream".to_string(),
            Failure::NoDone => "no [DONE]".to_string(),
            Failure::Malformed(_) => "malformed answer".to_string(),
            Failure::Timeout(_) => "timeout".to_string(),
        }
    }
}

/// What a server said, fit for a terminal: one line that is not long.
pub fn said(text: &str) -> String {
    let plain = text.trim().chars().map(|c| if c.is_control() { ' ' } else { c });
    let mut line: String = plain.clone().take(MESSAGE_CHARS_MAX).collect();
    if plain.count() > MESSAGE_CHARS_MAX {
        line.push('…');
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_server_says_is_one_short_line() {
        assert_eq!(said(" no\nsuch\x1b[31m model "), "no such [31m model");
        assert_eq!(said(&"ä".repeat(1000)).chars().count(), MESSAGE_CHARS_MAX + 1);
    }
}
