//! The thread that owns a model's scheduler and engine: takes requests, runs steps, and hands out what comes of them.
//! If the engine panics, or says that it has lost its state, the requests in it fail, the model is not ready, and a fresh
//! engine is made.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver, Sender, TryRecvError};
use std::thread::JoinHandle;
use std::time::Instant;

use mlxcel_sched::{Event, Failure, Finish, Logprobs, Request, RequestId, Runner};
use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::oneshot;

use super::pace::Pace;
use super::{LoadError, MakeRunner};
use crate::metrics::ModelMetrics;

/// Something happened to one of a client's requests.
#[derive(Debug)]
pub struct Update {
    /// Which of the client's choices.
    pub choice: usize,
    pub what: What,
}

#[derive(Debug)]
pub enum What {
    Prefilled { cached: usize },
    Token { id: u32, logprobs: Option<Logprobs> },
    Finished(Finish),
    Failed(Lost),
}

/// Why an answer broke off.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Lost {
    #[error(transparent)]
    Failed(Failure),
    #[error("the engine broke down while it computed this request; it is being started anew")]
    Panicked,
    #[error("the server is ending")]
    Closed,
}

/// Why a request was not taken.
#[derive(Clone, Debug, thiserror::Error)]
pub enum NotAdmitted {
    #[error(transparent)]
    Refused(mlxcel_sched::Refusal),
    #[error("the engine is down and cannot be started: {reason}")]
    Down { reason: String },
    #[error("the model is being unloaded")]
    Closed,
}

/// A request with who hears of it.
pub struct Admission {
    pub request: Request,
    pub choice: usize,
    pub updates: UnboundedSender<Update>,
    pub started: Instant,
}

enum Command {
    Admit(Box<Admission>, oneshot::Sender<Result<RequestId, NotAdmitted>>),
    Cancel(RequestId),
}

/// A request in the scheduler. Dropping it takes it out.
#[derive(Debug)]
pub struct Ticket {
    id: RequestId,
    commands: Sender<Command>,
}

impl Drop for Ticket {
    fn drop(&mut self) {
        // A thread that is gone has nothing to cancel.
        let _ = self.commands.send(Command::Cancel(self.id));
    }
}

pub struct ModelThread {
    commands: Option<Sender<Command>>,
    /// Requests that the thread has not seen yet, since it is in the middle of a step.
    unseen: Arc<AtomicUsize>,
    queue_max: usize,
    is_up: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl ModelThread {
    /// Makes the first runner here, so that who loads the model hears why it fails.
    pub fn start(
        name: &str,
        mut make: MakeRunner,
        queue_max: usize,
        metrics: Arc<ModelMetrics>,
    ) -> Result<Self, LoadError> {
        let runner = make()?;
        let (commands, received) = mpsc::channel();
        let is_up = Arc::new(AtomicBool::new(true));
        let unseen = Arc::<AtomicUsize>::default();
        let worker = Worker {
            pace: Pace::new(runner.scheduler().batch_tokens_max()),
            unseen: Arc::clone(&unseen),
            runner: Some(runner),
            make,
            routes: HashMap::new(),
            metrics,
            is_up: Arc::clone(&is_up),
            name: name.to_string(),
        };
        let builder = std::thread::Builder::new().name(format!("model {name}"));
        let thread = builder.spawn(move || worker.run(&received));
        let thread =
            thread.map_err(|e| LoadError { reason: format!("its thread cannot be started: {e}") })?;
        Ok(ModelThread { commands: Some(commands), unseen, queue_max, is_up, thread: Some(thread) })
    }

    pub fn is_up(&self) -> bool {
        self.is_up.load(Ordering::Acquire)
    }

    /// Puts a request into the scheduler's queue.
    pub async fn admit(&self, admission: Admission) -> Result<Ticket, NotAdmitted> {
        let commands = self.commands.clone().ok_or(NotAdmitted::Closed)?;
        let unseen = self.unseen.fetch_add(1, Ordering::AcqRel);
        // However long a step takes, a full queue is told at once.
        if unseen >= self.queue_max {
            self.unseen.fetch_sub(1, Ordering::AcqRel);
            return Err(NotAdmitted::Refused(mlxcel_sched::Refusal::QueueFull { waiting: unseen }));
        }
        let (reply, answer) = oneshot::channel();
        let admit = Command::Admit(Box::new(admission), reply);
        commands.send(admit).map_err(|_| NotAdmitted::Closed)?;
        let id = answer.await.map_err(|_| NotAdmitted::Closed)??;
        Ok(Ticket { id, commands })
    }
}

/// The thread ends when its channel does; memory is free once it has.
impl Drop for ModelThread {
    fn drop(&mut self) {
        self.commands = None;
        if let Some(thread) = self.thread.take() {
            // What panicked in it was logged there.
            let _ = thread.join();
        }
    }
}

/// Who hears of a request.
struct Route {
    choice: usize,
    updates: UnboundedSender<Update>,
    started: Instant,
    last_token: Option<Instant>,
    /// Tokens of the prompt.
    prompt: usize,
}

struct Worker {
    /// `None` after the engine broke down and could not be made anew.
    runner: Option<Runner>,
    make: MakeRunner,
    pace: Pace,
    routes: HashMap<RequestId, Route>,
    unseen: Arc<AtomicUsize>,
    metrics: Arc<ModelMetrics>,
    is_up: Arc<AtomicBool>,
    name: String,
}

impl Worker {
    fn run(mut self, commands: &Receiver<Command>) {
        loop {
            match catch_unwind(AssertUnwindSafe(|| self.work(commands))) {
                Ok(()) => break,
                Err(_) => self.recover(),
            }
        }
        self.end_all(&Lost::Closed);
        self.is_up.store(false, Ordering::Release);
    }

