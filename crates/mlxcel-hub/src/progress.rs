//! What a caller may be told while something is fetched, and the one listener that shows it on stderr.

use std::{
    io::{IsTerminal as _, stderr},
    path::Path,
    sync::Mutex,
    time::Duration,
};

use indicatif::{HumanBytes, ProgressBar, ProgressStyle};

use crate::Error;

/// One thing that happened.
#[derive(Debug)]
#[non_exhaustive]
pub enum Event<'a> {
    /// A download begins; `bytes` is its pinned size.
    Started { what: &'a str, through: &'a str, bytes: u64 },
    /// So many bytes are here so far.
    Advanced { bytes: u64 },
    /// The bytes are here and are being checked and unpacked.
    Unpacking { what: &'a str },
    /// Another process is fetching the same thing; this one waits for it.
    Waiting { what: &'a str },
    /// One route failed and the next is tried.
    Rerouted { failed: &'a Error, next: &'a str },
    /// The file is in the cache.
    Finished { what: &'a str, path: &'a Path },
}

/// A listener. Closures are listeners too.
pub trait Progress: Send + Sync {
    fn on(&self, event: Event<'_>);
}

impl<F: Fn(Event<'_>) + Send + Sync> Progress for F {
    fn on(&self, event: Event<'_>) {
        self(event);
    }
}

/// Shows a bar on a terminal; elsewhere prints one line when a download starts and one when it is done.
#[derive(Debug, Default)]
pub struct Stderr {
    bar: Mutex<Option<ProgressBar>>,
}

impl Stderr {
    pub fn new() -> Self {
        Self::default()
    }

    fn with_bar(&self, f: impl FnOnce(&mut Option<ProgressBar>)) {
        // A panic elsewhere while the lock was held leaves at worst a stale bar, which is still fine to draw over.
        f(&mut self.bar.lock().unwrap_or_else(|poisoned| poisoned.into_inner()));
    }

    fn clear(&self) {
        self.with_bar(|bar| drop(bar.take().inspect(ProgressBar::finish_and_clear)));
    }

    fn say(&self, line: &str) {
        self.with_bar(|bar| match bar {
            Some(bar) if !bar.is_hidden() => bar.println(line),
            _ => eprintln!("{line}"),
        });
    }
}

impl Progress for Stderr {
    fn on(&self, event: Event<'_>) {
        match event {
            Event::Started { what, through, bytes } if stderr().is_terminal() => {
                self.clear();
                self.with_bar(|bar| *bar = Some(new_bar(&format!("{what} ({through})"), bytes)));
            }
            Event::Started { what, through, bytes } => {
                self.say(&format!("fetching {what} through {through} ({})", HumanBytes(bytes)));
            }
            Event::Advanced { bytes } => self.with_bar(|bar| {
                if let Some(bar) = bar {
                    bar.set_position(bytes);
                }
            }),
            Event::Unpacking { what } => self.with_bar(|bar| {
                if let Some(bar) = bar {
                    bar.set_message(format!("{what} (checking and unpacking)"));
                }
            }),
            Event::Waiting { what } => {
                self.say(&format!("waiting for another process that is fetching {what}"))
            }
            Event::Rerouted { failed, next } => self.say(&format!("{failed}; trying {next}")),
            Event::Finished { what, path } => {
                self.clear();
                self.say(&format!("fetched {what} into {}", path.display()));
            }
        }
    }
}

impl Drop for Stderr {
    fn drop(&mut self) {
        self.clear();
    }
}

fn new_bar(message: &str, bytes: u64) -> ProgressBar {
    let style = ProgressStyle::with_template("{msg} [{bar:30}] {bytes}/{total_bytes} {bytes_per_sec} {eta}")
        .expect("the template is a constant that indicatif accepts")
        .progress_chars("=> ");
    let bar = ProgressBar::new(bytes).with_style(style).with_message(message.to_owned());
    bar.enable_steady_tick(Duration::from_millis(200));
    bar
}
