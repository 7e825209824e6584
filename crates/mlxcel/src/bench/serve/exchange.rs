//! One request and its answer, with the times at which parts of it came. What is asked for is decided elsewhere.

use std::time::{Duration, Instant};

use bytes::Bytes;

use super::client::{Answer, Client};
use super::failure::Failure;
use super::stream::{self, Event, Events, Piece, Usage};

const ROUTE: &str = "/chat/completions";

/// How long the end of the body may come after `[DONE]`; after that the connection is not used again.
const LINGER: Duration = Duration::from_millis(200);

/// What is sent, and how its answer is read.
#[derive(Clone, Debug)]
pub struct Exchange {
    pub body: Bytes,
    pub is_streamed: bool,
    /// The client leaves after so many pieces with output.
    pub leaves_after: Option<u64>,
    pub timeout: Duration,
}

/// What became of a request.
#[derive(Clone, Debug)]
pub struct Sample {
    pub started: Instant,
    pub outcome: Outcome,
    /// From the request to the first output, of a stream.
    pub first: Option<Duration>,
    /// Between pieces with output.
    pub gaps: Vec<Duration>,
    /// Until the end of the answer, the failure or the client's leaving.
    pub total: Duration,
    /// Pieces with output; most servers send one for each token.
    pub pieces: u64,
    /// What the server counted.
    pub usage: Option<Usage>,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    Completed,
    /// The client left, as it was told to.
    Cancelled,
    Failed(Failure),
}

impl Sample {
    pub fn is_completed(&self) -> bool {
        self.outcome == Outcome::Completed
    }

    /// Tokens of the answer: what the server counted, else the pieces.
    pub fn output_tokens(&self) -> u64 {
        self.usage.as_ref().map_or(self.pieces, |usage| usage.completion_tokens)
    }

    /// The mean time between tokens of this answer, however many of them came in one piece.
    pub fn per_token(&self) -> Option<Duration> {
        let after_first = self.output_tokens().saturating_sub(1);
        let all: Duration = self.gaps.iter().sum();
        (after_first > 0 && !self.gaps.is_empty()).then(|| all.div_f64(after_first as f64))
    }
}

impl Exchange {
    pub async fn run(&self, client: &Client) -> Sample {
        let mut watch = Watch::new();
        let outcome = match tokio::time::timeout(self.timeout, self.answered(client, &mut watch)).await {
            Ok(Ok(outcome)) => outcome,
            Ok(Err(failure)) => Outcome::Failed(failure),
            // Only what follows the end of an answer was missing.
            Err(_) if watch.ended.is_some() => Outcome::Completed,
            Err(_) => Outcome::Failed(Failure::Timeout(self.timeout)),
        };
        let Watch { started, first, gaps, pieces, usage, ended, .. } = watch;
        let total = ended.unwrap_or_else(Instant::now) - started;
        Sample { started, outcome, first, gaps, total, pieces, usage }
    }

    async fn answered(&self, client: &Client, watch: &mut Watch) -> Result<Outcome, Failure> {
        let answer = client.post(ROUTE, self.body.clone()).await?;
        if self.is_streamed {
            return self.streamed(answer, watch).await;
        }
        let body = answer.whole().await?;
        watch.ended = Some(Instant::now());
        watch.usage = stream::piece(&body)?.usage;
        Ok(Outcome::Completed)
    }

    async fn streamed(&self, mut answer: Answer<'_>, watch: &mut Watch) -> Result<Outcome, Failure> {
        let mut events = Events::default();
        while let Some(bytes) = answer.next().await? {
            let now = Instant::now();
            for event in events.push(&bytes)? {
                match event {
                    Event::Piece(piece) => watch.see(&piece, now),
                    Event::Done => {
                        watch.ended = Some(now);
                        release(answer).await;
                        return Ok(Outcome::Completed);
                    }
                }
                if self.leaves_after.is_some_and(|pieces| watch.pieces >= pieces) {
                    return Ok(Outcome::Cancelled);
                }
            }
        }
        match watch.is_finished {
            true => Err(Failure::NoDone),
            false => Err(Failure::Cut("the stream ended in the middle of an answer".to_string())),
        }
    }
}

/// Reads what follows the last event, which is nothing, so that the connection can be used again.
async fn release(mut answer: Answer<'_>) {
    let rest = async { while let Ok(Some(_)) = answer.next().await {} };
    if tokio::time::timeout(LINGER, rest).await.is_ok() {
        answer.keep_connection();
    }
}

/// The times of one answer so far.
struct Watch {
    started: Instant,
    first: Option<Duration>,
    last: Option<Instant>,
    gaps: Vec<Duration>,
    pieces: u64,
    usage: Option<Usage>,
    is_finished: bool,
    ended: Option<Instant>,
}

impl Watch {
    fn new() -> Self {
        let started = Instant::now();
        Watch {
            started,
            first: None,
            last: None,
            gaps: Vec::new(),
            pieces: 0,
            usage: None,
            is_finished: false,
            ended: None,
        }
    }

    fn see(&mut self, piece: &Piece, now: Instant) {
        if let Some(usage) = &piece.usage {
            self.usage = Some(usage.clone());
        }
        self.is_finished |= piece.is_last;
        if !piece.has_output {
            return;
        }
        self.pieces += 1;
        match self.last.replace(now) {
            Some(before) => self.gaps.push(now - before),
            None => self.first = Some(now - self.started),
        }
    }
}
