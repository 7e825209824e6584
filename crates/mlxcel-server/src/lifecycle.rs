//! How far the server is from its end: running, draining, or over. Who asks it to end is elsewhere.

use tokio::sync::watch;

/// Requests are taken; or no longer, while those in progress go on; or those end, too.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    #[default]
    Running,
    Draining,
    Over,
}

/// Moves the server towards its end.
#[derive(Clone, Debug)]
pub struct Lifecycle(watch::Sender<Phase>);

/// Hears of it.
#[derive(Clone, Debug)]
pub struct Watcher(watch::Receiver<Phase>);

impl Default for Lifecycle {
    fn default() -> Self {
        Lifecycle(watch::Sender::new(Phase::Running))
    }
}

impl Lifecycle {
    /// Asks the server to end: politely the first time, at once the second.
    pub fn end(&self) {
        self.0.send_modify(|phase| {
            *phase = if *phase == Phase::Running { Phase::Draining } else { Phase::Over };
        });
    }

    pub fn end_now(&self) {
        self.0.send_replace(Phase::Over);
    }

    pub fn watcher(&self) -> Watcher {
        Watcher(self.0.subscribe())
    }

    pub fn phase(&self) -> Phase {
        *self.0.borrow()
    }
}

impl Watcher {
    /// Returns once the server takes no more requests.
    pub async fn draining(&mut self) {
        self.reaches(Phase::Draining).await;
    }

    /// Returns once requests in progress are to end.
    pub async fn over(&mut self) {
        self.reaches(Phase::Over).await;
    }

    async fn reaches(&mut self, wanted: Phase) {
        // A lifecycle that is gone is over.
        let _ = self.0.wait_for(|phase| *phase >= wanted).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn asking_twice_means_now() {
        let lifecycle = Lifecycle::default();
        assert_eq!(lifecycle.phase(), Phase::Running);
        lifecycle.end();
        assert_eq!(lifecycle.phase(), Phase::Draining);
        lifecycle.end();
        assert_eq!(lifecycle.phase(), Phase::Over);
    }
}
