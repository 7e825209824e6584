//! What the terminal can show, how it was set when the process began, and how it gets back there. It draws nothing.
#![allow(unsafe_code)]

use std::io::{self, IsTerminal as _};

/// Whether escape codes may be written to stdout: it is a terminal, and not a dumb one.
pub fn can_draw() -> bool {
    let is_dumb = std::env::var_os("TERM").is_some_and(|term| term.is_empty() || term == "dumb");
    io::stdin().is_terminal() && io::stdout().is_terminal() && !is_dumb
}

/// Whether colours may be written to it, too, as `colour` chose.
pub fn can_colour() -> bool {
    can_draw() && anstream::AutoStream::choice(&io::stdout()) != anstream::ColorChoice::Never
}

/// The settings of the terminal that the process was started on, if it was one.
#[derive(Clone, Default)]
pub struct Terminal {
    #[cfg(unix)]
    settings: Option<libc::termios>,
}

#[cfg(unix)]
impl Terminal {
    pub fn remember() -> Self {
        // SAFETY: a zeroed termios is valid, and the call only writes to it.
        let settings = unsafe {
            let mut settings: libc::termios = std::mem::zeroed();
            (libc::tcgetattr(libc::STDIN_FILENO, &mut settings) == 0).then_some(settings)
        };
        Terminal { settings }
    }

    /// Leaves the line that an editor has begun, and switches off the marks that it wants around pasted text.
    pub fn leave_line(&self) {
        use std::io::Write as _;
        let marks_off = if can_draw() { "\x1b[?2004l" } else { "" };
        // A terminal that is gone is no reason to end otherwise.
        let _ = write!(io::stdout(), "{marks_off}\r\n").and_then(|()| io::stdout().flush());
    }

    /// Puts back the settings, which a line editor has changed while it waits.
    pub fn restore(&self) {
        if let Some(settings) = &self.settings {
            // SAFETY: the call only reads the settings; that it may fail changes nothing.
            unsafe { libc::tcsetattr(libc::STDIN_FILENO, libc::TCSANOW, settings) };
        }
    }
}

#[cfg(not(unix))]
impl Terminal {
    pub fn remember() -> Self {
        Terminal::default()
    }

    pub fn restore(&self) {}
}
