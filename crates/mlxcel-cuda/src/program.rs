//! A compiled graph with its weights and its state on the device.

use std::collections::HashMap;
use std::sync::Arc;

use mlxcel_engine::{EngineError, Feeds, Program, Ticket};
use mlxcel_ir::{Bindings, DType, Graph, HostTensor, Op, Type, Value};

use crate::bucket::{bucketed, can_be_cut, is_step, pad, pad_bytes};
use crate::context::Context;
use crate::driver::{Address, Handle};
use crate::lower::{Leaves, Lower, Result};
use crate::memory::{Block, Pinned};
use crate::tape::{Tape, address, layout, resolve};
use crate::view::size;

pub(crate) struct CudaProgram {
    ctx: Arc<Context>,
    graph: Graph,
    dims: Bindings,
    is_step: bool,
    leaves: Leaves,
    states: Vec<State>,
    /// Kept for what the tapes read.
    _weights: Vec<Block>,
    arena: Option<Block>,
    plans: HashMap<Key, Plan>,
    /// In which order plans were made.
    order: Vec<Key>,
    last: Option<Asked>,
    flights: Vec<(u64, Flight)>,
    spare: Vec<Pinned>,
    spare_events: Vec<Handle>,
    next: u64,
}

struct State {
    ty: Type,
    bytes: u64,
    block: Block,
}

/// What a plan was made for: the outputs and the sizes.
type Key = (Vec<String>, Vec<usize>);

/// A step that was laid out for sizes and outputs.
struct Plan {
    tape: Tape,
    inputs: Vec<Fed>,
    /// The range of the arena that holds all inputs.
    fed: (u64, usize),
    /// Where the outputs lie.
    outputs: Vec<Address>,
    runs: u32,
    graph: Option<Handle>,
}

/// An input: where it lies in the arena, its shape and what pads it.
struct Fed {
    name: String,
    dtype: DType,
    at: u64,
    shape: Vec<usize>,
    bytes: usize,
    pad: Vec<u8>,
}

/// What a step was asked for. The next one that is fed the same shapes takes its plan from here, so that decoding makes
/// nothing on the host but the tensors it hands over.
struct Asked {
    key: Key,
    /// The shapes of the plan's inputs before they were padded.
    fed: Vec<Vec<usize>>,
    results: Arc<[Piece]>,
}

/// An output among the results of a step.
struct Piece {
    dtype: DType,
    shape: Vec<usize>,
    at: usize,
    bytes: usize,
}

/// A step that was started.
struct Flight {
    event: Handle,
    staging: Pinned,
    results: Pinned,
    pieces: Arc<[Piece]>,
}

/// Plans that are kept at once.
const PLANS_MAX: usize = 128;

impl CudaProgram {
    pub(crate) fn new(
        ctx: Arc<Context>,
        graph: Graph,
        weights: crate::weights::Statics,
        dims: &Bindings,
    ) -> Result<Self> {
        let mut leaves = Leaves { weights: weights.of_node, ..Leaves::default() };
        let mut states = vec![];
        for (_, node) in graph.states() {
            let Op::State { name, .. } = &node.op else { continue };
            let state = state(&ctx, name, &node.types[0], dims)?;
            leaves.states.insert(name.clone(), state.block.at);
            states.push(state);
        }
        Ok(CudaProgram {
            ctx,
            dims: dims.clone(),
            is_step: is_step(&graph),
            graph,
            leaves,
            states,
            _weights: weights.blocks,
            arena: None,
            plans: HashMap::new(),
            order: vec![],
            last: None,
            flights: vec![],
            spare: vec![],
            spare_events: vec![],
            next: 0,
        })
    }

    /// Lays a step out once with small sizes, so that nothing can turn out to be unsupported later.
    pub(crate) fn rehearse(&mut self) -> Result<()> {
        let mut sizes = self.dims.clone();
        for symbol in self.graph.symbols() {
            sizes.entry(symbol.to_string()).or_insert(1);
        }
        let wanted: Vec<Value> = self.graph.outputs().iter().map(|(_, v)| *v).collect();
        let mut lower = Lower::new(&self.ctx, &mut self.leaves, &sizes)?;
        match lower.graph(&self.graph, &wanted) {
            Err(EngineError::Unsupported { engine, op, operands }) => {
                Err(EngineError::Unsupported { engine, op, operands })
            }
            // Sizes of one may contradict the graph; only what has no kernel is refused here.
            _ => Ok(()),
        }
    }

