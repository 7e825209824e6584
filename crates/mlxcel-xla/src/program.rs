//! A graph with its weights and states on the device, and a compiled module for each bucket of steps that has come up.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use mlxcel_engine::buckets::{Split, split};
use mlxcel_engine::weights::Bytes;
use mlxcel_engine::{EngineError, Feeds, Program, Ticket, WeightSource, load_pieces};
use mlxcel_ir::passes::Folded;
use mlxcel_ir::{Bindings, Builder, DType, Graph, HostTensor, Op, ScatterMode, Type};

use crate::emit::{Argument, EmitOptions, Module, emit, sizes};
use crate::engine::{XlaOptions, module};
use crate::error::XlaError;
use crate::executor::{Buffer, Executable, Executor};
use crate::lower::{JOINED, Packing, StepKind, is_widened, wide_name};
use crate::pack::{self, Keeping};

/// Sizes of pools are rounded up, so that pools of about the same size share compiled modules, unless outputs show them.
const BLOCKS_STEP: usize = 64;
const SLOTS_STEP: usize = 8;

pub(crate) struct XlaProgram {
    executor: Arc<dyn Executor>,
    options: XlaOptions,
    keeping: Keeping,
    graph: Graph,
    /// As the caller bound them, and as the states are.
    dims: Bindings,
    pool: Bindings,
    weights: BTreeMap<String, Buffer>,
    states: BTreeMap<String, State>,
    compiled: HashMap<Key, Arc<Compiled>>,
    flying: BTreeMap<u64, Flying>,
    next: u64,
    /// A run uses the states up, so that one that failed leaves none.
    is_lost: bool,
}

struct State {
    ty: Type,
    buffer: Buffer,
}

/// What a module was compiled for.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Key {
    sizes: Bindings,
    outputs: Vec<String>,
    kind: StepKind,
}

struct Compiled {
    module: Module,
    executable: Arc<dyn Executable>,
}

/// A step in flight.
struct Flying {
    split: Option<Split>,
    outputs: Vec<String>,
    parts: Vec<Part>,
}

/// The outputs of a sub-step on the device.
struct Part {
    compiled: Arc<Compiled>,
    /// One for each distinct output.
    results: Vec<Buffer>,
}

impl XlaProgram {
    pub(crate) fn new(
        executor: Arc<dyn Executor>,
        options: XlaOptions,
        Folded { graph, load }: Folded,
        (source, dims): (&dyn WeightSource, &Bindings),
    ) -> Result<Self, EngineError> {
        let mut pool = dims.clone();
        for (name, step) in [("blocks", BLOCKS_STEP), ("slots", SLOTS_STEP)] {
            let shows =
                |(_, v): &(String, _)| graph.ty(*v).shape.iter().any(|d| d.symbols().any(|s| s == name));
            if let Some(n) = pool.get_mut(name).filter(|_| !graph.outputs().iter().any(shows)) {
                *n = n.next_multiple_of(step);
            }
        }
        let keeping =
            if executor.is_cpu() { Keeping::on_processor() } else { Keeping::on_accelerator(&graph) };
        let mut weights = fold(&*executor, &load, source)?;
        for (_, node) in graph.weights() {
            upload((&*executor, keeping), &node.op, source, &mut weights)?;
        }
        let states = zeros(&*executor, &graph, &pool)?;
        let (compiled, flying) = (HashMap::new(), BTreeMap::new());
        let dims = dims.clone();
        let program = XlaProgram {
            executor,
            options,
            keeping,
            graph,
            dims,
            pool,
            weights,
            states,
            compiled,
            flying,
            next: 0,
            is_lost: false,
        };
        program.check()?;
        Ok(program)
    }

    /// Lowers the graph once, at small sizes, so that nothing can turn out to be unsupported later.
    fn check(&self) -> Result<(), EngineError> {
        let mut sizes = self.pool.clone();
        for symbol in self.graph.symbols() {
            sizes.entry(symbol.to_string()).or_insert(1);
        }
        let outputs: Vec<&str> = self.graph.outputs().iter().map(|(n, _)| n.as_str()).collect();
        // Sizes of one may be too small for a slice of a fixed graph; only what cannot be written counts.
        match module(&self.graph, &sizes, &outputs, StepKind::default(), self.executor.emit_options()) {
            Err(e @ XlaError::Unsupported { .. }) => Err(e.into()),
            _ => Ok(()),
        }
    }

