//! What can go wrong: a request that is not taken, and a request that was taken and cannot go on.

/// Why a request is not taken. Nothing of it was computed.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Refusal {
    #[error("the prompt has no tokens; send at least one")]
    PromptEmpty,
    #[error(
        "the prompt has {prompt} tokens, and the context holds {context} with the answer; shorten the prompt"
    )]
    PromptTooLong { prompt: usize, context: usize },
    #[error("token {token} is not in the vocabulary of {vocab_size}")]
    UnknownToken { token: u32, vocab_size: usize },
    #[error("{waiting} requests are waiting and no more may; try again later")]
    QueueFull { waiting: usize },
    #[error("{field} is {value}; it must be {must_be}")]
    Sampling { field: &'static str, value: f64, must_be: &'static str },
    #[error("speculation is not possible {why}; turn it off for this request")]
    Speculation { why: &'static str },
}

/// Why a request that was taken ended without an answer. Other requests are not affected.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Failure {
    #[error(
        "the model computed NaN instead of probabilities; its weights are damaged or too large for their type"
    )]
    NotANumber,
    #[error("no token is allowed after {made} new ones: the constraint or the bias forbids them all")]
    NothingAllowed { made: usize },
    #[error("the constraint failed after {made} new tokens: {source}")]
    Constraint { made: usize, source: ConstraintError },
    #[error("the engine failed while computing this request: {message}")]
    Engine { message: String },
    #[error("the engine's result is unusable: {what}")]
    BadOutput { what: &'static str },
}

/// What a constraint says when it cannot go on.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConstraintError {
    #[error("token {token} is not allowed here")]
    NotAllowed { token: u32 },
    #[error("the grammar became too complex: {what}")]
    TooComplex { what: String },
}
