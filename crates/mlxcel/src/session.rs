//! One model, compiled, and one sequence at a time through it: the prompt in chunks, then token by token. What a
//! sequence has in common with the one before it is not computed again. It knows token ids only; text, files and
//! arguments are its callers' business.

use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, bail, ensure};
use mlxcel_engine::sampling::{self, SamplingParams};
use mlxcel_engine::{Batch, Caps, Engine, Logits, Program, SequenceState};
use mlxcel_ir::{Bindings, HostTensor, step};
use mlxcel_models::{Built, Model, ModelKind};
use mlxcel_weights::Checkpoint;

use crate::budget::StepSize;

/// Tokens are drawn within the graph, where nobody sees logits. Those of a request's first token and of every so many
/// after it are looked at, since what is not a number stays so for the rest of the sequence.
const CHECK_EVERY: usize = 16;

/// The largest step of a session.
pub fn alone(engine: &dyn Engine) -> StepSize {
    StepSize { tokens: engine.caps().step_tokens, sequences: 1 }
}

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
    /// Tokens of the prompt that an earlier request had computed.
    pub reused: usize,
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
        let Caps { block_size, step_tokens, .. } = engine.caps();
        let sizes = [("blocks", capacity.div_ceil(block_size).max(1)), ("block", block_size), ("slots", 1)];
        let dims = Bindings::from(sizes.map(|(name, size)| (name.to_string(), size)));
        let program = engine.compile(graph, &self.checkpoint, &dims)?;
        let is_recurrent = self.bytes_per_sequence() > 0;
        let Built { recompute_past, lengths_matter_past, .. } = self.model.built;
        let known = Sequence::default();
        Ok(Session {
            program,
            block_size,
            step_tokens,
            capacity,
            is_recurrent,
            recompute_past,
            lengths_matter_past,
            known,
        })
    }
}

/// A compiled model with room for one sequence.
pub struct Session {
    program: Box<dyn Program>,
    block_size: usize,
    /// Tokens of a prompt that are computed in one step at most.
    step_tokens: usize,
    capacity: usize,
    /// Whether there is state that cannot go back to an earlier token.
    is_recurrent: bool,
    recompute_past: Option<usize>,
    lengths_matter_past: Option<usize>,
    /// What the last request left in the cache.
    known: Sequence,
}

#[derive(Default)]
struct Sequence {
    tokens: Vec<u32>,
    /// How many of them are in the cache.
    computed: usize,
}

impl Session {
    /// Tokens of prompt and answer together.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Goes on from the prompt until a token ends the answer, there is no more room, or the listener has enough.
    /// The prompt must fit, and its ids must be in the vocabulary.
    pub fn generate(&mut self, request: &Request<'_>, listen: &mut Listener<'_>) -> Result<Outcome> {
        let started = Instant::now();
        // After an error nobody knows what the cache holds, so what was known is put back only at the end.
        let known = std::mem::take(&mut self.known);
        let reused = self.reusable(&known, request.prompt);
        let mut sequence = Sequence { tokens: request.prompt.to_vec(), computed: reused };
        let mut first = None;
        let finish = self.extend(&mut sequence, request, &mut |event| {
            if matches!(event, Event::Token(_)) {
                first.get_or_insert_with(Instant::now);
            }
            listen(event)
        })?;
        self.known = sequence;
        let first = first.unwrap_or_else(Instant::now);
        Ok(Outcome { finish, reused, prompt_time: first - started, decode_time: first.elapsed() })
    }

    /// Computes a text anew and shows the logits after each of its tokens, by the token's place. The text must fit.
    pub fn score(&mut self, tokens: &[u32], show: &mut dyn FnMut(usize, &[f32])) -> Result<()> {
        self.known = Sequence::default();
        for (i, chunk) in tokens.chunks(SCORED_TOKENS).enumerate() {
            let start = i * SCORED_TOKENS;
            let blocks = (0..(start + chunk.len()).div_ceil(self.block_size) as u32).collect();
            let state = SequenceState { blocks, slot: 0, known_len: tokens.len() };
            let mut batch = Batch::new(self.block_size);
            batch.push(&state, chunk, start, Logits::All, &SamplingParams::default());
            let ticket = self.program.submit(&batch.feeds(), &[step::LOGITS])?;
            let outputs = self.program.collect(ticket)?;
            let logits = read_logits(outputs.first().ok_or_else(|| anyhow!("the engine gave no logits"))?)?;
            for (at, row) in logits.chunks(logits.len() / chunk.len()).enumerate() {
                show(start + at, row);
            }
        }
        Ok(())
    }

