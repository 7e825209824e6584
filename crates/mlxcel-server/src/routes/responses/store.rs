//! Answers that are kept: the latest, up to a number and a size, in memory only.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde_json::Value;

/// A finished answer, and the messages that led to it with its own.
#[derive(Clone, Debug)]
pub struct Finished {
    pub id: String,
    pub response: Value,
    pub messages: Vec<Value>,
}

/// The oldest answer goes first.
#[derive(Debug)]
pub struct Store {
    kept: Mutex<VecDeque<(usize, Finished)>>,
    most: usize,
}

/// Bytes of all kept answers together, about.
const BYTES_MAX: usize = 64 << 20;

impl Store {
    pub fn new(most: usize) -> Self {
        Store { kept: Mutex::default(), most }
    }

    pub fn keep(&self, finished: Finished) {
        let size = finished.response.to_string().len()
            + finished.messages.iter().map(|message| message.to_string().len()).sum::<usize>();
        let mut kept = self.kept();
        kept.push_back((size, finished));
        while kept.len() > self.most || kept.iter().map(|(size, _)| size).sum::<usize>() > BYTES_MAX {
            kept.pop_front();
        }
    }

    pub fn get(&self, id: &str) -> Option<Value> {
        self.kept().iter().find(|(_, kept)| kept.id == id).map(|(_, kept)| kept.response.clone())
    }

    /// What was said up to and with an answer.
    pub fn messages(&self, id: &str) -> Option<Vec<Value>> {
        self.kept().iter().find(|(_, kept)| kept.id == id).map(|(_, kept)| kept.messages.clone())
    }

    /// Whether there was something to forget.
    pub fn forget(&self, id: &str) -> bool {
        let mut kept = self.kept();
        let before = kept.len();
        kept.retain(|(_, kept)| kept.id != id);
        kept.len() < before
    }

    fn kept(&self) -> MutexGuard<'_, VecDeque<(usize, Finished)>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_answers_are_forgotten_first() {
        let store = Store::new(2);
        for id in ["a", "b", "c"] {
            store.keep(Finished { id: id.to_string(), response: Value::Null, messages: Vec::new() });
        }
        assert!(store.get("a").is_none() && store.get("b").is_some() && store.get("c").is_some());
        assert!(store.forget("b") && !store.forget("b"));
    }

    #[test]
    fn all_answers_together_are_bounded() {
        let store = Store::new(1000);
        let large = Value::String("x".repeat(BYTES_MAX / 4));
        for id in 0..8 {
            store.keep(Finished { id: id.to_string(), response: large.clone(), messages: Vec::new() });
        }
        assert!(store.get("4").is_none() && store.get("7").is_some());
    }
}
