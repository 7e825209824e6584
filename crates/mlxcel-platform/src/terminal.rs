//! How the terminal was set when the process began, and how it gets back there. It draws nothing.
#![allow(unsafe_code)]

/// The settings of the terminal that the process was started on, if it was one.
#[derive(Clone, Default)]
pub struct Settings {
    #[cfg(unix)]
    settings: Option<libc::termios>,
}

#[cfg(unix)]
impl Settings {
    pub fn remember() -> Self {
        // SAFETY: a zeroed termios is valid, and the call only writes to it.
        let settings = unsafe {
            let mut settings: libc::termios = std::mem::zeroed();
            (libc::tcgetattr(libc::STDIN_FILENO, &mut settings) == 0).then_some(settings)
        };
        Settings { settings }
    }

    /// Puts back the settings, which a line editor has changed while it waits.
    pub fn restore(&self) {
        if let Some(settings) = &self.settings {
            // SAFETY: the call only reads the settings; that it may fail changes nothing.
            unsafe { libc::tcsetattr(libc::STDIN_FILENO, libc::TCSANOW, settings) };
        }
    }
}

/// Elsewhere a line editor's settings end with it.
#[cfg(not(unix))]
impl Settings {
    pub fn remember() -> Self {
        Settings::default()
    }

    pub fn restore(&self) {}
}
