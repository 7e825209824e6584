//! A program that runs on a thread of its own, so that whoever waits for a step can stop waiting when a member of the
//! group is gone: the engine may then wait for ever.

use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use mlxcel_engine::{EngineError, Program};

use super::peers::{GLANCE, Health};

/// How long a thread may take to end when a member is lost: it may be stuck.
const ENDING: Duration = Duration::from_secs(1);

type Task = Box<dyn FnOnce(&mut dyn Program) + Send>;

/// A handle on the thread, which ends with it unless it is stuck.
pub struct Guarded {
    tasks: Option<Sender<Task>>,
    thread: JoinHandle<()>,
    health: Arc<Health>,
}

impl Guarded {
    pub fn new(mut program: Box<dyn Program>, health: Arc<Health>) -> Result<Self, EngineError> {
        let (tasks, queue) = channel::<Task>();
        let body = move || queue.into_iter().for_each(|task| task(&mut *program));
        let thread = std::thread::Builder::new().name("member".to_string()).spawn(body);
        let thread = thread.map_err(|source| EngineError::Threads { source })?;
        Ok(Guarded { tasks: Some(tasks), thread, health })
    }

    /// Runs `f` on the thread and waits for it, or for somebody to be lost.
    pub fn call<T: Send + 'static>(
        &self,
        f: impl FnOnce(&mut dyn Program) -> Result<T, EngineError> + Send + 'static,
    ) -> Result<T, EngineError> {
        guard(&self.health, |sender| {
            let task: Task = Box::new(move |program| drop(sender.send(f(program))));
            let _ = self.tasks.as_ref().map(|tasks| tasks.send(task));
        })
        .map_err(|error| match error {
            Stopped::Lost(error) => error,
            Stopped::Failed(error) => self.health.explain(error),
            Stopped::Ended => EngineError::Threads { source: std::io::Error::other("its thread ended") },
        })
    }
}

/// The engine's memory goes with the thread; a process must not end in the midst of that.
impl Drop for Guarded {
    fn drop(&mut self) {
        self.tasks = None;
        let until = Instant::now() + ENDING;
        while !self.thread.is_finished() {
            if self.health.check().is_err() && Instant::now() > until {
                return;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

/// Why there is no result.
pub enum Stopped<E> {
    Lost(EngineError),
    Failed(E),
    Ended,
}

/// Waits for what `start` makes somebody send, or for a member to be lost.
pub fn guard<T, E>(
    health: &Health,
    start: impl FnOnce(std::sync::mpsc::SyncSender<Result<T, E>>),
) -> Result<T, Stopped<E>> {
    let (sender, result) = sync_channel(1);
    start(sender);
    loop {
        match result.recv_timeout(GLANCE) {
            Ok(done) => return done.map_err(Stopped::Failed),
            Err(RecvTimeoutError::Disconnected) => return Err(Stopped::Ended),
            Err(RecvTimeoutError::Timeout) => health.check().map_err(|lost| Stopped::Lost(lost.error()))?,
        }
    }
}