    fn compiled(&mut self, key: Key) -> Result<Arc<Compiled>, EngineError> {
        if let Some(known) = self.compiled.get(&key) {
            return Ok(known.clone());
        }
        let outputs: Vec<&str> = key.outputs.iter().map(String::as_str).collect();
        let module = module(&self.graph, &key.sizes, &outputs, key.kind, self.executor.emit_options())?;
        let executable = self.executor.compile(&describe(&key), &module.text)?;
        let compiled = Arc::new(Compiled { module, executable });
        self.compiled.insert(key, compiled.clone());
        Ok(compiled)
    }

    /// Starts a step whose sizes are those of the feeds.
    fn start(
        &mut self,
        feeds: &Feeds,
        (sizes, is_split): (Bindings, bool),
        outputs: &[String],
    ) -> Result<Part, EngineError> {
        let is_greedy = feeds
            .get("temperature")
            .is_some_and(|t| t.to_vec::<f32>().is_some_and(|t| t.iter().all(|t| *t <= 0.0)));
        let narrow_attention = !self.executor.is_cpu();
        let kind = StepKind { is_split, is_greedy, narrow_attention, keeping: self.keeping };
        let sizes = sizes.into_iter().chain(self.pool.clone()).collect();
        let compiled = self.compiled(Key { sizes, outputs: outputs.to_vec(), kind })?;
        let mut inputs = vec![];
        for argument in &compiled.module.arguments {
            if let Argument::Input(name) = argument {
                inputs.push(self.upload_input(feeds, name, &compiled.module.joined)?);
            }
        }
        let mut fed = inputs.iter();
        let arguments = compiled.module.arguments.iter().map(|argument| match argument {
            Argument::Weight(name) => &self.weights[name],
            Argument::State(name) => &self.states[name].buffer,
            Argument::Input(_) => fed.next().expect("every input was uploaded"),
        });
        let results = run(&*compiled.executable, &compiled.module, &arguments.collect::<Vec<_>>());
        let mut results = results.inspect_err(|_| self.is_lost = true)?;
        let outputs = results.split_off(compiled.module.updates.len());
        for (name, buffer) in compiled.module.updates.iter().zip(results) {
            self.states.get_mut(name).expect("updates are of declared states").buffer = buffer;
        }
        Ok(Part { compiled, results: outputs })
    }

    /// An input on the device, or all those that are joined.
    fn upload_input(&self, feeds: &Feeds, name: &str, joined: &[String]) -> Result<Buffer, EngineError> {
        let feed =
            |name: &str| feeds.get(name).ok_or_else(|| EngineError::MissingFeed { name: name.to_string() });
        if name != JOINED {
            let t = feed(name)?;
            return Ok(self.executor.upload(t.dtype(), t.shape(), Bytes::copied(&[t.bytes()]))?);
        }
        let all =
            joined.iter().map(|name| Ok(feed(name)?.bytes())).collect::<Result<Vec<_>, EngineError>>()?;
        let size = all.iter().map(|bytes| bytes.len()).sum::<usize>() / size_of::<i32>();
        Ok(self.executor.upload(DType::I32, &[size], Bytes::copied(&all))?)
    }

    fn copy_entries(&mut self, axis: &str, from: &[i32], to: &[i32]) -> Result<(), EngineError> {
        let first = |ty: &Type| ty.shape.first().and_then(|d| d.as_symbol()) == Some(axis);
        let names: Vec<String> =
            self.states.iter().filter(|(_, s)| first(&s.ty)).map(|(n, _)| n.clone()).collect();
        if names.is_empty() {
            return Ok(());
        }
        let bound = |ty: &Type| Type::new(ty.dtype, ty.shape.iter().map(|d| d.bind(&self.pool)).collect());
        let states: Vec<(&str, Type)> =
            names.iter().map(|name| (name.as_str(), bound(&self.states[name].ty))).collect();
        let n = from.len();
        let module = copies(&states, n, self.executor.emit_options())?;
        let executable = self.executor.compile("a copy of state entries", &module.text)?;
        let index = |v: &[i32]| {
            self.executor.upload(DType::I32, &[n], Bytes::copied(&[HostTensor::new(&[n], v).bytes()]))
        };
        let (from, to) = (index(from)?, index(to)?);
        let arguments = module.arguments.iter().map(|a| match a {
            Argument::State(name) => &self.states[name].buffer,
            Argument::Input(name) if name == "from" => &from,
            _ => &to,
        });
        let results = run(&*executable, &module, &arguments.collect::<Vec<_>>());
        let results = results.inspect_err(|_| self.is_lost = true)?;
        for (name, buffer) in module.updates.iter().zip(results) {
            self.states.get_mut(name).expect("only states are updated").buffer = buffer;
        }
        Ok(())
    }
}