    fn wanted(&self, outputs: &[&str]) -> Result<Vec<Value>> {
        let find = |name: &&str| {
            let found = self.graph.outputs().iter().find(|(n, _)| n == name).map(|(_, v)| *v);
            found.ok_or_else(|| EngineError::UnknownOutput { name: name.to_string() })
        };
        outputs.iter().map(find).collect()
    }

    /// The plan for these sizes and outputs, made if it is the first time.
    fn plan(&mut self, key: &Key, bindings: &Bindings, wanted: &[Value]) -> Result<()> {
        if self.plans.contains_key(key) {
            return Ok(());
        }
        let mut lower = Lower::new(&self.ctx, &mut self.leaves, bindings)?;
        let lowered = lower.graph(&self.graph, wanted)?;
        let (roots, steps, fed) = (lower.roots, lower.steps, lower.fed);
        let mut kept: Vec<usize> = lowered.outputs.iter().map(|v| v.root).collect();
        kept.dedup();
        let layout = layout(&roots, &steps, &kept);
        let arena = self.reserve(layout.bytes)?;
        let pads = pads(&self.graph);
        let inputs: Vec<Fed> = fed
            .iter()
            .zip(pads)
            .map(|((name, v), pad)| Fed {
                name: name.clone(),
                dtype: v.dtype,
                at: layout.offsets[v.root],
                shape: v.shape.clone(),
                bytes: v.elements() * size(v.dtype),
                pad,
            })
            .collect();
        let first = inputs.iter().map(|i| i.at).min().unwrap_or(0);
        let end = inputs.iter().map(|i| i.at + i.bytes as u64).max().unwrap_or(0);
        let outputs = lowered
            .outputs
            .iter()
            .map(|v| address(&roots[v.root], layout.offsets[v.root], arena).wrapping_add(v.byte_offset()));
        let plan = Plan {
            outputs: outputs.collect(),
            fed: (first, (end - first) as usize),
            tape: resolve(&*self.ctx.driver, &roots, steps, (&layout, arena))?,
            inputs,
            runs: 0,
            graph: None,
        };
        if self.order.len() >= PLANS_MAX {
            let oldest = self.order.remove(0);
            self.forget(&oldest)?;
        }
        self.order.push(key.clone());
        self.plans.insert(key.clone(), plan);
        Ok(())
    }

    fn forget(&mut self, key: &Key) -> Result<()> {
        if let Some(graph) = self.plans.remove(key).and_then(|p| p.graph) {
            // It may still run. A device that cannot be waited for has stopped.
            let waited = self.ctx.wait();
            self.ctx.driver.destroy_graph(graph).and(waited)?;
        }
        Ok(())
    }

    /// The arena, made larger if need be, which every plan made so far has in it and therefore ends.
    fn reserve(&mut self, bytes: u64) -> Result<u64> {
        if let Some(arena) = self.arena.as_ref().filter(|a| a.bytes >= bytes) {
            return Ok(arena.at);
        }
        self.ctx.wait()?;
        while let Some(key) = self.order.pop() {
            self.forget(&key)?;
        }
        let generous = bytes.next_power_of_two().min(bytes.saturating_add(256 << 20)).max(16 << 20);
        self.arena = None;
        let arena = Block::new(&self.ctx, generous, "the working memory of a step")
            .or_else(|_| Block::new(&self.ctx, bytes, "the working memory of a step"))?;
        let at = arena.at;
        self.arena = Some(arena);
        Ok(at)
    }

    fn pinned(&mut self, bytes: usize) -> Result<Pinned> {
        let best = (0..self.spare.len())
            .filter(|&i| self.spare[i].len() >= bytes)
            .min_by_key(|&i| self.spare[i].len());
        match best {
            Some(i) => Ok(self.spare.swap_remove(i)),
            None => Ok(Pinned::new(&self.ctx, bytes)?),
        }
    }

    /// Whether a step is asked for as another one was.
    fn is_again(&self, asked: &Asked, feeds: &Feeds, outputs: &[&str]) -> bool {
        let fed = |(input, shape): (&Fed, &Vec<usize>)| {
            feeds.get(&input.name).is_some_and(|t| t.dtype() == input.dtype && t.shape() == shape)
        };
        let inputs = &self.plans[&asked.key].inputs;
        asked.key.0.iter().eq(outputs) && inputs.iter().zip(&asked.fed).all(fed)
    }

