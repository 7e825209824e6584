//! A compiled graph with its weights and its state.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use mlxcel_engine::{EngineError, Feeds, Program, Ticket};
use mlxcel_ir::{Bindings, Graph, HostTensor, Op, Type, Value};

use crate::context::{Context, Products};
use crate::kernels::copy;
use crate::layout::Layout;
use crate::memory::{Buffer, Slabs};
use crate::plan::{Arena, Leaves, Plan, build};
use crate::roles::Roles;
use crate::run::{Sources, Tape};
use crate::statics::Statics;
use crate::view::{Out, View};
use crate::weight::Matrix;

pub(crate) struct CpuProgram {
    ctx: Arc<Context>,
    graph: Graph,
    leaves: Leaves,
    /// Views of `weights` and `states`, which stay where they are as long as the program: to find them anew would take
    /// a step of a small model a hundredth of its time.
    weight_views: Vec<View<'static>>,
    state_views: Vec<View<'static>>,
    weights: Vec<Matrix>,
    states: Vec<State>,
    /// Plans by the outputs that were asked for.
    plans: Vec<Prepared>,
    arena: Arena,
    inputs: Vec<Buffer>,
    finished: BTreeMap<u64, Vec<HostTensor>>,
    next: u64,
}

struct Prepared {
    outputs: Vec<String>,
    plan: Plan,
    tape: Tape,
}

struct State {
    ty: Type,
    shape: Vec<usize>,
    buffer: Buffer,
}

impl State {
    #[allow(unsafe_code)]
    fn view(&self) -> View<'static> {
        // SAFETY: the buffer holds the whole state and lives as long as the program; it is written only by steps
        // that take it over, and between steps.
        unsafe { View::new(self.buffer.ptr(), self.ty.dtype, Layout::contiguous(&self.shape)) }
    }

    #[allow(unsafe_code)]
    fn out(&mut self) -> Out<'_> {
        let shape = crate::layout::Dims::new(&self.shape);
        // SAFETY: the borrow is exclusive, and no step is running.
        unsafe { Out::new(self.buffer.ptr(), self.ty.dtype, shape) }
    }
}

impl CpuProgram {
    #[allow(unsafe_code)]
    pub(crate) fn new(
        ctx: Arc<Context>,
        graph: Graph,
        statics: Statics,
        dims: &Bindings,
    ) -> Result<Self, EngineError> {
        let mut states = vec![];
        let mut leaves = Leaves { weights: statics.of_node, states: HashMap::new(), dims: dims.clone() };
        let bytes = graph.states().filter_map(|(_, node)| node.types[0].bytes(dims));
        let slabs = Slabs::new(bytes.fold(0, |sum, bytes| sum.saturating_add(bytes as usize)));
        for (_, node) in graph.states() {
            let Op::State { name, .. } = &node.op else { continue };
            leaves.states.insert(name.clone(), states.len());
            states.push(state(&slabs, name, &node.types[0], dims)?);
        }
        // SAFETY: the program keeps the weights, whose memory is never written to nor moved.
        let weight_views = statics.matrices.iter().map(|m| unsafe { m.view().kept() }).collect();
        let state_views = states.iter().map(State::view).collect();
        let mut program = CpuProgram {
            ctx,
            graph,
            leaves,
            weight_views,
            state_views,
            weights: statics.matrices,
            states,
            plans: vec![],
            arena: Arena::default(),
            inputs: vec![],
            finished: BTreeMap::new(),
            next: 0,
        };
        // All outputs at once, so that nothing can turn out to be unsupported later.
        let all: Vec<String> = program.graph.outputs().iter().map(|(n, _)| n.clone()).collect();
        program.prepare(&all.iter().map(String::as_str).collect::<Vec<_>>())?;
        Ok(program)
    }

    /// The number of the plan for these outputs, made if it is the first time.
    fn prepare(&mut self, outputs: &[&str]) -> Result<usize, EngineError> {
        if let Some(known) = self.plans.iter().position(|known| known.outputs == outputs) {
            return Ok(known);
        }
        let find = |name: &&str| -> Result<Value, EngineError> {
            let found = self.graph.outputs().iter().find(|(n, _)| n == name);
            found.map(|(_, v)| *v).ok_or_else(|| EngineError::UnknownOutput { name: name.to_string() })
        };
        let wanted = outputs.iter().map(find).collect::<Result<Vec<_>, _>>()?;
        let plan = build(&self.graph, &self.leaves, &wanted)?;
        let outputs = outputs.iter().map(|o| o.to_string()).collect();
        self.plans.push(Prepared { outputs, plan, tape: Tape::default() });
        Ok(self.plans.len() - 1)
    }

