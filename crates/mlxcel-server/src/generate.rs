//! One answered request as a stream of pieces: tokens from the model's thread become text, stop strings are found, and
//! what a client may see is told apart from what it may not. Shapes of answers are the routes' business.

mod choice;
mod constraint;
mod thinking;
mod usage;

use std::future::{Future as _, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;

use mlxcel_sched::{Request, Sampling};
use tokio::sync::mpsc::{self, UnboundedReceiver};
use tokio::time::Sleep;

pub use choice::{Ended, Piece, Shown, TokenInfo};
pub use thinking::Budget;
pub use usage::{Timings, Usage};

use crate::app::App;
use crate::model::{Admission, Lost, Model, NotAdmitted, Ticket, Update, What};
use crate::order::Order;
use crate::refusal::{Kind, Refusal};
use crate::trace::{self, Span};
use choice::Choice;
use constraint::GrammarConstraint;
use thinking::BoundedThoughts;

/// An answer that is being made. Dropping it takes its requests out of the scheduler.
pub struct Generation {
    pub model: Arc<Model>,
    pub usage: Usage,
    choices: Vec<Choice>,
    /// One for each choice, until it has ended.
    tickets: Vec<Option<Ticket>>,
    updates: UnboundedReceiver<Update>,
    /// An update that was looked at before its turn.
    ahead: Option<Update>,
    /// Set where answers may take only so long.
    deadline: Option<Pin<Box<Sleep>>>,
    is_broken: bool,
    /// Is told what came of it.
    span: Option<Arc<Span>>,
}

impl Generation {
    /// Puts an order into the model's queue, or says why not.
    pub async fn start(app: &App, model: Arc<Model>, order: Order) -> Result<Self, Refusal> {
        check_length(&model, &order)?;
        let started = Instant::now();
        let (sender, updates) = mpsc::unbounded_channel();
        let (mut tickets, mut choices) = (Vec::new(), Vec::new());
        let thread = model.generating()?;
        for choice in 0..order.prompts.len() * order.n {
            let request = request(&model, &order, choice);
            let admission = Admission { request, choice, updates: sender.clone(), started };
            let ticket = thread.admit(admission).await.map_err(not_admitted)?;
            tickets.push(Some(ticket));
            choices.push(Choice::new(&model, &order)?);
        }
        let usage = Usage::new(order.prompts.iter().map(Vec::len).sum(), started);
        let deadline = app.config.limits.request_time.map(|time| Box::pin(tokio::time::sleep(time)));
        Ok(Generation {
            model,
            usage,
            choices,
            tickets,
            updates,
            ahead: None,
            deadline,
            is_broken: false,
            span: trace::current(),
        })
    }

    /// Waits until something is known of the answer, so that what fails early can still be told by a status.
    pub async fn begun(&mut self, patience: std::time::Duration) -> Result<(), Refusal> {
        let Ok(first) = tokio::time::timeout(patience, self.updates.recv()).await else { return Ok(()) };
        if let Some(Update { what: What::Failed(lost), .. }) = &first {
            self.is_broken = true;
            return Err(broken(lost));
        }
        self.ahead = first;
        Ok(())
    }

    /// Whether every choice has ended.
    pub fn is_over(&self) -> bool {
        self.is_broken || self.tickets.iter().all(Option::is_none)
    }

    /// The next pieces, or `None` after the last. After an error there is nothing more.
    pub fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Vec<Shown>, Refusal>>> {
        let mut shown = Vec::new();
        while !self.is_over() {
            let update = match self.ahead.take() {
                Some(update) => Some(update),
                None => match self.updates.poll_recv(context) {
                    Poll::Ready(update) => update,
                    // What is here already goes along together.
                    Poll::Pending if !shown.is_empty() => break,
                    Poll::Pending if self.is_late(context) => {
                        return Poll::Ready(Some(Err(self.break_off(too_late()))));
                    }
                    Poll::Pending => return Poll::Pending,
                },
            };
            let taken = match update {
                Some(update) => self.take(update, &mut shown),
                None => Err(broken(&Lost::Closed)),
            };
            if let Err(refusal) = taken {
                return Poll::Ready(Some(Err(self.break_off(refusal))));
            }
        }
        Poll::Ready((!shown.is_empty()).then_some(Ok(shown)))
    }

    /// Whether the time of the answer is over; if not, the context is woken when it is.
    fn is_late(&mut self, context: &mut Context<'_>) -> bool {
        self.deadline.as_mut().is_some_and(|deadline| deadline.as_mut().poll(context).is_ready())
    }

    /// All pieces to the end.
    pub async fn all(&mut self) -> Result<Vec<Shown>, Refusal> {
        let mut all = Vec::new();
        while let Some(shown) = poll_fn(|context| self.poll_next(context)).await {
            all.extend(shown?);
        }
        Ok(all)
    }

    fn break_off(&mut self, refusal: Refusal) -> Refusal {
        self.is_broken = true;
        self.tickets.clear();
        if let Some(span) = self.span.as_ref().filter(|_| refusal.kind.status().is_server_error()) {
            span.fail();
        }
        refusal
    }

    fn take(&mut self, update: Update, shown: &mut Vec<Shown>) -> Result<(), Refusal> {
        let Update { choice: index, what } = update;
        // A choice that a stop string has ended may still have tokens on the way.
        if self.tickets.get(index).is_none_or(Option::is_none) {
            return Ok(());
        }
        let choice = &mut self.choices[index];
        let mut show = |piece: Piece| shown.push(Shown { choice: index, piece });
        match what {
            What::Prefilled { cached } => self.usage.prefilled(cached),
            What::Token { id, logprobs } => {
                self.usage.token();
                let mut reasons = false;
                choice.push(id, logprobs, &mut |piece| {
                    reasons |= matches!(piece, Piece::Reasoning(_));
                    show(piece);
                })?;
                self.usage.reasoning += usize::from(reasons);
            }
            What::Finished(reason) => choice.finish(reason, &mut show)?,
            What::Failed(lost) => return Err(broken(&lost)),
        }
        if choice.is_ended() {
            // Dropping the ticket frees what a stop string has cut short.
            self.tickets[index] = None;
            self.usage.ended();
        }
        Ok(())
    }
}

impl Drop for Generation {
    fn drop(&mut self) {
        if let Some(span) = &self.span {
            span.made(&self.usage.made_by(&self.model.id));
        }
    }
}

/// The choices of the first prompt come first.
fn request(model: &Model, order: &Order, choice: usize) -> Request {
    // Each choice draws by its own seed, the first by the one that was asked for.
    let seed = order.sampling.seed.wrapping_add((choice % order.n) as u32);
    let grammar = order.grammar.as_ref().map(|grammar| GrammarConstraint::boxed(grammar));
    let constraint = match &order.thinking {
        Some(budget) => Some(BoundedThoughts::boxed(model, budget.clone(), grammar)),
        None => grammar,
    };
    Request {
        prompt: order.prompts[choice / order.n].clone(),
        max_tokens: order.max_tokens,
        min_tokens: order.end.min_tokens,
        end_ids: Arc::clone(&order.end.ids),
        sampling: Sampling { seed, ..order.sampling.clone() },
        logprobs: order.logprobs,
        constraint,
        cache_key: order.cache_key,
        priority: order.priority,
        speculate: order.speculate,
    }
}

/// A prompt that does not fit is refused with both counts, never cut.
fn check_length(model: &Model, order: &Order) -> Result<(), Refusal> {
    let context = model.info.context;
    let room = if order.max_tokens == Some(0) { context } else { context.saturating_sub(1) };
    if order.prompts.is_empty() || order.prompts.iter().any(Vec::is_empty) {
        return Err(Refusal::new(Kind::Invalid, "the prompt has no tokens; send some text"));
    }
    if let Some(prompt) = order.prompts.iter().map(Vec::len).find(|prompt| *prompt > room) {
        let message = format!(
            "the prompt has {prompt} tokens, but the context has {context} for prompt and answer together; \
             shorten the prompt"
        );
        return Err(Refusal::new(Kind::Invalid, message).with_code("context_length_exceeded"));
    }
    Ok(())
}

fn not_admitted(error: NotAdmitted) -> Refusal {
    use mlxcel_sched::Refusal as Refused;
    let message = error.to_string();
    match error {
        NotAdmitted::Refused(Refused::QueueFull { .. }) => Refusal::new(Kind::Busy, message),
        NotAdmitted::Refused(Refused::PromptTooLong { .. }) => {
            Refusal::new(Kind::Invalid, message).with_code("context_length_exceeded")
        }
        NotAdmitted::Refused(Refused::Sampling { field, .. }) => Refusal::field(field, message),
        NotAdmitted::Refused(_) => Refusal::new(Kind::Invalid, message),
        NotAdmitted::Down { .. } | NotAdmitted::Closed => Refusal::new(Kind::Unavailable, message),
    }
}

fn broken(lost: &Lost) -> Refusal {
    use mlxcel_sched::Failure;
    let message = lost.to_string();
    match lost {
        // The client's own bias or grammar forbids everything.
        Lost::Failed(Failure::NothingAllowed { .. }) => Refusal::new(Kind::Invalid, message),
        Lost::Closed => Refusal::new(Kind::Unavailable, message),
        Lost::Failed(_) | Lost::Panicked => Refusal::internal(message),
    }
}

fn too_late() -> Refusal {
    Refusal::new(Kind::Deadline, "the answer took longer than the server allows; ask for fewer tokens")
}