/// The module that copies `n` entries of states, from the numbers `from` to the numbers `to`.
pub(crate) fn copies(states: &[(&str, Type)], n: usize, options: EmitOptions) -> Result<Module, XlaError> {
    let b = Builder::new();
    let from = b.input("from", DType::I32, mlxcel_ir::shape![n]);
    let to = b.input("to", DType::I32, mlxcel_ir::shape![n]);
    for (name, ty) in states {
        let state = b.state(name, ty.dtype, ty.shape.clone());
        b.update(name, state.scatter(to, state.gather(from, 0), ScatterMode::Set));
    }
    // All are in range, and a guard would read the state that is written.
    let options = EmitOptions { guarded_indices: false, held_rows: options.for_iree_gpu, ..options };
    emit(&b.finish()?, options)
}

/// The results of a module: its states, then its outputs.
fn run(executable: &dyn Executable, module: &Module, arguments: &[&Buffer]) -> Result<Vec<Buffer>, XlaError> {
    let results = executable.run(arguments)?;
    let (found, expected) = (results.len(), module.updates.len() + module.outputs.len());
    if found == expected { Ok(results) } else { Err(XlaError::Results { found, expected }) }
}

fn describe(key: &Key) -> String {
    let size = |s: &str| key.sizes.get(s).copied().unwrap_or(0);
    format!(
        "a step of {} tokens of {} sequences in {} blocks each",
        size("tokens"),
        size("sequences"),
        size("pages")
    )
}

/// Computes on the device, once, what depends on weights only. The weights themselves are let go.
fn fold(
    executor: &dyn Executor,
    load: &Graph,
    source: &dyn WeightSource,
) -> Result<BTreeMap<String, Buffer>, EngineError> {
    if load.outputs().is_empty() {
        return Ok(BTreeMap::new());
    }
    let mut weights = BTreeMap::new();
    for (_, node) in load.weights() {
        upload((executor, Keeping::default()), &node.op, source, &mut weights)?;
    }
    let names: Vec<&str> = load.outputs().iter().map(|(name, _)| name.as_str()).collect();
    let kind = StepKind { narrow_attention: !executor.is_cpu(), ..StepKind::default() };
    let module = module(load, &Bindings::new(), &names, kind, executor.emit_options())?;
    let arguments = module.arguments.iter().map(|argument| match argument {
        Argument::Weight(name) => &weights[name],
        other => unreachable!("loading has weights only, not {other:?}"),
    });
    let executable = executor.compile("the folding of weights", &module.text)?;
    let results = run(&*executable, &module, &arguments.collect::<Vec<_>>())?;
    Ok(names.into_iter().map(str::to_string).zip(results).collect())
}

/// Puts a weight's arrays on the device, unless they are there.
fn upload(
    (executor, keeping): (&dyn Executor, Keeping),
    op: &Op,
    source: &dyn WeightSource,
    to: &mut BTreeMap<String, Buffer>,
) -> Result<(), EngineError> {
    let Op::Weight { name, dtype, shape, .. } = op else { return Ok(()) };
    if to.contains_key(name) {
        return Ok(());
    }
    let pieces = load_pieces(op, source)?;
    let shape = sizes(&Type::new(*dtype, shape.clone()))?;
    if keeping.widens && is_widened(*dtype, shape.len()) {
        let wide = executor.upload(DType::F32, &shape, pack::numbers(&pieces, DType::F32))?;
        to.insert(wide_name(name), wide);
        return Ok(());
    }
    if !dtype.is_quant() {
        let bytes = match pieces.as_slice() {
            [one] => one.parts[0].clone(),
            many => Bytes::copied(&many.iter().map(|p| &*p.parts[0]).collect::<Vec<_>>()),
        };
        to.insert(name.clone(), executor.upload(*dtype, &shape, bytes)?);
        return Ok(());
    }
    let mut arrays = pack::arrays(*dtype, &pieces, keeping).into_iter();
    let mut next = || arrays.next().expect("a packing has as many arrays as it lists");
    match Packing::of(*dtype, keeping) {
        None => {
            to.insert(format!("{name}.decoded"), executor.upload(keeping.decoded, &shape, next())?);
        }
        Some(packing) => {
            for (suffix, dtype, sizes) in packing.arrays(&shape) {
                to.insert(format!("{name}.{suffix}"), executor.upload(dtype, &sizes, next())?);
            }
        }
    }
    Ok(())
}

