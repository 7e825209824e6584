//! A toy model that keeps its state where the scheduler says: its logits depend on every token of a sequence, read
//! back from blocks and slots. A block that is lost, shared wrongly or written twice changes the answer or panics. What
//! it should answer is computed a second time from the tokens alone, without blocks, batches or a scheduler.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use mlxcel_engine::sampling::{SamplingParams, sample};
use mlxcel_engine::{EngineError, Feeds, HostTensor, Program, Ticket, step};
use mlxcel_sched::{Limits, Traits};

/// How the rotation of a token depends on the length of its sequence.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Rotation {
    Fixed,
    /// Past this length, on the length known when the token is computed.
    Dynamic(usize),
    /// Past this length, all tokens have another one.
    Long(usize),
}

#[derive(Clone, Copy, Debug)]
pub struct Toy {
    pub vocab_size: usize,
    pub keeps_cache: bool,
    pub is_recurrent: bool,
    pub rotation: Rotation,
    /// Whether a token that known tokens follow is computed otherwise than the last one known.
    pub rounds_prompts: bool,
    /// Sequences that contain this token have no logits but NaN.
    pub poison: Option<u32>,
    /// Whether what is drawn of these is -1, and nobody may ask for their logits to find out.
    pub draws_no_nan: bool,
}

impl Default for Toy {
    fn default() -> Self {
        let rotation = Rotation::Fixed;
        Toy {
            vocab_size: 50,
            keeps_cache: true,
            is_recurrent: false,
            rotation,
            rounds_prompts: false,
            poison: None,
            draws_no_nan: false,
        }
    }
}

pub fn limits() -> Limits {
    Limits { blocks: 64, block_size: 4, slots: 12, batch_tokens_max: 32, sequences_max: 8, queue_max: 1000 }
}

fn mix(hash: u64, value: u64) -> u64 {
    let mixed = (hash ^ value).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed ^ (mixed >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9) ^ (mixed >> 32)
}

impl Toy {
    pub fn traits(&self) -> Traits {
        let (recompute_past, lengths_matter_past) = match self.rotation {
            Rotation::Fixed => (None, None),
            Rotation::Dynamic(n) => (None, Some(n)),
            Rotation::Long(n) => (Some(n), Some(n)),
        };
        Traits {
            max_context: 200,
            vocab_size: self.vocab_size,
            is_recurrent: self.is_recurrent,
            keeps_cache: self.keeps_cache,
            recompute_past,
            lengths_matter_past,
        }
    }

    fn rotate(&self, known_len: usize) -> u64 {
        match self.rotation {
            Rotation::Dynamic(n) if known_len > n => known_len as u64,
            Rotation::Long(n) if known_len > n => 1,
            _ => 0,
        }
    }

    /// What is computed of a token at this position.
    fn compute(&self, token: u32, position: usize, known_len: usize) -> u64 {
        let is_rounded = self.rounds_prompts && position + 1 < known_len;
        mix(mix(token.into(), self.rotate(known_len)), is_rounded.into())
    }

    fn attend(&self, context: impl Iterator<Item = u64>) -> u64 {
        context.fold(1, mix)
    }

    fn logits(&self, attended: u64, recurrent: u64, is_poisoned: bool) -> Vec<f32> {
        let hash = mix(attended, recurrent);
        let logit = |v: usize| (mix(hash, v as u64) >> 40) as f32 / (1u32 << 20) as f32;
        (0..self.vocab_size).map(|v| if is_poisoned { f32::NAN } else { logit(v) }).collect()
    }

    /// The logits after `tokens`, of which the first `prompt` were known from the start.
    pub fn logits_after(&self, tokens: &[u32], prompt: usize) -> Vec<f32> {
        // Past the length at which all tokens change, the sequence is begun anew, as long as it is then.
        let from_start = match self.rotation {
            Rotation::Long(n) if tokens.len() > n => prompt.max(n + 1),
            _ => prompt,
        };
        let computed = tokens.iter().enumerate().map(|(p, &t)| self.compute(t, p, from_start.max(p + 1)));
        let attended = if self.keeps_cache { self.attend(computed.clone()) } else { 0 };
        let recurrent = computed.fold(0, mix);
        let recurrent = if self.is_recurrent { recurrent } else { 0 };
        self.logits(attended, recurrent, tokens.iter().any(|&t| self.poison == Some(t)))
    }

    /// What the model answers to a prompt, by itself.
    pub fn answer(&self, prompt: &[u32], sampling: &SamplingParams, count: usize) -> Vec<u32> {
        let mut tokens = prompt.to_vec();
        for _ in 0..count {
            let logits = self.logits_after(&tokens, prompt.len());
            tokens.push(sample(&logits, sampling, tokens.len() as u32));
        }
        tokens.split_off(prompt.len())
    }

    pub fn program(&self, limits: &Limits) -> (Box<dyn Program>, Fault) {
        let fault = Fault::default();
        let program = ToyProgram {
            toy: *self,
            block_size: limits.block_size,
            cache: vec![None; limits.blocks * limits.block_size],
            slots: vec![(0, 0); limits.slots.max(1)],
            finished: None,
            fault: fault.clone(),
        };
        (Box::new(program), fault)
    }
}

/// Makes the next step fail.
#[derive(Clone, Default)]
pub struct Fault(Arc<AtomicU8>);

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum When {
    Submitting = 1,
    Collecting = 2,
}

impl Fault {
    pub fn strike(&self, when: When) {
        self.0.store(when as u8, Ordering::Relaxed);
    }