    /// Takes commands and runs steps until nobody can send any more.
    fn work(&mut self, commands: &Receiver<Command>) {
        loop {
            let is_idle = self.runner.as_ref().is_none_or(Runner::is_idle);
            if is_idle {
                self.tell();
                let Ok(command) = commands.recv() else { return };
                self.obey(command);
            }
            loop {
                match commands.try_recv() {
                    Ok(command) => self.obey(command),
                    Err(TryRecvError::Empty) => break,
                    Err(TryRecvError::Disconnected) => return,
                }
            }
            let events = self.step();
            let now = Instant::now();
            events.into_iter().for_each(|event| self.pass_on(event, now));
            if self.runner.as_ref().is_some_and(Runner::is_lost) {
                self.recover();
            }
            self.tell();
        }
    }

    fn step(&mut self) -> Vec<Event> {
        let Some(runner) = &mut self.runner else { return vec![] };
        runner.set_batch_tokens_max(self.pace.tokens());
        let (begun, before) = (Instant::now(), runner.stats().steps);
        let events = runner.step();
        let stats = runner.stats();
        if stats.steps > before {
            self.pace.learn(stats.batch_tokens, begun.elapsed());
        }
        events
    }

    fn obey(&mut self, command: Command) {
        match command {
            Command::Admit(admission, reply) => {
                self.unseen.fetch_sub(1, Ordering::AcqRel);
                self.admit(*admission, reply);
            }
            Command::Cancel(id) => {
                // One that has finished is unknown by now.
                if self.routes.remove(&id).is_some() {
                    self.metrics.cancelled.add(1);
                    self.cancel(id);
                }
            }
        }
    }

    fn admit(&mut self, admission: Admission, reply: oneshot::Sender<Result<RequestId, NotAdmitted>>) {
        let Admission { request, choice, updates, started } = admission;
        let prompt = request.prompt.len();
        let admitted = match self.ready() {
            Ok(runner) => runner.admit(request).map_err(NotAdmitted::Refused),
            Err(down) => Err(down),
        };
        match &admitted {
            Ok(id) => {
                self.routes.insert(*id, Route { choice, updates, started, last_token: None, prompt });
            }
            Err(NotAdmitted::Refused(mlxcel_sched::Refusal::QueueFull { .. })) => self.metrics.refused.add(1),
            Err(_) => {}
        }
        // A client that is gone already cannot drop a ticket.
        if let Err(Ok(id)) = reply.send(admitted) {
            self.obey(Command::Cancel(id));
        }
    }