/// The states as zeros, each an array of its own.
fn zeros(
    executor: &dyn Executor,
    graph: &Graph,
    pool: &Bindings,
) -> Result<BTreeMap<String, State>, EngineError> {
    let mut states = BTreeMap::new();
    for (_, node) in graph.states() {
        let Op::State { name, dtype, shape } = &node.op else { continue };
        let unbound =
            |d: &mlxcel_ir::Dim| EngineError::Unbound { what: format!("state '{name}'"), dim: d.to_string() };
        let sizes = shape.iter().map(|d| d.eval(pool).ok_or_else(|| unbound(d)));
        let buffer = executor.zeros(*dtype, &sizes.collect::<Result<Vec<_>, _>>()?)?;
        states.insert(name.clone(), State { ty: node.types[0].clone(), buffer });
    }
    Ok(states)
}

impl Program for XlaProgram {
    fn submit(&mut self, feeds: &Feeds, outputs: &[&str]) -> Result<Ticket, EngineError> {
        let sizes = feeds.bind(&self.graph, &self.dims)?;
        for name in outputs {
            if !self.graph.outputs().iter().any(|(n, _)| n == name) {
                return Err(EngineError::UnknownOutput { name: name.to_string() });
            }
        }
        let names: Vec<String> = outputs.iter().map(|n| n.to_string()).collect();
        let parted = split(&self.graph, feeds, &sizes, &self.options.buckets);
        let mut parts = vec![];
        match &parted {
            None => parts.push(self.start(feeds, (sizes, false), &names)?),
            Some(split) => {
                for step in &split.steps {
                    let (padded, sizes) = step.pad(&self.graph, &self.options.buckets);
                    parts.push(self.start(&padded, (sizes, true), &names)?);
                }
            }
        }
        self.next += 1;
        self.flying.insert(self.next, Flying { split: parted, outputs: names, parts });
        Ok(Ticket(self.next))
    }

    fn collect(&mut self, ticket: Ticket) -> Result<Vec<HostTensor>, EngineError> {
        let step = self.flying.remove(&ticket.0).ok_or(EngineError::UnknownTicket { ticket: ticket.0 })?;
        let mut distinct: Vec<&String> = vec![];
        for name in &step.outputs {
            if !distinct.contains(&name) {
                distinct.push(name);
            }
        }
        let place = |name: &String| distinct.iter().position(|n| *n == name).expect("it was just put there");
        let read = |part: &Part| -> Result<Vec<HostTensor>, EngineError> {
            let all =
                part.results.iter().zip(&part.compiled.module.outputs).map(|(buffer, (dtype, sizes))| {
                    let mut bytes = vec![0; dtype.storage_bytes(sizes).unwrap_or(0)];
                    buffer.read(&mut bytes)?;
                    Ok(HostTensor::from_bytes(*dtype, sizes.clone(), bytes)
                        .expect("sized for its type and shape"))
                });
            let all = all.collect::<Result<Vec<_>, XlaError>>()?;
            Ok(step.outputs.iter().map(|name| all[place(name)].clone()).collect())
        };
        let parts = step.parts.iter().map(read).collect::<Result<Vec<_>, _>>();
        let mut parts = parts.inspect_err(|_| self.is_lost = true)?;
        let Some(split) = &step.split else { return Ok(parts.remove(0)) };
        let names: Vec<&str> = step.outputs.iter().map(String::as_str).collect();
        Ok(split.join(&self.graph, &names, parts))
    }

    fn copy_state(&mut self, axis: &str, pairs: &[(u32, u32)]) -> Result<(), EngineError> {
        let count = self.dims.get(axis).copied().unwrap_or(0);
        let bad = pairs.iter().flat_map(|(a, b)| [*a, *b]).find(|&i| i as usize >= count);
        if let Some(index) = bad {
            return Err(EngineError::StateIndex { axis: axis.to_string(), index, count });
        }
        // One after the other is the same as all at once, from where each entry's content was at first.
        let mut origin: BTreeMap<u32, u32> = BTreeMap::new();
        for (from, to) in pairs {
            let source = origin.get(from).copied().unwrap_or(*from);
            origin.insert(*to, source);
        }
        let (mut to, mut from): (Vec<i32>, Vec<i32>) =
            origin.iter().map(|(to, from)| (*to as i32, *from as i32)).unzip();
        let (Some(last_to), Some(last_from)) = (to.last().copied(), from.last().copied()) else {
            return Ok(());
        };
        // Few modules serve all numbers of copies: the last one is made again and again.
        let size = to.len().next_power_of_two();
        to.resize(size, last_to);
        from.resize(size, last_from);
        self.copy_entries(axis, &from, &to)
    }

    fn is_lost(&self) -> bool {
        self.is_lost
    }
}
