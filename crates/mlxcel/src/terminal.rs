//! What the terminal can show, how it was set when the process began, and how it gets back there. It draws nothing.

use std::io::{self, IsTerminal as _, Write as _};

pub use mlxcel_platform::terminal::Settings;

/// Whether escape codes may be written to stdout: it is a terminal, and not a dumb one.
pub fn can_draw() -> bool {
    let is_dumb = std::env::var_os("TERM").is_some_and(|term| term.is_empty() || term == "dumb");
    io::stdin().is_terminal() && io::stdout().is_terminal() && !is_dumb
}

/// Whether colours may be written to it, too, as `colour` chose.
pub fn can_colour() -> bool {
    can_draw() && anstream::AutoStream::choice(&io::stdout()) != anstream::ColorChoice::Never
}

/// Leaves the line that an editor has begun, and switches off the marks that it wants around pasted text.
pub fn leave_line() {
    let marks_off = if can_draw() { "\x1b[?2004l" } else { "" };
    // A terminal that is gone is no reason to end otherwise.
    let _ = write!(io::stdout(), "{marks_off}\r\n").and_then(|()| io::stdout().flush());
}
