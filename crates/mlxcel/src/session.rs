//! One model, compiled, and one sequence at a time through it: the prompt in chunks, then token by token. It knows
//! token ids only; text, files and arguments are its callers' business.

use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, ensure};
use mlxcel_engine::sampling::{self, SamplingParams};
use mlxcel_engine::{Batch, Engine, Logits, Program, SequenceState};
use mlxcel_ir::{Bindings, HostTensor, step};
use mlxcel_models::{Model, ModelKind};
use mlxcel_weights::Checkpoint;

/// Tokens of a prompt that are computed in one step: enough to use the machine, few enough to be interrupted.
const CHUNK: usize = 512;

/// An open checkpoint and its graph.
pub struct Loaded {
    pub checkpoint: Checkpoint,
    pub model: Model,
}

/// What is generated.
pub struct Request<'a> {
    pub prompt: &'a [u32],
    /// New tokens at most; what the session can hold bounds them too.
    pub max_tokens: Option<usize>,
    /// Tokens that end the answer.
    pub end_ids: &'a BTreeSet<u32>,
    pub sampling: SamplingParams,
    /// 1 leaves the logits alone.
    pub repetition_penalty: f32,
    /// How many alternatives to report for each token.
    pub top_logprobs: Option<usize>,
}

/// A new token.
#[derive(Clone, Debug)]
pub struct Token {
    pub id: u32,
    /// Whether the token ended the answer.
    pub is_end: bool,
    /// As the model has them, before penalties and temperature.
    pub logprobs: Option<Logprobs>,
}

#[derive(Clone, Debug)]
pub struct Logprobs {
    pub chosen: f32,
    pub top: Vec<(u32, f32)>,
}

/// What a listener is told while a request runs.
pub enum Event<'a> {
    /// Another part of the prompt is computed.
    PromptPart,
    Token(&'a Token),
}

/// Hears of every event, and may end the request.
pub type Listener<'a> = dyn FnMut(Event<'_>) -> Result<ControlFlow<()>> + 'a;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finish {
    /// A token that ends the answer was drawn.
    End,
    Length,
    /// The listener wanted no more.
    Ended,
}

/// How a request went.
#[derive(Clone, Copy, Debug)]
pub struct Outcome {
    pub finish: Finish,
    /// From the beginning to the first new token.
    pub prompt_time: Duration,
    /// From the first new token to the last.
    pub decode_time: Duration,
}

impl Loaded {
    /// Bytes of cache that a token takes.
    pub fn bytes_per_token(&self) -> u64 {
        self.state_bytes("blocks")
    }

    /// Bytes of recurrent state that a sequence takes, however long it is.
    pub fn bytes_per_sequence(&self) -> u64 {
        self.state_bytes("slots")
    }

    fn state_bytes(&self, axis: &str) -> u64 {
        let one = ["blocks", "block", "slots"].map(|name| (name.to_string(), 1)).into();
        let states = self.model.graph.states().map(|(_, node)| &node.types[0]);
        let along = states.filter(|ty| ty.shape.first().and_then(|d| d.as_symbol()) == Some(axis));
        along.filter_map(|ty| ty.bytes(&one)).fold(0, u64::saturating_add)
    }

    /// Compiles the model for one sequence of up to `capacity` tokens.
    pub fn compile(&self, engine: &dyn Engine, capacity: usize) -> Result<Session> {
        let graph = &self.model.graph;
        ensure!(
            self.model.built.kind == ModelKind::Generate,
            "{} models make embeddings and cannot generate; give -m a decoder",
            self.model.family
        );
        let block_size = engine.caps().block_size;
        let sizes = [("blocks", capacity.div_ceil(block_size).max(1)), ("block", block_size), ("slots", 1)];
        let dims = Bindings::from(sizes.map(|(name, size)| (name.to_string(), size)));
        let program = engine.compile(graph, &self.checkpoint, &dims)?;
        Ok(Session { program, block_size, capacity, recompute_past: self.model.built.recompute_past })
    }
}

/// A compiled model with room for one sequence.
pub struct Session {
    program: Box<dyn Program>,
    block_size: usize,
    capacity: usize,
    recompute_past: Option<usize>,
}

struct Sequence {
    tokens: Vec<u32>,
    /// How many of them are in the cache.
    computed: usize,
}