    fn strikes(&self, when: When) -> bool {
        self.0.compare_exchange(when as u8, 0, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }
}

struct ToyProgram {
    toy: Toy,
    block_size: usize,
    /// Token, position and what was computed of it.
    cache: Vec<Option<(u32, usize, u64)>>,
    /// A hash of so many tokens.
    slots: Vec<(u64, usize)>,
    finished: Option<Result<Vec<HostTensor>, EngineError>>,
    fault: Fault,
}

impl Program for ToyProgram {
    fn submit(&mut self, feeds: &Feeds, outputs: &[&str]) -> Result<Ticket, EngineError> {
        assert!(self.finished.is_none(), "one step at a time");
        assert!(!self.toy.draws_no_nan || !outputs.contains(&step::LOGITS), "nobody needs the logits");
        if self.fault.strikes(When::Submitting) {
            self.damage(feeds);
            return Err(failure());
        }
        let (rows, logits) = self.step(feeds);
        let params = |r: usize| {
            let float = |name: &str| fed(feeds, name).to_vec::<f32>().expect("f32")[r];
            let int = |name: &str| ints(feeds, name)[r];
            let (temperature, top_p, min_p) = (float("temperature"), float("top_p"), float("min_p"));
            let (top_k, seed) = (int("top_k") as u32, int("seed") as u32);
            (SamplingParams { temperature, top_k, top_p, min_p, seed }, int("step") as u32)
        };
        let drawn = logits.iter().enumerate().map(|(r, l)| {
            let (params, step) = params(r);
            let is_refused = self.toy.draws_no_nan && l.iter().any(|l| l.is_nan());
            if is_refused { -1 } else { sample(l, &params, step) as i32 }
        });
        let drawn = HostTensor::new(&[rows], &drawn.collect::<Vec<_>>());
        let logits = HostTensor::new(&[rows, self.toy.vocab_size], &logits.concat());
        let output = |name: &&str| if *name == step::SAMPLED { drawn.clone() } else { logits.clone() };
        self.finished = Some(Ok(outputs.iter().map(output).collect()));
        if self.fault.strikes(When::Collecting) {
            self.damage(feeds);
            self.finished = Some(Err(failure()));
        }
        Ok(Ticket(0))
    }

    fn collect(&mut self, _: Ticket) -> Result<Vec<HostTensor>, EngineError> {
        self.finished.take().expect("a step was submitted")
    }

    fn copy_state(&mut self, axis: &str, pairs: &[(u32, u32)]) -> Result<(), EngineError> {
        for &(from, to) in pairs {
            let (from, to, size) = (from as usize, to as usize, self.block_size);
            match axis {
                "blocks" => self.cache.copy_within(from * size..(from + 1) * size, to * size),
                _ => self.slots[to] = self.slots[from],
            }
        }
        Ok(())
    }

    fn rounds_prompts(&self) -> bool {
        self.toy.rounds_prompts
    }

    fn draws_no_nan(&self) -> bool {
        self.toy.draws_no_nan
    }
}

fn failure() -> EngineError {
    EngineError::OutOfMemory { what: "a test".to_string(), bytes: 1 }
}

impl ToyProgram {
    /// After a failure, what the step was to write may be anything.
    fn damage(&mut self, feeds: &Feeds) {
        let written = ints(feeds, "slot_mapping");
        written.iter().filter(|s| **s >= 0).for_each(|&s| self.cache[s as usize] = None);
        if self.toy.is_recurrent {
            ints(feeds, "slot_ids").iter().for_each(|&s| self.slots[s as usize] = (0, usize::MAX));
        }
    }

    fn step(&mut self, feeds: &Feeds) -> (usize, Vec<Vec<f32>>) {
        let ints = |name: &str| ints(feeds, name);
        let (tokens, positions) = (ints("tokens"), ints("positions"));
        let (sequences, known_lens) = (ints("seq_ids"), ints("known_lens"));
        let (slot_mapping, slot_ids) = (ints("slot_mapping"), ints("slot_ids"));
        let (table, rows) = (ints("block_table"), ints("logit_rows"));
        let pages = fed(feeds, "block_table").shape()[1];
        let mut recurrent = vec![0; tokens.len()];
        for t in 0..tokens.len() {
            let (token, position) = (tokens[t] as u32, positions[t] as usize);
            let computed = self.toy.compute(token, position, known_lens[t] as usize);
            if self.toy.keeps_cache {
                self.cache[slot_mapping[t] as usize] = Some((token, position, computed));
            }
            if self.toy.is_recurrent {
                let slot = &mut self.slots[slot_ids[t] as usize];
                *slot = if position == 0 { (0, 0) } else { *slot };
                assert_eq!(slot.1, position, "the state is that of another place");
                *slot = (mix(slot.0, computed), position + 1);
                recurrent[t] = slot.0;
            }
        }
        let read = |t: usize| {
            let blocks = &table[sequences[t] as usize * pages..][..pages];
            let context = (0..=positions[t] as usize).map(|p| {
                let place = blocks[p / self.block_size] as usize * self.block_size + p % self.block_size;
                let (token, position, computed) = self.cache[place].expect("a token that was never computed");
                assert_eq!(position, p, "a token of another place");
                (token, computed)
            });
            if self.toy.keeps_cache { context.collect() } else { vec![] }
        };
        let logits = rows.iter().map(|&r| {
            let context = read(r as usize);
            let is_poisoned = context.iter().any(|&(t, _)| self.toy.poison == Some(t));
            let attended =
                if self.toy.keeps_cache { self.toy.attend(context.into_iter().map(|(_, c)| c)) } else { 0 };
            self.toy.logits(attended, recurrent[r as usize], is_poisoned)
        });
        (rows.len(), logits.collect())
    }
}

fn fed<'a>(feeds: &'a Feeds, name: &str) -> &'a HostTensor {
    feeds.get(name).expect("a batch feeds every input")
}

fn ints(feeds: &Feeds, name: &str) -> Vec<i64> {
    fed(feeds, name).to_i64()
}
