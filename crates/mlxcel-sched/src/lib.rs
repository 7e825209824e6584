//! Which tokens of which sequences are computed in the next step: continuous batching, paged KV blocks, a prefix cache,
//! sampling. A pure, synchronous state machine over a [`Program`](mlxcel_engine::Program); it knows no text, no clock,
//! no I/O and no threads.

mod constraint;
mod error;
mod request;
mod sampling;

pub use constraint::{Constraint, TokenMask};
pub use error::{ConstraintError, Failure, Refusal};
pub use request::{
    Event, Finish, Limits, Logprobs, OVERTAKES, PRIORITIES, Request, RequestId, Speculate, Stats, Traits,
};
pub use sampling::{Dry, Mirostat, Sampling, Xtc};
