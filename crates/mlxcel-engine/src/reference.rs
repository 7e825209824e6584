//! The reference engine: primitives only, in f64, one loop per op. Every model runs on it through decompositions
//! alone. It is the oracle for ops, and far too slow for anything but tiny checkpoints.

use std::collections::BTreeMap;
use std::sync::Arc;

use mlxcel_ir::interp::{self, Array, Data, EvalError, Group};
use mlxcel_ir::{Bindings, Graph, HostTensor, Node, Op, Type, decompose};
use mlxcel_weights::WeightTensor;

use crate::{Caps, Engine, EngineError, Feeds, Program, Ticket, WeightSource, load_pieces};

/// Knows nothing but primitives.
#[derive(Debug, Default)]
pub struct ReferenceEngine;

/// The reference engine as one of several in this process, each with its shard of a model.
#[derive(Debug)]
pub struct ReferenceMember {
    pub rank: usize,
    pub group: Arc<Group>,
}

impl Engine for ReferenceMember {
    fn caps(&self) -> Caps {
        ReferenceEngine.caps()
    }

    fn native(&self, op: &Op, operands: &[Type]) -> bool {
        ReferenceEngine.native(op, operands)
    }

    fn compile(
        &self,
        graph: &Graph,
        weights: &dyn WeightSource,
        dims: &Bindings,
    ) -> Result<Box<dyn Program>, EngineError> {
        let program = compile(graph, weights, dims)?;
        Ok(Box::new(Reference { group: Some((self.rank, self.group.clone())), ..program }))
    }
}

impl Engine for ReferenceEngine {
    fn caps(&self) -> Caps {
        Caps {
            name: "reference",
            device: "one CPU thread, f64".to_string(),
            block_size: 4,
            threads: 1,
            prefers_16_bits: false,
            step_tokens: Caps::STEP_TOKENS,
            exact_rows: true,
        }
    }

    fn native(&self, _: &Op, _: &[Type]) -> bool {
        false
    }

    fn compile(
        &self,
        graph: &Graph,
        weights: &dyn WeightSource,
        dims: &Bindings,
    ) -> Result<Box<dyn Program>, EngineError> {
        Ok(Box::new(compile(graph, weights, dims)?))
    }
}

fn compile(graph: &Graph, weights: &dyn WeightSource, dims: &Bindings) -> Result<Reference, EngineError> {
    let graph = decompose(graph, &|_, _| false)?;
    let mut leaves = BTreeMap::new();
    for (_, node) in graph.weights() {
        let pieces = load_pieces(&node.op, weights)?;
        leaves.insert(key(&node.op), Arc::new(weight(&node.types[0], &pieces)));
    }
    for (_, node) in graph.states() {
        leaves.insert(key(&node.op), Arc::new(zeros(&node.types[0], dims, &key(&node.op))?));
    }
    let (dims, finished) = (dims.clone(), BTreeMap::new());
    Ok(Reference { graph, dims, leaves, finished, next: 0, group: None })
}

struct Reference {
    graph: Graph,
    dims: Bindings,
    /// Weights and states by name.
    leaves: BTreeMap<String, Arc<Array>>,
    finished: BTreeMap<u64, Vec<HostTensor>>,
    next: u64,
    /// Where exchanges happen, and who this is there.
    group: Option<(usize, Arc<Group>)>,
}

/// A name that keeps weights and states apart.
fn key(op: &Op) -> String {
    match op {
        Op::Weight { name, .. } => format!("weight {name}"),
        Op::State { name, .. } => format!("state {name}"),
        other => unreachable!("{} is not kept", other.name()),
    }
}

