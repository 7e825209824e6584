//! What a caller may be told while something is fetched, and the one listener that shows it on stderr.

use std::{
    collections::HashMap,
    io::{IsTerminal as _, Write as _, stderr},
    path::Path,
    sync::Mutex,
    time::Duration,
};

use indicatif::{HumanBytes, MultiProgress, ProgressBar, ProgressStyle};

use crate::Error;

/// One thing that happened. Several files may be on their way at once; `what` tells them apart.
#[derive(Debug)]
#[non_exhaustive]
pub enum Event<'a> {
    /// Several files that belong together are about to be fetched.
    Snapshot { what: &'a str, files: usize, bytes: u64 },
    /// A download begins; `bytes` is its size, or 0 where it is not known.
    Started { what: &'a str, through: &'a str, bytes: u64 },
    /// So many bytes are here so far.
    Advanced { what: &'a str, bytes: u64 },
    /// The bytes are here and are being checked and unpacked.
    Unpacking { what: &'a str },
    /// One file of a snapshot is here and checked.
    Arrived { what: &'a str },
    /// Another process is fetching the same thing; this one waits for it.
    Waiting { what: &'a str },
    /// Something failed in passing and is tried again after a while.
    Retrying { what: &'a str, failed: &'a Error, wait: Duration },
    /// One route failed and the next is tried.
    Rerouted { failed: &'a Error, next: &'a str },
    /// The file or folder is in the cache.
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

/// Tells a listener how far one download is.
#[derive(Clone, Copy)]
pub(crate) struct Meter<'a> {
    pub(crate) what: &'a str,
    pub(crate) progress: &'a dyn Progress,
}

impl Meter<'_> {
    pub(crate) fn at(&self, bytes: u64) {
        self.progress.on(Event::Advanced { what: self.what, bytes });
    }
}

/// Shows a bar for each file and one for all on a terminal; elsewhere prints a line when a download starts and when it
/// is done.
#[derive(Debug, Default)]
pub struct Stderr {
    bars: Mutex<Bars>,
}

#[derive(Debug, Default)]
struct Bars {
    screen: MultiProgress,
    files: HashMap<String, ProgressBar>,
    total: Option<ProgressBar>,
    /// Bytes of files that have arrived.
    arrived: u64,
}

impl Stderr {
    pub fn new() -> Self {
        Self::default()
    }
}

impl Progress for Stderr {
    fn on(&self, event: Event<'_>) {
        // A panic elsewhere while the lock was held leaves at worst a stale bar, which is still fine to draw over.
        let mut bars = self.bars.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if stderr().is_terminal() {
            bars.draw(&event);
        }
        if let Some(line) = line(&event) {
            bars.say(&line);
        }
    }
}

impl Drop for Stderr {
    fn drop(&mut self) {
        self.bars.get_mut().unwrap_or_else(|poisoned| poisoned.into_inner()).clear();
    }
}

/// What is said in words. Starts are not, where a bar shows them.
fn line(event: &Event<'_>) -> Option<String> {
    let is_plain = !stderr().is_terminal();
    match event {
        Event::Snapshot { what, files, bytes } => {
            let plural = if *files == 1 { "" } else { "s" };
            Some(format!("fetching {what} from the hub ({files} file{plural}, {})", HumanBytes(*bytes)))
        }
        Event::Started { what, through, bytes: 0 } if is_plain => {
            Some(format!("fetching {what} through {through}"))
        }
        Event::Started { what, through, bytes } if is_plain => {
            Some(format!("fetching {what} through {through} ({})", HumanBytes(*bytes)))
        }
        Event::Arrived { what } if is_plain => Some(format!("fetched {what}")),
        Event::Waiting { what } => Some(format!("waiting for another process that is fetching {what}")),
        Event::Retrying { what, failed, wait } => {
            Some(format!("{what}: {failed}; trying again in {:.0} s", wait.as_secs_f64().ceil()))
        }
        Event::Rerouted { failed, next } => Some(format!("{failed}; trying {next}")),
        Event::Finished { what, path } => Some(format!("fetched {what} into {}", path.display())),
        _ => None,
    }
}

impl Bars {
    fn draw(&mut self, event: &Event<'_>) {
        match event {
            Event::Snapshot { bytes, .. } => {
                self.arrived = 0;
                self.total = Some(self.screen.add(new_bar("in all", *bytes)));
            }
            Event::Started { what, bytes, .. } => {
                let bar = new_bar(&last_columns(what), *bytes);
                let bar = match &self.total {
                    Some(total) => self.screen.insert_before(total, bar),
                    None => self.screen.add(bar),
                };
                bar.enable_steady_tick(Duration::from_millis(200));
                self.files.insert(what.to_string(), bar);
            }
            Event::Advanced { what, bytes } => {
                self.files.get(*what).inspect(|bar| bar.set_position(*bytes));
                self.advance_total();
            }
            Event::Unpacking { what } => {
                self.files
                    .get(*what)
                    .inspect(|bar| bar.set_message(format!("{what} (checking and unpacking)")));
            }
            Event::Arrived { what } => {
                if let Some(bar) = self.files.remove(*what) {
                    self.arrived += bar.length().unwrap_or(0);
                    bar.finish_and_clear();
                }
                self.advance_total();
            }
            Event::Finished { .. } => self.clear(),
            _ => {}
        }
    }

    fn advance_total(&self) {
        let underway: u64 = self.files.values().map(ProgressBar::position).sum();
        self.total.as_ref().inspect(|total| total.set_position(self.arrived + underway));
    }

    fn clear(&mut self) {
        self.files.drain().for_each(|(_, bar)| bar.finish_and_clear());
        self.total.take().inspect(ProgressBar::finish_and_clear);
    }

    fn say(&self, line: &str) {
        // A stderr that cannot be written to is no reason to fail.
        self.screen.suspend(|| drop(writeln!(stderr(), "{line}")));
    }
}

/// The end of a name that is too long for a line beside its bar.
fn last_columns(what: &str) -> String {
    let skipped = what.chars().count().saturating_sub(40);
    if skipped == 0 {
        what.to_owned()
    } else {
        format!("…{}", what.chars().skip(skipped + 1).collect::<String>())
    }
}

fn new_bar(message: &str, bytes: u64) -> ProgressBar {
    let style =
        ProgressStyle::with_template("{msg:40!} [{bar:30}] {bytes}/{total_bytes} {bytes_per_sec} {eta}")
            .expect("the template is a constant that indicatif accepts")
            .progress_chars("=> ");
    ProgressBar::new(bytes).with_style(style).with_message(message.to_owned())
}
