//! Ctrl-C and the signals that end a process. What Ctrl-C does depends on what is going on: it ends a process that
//! loads, and an answer that is being made; at a chat's prompt it only says how to leave. A terminal is left as it
//! was found.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use anyhow::{Result, anyhow};
use mlxcel_platform::signals;

use crate::exit;
use crate::terminal;

/// What is said when Ctrl-C is pressed at a prompt.
pub const HOW_TO_LEAVE: &str = "Use Ctrl-D or /bye to leave.";

/// The process ends at once.
const AT_ONCE: u8 = 0;
/// The first Ctrl-C asks the answer to end, the second one ends the process.
const POLITELY: u8 = 1;
const ASKED: u8 = 2;
/// Every Ctrl-C asks the answer to end, and the process goes on.
const PATIENTLY: u8 = 3;
const ASKED_PATIENTLY: u8 = 4;
/// A chat waits for a line.
const AT_PROMPT: u8 = 5;

#[derive(Clone, Debug)]
pub struct Interrupt(Arc<AtomicU8>);

impl Interrupt {
    pub fn install() -> Result<Self> {
        let state = Arc::new(AtomicU8::new(AT_ONCE));
        let settings = terminal::Settings::remember();
        listen_for_the_end(settings.clone(), Arc::clone(&state))?;
        let handled = Arc::clone(&state);
        let handler = move || {
            let change =
                |from, to| handled.compare_exchange(from, to, Ordering::SeqCst, Ordering::SeqCst).is_ok();
            if change(POLITELY, ASKED) || change(PATIENTLY, ASKED_PATIENTLY) {
                return;
            }
            match handled.load(Ordering::SeqCst) {
                ASKED_PATIENTLY => {}
                // A line editor reads Ctrl-C as a key, so this is a terminal without one.
                AT_PROMPT => crate::say(&format!("\n{HOW_TO_LEAVE}")),
                _ => {
                    settings.restore();
                    std::process::exit(exit::INTERRUPTED.into());
                }
            }
        };
        ctrlc::set_handler(handler).map_err(|e| anyhow!("Ctrl-C cannot be handled: {e}"))?;
        Ok(Interrupt(state))
    }

    /// From now on the first Ctrl-C only asks.
    pub fn be_polite(&self) {
        self.0.store(POLITELY, Ordering::SeqCst);
    }

    /// From now on every Ctrl-C only asks.
    pub fn be_patient(&self) {
        self.0.store(PATIENTLY, Ordering::SeqCst);
    }

    /// From now on there is nothing to end.
    pub fn wait_at_prompt(&self) {
        self.0.store(AT_PROMPT, Ordering::SeqCst);
    }

    pub fn is_asked(&self) -> bool {
        matches!(self.0.load(Ordering::SeqCst), ASKED | ASKED_PATIENTLY)
    }
}

/// Ends the process when it is told to, with the exit code that tells by what.
fn listen_for_the_end(settings: terminal::Settings, state: Arc<AtomicU8>) -> Result<()> {
    let end = move |code| {
        if state.load(Ordering::SeqCst) == AT_PROMPT {
            terminal::leave_line();
        }
        settings.restore();
        std::process::exit(code);
    };
    signals::on_end(end).map_err(|e| anyhow!("signals cannot be handled: {e}"))
}
