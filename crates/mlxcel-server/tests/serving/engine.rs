//! An engine that follows a script: after each token comes the one that a table names, the next letter otherwise. It
//! can be told to fail, to panic, to wait and to compute nonsense.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};

use mlxcel_engine::{EngineError, Feeds, Program, Ticket};
use mlxcel_ir::{HostTensor, step};

/// Bytes, then texts of several letters, of which each is one token.
pub const VOCABULARY: usize = 256 + TEXTS.len();

/// Tokens with a text of their own: control tokens first.
pub const TEXTS: [&str; 8] = [
    "<|end|>",
    "<|start|>",
    "<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Bern\"}}\n</tool_call>",
    "<tool_call>\n{\"name\": \"weather\", \"arguments\": {broken\n</tool_call>",
    "<think>",
    "let me see",
    "</think>",
    "the answer",
];

/// How many of them are control tokens.
pub const CONTROLS: usize = 2;

/// The token that ends an answer, after Z.
pub const END: u32 = text(0);

pub const fn text(index: usize) -> u32 {
    256 + index as u32
}

/// What the script says beside the alphabet: by the character that the prompt ends with.
fn table() -> BTreeMap<u32, u32> {
    let byte = |b: u8| u32::from(b);
    BTreeMap::from([
        (byte(b'Z'), END),
        (END, byte(b'A')),
        (byte(b'1'), text(2)),
        (text(2), END),
        (byte(b'2'), text(3)),
        (text(3), END),
        (byte(b'3'), text(4)),
        (text(4), text(5)),
        (text(5), text(6)),
        (text(6), text(7)),
        (text(7), END),
        // é and 字, byte by byte, then the alphabet.
        (byte(b'4'), 0xc3),
        (0xc3, 0xa9),
        (0xa9, 0xe5),
        (0xe5, 0xad),
        (0xad, 0x97),
        (0x97, byte(b'A')),
        // Never ends.
        (byte(b'5'), byte(b'6')),
        (byte(b'6'), byte(b'6')),
    ])
}

/// What is to go wrong, and what was seen.
#[derive(Debug, Default)]
pub struct Faults {
    pub panics: AtomicBool,
    pub fails: AtomicBool,
    /// A step fails, and every one after it.
    pub loses: AtomicBool,
    pub computes_nan: AtomicBool,
    /// Milliseconds that every token of a step takes.
    pub token_ms: AtomicU64,
    /// Making an engine fails.
    pub cannot_start: AtomicBool,
    pub engines_made: AtomicUsize,
    pub steps: AtomicU64,
    /// The largest number of rows in one step.
    pub rows_max: AtomicUsize,
    /// The largest number of tokens in one step.
    pub tokens_max: AtomicUsize,
    /// How many steps may pass; `None` for all.
    gate: Mutex<Option<u64>>,
    opened: Condvar,
}

impl Faults {
    /// From now on steps wait.
    pub fn close_gate(&self) {
        self.let_pass(0);
    }

    /// So many steps may pass; later ones wait.
    pub fn let_pass(&self, steps: u64) {
        *self.gate.lock().unwrap() = Some(steps);
        self.opened.notify_all();
    }

    pub fn open_gate(&self) {
        *self.gate.lock().unwrap() = None;
        self.opened.notify_all();
    }

    fn pass_gate(&self) {
        let gate = self.gate.lock().unwrap();
        let mut gate = self.opened.wait_while(gate, |left| *left == Some(0)).unwrap();
        if let Some(left) = &mut *gate {
            *left -= 1;
        }
    }
}

/// The program that follows the script.
pub struct Script {
    faults: Arc<Faults>,
    is_lost: bool,
    table: BTreeMap<u32, u32>,
    finished: BTreeMap<u64, Vec<HostTensor>>,
}

impl Script {
    pub fn new(faults: Arc<Faults>) -> Self {
        Script { faults, is_lost: false, table: table(), finished: BTreeMap::new() }
    }

    fn after(&self, token: u32) -> u32 {
        self.table.get(&token).copied().unwrap_or((token + 1) % VOCABULARY as u32)
    }
}

impl Program for Script {
    fn submit(&mut self, feeds: &Feeds, outputs: &[&str]) -> Result<Ticket, EngineError> {
        let faults = Arc::clone(&self.faults);
        faults.pass_gate();
        assert!(!faults.panics.swap(false, Ordering::SeqCst), "the engine was told to panic");
        self.is_lost |= faults.loses.swap(false, Ordering::SeqCst);
        if self.is_lost || faults.fails.swap(false, Ordering::SeqCst) {
            return Err(EngineError::OutOfMemory { what: "a test".to_string(), bytes: 1 });
        }
        let number = faults.steps.fetch_add(1, Ordering::SeqCst);
        let tokens = feeds.get("tokens").unwrap().to_i64();
        let rows = feeds.get("logit_rows").unwrap().to_i64();
        faults.rows_max.fetch_max(rows.len(), Ordering::SeqCst);
        faults.tokens_max.fetch_max(tokens.len(), Ordering::SeqCst);
        let slowness = faults.token_ms.load(Ordering::SeqCst) * tokens.len() as u64;
        std::thread::sleep(std::time::Duration::from_millis(slowness));
        let next: Vec<i32> = rows.iter().map(|&row| self.after(tokens[row as usize] as u32) as i32).collect();
        let results = outputs.iter().map(|name| match *name {
            step::SAMPLED => HostTensor::new(&[next.len()], &next),
            _ => logits(&next, faults.computes_nan.load(Ordering::SeqCst)),
        });
        self.finished.insert(number, results.collect());
        Ok(Ticket(number))
    }

    fn collect(&mut self, ticket: Ticket) -> Result<Vec<HostTensor>, EngineError> {
        self.finished.remove(&ticket.0).ok_or(EngineError::UnknownTicket { ticket: ticket.0 })
    }

    fn copy_state(&mut self, _: &str, _: &[(u32, u32)]) -> Result<(), EngineError> {
        Ok(())
    }

    fn is_lost(&self) -> bool {
        self.is_lost
    }
}

/// The token of the script is far likelier than any other.
fn logits(next: &[i32], is_nan: bool) -> HostTensor {
    let mut logits = vec![if is_nan { f32::NAN } else { 0.0f32 }; next.len() * VOCABULARY];
    for (row, token) in next.iter().enumerate() {
        logits[row * VOCABULARY + *token as usize] = if is_nan { f32::NAN } else { 20.0 };
    }
    HostTensor::new(&[next.len(), VOCABULARY], &logits)
}
