//! A compiled graph with its weights and its states: steps are encoded for their sizes once, run on the program's own
//! thread, and read back when they are collected.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use mlxcel_engine::buckets::{Buckets, Ladder, Split, split};
use mlxcel_engine::{EngineError, Feeds, Program, Ticket};
use mlxcel_ir::passes::Folded;
use mlxcel_ir::{Bindings, DType, Graph, HostTensor, Op, Type, Value};

use crate::error::MlxError;
use crate::handle::{Array, Code};
use crate::library::Api;
use crate::lower::{Layout, Statics, StepShape, lower};
use crate::options::Mode;
use crate::owner::{Owner, device_error, failed};
use crate::statics::{Parts, Static, gather, install, load};

/// Encoded steps that are kept. Sizes repeat while sequences decode; a long-lived server sees many others.
const CODES_MAX: usize = 64;

/// The sizes that compiled steps have.
const BUCKETS: Buckets = Buckets {
    sequences: Ladder { least: 1 },
    tokens: Ladder { least: 16 },
    pages: Ladder { least: 1 },
    sequences_max: 256,
};

pub(crate) struct MlxProgram {
    graph: Graph,
    dims: Bindings,
    mode: Mode,
    api: Arc<Api>,
    traces: Arc<AtomicU64>,
    numbers: Statics,
    /// Weights are shared as long as a program uses them.
    _statics: Vec<Static>,
    codes: Vec<(Key, u64)>,
    next_code: u64,
    pending: BTreeMap<u64, Pending>,
    next_ticket: u64,
    /// Whether the states went with a step that failed.
    is_lost: bool,
    owner: Owner,
}

/// What an encoded step depends on.
#[derive(Clone, Debug, PartialEq)]
struct Key {
    sizes: Bindings,
    outputs: Vec<Value>,
    layout: Layout,
    greedy: bool,
}

/// A step that was started, in one part or in several.
struct Pending {
    parts: Vec<Started>,
    split: Option<Split>,
    names: Vec<String>,
}

/// Arrays that may not be computed yet, and what they are.
struct Started {
    arrays: Vec<Array>,
    types: Vec<(DType, Vec<usize>)>,
}

impl MlxProgram {
    pub(crate) fn new(parts: &Parts<'_>, folded: Folded, dims: &Bindings) -> Result<Self, EngineError> {
        let owner = Owner::start(parts.api.clone(), parts.device.code())?;
        let made = load(parts, &owner, &folded.load)?;
        let graph = folded.graph;
        let states = state_shapes(&graph, dims)?;
        let (numbers, statics) = gather(parts, &graph, &made)?;
        install(&owner, statics.clone())?;
        for (name, dtype, shape) in states {
            owner.call(&format!("while it made state '{name}'"), move |session| {
                session.program.as_mut().expect("it was installed").add_state(dtype, &shape)
            })?;
        }
        Ok(MlxProgram {
            graph,
            dims: dims.clone(),
            mode: parts.mode,
            api: parts.api.clone(),
            traces: parts.traces.clone(),
            numbers,
            _statics: statics,
            codes: vec![],
            next_code: 0,
            pending: BTreeMap::new(),
            next_ticket: 0,
            is_lost: false,
            owner,
        })
    }

    fn output(&self, name: &str) -> Result<Value, EngineError> {
        let found = self.graph.outputs().iter().find(|(n, _)| n == name);
        found.map(|(_, v)| *v).ok_or_else(|| EngineError::UnknownOutput { name: name.to_string() })
    }

    /// Whether every row of the step takes its likeliest token, which saves sorting the vocabulary.
    fn is_greedy(&self, feeds: &Feeds) -> bool {
        let mut samples = self.graph.nodes().iter().filter(|n| n.op == Op::Sample);
        let greedy = |node: &mlxcel_ir::Node| {
            let Op::Input { name, .. } = &self.graph.node(node.inputs[1]).op else { return false };
            let fed = feeds.get(name).and_then(|t| t.to_vec::<f32>());
            fed.is_some_and(|temperatures| temperatures.iter().all(|t| *t <= 0.0))
        };
        samples.all(greedy)
    }