    /// How many tokens of a prompt the cache holds as if they had been computed for it. The last one is computed in
    /// any case, since the answer begins with its outputs.
    fn reusable(&self, known: &Sequence, prompt: &[u32]) -> usize {
        if self.lengths_matter_past.is_some_and(|n| prompt.len().max(known.tokens.len()) > n) {
            return 0;
        }
        let pairs = known.tokens[..known.computed].iter().zip(&prompt[..prompt.len().saturating_sub(1)]);
        let shared = pairs.take_while(|(a, b)| a == b).count();
        if self.is_recurrent && shared < known.computed { 0 } else { shared }
    }

    fn extend(
        &mut self,
        sequence: &mut Sequence,
        request: &Request<'_>,
        listen: &mut Listener<'_>,
    ) -> Result<Finish> {
        let prompt = request.prompt.len();
        let room = self.capacity.saturating_sub(prompt);
        let limit = prompt + request.max_tokens.map_or(room, |n| n.min(room));
        loop {
            let made = sequence.tokens.len() - prompt;
            let is_full = sequence.tokens.len() >= limit;
            if is_full && made > 0 {
                return Ok(Finish::Length);
            }
            let wanted = if is_full { Wanted::Nothing } else { request.wanted(made) };
            let Some(outputs) = self.advance(sequence, request, wanted, listen)? else {
                return Ok(Finish::Ended);
            };
            if is_full {
                return Ok(Finish::Length);
            }
            let token = choose(request, &sequence.tokens, &outputs)?;
            sequence.tokens.push(token.id);
            let flow = listen(Event::Token(&token))?;
            if token.is_end {
                return Ok(Finish::End);
            }
            if flow.is_break() {
                return Ok(Finish::Ended);
            }
        }
    }

    /// Computes what is not computed of the sequence and returns the outputs of its last token; `None` if the
    /// listener had enough.
    fn advance(
        &mut self,
        sequence: &mut Sequence,
        request: &Request<'_>,
        wanted: Wanted,
        listen: &mut Listener<'_>,
    ) -> Result<Option<Vec<HostTensor>>> {
        let known_len = sequence.tokens.len();
        // The rotation of earlier tokens changes with the length: the sequence starts over.
        if self.recompute_past.is_some_and(|n| sequence.computed <= n && known_len > n) {
            sequence.computed = 0;
        }
        let mut chunk = Chunk::new(self.step_tokens);
        loop {
            let start = sequence.computed;
            let end = known_len.min(start + chunk.tokens);
            let is_last = end == known_len;
            let wanted = if is_last { wanted } else { Wanted::Nothing };
            let begun = Instant::now();
            let blocks = (0..end.div_ceil(self.block_size) as u32).collect();
            let mut batch = Batch::new(self.block_size);
            let state = SequenceState { blocks, slot: 0, known_len };
            batch.push(&state, &sequence.tokens[start..end], start, wanted.rows(), &request.sampling);
            let ticket = self.program.submit(&batch.feeds(), wanted.outputs())?;
            let outputs = self.program.collect(ticket)?;
            sequence.computed = end;
            if is_last {
                return Ok(Some(outputs));
            }
            chunk.took(begun.elapsed());
            if listen(Event::PromptPart)?.is_break() {
                return Ok(None);
            }
        }
    }
}

/// Tokens of a text whose logits are computed in one step: a vocabulary of numbers for each.
const SCORED_TOKENS: usize = 64;

/// How many tokens of a prompt are computed in one step: enough to use the machine, few enough that a person who
/// interrupts is heard soon. The results do not depend on it.
struct Chunk {
    tokens: usize,
    most: usize,
}

impl Chunk {
    const FIRST: usize = 64;
    const LEAST: usize = 32;
    /// A step should take about this long.
    const WISHED: Duration = Duration::from_secs(1);

