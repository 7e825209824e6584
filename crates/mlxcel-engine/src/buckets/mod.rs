//! Ragged steps on engines with static shapes. A step is split into sub-steps that are each either a decode (every
//! sequence has one token) or the tokens of one sequence; each is padded to a bucket, so that few shapes cover all
//! traffic; outputs are cut and joined. [`Bucketed`] does all of it around an engine; an engine that wants to see the
//! sub-steps calls [`split`] and its methods itself. Nothing here knows why an engine wants static shapes.
//!
//! A sub-step's kind shows in its shapes: a decode has as many tokens as sequences, any other has one sequence.

mod rows;
mod split;

use std::collections::BTreeMap;

use mlxcel_ir::{Bindings, Graph, HostTensor, Op, Type};

use crate::{Caps, Engine, EngineError, Feeds, Program, Ticket, WeightSource};

pub use split::{Split, SubStep, split};

/// Sizes that are allowed: the least one and its doubles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ladder {
    pub least: usize,
}

impl Ladder {
    /// The smallest allowed size that is not below `n`.
    pub fn up(self, n: usize) -> usize {
        let least = self.least.max(1);
        let steps = n.div_ceil(least).max(1);
        least.saturating_mul(steps.checked_next_power_of_two().unwrap_or(steps))
    }
}

/// How sub-steps are cut and padded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Buckets {
    /// Sequences of a decode.
    pub sequences: Ladder,
    /// Tokens of one sequence's chunk.
    pub tokens: Ladder,
    /// Blocks of the longest sequence.
    pub pages: Ladder,
    /// A decode of more sequences is cut into several.
    pub sequences_max: usize,
}

impl Default for Buckets {
    fn default() -> Self {
        Buckets {
            sequences: Ladder { least: 1 },
            tokens: Ladder { least: 16 },
            pages: Ladder { least: 1 },
            sequences_max: 256,
        }
    }
}

/// An engine whose programs see padded sub-steps only, wherever a graph's inputs allow the split.
pub struct Bucketed<E> {
    pub engine: E,
    pub buckets: Buckets,
}

impl<E: Engine> Engine for Bucketed<E> {
    fn caps(&self) -> Caps {
        self.engine.caps()
    }

    fn native(&self, op: &Op, operands: &[Type]) -> bool {
        self.engine.native(op, operands)
    }

    fn free_memory(&self) -> Option<u64> {
        self.engine.free_memory()
    }

    fn compile(
        &self,
        graph: &Graph,
        weights: &dyn WeightSource,
        dims: &Bindings,
    ) -> Result<Box<dyn Program>, EngineError> {
        let inner = self.engine.compile(graph, weights, dims)?;
        let (graph, dims) = (graph.clone(), dims.clone());
        let flying = BTreeMap::new();
        Ok(Box::new(BucketedProgram { inner, graph, dims, buckets: self.buckets, flying, next: 0 }))
    }
}

struct BucketedProgram {
    inner: Box<dyn Program>,
    graph: Graph,
    dims: Bindings,
    buckets: Buckets,
    flying: BTreeMap<u64, Flying>,
    next: u64,
}

/// A step in flight.
struct Flying {
    /// Absent if the step went to the engine as it was.
    split: Option<Split>,
    outputs: Vec<String>,
    tickets: Vec<Ticket>,
}

impl BucketedProgram {
    fn start(&mut self, feeds: &Feeds, outputs: &[&str]) -> Result<Flying, EngineError> {
        let sizes = feeds.bind(&self.graph, &self.dims)?;
        for name in outputs {
            if !self.graph.outputs().iter().any(|(n, _)| n == name) {
                return Err(EngineError::UnknownOutput { name: name.to_string() });
            }
        }
        let names = outputs.iter().map(|n| n.to_string()).collect();
        let Some(split) = split(&self.graph, feeds, &sizes, &self.buckets) else {
            let tickets = vec![self.inner.submit(feeds, outputs)?];
            return Ok(Flying { split: None, outputs: names, tickets });
        };
        let mut tickets = vec![];
        for step in &split.steps {
            let (padded, _) = step.pad(&self.graph, &self.buckets);
            match self.inner.submit(&padded, outputs) {
                Ok(ticket) => tickets.push(ticket),
                Err(e) => {
                    for ticket in tickets {
                        self.inner.collect(ticket)?;
                    }
                    return Err(e);
                }
            }
        }
        Ok(Flying { split: Some(split), outputs: names, tickets })
    }
}

impl Program for BucketedProgram {
    fn rounds_prompts(&self) -> bool {
        self.inner.rounds_prompts()
    }

    fn draws_no_nan(&self) -> bool {
        self.inner.draws_no_nan()
    }

    fn is_lost(&self) -> bool {
        self.inner.is_lost()
    }

    fn submit(&mut self, feeds: &Feeds, outputs: &[&str]) -> Result<Ticket, EngineError> {
        let flying = self.start(feeds, outputs)?;
        self.next += 1;
        self.flying.insert(self.next, flying);
        Ok(Ticket(self.next))
    }

    fn collect(&mut self, ticket: Ticket) -> Result<Vec<HostTensor>, EngineError> {
        let step = self.flying.remove(&ticket.0).ok_or(EngineError::UnknownTicket { ticket: ticket.0 })?;
        // Every sub-step is collected, also after one that failed, so that none stays in flight.
        let parts: Vec<_> = step.tickets.into_iter().map(|t| self.inner.collect(t)).collect();
        let mut parts = parts.into_iter().collect::<Result<Vec<_>, _>>()?;
        let Some(split) = step.split else { return Ok(parts.remove(0)) };
        let names: Vec<&str> = step.outputs.iter().map(String::as_str).collect();
        Ok(split.join(&self.graph, &names, parts))
    }

    fn copy_state(&mut self, axis: &str, pairs: &[(u32, u32)]) -> Result<(), EngineError> {
        self.inner.copy_state(axis, pairs)
    }

    fn working_bytes(&mut self, outputs: &[&str], sizes: &Bindings) -> Result<Option<u64>, EngineError> {
        self.inner.working_bytes(outputs, sizes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_go_up_to_the_least_one_or_its_doubles() {
        let ladder = Ladder { least: 16 };
        assert_eq!([0, 1, 16, 17, 33, 64].map(|n| ladder.up(n)), [16, 16, 16, 32, 64, 64]);
        assert_eq!([0, 1, 2, 3, 5].map(|n| Ladder { least: 1 }.up(n)), [1, 1, 2, 4, 8]);
        assert_eq!([1, 6, 7, 13].map(|n| Ladder { least: 6 }.up(n)), [6, 6, 12, 24]);
        assert_eq!(Ladder { least: 2 }.up(usize::MAX), usize::MAX, "sizes saturate");
    }
}