    /// The number of the code for this key, encoded if it is new.
    fn code(&mut self, key: Key) -> Result<u64, EngineError> {
        if let Some(at) = self.codes.iter().position(|(k, _)| *k == key) {
            // The latest last, so that the first is the one to go.
            let known = self.codes.remove(at);
            self.codes.push(known);
            return Ok(self.codes[self.codes.len() - 1].1);
        }
        let Key { sizes, outputs, layout, greedy } = &key;
        let step = StepShape { sizes, outputs, layout: *layout, greedy: *greedy };
        let lowered = lower(&self.graph, &self.numbers, &step)?;
        let id = self.next_code;
        let mode = self.mode.code();
        // What was traced is kept: there are few buckets, and each took long.
        let oldest =
            (self.codes.len() >= CODES_MAX && self.mode != Mode::Compiled).then(|| self.codes.remove(0).1);
        self.owner.call("while it read a step", move |session| {
            oldest.map(|old| session.codes.remove(&old));
            let program = session.program.as_ref().expect("it was installed");
            let code = Code::new(&session.api, program, &lowered.words, &lowered.labels, mode)?;
            session.codes.insert(id, code);
            Ok(())
        })?;
        self.next_code += 1;
        self.codes.push((key, id));
        Ok(id)
    }

    /// Starts a step whose feeds were checked.
    fn start(&mut self, feeds: &Feeds, key: Key) -> Result<Started, EngineError> {
        let shape = |t: &Type| {
            let size = |d: &mlxcel_ir::Dim| {
                let unbound = || EngineError::Unbound { what: "an output".to_string(), dim: d.to_string() };
                d.eval(&key.sizes).ok_or_else(unbound)
            };
            Ok((t.dtype, t.shape.iter().map(size).collect::<Result<Vec<_>, _>>()?))
        };
        let types = key.outputs.iter().map(|v| shape(self.graph.ty(*v)));
        let types = types.collect::<Result<Vec<_>, EngineError>>()?;
        let inputs = self.inputs(feeds)?;
        let code = self.code(key)?;
        let count = types.len();
        let traces = self.traces.clone();
        let arrays = self.owner.call("a step", move |session| {
            let code = session.codes.get(&code).expect("it was made before");
            let before = code.traces();
            let arrays = session.program.as_mut().expect("it was installed").run(code, &inputs, count);
            traces.fetch_add(code.traces() - before, Ordering::Relaxed);
            arrays
        })?;
        Ok(Started { arrays, types })
    }

    fn inputs(&self, feeds: &Feeds) -> Result<Vec<Array>, EngineError> {
        let tensors = self.graph.inputs().filter_map(|(_, node)| match &node.op {
            Op::Input { name, .. } => feeds.get(name),
            _ => None,
        });
        let array = |t: &HostTensor| Array::new(&self.api, t.dtype(), t.shape(), t.bytes());
        tensors.map(|t| array(t).map_err(failed("feeding a step"))).collect()
    }

    fn read(&self, step: Started) -> Result<Vec<HostTensor>, EngineError> {
        self.owner.call("a step", move |session| {
            let read = |(array, (dtype, shape)): (&Array, &(DType, Vec<usize>))| {
                let size = dtype.storage_bytes(shape).unwrap_or(usize::MAX);
                let bytes = array.read(&session.context, size)?;
                HostTensor::from_bytes(*dtype, shape.clone(), bytes)
                    .ok_or_else(|| format!("an output is not {dtype}{shape:?}"))
            };
            step.arrays.iter().zip(&step.types).map(read).collect()
        })
    }
}

/// Name, type and shape of every state, in the order of the graph.
fn state_shapes(graph: &Graph, dims: &Bindings) -> Result<Vec<(String, DType, Vec<usize>)>, EngineError> {
    let mut states = vec![];
    for (_, node) in graph.states() {
        let Op::State { name, dtype, shape } = &node.op else { continue };
        let what = format!("state '{name}'");
        let size = |d: &mlxcel_ir::Dim| {
            d.eval(dims).ok_or_else(|| EngineError::Unbound { what: what.clone(), dim: d.to_string() })
        };
        let shape = shape.iter().map(size).collect::<Result<Vec<_>, _>>()?;
        states.push((name.clone(), *dtype, shape));
    }
    Ok(states)
}

impl MlxProgram {
    /// After a failure: whether the states are still there. A thread that does not answer has none.
    fn look_for_loss(&mut self) {
        let asked = self.owner.call("while it looked at its states", |session| {
            Ok(session.program.as_ref().is_none_or(|program| program.is_broken()))
        });
        self.is_lost |= asked.unwrap_or(true);
    }

