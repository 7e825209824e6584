//! An engine that computes nothing: every output is zeros of the right shape, except that the sampled token is the
//! fed token plus one. It makes scheduling and serving testable without a model's arithmetic.

use std::collections::BTreeMap;

use mlxcel_ir::{Bindings, Graph, HostTensor, Op, Type, step};

use crate::{Caps, Engine, EngineError, Feeds, Program, Ticket, WeightSource};

/// Computes nothing, instantly.
#[derive(Debug, Default)]
pub struct NullEngine;

impl Engine for NullEngine {
    fn caps(&self) -> Caps {
        Caps {
            name: "null",
            device: "none".to_string(),
            block_size: 16,
            threads: 1,
            prefers_16_bits: false,
            step_tokens: Caps::STEP_TOKENS,
            exact_rows: true,
        }
    }

    fn native(&self, _: &Op, _: &[Type]) -> bool {
        true
    }

    fn compile(
        &self,
        graph: &Graph,
        _: &dyn WeightSource,
        dims: &Bindings,
    ) -> Result<Box<dyn Program>, EngineError> {
        Ok(Box::new(Null { graph: graph.clone(), dims: dims.clone(), finished: BTreeMap::new(), next: 0 }))
    }
}

struct Null {
    graph: Graph,
    dims: Bindings,
    finished: BTreeMap<u64, Vec<HostTensor>>,
    next: u64,
}

impl Null {
    fn output(&self, name: &str, feeds: &Feeds, bindings: &Bindings) -> Result<HostTensor, EngineError> {
        let found = self.graph.outputs().iter().find(|(n, _)| n == name);
        let (_, value) = found.ok_or_else(|| EngineError::UnknownOutput { name: name.to_string() })?;
        let ty = self.graph.ty(*value);
        let unbound =
            |d: &mlxcel_ir::Dim| EngineError::Unbound { what: name.to_string(), dim: d.to_string() };
        let shape = ty.shape.iter().map(|d| d.eval(bindings).ok_or_else(|| unbound(d)));
        let shape = shape.collect::<Result<Vec<_>, _>>()?;
        if name == step::SAMPLED
            && let (Some(tokens), Some(rows)) = (feeds.get("tokens"), feeds.get("logit_rows"))
        {
            let tokens = tokens.to_i64();
            let next: Vec<i32> = rows.to_i64().iter().map(|&r| tokens[r as usize] as i32 + 1).collect();
            return Ok(HostTensor::new(&shape, &next));
        }
        Ok(HostTensor::from_f64(ty.dtype, &shape, &vec![0.0; shape.iter().product()]))
    }
}

impl Program for Null {
    fn submit(&mut self, feeds: &Feeds, outputs: &[&str]) -> Result<Ticket, EngineError> {
        let bindings = feeds.bind(&self.graph, &self.dims)?;
        let results = outputs.iter().map(|n| self.output(n, feeds, &bindings)).collect::<Result<_, _>>()?;
        self.next += 1;
        self.finished.insert(self.next, results);
        Ok(Ticket(self.next))
    }

    fn collect(&mut self, ticket: Ticket) -> Result<Vec<HostTensor>, EngineError> {
        self.finished.remove(&ticket.0).ok_or(EngineError::UnknownTicket { ticket: ticket.0 })
    }

    fn copy_state(&mut self, _: &str, _: &[(u32, u32)]) -> Result<(), EngineError> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sampling::SamplingParams;
    use crate::{Batch, Logits, NoWeights, SequenceState};
    use mlxcel_ir::{Builder, DType, shape};

    #[test]
    fn the_null_engine_counts_upwards() {
        let b = Builder::new();
        let inputs = step::StepInputs::declare(&b);
        let logits = b.scalar(0f32).broadcast(shape!["rows", 11]);
        b.output(step::LOGITS, logits);
        b.output(step::SAMPLED, logits.sample(inputs.sampling));
        let graph = b.finish().unwrap();
        let mut program = NullEngine.compile(&graph, &NoWeights, &Bindings::new()).unwrap();
        let mut batch = Batch::new(16);
        let state = SequenceState { blocks: vec![0], slot: 0, known_len: 2 };
        batch.push(&state, &[3, 4], 0, Logits::Last, &SamplingParams::default());
        let ticket = program.submit(&batch.feeds(), &[step::SAMPLED, step::LOGITS]).unwrap();
        let outputs = program.collect(ticket).unwrap();
        assert_eq!(outputs[0].to_i64(), [5]);
        assert_eq!((outputs[1].dtype(), outputs[1].shape()), (DType::F32, [1, 11].as_slice()));
        assert!(program.collect(Ticket(1)).is_err(), "a ticket is collected once");
    }
}