fn weight(ty: &Type, pieces: &[WeightTensor]) -> Array {
    let shape: Vec<usize> =
        ty.shape.iter().map(|d| d.as_fixed().expect("weights have fixed shapes")).collect();
    if ty.dtype.is_int() || ty.dtype == mlxcel_ir::DType::Bool {
        let ints = |t: &WeightTensor| {
            let host = HostTensor::from_bytes(t.dtype, t.shape.clone(), t.parts[0].to_vec());
            host.expect("a plain weight has as many bytes as its shape needs").to_i64()
        };
        return Array { dtype: ty.dtype, shape, data: Data::Int(pieces.iter().flat_map(ints).collect()) };
    }
    let floats = |t: &WeightTensor| t.to_f32().into_iter().map(f64::from).collect::<Vec<_>>();
    Array { dtype: ty.dtype, shape, data: Data::Float(pieces.iter().flat_map(floats).collect()) }
}

fn zeros(ty: &Type, dims: &Bindings, what: &str) -> Result<Array, EngineError> {
    let size = |d: &mlxcel_ir::Dim| {
        d.eval(dims).ok_or_else(|| EngineError::Unbound { what: what.to_string(), dim: d.to_string() })
    };
    let shape = ty.shape.iter().map(size).collect::<Result<Vec<_>, _>>()?;
    let n = shape.iter().product();
    let data = if ty.dtype.is_float() { Data::Float(vec![0.0; n]) } else { Data::Int(vec![0; n]) };
    Ok(Array { dtype: ty.dtype, shape, data })
}

impl Program for Reference {
    fn submit(&mut self, feeds: &Feeds, outputs: &[&str]) -> Result<Ticket, EngineError> {
        let bindings = feeds.bind(&self.graph, &self.dims)?;
        let leaves = &self.leaves;
        let mut leaf = |node: &Node| {
            Ok(match &node.op {
                Op::Input { name, .. } => {
                    Arc::new(Array::from_host(feeds.get(name).expect("bind checked every input")))
                }
                kept => leaves[&key(kept)].clone(),
            })
        };
        let group = &self.group;
        let mut exchange = |node: &Node, mine: &Array| match group {
            Some((rank, group)) => group.exchange(*rank, node, mine),
            None => Err(EvalError::Alone { op: node.op.name() }),
        };
        let done = interp::run_in_group(&self.graph, &bindings, &mut leaf, &mut exchange)?;
        let wanted = outputs.iter().map(|name| {
            let found = done.outputs.iter().find(|(n, _)| n == name).map(|(_, a)| a.to_host());
            found.ok_or_else(|| EngineError::UnknownOutput { name: name.to_string() })
        });
        let wanted = wanted.collect::<Result<Vec<_>, _>>()?;
        for (name, value) in done.updates {
            self.leaves.insert(format!("state {name}"), value);
        }
        self.next += 1;
        self.finished.insert(self.next, wanted);
        Ok(Ticket(self.next))
    }

    fn collect(&mut self, ticket: Ticket) -> Result<Vec<HostTensor>, EngineError> {
        self.finished.remove(&ticket.0).ok_or(EngineError::UnknownTicket { ticket: ticket.0 })
    }

    fn copy_state(&mut self, axis: &str, pairs: &[(u32, u32)]) -> Result<(), EngineError> {
        let count = self.dims.get(axis).copied().unwrap_or(0);
        for (_, node) in self.graph.states() {
            if node.types[0].shape.first().and_then(|d| d.as_symbol()) != Some(axis) {
                continue;
            }
            let array = self.leaves.get_mut(&key(&node.op)).expect("compile made every state");
            let run = array.shape[1..].iter().product::<usize>();
            for &(from, to) in pairs {
                let bad = |index| EngineError::StateIndex { axis: axis.to_string(), index, count };
                let place = |i: u32| if (i as usize) < count { Ok(i as usize * run) } else { Err(bad(i)) };
                let (from, to) = (place(from)?, place(to)?);
                match &mut Arc::make_mut(array).data {
                    Data::Float(v) => v.copy_within(from..from + run, to),
                    Data::Int(v) => v.copy_within(from..from + run, to),
                }
            }
        }
        Ok(())
    }
}