    /// The runner; one that is missing is made.
    fn ready(&mut self) -> Result<&mut Runner, NotAdmitted> {
        if self.runner.is_none() {
            let made = (self.make)().map_err(|error| NotAdmitted::Down { reason: error.reason })?;
            self.runner = Some(made);
            self.is_up.store(true, Ordering::Release);
            self.metrics.is_ready.set(1);
        }
        self.runner.as_mut().ok_or(NotAdmitted::Closed)
    }

    fn cancel(&mut self, id: RequestId) {
        if let Some(runner) = &mut self.runner {
            runner.cancel(id);
        }
    }

    /// Hands an event to its client; a client that is gone gives up its place.
    fn pass_on(&mut self, event: Event, now: Instant) {
        let id = event.id();
        let Some(route) = self.routes.get_mut(&id) else { return };
        let (what, is_last) = match event {
            Event::Prefilled { cached, .. } => {
                self.metrics.prompt_tokens.add(route.prompt as u64);
                self.metrics.cached_tokens.add(cached as u64);
                (What::Prefilled { cached }, false)
            }
            Event::Token { token, logprobs, .. } => {
                route.note_token(&self.metrics, now);
                (What::Token { id: token, logprobs }, false)
            }
            Event::Finished { reason, .. } => {
                self.metrics.whole.record(now - route.started);
                (What::Finished(reason), true)
            }
            Event::Failed { error, .. } => {
                tracing::error!(model = %self.name, %error, "a request failed");
                self.metrics.failed.add(1);
                (What::Failed(Lost::Failed(error)), true)
            }
        };
        let is_gone = route.updates.send(Update { choice: route.choice, what }).is_err();
        if is_last {
            self.routes.remove(&id);
        } else if is_gone {
            self.obey(Command::Cancel(id));
        }
    }

    /// After a panic nobody knows what the engine holds, and what it has lost does not come back: its requests fail, and
    /// it is made anew.
    fn recover(&mut self) {
        tracing::error!(model = %self.name, requests = self.routes.len(), "the engine broke down");
        self.is_up.store(false, Ordering::Release);
        self.metrics.is_ready.set(0);
        self.metrics.restarts.add(1);
        self.metrics.failed.add(self.routes.len() as u64);
        self.end_all(&Lost::Panicked);
        // Dropping what panicked may panic, too.
        let old = self.runner.take();
        let _ = catch_unwind(AssertUnwindSafe(|| drop(old)));
        let made = catch_unwind(AssertUnwindSafe(|| self.ready().map(drop)));
        match made {
            Ok(Ok(())) => tracing::info!(model = %self.name, "the engine is started anew"),
            Ok(Err(error)) => tracing::error!(model = %self.name, %error, "the next request tries again"),
            Err(_) => tracing::error!(model = %self.name, "starting the engine panicked"),
        }
    }

    fn end_all(&mut self, lost: &Lost) {
        for (_, route) in self.routes.drain() {
            let what = What::Failed(lost.clone());
            // Who is gone need not know.
            let _ = route.updates.send(Update { choice: route.choice, what });
        }
    }

    /// Keeps the metrics current.
    fn tell(&self) {
        let Some(runner) = &self.runner else { return };
        let (stats, metrics) = (runner.stats(), &self.metrics);
        metrics.waiting.set(stats.waiting as u64);
        metrics.running.set(stats.running as u64);
        metrics.blocks.set(stats.blocks_total as u64);
        metrics.blocks_used.set(stats.blocks_used as u64);
        metrics.blocks_cached.set(stats.blocks_cached as u64);
        metrics.batch_sequences.set(stats.batch_sequences as u64);
        metrics.batch_tokens.set(stats.batch_tokens as u64);
        metrics.steps.set(stats.steps);
        metrics.preemptions.set(stats.preemptions);
    }
}

impl Route {
    fn note_token(&mut self, metrics: &ModelMetrics, now: Instant) {
        metrics.generated_tokens.add(1);
        match self.last_token.replace(now) {
            None => metrics.first_token.record(now - self.started),
            Some(last) => metrics.between_tokens.record(now - last),
        }
    }
}