    /// Checks what is asked for, and sees to it that there is a plan for it.
    fn ask(&mut self, feeds: &Feeds, outputs: &[&str]) -> Result<Asked> {
        let bindings = feeds.bind(&self.graph, &self.dims)?;
        let wanted = self.wanted(outputs)?;
        let padded = self.is_step && can_be_cut(&self.graph, &wanted);
        let sizes = if padded { bucketed(&bindings) } else { bindings.clone() };
        let key: Key = (outputs.iter().map(|o| o.to_string()).collect(), sizes.values().copied().collect());
        self.plan(&key, &sizes, &wanted)?;
        let fed = |i: &Fed| feeds.get(&i.name).map_or_else(Vec::new, |t| t.shape().to_vec());
        let mut end = 0;
        let piece = |v: &Value| {
            let ty = self.graph.ty(*v);
            let shape: Vec<usize> = ty.shape.iter().map(|d| d.eval(&bindings).unwrap_or(0)).collect();
            let (at, bytes) = (end, shape.iter().product::<usize>() * size(ty.dtype));
            end += bytes.next_multiple_of(16);
            Piece { dtype: ty.dtype, shape, at, bytes }
        };
        let results = wanted.iter().map(piece).collect();
        Ok(Asked { fed: self.plans[&key].inputs.iter().map(fed).collect(), key, results })
    }

    /// Starts a step that there is a plan for.
    fn start(&mut self, asked: &Asked, feeds: &Feeds) -> Result<Flight> {
        let results = asked.results.last().map_or(0, |p| p.at + p.bytes);
        let (mut staging, results) = (self.pinned(self.plans[&asked.key].fed.1)?, self.pinned(results)?);
        match self.enqueue(asked, feeds, (&mut staging, &results)) {
            Ok(event) => Ok(Flight { event, staging, results, pieces: asked.results.clone() }),
            Err(error) => {
                // What was begun may still read and write them.
                let _ = self.ctx.wait();
                self.spare.extend([staging, results]);
                Err(error)
            }
        }
    }

    /// Gives a step to the device, and the event of its end.
    fn enqueue(
        &mut self,
        asked: &Asked,
        feeds: &Feeds,
        (staging, results): (&mut Pinned, &Pinned),
    ) -> Result<Handle> {
        let plan = self.plans.get_mut(&asked.key).expect("it was just made");
        let arena = self.arena.as_ref().map_or(0, |a| a.at);
        for input in &plan.inputs {
            let t = feeds.get(&input.name).expect("the feeds were checked");
            let start = (input.at - plan.fed.0) as usize;
            pad(&mut staging.bytes_mut()[start..start + input.bytes], t, &input.shape, &input.pad);
        }
        let (driver, stream) = (&*self.ctx.driver, self.ctx.stream);
        if plan.fed.1 > 0 {
            driver.upload(arena + plan.fed.0, staging.ptr(), plan.fed.1 as u64, stream)?;
        }
        plan.runs += 1;
        if plan.runs > 1 && plan.graph.is_none() && !plan.tape.branches {
            driver.begin_capture(stream)?;
            let captured = plan.tape.run(&self.ctx);
            let graph = driver.end_capture(stream);
            plan.graph = Some(graph?);
            if captured.is_err() {
                plan.graph.take().map_or(Ok(()), |graph| driver.destroy_graph(graph))?;
            }
            captured?;
        }
        match plan.graph {
            Some(graph) => driver.launch_graph(graph, stream)?,
            None => plan.tape.run(&self.ctx)?,
        }
        for (at, piece) in plan.outputs.iter().zip(&*asked.results).filter(|(_, p)| p.bytes > 0) {
            driver.download(results.ptr().wrapping_add(piece.at), *at, piece.bytes as u64, stream)?;
        }
        let event = self.spare_events.pop().map_or_else(|| driver.create_event(), Ok)?;
        driver.record_event(event, stream).inspect_err(|_| self.spare_events.push(event))?;
        Ok(event)
    }
}

/// What pads each input, in order.
fn pads(graph: &Graph) -> Vec<Vec<u8>> {
    let of = graph.inputs().filter_map(|(_, n)| match &n.op {
        Op::Input { dtype, pad, .. } => Some(pad_bytes(*dtype, *pad)),
        _ => None,
    });
    of.collect()
}