    /// Copies the feeds, which were checked, to aligned memory of the program.
    #[allow(unsafe_code)]
    fn feed(&mut self, feeds: &Feeds) -> Result<Vec<View<'static>>, EngineError> {
        let tensors = self.graph.inputs().filter_map(|(_, node)| match &node.op {
            Op::Input { name, .. } => feeds.get(name),
            _ => None,
        });
        let mut views = Vec::with_capacity(self.inputs.len());
        for (i, t) in tensors.enumerate() {
            if self.inputs.len() <= i {
                self.inputs.push(Buffer::zeroed(0, "an input")?);
            }
            if self.inputs[i].len() < t.bytes().len() {
                self.inputs[i] = Buffer::zeroed(t.bytes().len().next_power_of_two(), "an input")?;
            }
            self.inputs[i].bytes_mut()[..t.bytes().len()].copy_from_slice(t.bytes());
            // SAFETY: the buffer holds this tensor, and is not written before the next step.
            views.push(unsafe { View::new(self.inputs[i].ptr(), t.dtype(), Layout::contiguous(t.shape())) });
        }
        Ok(views)
    }

    #[allow(unsafe_code)]
    fn step(&mut self, feeds: &Feeds, outputs: &[&str]) -> Result<Vec<HostTensor>, EngineError> {
        let bindings = feeds.bind(&self.graph, &self.leaves.dims)?;
        let plan = self.prepare(outputs)?;
        let arguments = self.feed(feeds)?;
        let Prepared { plan, tape, .. } = &mut self.plans[plan];
        let (ctx, arena) = (&*self.ctx, &mut self.arena);
        let roles = (ctx.products == Products::Fast).then(|| Roles::of(feeds)).flatten();
        let roles = roles.as_ref();
        let sources = Sources {
            arguments: &arguments,
            weights: &self.weights,
            arrays: &self.weight_views,
            states: &self.state_views,
            roles,
        };
        // SAFETY: the plan keeps its tape, all plans have one arena, and weights and states stay as long as the program; what
        // was computed is read before anything else runs.
        let done = ctx.threads.enter(|| unsafe { tape.run(ctx, plan, &bindings, sources, arena) })?;
        let host = done.results.iter().map(|v| to_host(ctx, v)).collect::<Result<Vec<_>, _>>()?;
        let start = |v: &View<'_>| v.bytes().as_ptr();
        let is_state = |v: &View<'_>| {
            self.state_views.iter().any(|state| state.bytes().as_ptr_range().contains(&start(v)))
        };
        let moved = done.updates.iter().copied().filter(|(s, v)| start(v) != start(&self.state_views[*s]));
        let (of_states, of_results): (Vec<_>, Vec<_>) = moved.partition(|(_, v)| is_state(v));
        // States that take the value of another are copied aside first, since that one may change too.
        let aside = of_states
            .into_iter()
            .map(|(s, v)| Ok((s, to_host(ctx, &v)?)))
            .collect::<Result<Vec<_>, EngineError>>()?;
        for (s, v) in of_results {
            copy::strided(ctx, &v, &mut self.states[s].out());
        }
        for (s, t) in aside {
            self.states[s].out().bytes().copy_from_slice(t.bytes());
        }
        Ok(host)
    }
}

fn state(slabs: &Slabs, name: &str, ty: &Type, dims: &Bindings) -> Result<State, EngineError> {
    let what = format!("state '{name}'");
    let size = |d: &mlxcel_ir::Dim| {
        d.eval(dims).ok_or_else(|| EngineError::Unbound { what: what.clone(), dim: d.to_string() })
    };
    let shape = ty.shape.iter().map(size).collect::<Result<Vec<_>, _>>()?;
    let bytes = ty.dtype.storage_bytes(&shape);
    let bytes = bytes.ok_or_else(|| EngineError::OutOfMemory { what: what.clone(), bytes: usize::MAX })?;
    Ok(State { ty: ty.clone(), shape, buffer: slabs.zeroed(bytes, &what)? })
}

fn to_host(ctx: &Context, view: &View<'_>) -> Result<HostTensor, EngineError> {
    let dense = ctx.dense(view)?;
    let bytes = dense.view.bytes().to_vec();
    Ok(HostTensor::from_bytes(view.dtype, view.shape().to_vec(), bytes).expect("a view has all its bytes"))
}

impl Program for CpuProgram {
    fn submit(&mut self, feeds: &Feeds, outputs: &[&str]) -> Result<Ticket, EngineError> {
        let results = self.step(feeds, outputs)?;
        self.next += 1;
        self.finished.insert(self.next, results);
        Ok(Ticket(self.next))
    }

    fn collect(&mut self, ticket: Ticket) -> Result<Vec<HostTensor>, EngineError> {
        self.finished.remove(&ticket.0).ok_or(EngineError::UnknownTicket { ticket: ticket.0 })
    }

    fn working_bytes(&mut self, outputs: &[&str], sizes: &Bindings) -> Result<Option<u64>, EngineError> {
        let plan = self.prepare(outputs)?;
        self.plans[plan].plan.working_bytes(sizes).map(Some)
    }

    fn rounds_prompts(&self) -> bool {
        let level = self.ctx.level;
        let mut weights = self.weights.iter();
        // Attention sums the scores of last tokens in another order.
        let mut attention = self.graph.nodes().iter().filter(|n| matches!(n.op, Op::PagedAttention(_)));
        let by_role = weights.any(|weight| weight.rounds(level)) || attention.next().is_some();
        self.ctx.products == Products::Fast && by_role
    }

    fn copy_state(&mut self, axis: &str, pairs: &[(u32, u32)]) -> Result<(), EngineError> {
        let count = self.leaves.dims.get(axis).copied().unwrap_or(0);
        let bad = pairs.iter().flat_map(|(a, b)| [*a, *b]).find(|&i| i as usize >= count);
        if let Some(index) = bad {
            return Err(EngineError::StateIndex { axis: axis.to_string(), index, count });
        }
        let first = |s: &State| s.ty.shape.first().and_then(|d| d.as_symbol()) == Some(axis);
        for state in self.states.iter_mut().filter(|s| first(s)) {
            let mut out = state.out();
            let run = out.elements() / count.max(1) * out.size();
            for &(from, to) in pairs {
                let (from, to) = (from as usize * run, to as usize * run);
                out.bytes().copy_within(from..from + run, to);
            }
        }
        Ok(())
    }
}