impl Session {
    /// Goes on from the prompt until a token ends the answer, there is no more room, or the listener has enough.
    /// The prompt must fit, and its ids must be in the vocabulary.
    pub fn generate(&mut self, request: &Request<'_>, listen: &mut Listener<'_>) -> Result<Outcome> {
        let started = Instant::now();
        let room = self.capacity.saturating_sub(request.prompt.len());
        let limit = request.prompt.len() + request.max_tokens.map_or(room, |n| n.min(room));
        let mut sequence = Sequence { tokens: request.prompt.to_vec(), computed: 0 };
        let mut first = None;
        let finish = loop {
            let is_full = sequence.tokens.len() >= limit;
            if is_full && sequence.computed > 0 {
                break Finish::Length;
            }
            let wanted = if is_full { Logits::None } else { Logits::Last };
            let Some(outputs) = self.advance(&mut sequence, request, wanted, listen)? else {
                break Finish::Ended;
            };
            if is_full {
                break Finish::Length;
            }
            let token = choose(request, &sequence.tokens, &outputs[0])?;
            first.get_or_insert_with(Instant::now);
            sequence.tokens.push(token.id);
            let flow = listen(Event::Token(&token))?;
            if token.is_end {
                break Finish::End;
            }
            if flow.is_break() {
                break Finish::Ended;
            }
        };
        let first = first.unwrap_or_else(Instant::now);
        Ok(Outcome { finish, prompt_time: first - started, decode_time: first.elapsed() })
    }

    /// Computes what is not computed of the sequence and returns the outputs of its last token; `None` if the
    /// listener had enough.
    fn advance(
        &mut self,
        sequence: &mut Sequence,
        request: &Request<'_>,
        wanted: Logits,
        listen: &mut Listener<'_>,
    ) -> Result<Option<Vec<HostTensor>>> {
        let known_len = sequence.tokens.len();
        // The rotation of earlier tokens changes with the length: the sequence starts over.
        if self.recompute_past.is_some_and(|n| sequence.computed <= n && known_len > n) {
            sequence.computed = 0;
        }
        loop {
            let start = sequence.computed;
            let end = known_len.min(start + CHUNK);
            let is_last = end == known_len;
            let wanted = if is_last { wanted } else { Logits::None };
            let blocks = (0..end.div_ceil(self.block_size) as u32).collect();
            let mut batch = Batch::new(self.block_size);
            let state = SequenceState { blocks, slot: 0, known_len };
            batch.push(&state, &sequence.tokens[start..end], start, wanted, &request.sampling);
            let ticket = self.program.submit(&batch.feeds(), request.outputs(wanted))?;
            let outputs = self.program.collect(ticket)?;
            sequence.computed = end;
            if is_last {
                return Ok(Some(outputs));
            }
            if listen(Event::PromptPart)?.is_break() {
                return Ok(None);
            }
        }
    }
}

impl Request<'_> {
    /// Whether the host must see logits; else the graph draws the token and only its id leaves the device.
    fn needs_logits(&self) -> bool {
        self.top_logprobs.is_some() || self.repetition_penalty != 1.0
    }

    fn outputs(&self, wanted: Logits) -> &'static [&'static str] {
        match (wanted, self.needs_logits()) {
            (Logits::None, _) => &[],
            (_, true) => &[step::LOGITS],
            (_, false) => &[step::SAMPLED],
        }
    }
}

/// The next token of `tokens`, from the output that the request asked for.
fn choose(request: &Request<'_>, tokens: &[u32], output: &HostTensor) -> Result<Token> {
    let made = |id: u32, logprobs| Token { id, is_end: request.end_ids.contains(&id), logprobs };
    if !request.needs_logits() {
        let id = output.to_i64().first().and_then(|&id| u32::try_from(id).ok());
        return id.map(|id| made(id, None)).ok_or_else(|| anyhow!("the engine drew no token"));
    }
    let mut logits = output.to_vec::<f32>().ok_or_else(|| anyhow!("the engine's logits are not f32"))?;
    let original = request.top_logprobs.map(|_| logits.clone());
    if request.repetition_penalty != 1.0 {
        sampling::repetition_penalty(&mut logits, tokens, request.repetition_penalty);
    }
    let id = sampling::sample(&logits, &request.sampling, tokens.len() as u32);
    let logprobs = original.zip(request.top_logprobs).map(|(logits, k)| {
        let (chosen, top) = sampling::top_logprobs(&logits, id, k);
        Logprobs { chosen, top }
    });
    Ok(made(id, logprobs))
}
