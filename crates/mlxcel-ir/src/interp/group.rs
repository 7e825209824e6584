//! A group whose members are threads of this process, each evaluating its shard: what exchanges mean, and a double for
//! groups that talk over a network.

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use super::{Array, EvalError};
use crate::graph::Node;

/// How long a member waits for the others, who may have failed.
const PATIENCE: Duration = Duration::from_secs(60);

/// Members that meet at every exchange.
#[derive(Debug)]
pub struct Group {
    round: Mutex<Round>,
    changed: Condvar,
}

#[derive(Debug)]
struct Round {
    parts: Vec<Option<Array>>,
    result: Option<Arc<Array>>,
    /// How many have the result.
    taken: usize,
}

impl Group {
    pub fn new(members: usize) -> Arc<Self> {
        let round = Round { parts: vec![None; members], result: None, taken: 0 };
        Arc::new(Group { round: Mutex::new(round), changed: Condvar::new() })
    }

    /// Waits for every member's operand of one exchange and returns its result.
    pub fn exchange(&self, rank: usize, node: &Node, mine: &Array) -> Result<Array, EvalError> {
        let alone = || EvalError::Alone { op: node.op.name() };
        let mut round = self.wait(|r| r.result.is_none()).ok_or_else(alone)?;
        *round.parts.get_mut(rank).ok_or_else(alone)? = Some(mine.clone());
        if round.parts.iter().all(Option::is_some) {
            let parts: Vec<Array> = round.parts.iter_mut().filter_map(Option::take).collect();
            round.result = Some(Arc::new(Array::exchanged(&node.op, &parts).ok_or_else(alone)?));
            self.changed.notify_all();
        }
        drop(round);
        let mut round = self.wait(|r| r.result.is_some()).ok_or_else(alone)?;
        let result = round.result.clone().ok_or_else(alone)?;
        round.taken += 1;
        if round.taken == round.parts.len() {
            (round.result, round.taken) = (None, 0);
            self.changed.notify_all();
        }
        Ok(Arc::unwrap_or_clone(result))
    }

    fn wait(&self, is_ready: impl Fn(&Round) -> bool) -> Option<std::sync::MutexGuard<'_, Round>> {
        let round = self.round.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.changed.wait_timeout_while(round, PATIENCE, |r| !is_ready(r));
        let (round, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
        (!timeout.timed_out()).then_some(round)
    }
}
