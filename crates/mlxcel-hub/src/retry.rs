//! How often and how long to wait for a server that is busy or gone.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use crate::{Error, Event, Progress, Result};

/// How often something is tried that fails in passing, and how long to wait in between.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    /// How often in a row without any progress.
    pub attempts: u32,
    /// The first wait; each next one is twice as long.
    pub wait: Duration,
    /// The longest wait. A server that asks for more is an error.
    pub wait_max: Duration,
}

impl Default for Patience {
    fn default() -> Self {
        Self { attempts: 6, wait: Duration::from_secs(1), wait_max: Duration::from_secs(60) }
    }
}

/// One thing that is tried until it succeeds or patience ends.
pub(crate) struct Retries<'a> {
    pub(crate) what: &'a str,
    pub(crate) patience: Patience,
    pub(crate) progress: &'a dyn Progress,
    pub(crate) stop: &'a AtomicBool,
    failed: u32,
}

const SLICE: Duration = Duration::from_millis(50);

impl<'a> Retries<'a> {
    pub(crate) fn new(
        what: &'a str,
        patience: Patience,
        progress: &'a dyn Progress,
        stop: &'a AtomicBool,
    ) -> Self {
        Self { what, patience, progress, stop, failed: 0 }
    }

    /// Tries once and again. `attempt` says with its error whether it got further than the time before.
    pub(crate) fn run<T>(
        mut self,
        mut attempt: impl FnMut() -> std::result::Result<T, (Error, bool)>,
    ) -> Result<T> {
        loop {
            let (error, got_further) = match attempt() {
                Ok(done) => return Ok(done),
                Err(failed) => failed,
            };
            self.failed = if got_further { 1 } else { self.failed + 1 };
            let Some(wait) = self.wait(&error) else { return Err(error) };
            self.progress.on(Event::Retrying { what: self.what, failed: &error, wait });
            self.sleep(wait)?;
        }
    }

    /// How long to wait before the next attempt; `None` if there is none.
    fn wait(&self, error: &Error) -> Option<Duration> {
        if !error.is_passing() || self.failed >= self.patience.attempts {
            return None;
        }
        let doubled = self.patience.wait.saturating_mul(1 << (self.failed - 1).min(20));
        let own = doubled.min(self.patience.wait_max);
        let asked = match error {
            Error::Status { retry_after, .. } => retry_after.map(Duration::from_secs),
            _ => None,
        };
        match asked {
            Some(asked) => Some(asked.max(own)).filter(|_| asked <= self.patience.wait_max),
            None => Some(own),
        }
    }

    /// Waits in slices, so that a failure elsewhere is noticed.
    fn sleep(&self, wait: Duration) -> Result<()> {
        let until = Instant::now() + wait;
        loop {
            if self.stop.load(Ordering::Relaxed) {
                return Err(Error::Stopped);
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(());
            }
            thread::sleep(left.min(SLICE));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(status: u16, retry_after: Option<u64>) -> Error {
        Error::Status { url: "http://host.test/".into(), status, retry_after }
    }

    fn retries<'a>(progress: &'a dyn Progress, stop: &'a AtomicBool) -> Retries<'a> {
        let patience =
            Patience { attempts: 3, wait: Duration::from_millis(1), wait_max: Duration::from_secs(5) };
        Retries::new("x", patience, progress, stop)
    }

    #[test]
    fn waits_double_are_bounded_and_heed_the_server() {
        let (silent, stop) = (|_: Event<'_>| {}, AtomicBool::new(false));
        let patience = Patience { attempts: 100, ..Patience::default() };
        let wait = |failed, error: &Error| {
            Retries { failed, ..Retries::new("x", patience, &silent, &stop) }.wait(error)
        };
        let seconds = |n| Some(Duration::from_secs(n));
        let busy = status(503, None);
        assert_eq!([1, 2, 3, 50].map(|failed| wait(failed, &busy)), [1, 2, 4, 60].map(seconds));
        assert_eq!(wait(1, &status(429, Some(7))), seconds(7));
        assert_eq!(wait(1, &status(429, Some(0))), seconds(1));
        assert_eq!(wait(1, &status(429, Some(3600))), None, "an hour is not waited");
        assert_eq!(wait(1, &status(404, None)), None);
    }

    #[test]
    fn patience_ends_unless_there_is_progress() {
        let (silent, stop) = (|_: Event<'_>| {}, AtomicBool::new(false));
        let mut tried = 0;
        let result: Result<()> = retries(&silent, &stop).run(|| {
            tried += 1;
            Err((status(500, None), false))
        });
        assert!(result.is_err() && tried == 3);
        let mut tried = 0;
        let result = retries(&silent, &stop).run(|| {
            tried += 1;
            if tried < 10 { Err((status(500, None), true)) } else { Ok(tried) }
        });
        assert_eq!(result.unwrap(), 10);
    }

    #[test]
    fn a_failure_elsewhere_ends_the_wait() {
        let (silent, stop) = (|_: Event<'_>| {}, AtomicBool::new(true));
        let result: Result<()> = retries(&silent, &stop).run(|| Err((status(500, None), false)));
        assert!(matches!(result, Err(Error::Stopped)));
    }
}