    fn new(most: usize) -> Self {
        Chunk { tokens: Self::FIRST.min(most), most }
    }

    fn took(&mut self, time: Duration) {
        let wished = self.tokens as f64 * (Self::WISHED.as_secs_f64() / time.as_secs_f64().max(1e-6));
        self.tokens = (wished as usize).next_power_of_two().clamp(Self::LEAST.min(self.most), self.most);
    }
}

/// What of a step's last token leaves the device.
#[derive(Clone, Copy)]
enum Wanted {
    Nothing,
    /// The id that the graph drew.
    Drawn,
    /// The same, and the logits to check them.
    DrawnChecked,
    /// The logits, from which the host draws.
    Logits,
}

impl Wanted {
    fn rows(self) -> Logits {
        if matches!(self, Wanted::Nothing) { Logits::None } else { Logits::Last }
    }

    fn outputs(self) -> &'static [&'static str] {
        match self {
            Wanted::Nothing => &[],
            Wanted::Drawn => &[step::SAMPLED],
            Wanted::DrawnChecked => &[step::SAMPLED, step::LOGITS],
            Wanted::Logits => &[step::LOGITS],
        }
    }
}

impl Request<'_> {
    /// Whether the host must see logits; else the graph draws the token and only its id leaves the device.
    fn needs_logits(&self) -> bool {
        self.top_logprobs.is_some() || self.repetition_penalty != 1.0
    }

    /// What is needed to choose the next token after `made` new ones.
    fn wanted(&self, made: usize) -> Wanted {
        match self.needs_logits() {
            true => Wanted::Logits,
            false if made.is_multiple_of(CHECK_EVERY) => Wanted::DrawnChecked,
            false => Wanted::Drawn,
        }
    }
}

