//! Ctrl-C. At first the process ends at once; while an answer is generated the first one only asks, so that the
//! answer ends between two tokens, and the second one ends the process.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use anyhow::{Result, anyhow};

use crate::exit;

const AT_ONCE: u8 = 0;
const POLITELY: u8 = 1;
const ASKED: u8 = 2;

#[derive(Clone, Debug)]
pub struct Interrupt(Arc<AtomicU8>);

impl Interrupt {
    pub fn install() -> Result<Self> {
        let state = Arc::new(AtomicU8::new(AT_ONCE));
        let handled = Arc::clone(&state);
        let handler = move || {
            let polite = handled.compare_exchange(POLITELY, ASKED, Ordering::SeqCst, Ordering::SeqCst);
            if polite.is_err() {
                std::process::exit(exit::INTERRUPTED.into());
            }
        };
        ctrlc::set_handler(handler).map_err(|e| anyhow!("Ctrl-C cannot be handled: {e}"))?;
        Ok(Interrupt(state))
    }

    /// From now on the first Ctrl-C only asks.
    pub fn be_polite(&self) {
        self.0.store(POLITELY, Ordering::SeqCst);
    }

    pub fn is_asked(&self) -> bool {
        self.0.load(Ordering::SeqCst) == ASKED
    }
}