    /// Starts a step as it is.
    fn whole(&mut self, feeds: &Feeds, sizes: Bindings, outputs: &[Value]) -> Result<Started, EngineError> {
        let (outputs, greedy) = (outputs.to_vec(), self.is_greedy(feeds));
        self.start(feeds, Key { sizes, outputs, layout: Layout::Ragged, greedy })
    }

    /// Starts a step in parts of few sizes, each of which is traced once.
    fn in_buckets(
        &mut self,
        feeds: &Feeds,
        sizes: Bindings,
        outputs: &[Value],
    ) -> Result<(Vec<Started>, Option<Split>), EngineError> {
        let Some(split) = split(&self.graph, feeds, &sizes, &BUCKETS) else {
            if self.graph.nodes().iter().any(|n| reads_sequences(&n.op)) {
                let reason = "the graph's inputs or outputs cannot be split by sequence";
                return Err(device_error(MlxError::Unsplit { reason }));
            }
            return Ok((vec![self.whole(feeds, sizes, outputs)?], None));
        };
        let mut parts = vec![];
        for step in &split.steps {
            let (padded, _) = step.pad(&self.graph, &BUCKETS);
            let sizes = padded.bind(&self.graph, &self.dims)?;
            let layout = if step.is_decode() { Layout::Decode } else { Layout::One };
            let (outputs, greedy) = (outputs.to_vec(), self.is_greedy(&padded));
            parts.push(self.start(&padded, Key { sizes, outputs, layout, greedy })?);
        }
        Ok((parts, Some(split)))
    }
}

/// Whether the shim has to know which token belongs to which sequence.
fn reads_sequences(op: &Op) -> bool {
    matches!(op, Op::PagedAttention(_) | Op::SelectiveScan | Op::CausalConv)
}

impl Program for MlxProgram {
    fn submit(&mut self, feeds: &Feeds, outputs: &[&str]) -> Result<Ticket, EngineError> {
        let sizes = feeds.bind(&self.graph, &self.dims)?;
        let values = outputs.iter().map(|name| self.output(name)).collect::<Result<Vec<_>, _>>()?;
        let started = match self.mode {
            Mode::Compiled => self.in_buckets(feeds, sizes, &values),
            Mode::Lazy | Mode::Eager => self.whole(feeds, sizes, &values).map(|part| (vec![part], None)),
        };
        let (parts, split) = started.inspect_err(|_| self.look_for_loss())?;
        let names = outputs.iter().map(|n| n.to_string()).collect();
        self.next_ticket += 1;
        self.pending.insert(self.next_ticket, Pending { parts, split, names });
        Ok(Ticket(self.next_ticket))
    }

    fn collect(&mut self, ticket: Ticket) -> Result<Vec<HostTensor>, EngineError> {
        let pending = self.pending.remove(&ticket.0);
        let Pending { parts, split, names } =
            pending.ok_or(EngineError::UnknownTicket { ticket: ticket.0 })?;
        let read = parts.into_iter().map(|p| self.read(p)).collect::<Result<Vec<_>, _>>();
        // What failed here ran already, and wrote states.
        let mut read = read.inspect_err(|_| self.is_lost = true)?;
        match split {
            None => Ok(read.remove(0)),
            Some(split) => {
                let names: Vec<&str> = names.iter().map(String::as_str).collect();
                Ok(split.join(&self.graph, &names, read))
            }
        }
    }

    fn copy_state(&mut self, axis: &str, pairs: &[(u32, u32)]) -> Result<(), EngineError> {
        let count = self.dims.get(axis).copied().unwrap_or(0);
        let bad = pairs.iter().flat_map(|(a, b)| [*a, *b]).find(|&i| i as usize >= count);
        if let Some(index) = bad {
            return Err(EngineError::StateIndex { axis: axis.to_string(), index, count });
        }
        let first =
            |node: &mlxcel_ir::Node| node.types[0].shape.first().and_then(|d| d.as_symbol()) == Some(axis);
        let states = self.graph.states().enumerate().filter(|(_, (_, node))| first(node));
        let states: Vec<usize> = states.map(|(i, _)| i).collect();
        let pairs = pairs.to_vec();
        let copied = self.owner.call("while it copied states", move |session| {
            let program = session.program.as_mut().expect("it was installed");
            states.into_iter().try_for_each(|state| program.copy_state(state, &pairs))
        });
        copied.inspect_err(|_| self.look_for_loss())
    }

    fn is_lost(&self) -> bool {
        self.is_lost
    }
}