/// The next token of `tokens`, from the outputs that the request wanted.
fn choose(request: &Request<'_>, tokens: &[u32], outputs: &[HostTensor]) -> Result<Token> {
    let made = |id: u32, logprobs| Token { id, is_end: request.end_ids.contains(&id), logprobs };
    if !request.needs_logits() {
        let [drawn, checked @ ..] = outputs else { bail!("the engine drew no token") };
        checked.iter().try_for_each(|logits| read_logits(logits).map(drop))?;
        let id = *drawn.to_i64().first().ok_or_else(|| anyhow!("the engine drew no token"))?;
        // Engines that see what is not a number draw below zero.
        return u32::try_from(id).map(|id| made(id, None)).map_err(|_| not_numbers());
    }
    let mut logits = read_logits(outputs.first().ok_or_else(|| anyhow!("the engine gave no logits"))?)?;
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

fn read_logits(output: &HostTensor) -> Result<Vec<f32>> {
    let logits = output.to_vec::<f32>().ok_or_else(|| anyhow!("the engine's logits are not f32"))?;
    match logits.iter().any(|l| l.is_nan()) {
        true => Err(not_numbers()),
        false => Ok(logits),
    }
}

fn not_numbers() -> anyhow::Error {
    anyhow!(
        "the model computed NaN instead of probabilities; its weights are damaged, or too large for f16: try --dtype f32"
    )
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::cli::{CachePrecision, Precision, TypeArgs};
    use crate::engines::EngineArgs;
    use crate::{engines, loading};

    /// A session of a tiny model, and what it takes to ask it.
    struct Asked {
        session: Session,
        end_ids: BTreeSet<u32>,
    }

    impl Asked {
        fn of(family: &str) -> Self {
            let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/golden").join(family);
            let types = TypeArgs { dtype: Precision::F32, kv_dtype: CachePrecision::Auto };
            let engine = engines::open(&EngineArgs::default()).unwrap();
            let (loaded, _) = loading::load(&path, types, &engine.caps()).expect("the fixture is a model");
            let capacity = loaded.model.built.max_context.min(400);
            Asked { session: loaded.compile(&*engine, capacity).unwrap(), end_ids: BTreeSet::new() }
        }

        /// The greedy answer of `n` tokens, and how many tokens of the prompt were not computed for it.
        fn answer(&mut self, prompt: &[u32], n: usize) -> (Vec<u32>, usize) {
            let request = Request {
                prompt,
                max_tokens: Some(n),
                end_ids: &self.end_ids,
                sampling: SamplingParams::default(),
                repetition_penalty: 1.0,
                top_logprobs: None,
            };
            let mut tokens = Vec::new();
            let outcome = self.session.generate(&request, &mut |event| {
                if let Event::Token(token) = event {
                    tokens.push(token.id);
                }
                Ok(ControlFlow::Continue(()))
            });
            (tokens, outcome.unwrap().reused)
        }
    }

    /// Two turns of a conversation, then another one that shares only its beginning.
    fn three_prompts(family: &str) -> [Vec<u32>; 3] {
        let first: Vec<u32> = (0..30).map(|i| (i * i + 7 * i) % 200).collect();
        let (answer, _) = Asked::of(family).answer(&first, 20);
        let second = [&first[..], &answer, &[5, 6, 7]].concat();
        let third = [&second[..25], &[9, 8]].concat();
        [first, second, third]
    }

    #[test]
    fn what_a_prompt_shares_with_the_last_sequence_is_not_computed_again() {
        for family in ["llama/f32", "gemma2/f32", "deepseek_v3/f32", "gpt_oss/f32"] {
            let mut kept = Asked::of(family);
            let prompts = three_prompts(family);
            // The last token of an answer is drawn, not computed.
            for (prompt, reused) in prompts.iter().zip([0, 30 + 20 - 1, 25]) {
                let expected = Asked::of(family).answer(prompt, 20);
                assert_eq!(kept.answer(prompt, 20), (expected.0, reused), "{family}");
            }
            assert_eq!(
                kept.answer(&prompts[2], 20).1,
                26,
                "{family}: the last token of a prompt is computed"
            );
        }
    }

    #[test]
    fn recurrent_state_goes_on_or_begins_anew() {
        let mut kept = Asked::of("mamba/f32");
        for (prompt, reused) in three_prompts("mamba/f32").iter().zip([0, 49, 0]) {
            let expected = Asked::of("mamba/f32").answer(prompt, 20);
            assert_eq!(kept.answer(prompt, 20), (expected.0, reused));
        }
    }

    #[test]
    fn rotations_that_depend_on_the_length_are_not_reused_past_it() {
        for family in ["llama/rope-dynamic", "phi3/rope-longrope"] {
            let mut kept = Asked::of(family);
            let prompts = three_prompts(family);
            for prompt in prompts.iter().chain([&prompts[0], &prompts[1]]) {
                let expected = Asked::of(family).answer(prompt, 20);
                let (tokens, _) = kept.answer(prompt, 20);
                assert_eq!(tokens, expected.0, "{family} after {} tokens", prompt.len());
            }
        }
    }

    #[test]
    fn an_ended_prompt_goes_on_where_it_was() {
        let mut kept = Asked::of("llama/f32");
        let prompt: Vec<u32> = (0..300).map(|i| (i * 11) % 250).collect();
        let end_ids = BTreeSet::new();
        let request = Request {
            prompt: &prompt,
            max_tokens: Some(5),
            end_ids: &end_ids,
            sampling: SamplingParams::default(),
            repetition_penalty: 1.0,
            top_logprobs: None,
        };
        let outcome = kept.session.generate(&request, &mut |_| Ok(ControlFlow::Break(()))).unwrap();
        assert_eq!((outcome.finish, outcome.reused), (Finish::Ended, 0));
        let (tokens, reused) = kept.answer(&prompt, 5);
        assert_eq!(reused, Chunk::FIRST);
        assert_eq!(tokens, Asked::of("llama/f32").answer(&prompt, 5).0);
    }

    #[test]
    fn a_step_that_takes_long_makes_the_next_one_short() {
        let mut chunk = Chunk::new(512);
        chunk.took(Duration::from_secs(60));
        assert_eq!(chunk.tokens, Chunk::LEAST);
        chunk.took(Duration::ZERO);
        assert_eq!(chunk.tokens, 512);
        chunk.took(2 * Chunk::WISHED);
        assert_eq!(chunk.tokens, 256);
    }
}
