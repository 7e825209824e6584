//! Which tokens of which sequences are computed in the next step: continuous batching, paged KV blocks, a prefix cache,
//! sampling. A pure, synchronous state machine over a [`Program`](mlxcel_engine::Program); it knows no text, no clock,
//! no I/O and no threads.

mod constraint;
mod error;
mod outcome;
mod place;
mod plan;
mod policy;
mod pool;
mod prefix;
mod request;
mod runner;
mod sampling;
mod scheduler;
mod sequence;
mod speculate;

pub use constraint::{Constraint, TokenMask};
pub use error::{ConstraintError, Failure, Refusal};
pub use plan::Step;
pub use request::{
    Event, Finish, Limits, Logprobs, OVERTAKES, PRIORITIES, Request, RequestId, Speculate, Stats, Traits,
};
pub use runner::Runner;
pub use sampling::{Dry, Mirostat, Sampling, Xtc};
pub use scheduler::Scheduler;
pub use speculate::Draft;
