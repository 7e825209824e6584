//! The thread that owns a program. MLX's streams belong to the thread that made them, so everything that touches a
//! context happens there; callers send closures and wait for what they return.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel, sync_channel};
use std::thread::JoinHandle;

use mlxcel_engine::EngineError;

use crate::NAME;
use crate::error::MlxError;
use crate::handle::{Code, Context, Failed, Program};
use crate::library::Api;

/// What lives on the thread, in the order in which it goes.
pub(crate) struct Session {
    pub(crate) codes: HashMap<u64, Code>,
    pub(crate) program: Option<Program>,
    pub(crate) context: Context,
    pub(crate) api: Arc<Api>,
}

type Task = Box<dyn FnOnce(&mut Session) + Send>;

/// A handle on the thread; dropping it ends it.
pub(crate) struct Owner {
    tasks: Option<Sender<Task>>,
    thread: Option<JoinHandle<()>>,
}

impl Owner {
    /// Starts a thread with a context of the device.
    pub(crate) fn start(api: Arc<Api>, device: i32) -> Result<Self, EngineError> {
        let (tasks, queue) = channel::<Task>();
        let (ready, opened) = sync_channel(1);
        let body = move || {
            let context = match Context::new(&api, device) {
                Ok(context) => context,
                Err(reason) => return drop(ready.send(Err(reason))),
            };
            let _ = ready.send(Ok(()));
            let mut session = Session { codes: HashMap::new(), program: None, context, api };
            for task in queue {
                task(&mut session);
            }
        };
        let thread = std::thread::Builder::new().name("mlx".to_string()).spawn(body);
        let thread = thread.map_err(|source| EngineError::Threads { source })?;
        let started = opened.recv().unwrap_or_else(|_| Err("its thread ended".to_string()));
        started.map_err(failed("opening the device"))?;
        Ok(Owner { tasks: Some(tasks), thread: Some(thread) })
    }

    /// Runs `f` on the thread and waits for its result.
    pub(crate) fn call<T: Send + 'static>(
        &self,
        doing: &str,
        f: impl FnOnce(&mut Session) -> Result<T, Failed> + Send + 'static,
    ) -> Result<T, EngineError> {
        let (sender, result) = sync_channel(1);
        let task: Task = Box::new(move |session| drop(sender.send(f(session))));
        let tasks = self.tasks.as_ref().expect("only dropping takes the channel");
        let gone = || "its thread ended".to_string();
        let done = tasks.send(task).map_err(|_| gone()).and_then(|()| result.recv().map_err(|_| gone())?);
        done.map_err(failed(doing))
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        self.tasks = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// The error of a call that failed.
pub(crate) fn failed(doing: &str) -> impl FnOnce(Failed) -> EngineError {
    let doing = doing.to_string();
    move |message| device_error(MlxError::Failed { doing, message })
}

/// An error of this engine at the seam.
pub(crate) fn device_error(source: MlxError) -> EngineError {
    EngineError::Device { engine: NAME, source: Box::new(source) }
}