fn state(ctx: &Arc<Context>, name: &str, ty: &Type, dims: &Bindings) -> Result<State> {
    let what = format!("state '{name}'");
    let bound = |d: &mlxcel_ir::Dim| {
        d.eval(dims).ok_or_else(|| EngineError::Unbound { what: what.clone(), dim: d.to_string() })
    };
    let shape = ty.shape.iter().map(bound).collect::<Result<Vec<_>>>()?;
    let bytes = ty.dtype.storage_bytes(&shape);
    let bytes = bytes.ok_or_else(|| EngineError::OutOfMemory { what: what.clone(), bytes: usize::MAX })?;
    let block = Block::zeroed(ctx, bytes as u64, &what)?;
    Ok(State { ty: ty.clone(), bytes: bytes as u64, block })
}

impl Program for CudaProgram {
    fn submit(&mut self, feeds: &Feeds, outputs: &[&str]) -> Result<Ticket> {
        self.ctx.enter()?;
        let asked = match self.last.take() {
            Some(last) if self.is_again(&last, feeds, outputs) => last,
            _ => self.ask(feeds, outputs)?,
        };
        let flight = self.start(&asked, feeds);
        self.last = Some(asked);
        self.next += 1;
        self.flights.push((self.next, flight?));
        Ok(Ticket(self.next))
    }

    fn collect(&mut self, ticket: Ticket) -> Result<Vec<HostTensor>> {
        let place = self.flights.iter().position(|(number, _)| *number == ticket.0);
        let place = place.ok_or(EngineError::UnknownTicket { ticket: ticket.0 })?;
        self.ctx.enter()?;
        self.ctx.driver.wait_event(self.flights[place].1.event)?;
        let (_, flight) = self.flights.swap_remove(place);
        let all = flight.results.bytes();
        let outputs = flight.pieces.iter().map(|p| {
            let host = HostTensor::from_bytes(p.dtype, p.shape.clone(), all[p.at..p.at + p.bytes].to_vec());
            host.expect("an output has the bytes of its shape")
        });
        let outputs = outputs.collect();
        self.spare.extend([flight.staging, flight.results]);
        self.spare_events.push(flight.event);
        Ok(outputs)
    }

    fn copy_state(&mut self, axis: &str, pairs: &[(u32, u32)]) -> Result<()> {
        let count = self.dims.get(axis).copied().unwrap_or(0);
        let bad = pairs.iter().flat_map(|(a, b)| [*a, *b]).find(|&i| i as usize >= count);
        if let Some(index) = bad {
            return Err(EngineError::StateIndex { axis: axis.to_string(), index, count });
        }
        self.ctx.enter()?;
        let first = |s: &&State| s.ty.shape.first().and_then(|d| d.as_symbol()) == Some(axis);
        for state in self.states.iter().filter(first) {
            let run = state.bytes / count.max(1) as u64;
            for &(from, to) in pairs {
                let place = |i: u32| state.block.at + u64::from(i) * run;
                if run > 0 && from != to {
                    self.ctx.driver.copy(place(to), place(from), run, self.ctx.stream)?;
                }
            }
        }
        Ok(())
    }

    fn draws_no_nan(&self) -> bool {
        true
    }

    fn working_bytes(&mut self, outputs: &[&str], sizes: &Bindings) -> Result<Option<u64>> {
        let wanted = self.wanted(outputs)?;
        self.ctx.enter()?;
        let mut lower = Lower::new(&self.ctx, &mut self.leaves, sizes)?;
        let lowered = lower.graph(&self.graph, &wanted)?;
        let kept: Vec<usize> = lowered.outputs.iter().map(|v| v.root).collect();
        Ok(Some(layout(&lower.roots, &lower.steps, &kept).bytes))
    }
}

impl Drop for CudaProgram {
    fn drop(&mut self) {
        // What is freed below may still be in use.
        let _ = self.ctx.enter();
        let _ = self.ctx.wait();
        let flying = self.flights.iter().map(|(_, flight)| flight.event);
        for event in flying.chain(self.spare_events.drain(..)) {
            let _ = self.ctx.driver.destroy_event(event);
        }
        for key in std::mem::take(&mut self.order) {
            let _ = self.forget(&key);
        }
    }
}
