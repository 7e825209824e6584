//! Writes a graph of primitives with fixed shapes as one StableHLO module. It knows the text form of StableHLO and the
//! meaning of the ops; it knows no model, no device, and nothing of packed weights, which [`crate::lower`] has
//! unpacked before.
//!
//! The module's function takes weights, then states, then inputs, each under its own name, and returns the new states,
//! then the outputs. A state that is updated is aliased with its result, so that the device works in place.
//!
//! <https://openxla.org/stablehlo/spec>

mod contract;
mod control;
mod elementwise;
mod guard;
mod index;
mod movement;
mod reduce;
mod types;

use std::fmt::Write as _;

use mlxcel_ir::{DType, Graph, Node, Op, Value};

use crate::error::XlaError;
pub(crate) use types::sizes;

/// What the device needs to have written in its own way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EmitOptions {
    /// Products of narrow floats are rounded to their own type by the device rather than by a conversion.
    pub narrow_products: bool,
    /// Indices out of range are kept away from the device, which would read and write there.
    pub guarded_indices: bool,
    /// What compares equal is put in order by its place, for devices whose sorting is not stable.
    pub total_orders: bool,
    /// Inputs of whole numbers come as one array.
    pub joined_inputs: bool,
    /// What states become is computed once for all who read it. A compiler that joined the writing with a later reading
    /// would need the old state too, and copy all of it in every step.
    pub held_updates: bool,
    /// Rows are there before they are set. IREE's compiler for GPUs fails where it joins the reading of rows with the writing
    /// of others to the same array.
    pub held_rows: bool,
    /// IREE's compiler for GPUs fails at scatters whose rows may be the same, and its code finds -1 where it looks for the
    /// least of whole numbers. So no two rows of a step that are set are said to be the same, which is so for what steps
    /// write but for guarded rows, which are equal; and places are found among floats.
    pub for_iree_gpu: bool,
}

/// What a module's argument stands for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Argument {
    Weight(String),
    State(String),
    Input(String),
}

/// A module with what its arguments and results are.
#[derive(Clone, Debug)]
pub struct Module {
    pub text: String,
    pub arguments: Vec<Argument>,
    /// The inputs that come one after the other in one array, if any do.
    pub joined: Vec<String>,
    /// States in the order of the first results.
    pub updates: Vec<String>,
    /// Types and sizes of the outputs, which follow.
    pub outputs: Vec<(DType, Vec<usize>)>,
}

/// A value as text: its name and type.
#[derive(Clone, Debug)]
struct Val {
    name: String,
    dtype: DType,
    sizes: Vec<usize>,
}

impl Val {
    fn ty(&self) -> Result<String, XlaError> {
        types::tensor(self.dtype, &self.sizes)
    }
}

/// The text under construction.
struct Emitter {
    body: String,
    depth: usize,
    fresh: usize,
    options: EmitOptions,
}

/// Writes the graph, all of whose shapes are fixed.
pub fn emit(graph: &Graph, options: EmitOptions) -> Result<Module, XlaError> {
    let mut e = Emitter { body: String::new(), depth: 2, fresh: 0, options };
    let mut arguments = vec![];
    let mut leaves = vec![];
    for kind in [Kind::Weight, Kind::State, Kind::Input] {
        for (i, node) in graph.nodes().iter().enumerate().filter(|(_, n)| kind.is(&n.op)) {
            let argument = kind.argument(&node.op);
            let name = format!("%{}", identifier(&argument));
            leaves.push((i, Val { name, dtype: node.types[0].dtype, sizes: sizes(&node.types[0])? }));
            arguments.push(argument);
        }
    }
    let mut values: Vec<Vec<Val>> = vec![vec![]; graph.nodes().len()];
    for (i, val) in &leaves {
        values[*i] = vec![val.clone()];
    }
    let held = if options.held_updates { written(graph) } else { vec![] };
    for (i, node) in graph.nodes().iter().enumerate().filter(|(_, n)| !n.op.is_leaf()) {
        values[i] = e.node(node, &values, &format!("%n{i}"))?;
        for value in held.iter().filter(|value| value.node as usize == i) {
            let result = &mut values[i][value.result as usize];
            *result = e.held(result)?;
        }
    }
    let of = |v: &Value| values[v.node as usize][v.result as usize].clone();
    let updates: Vec<(String, Val)> = graph.updates().iter().map(|(n, v)| (n.clone(), of(v))).collect();
    let outputs: Vec<Val> = graph.outputs().iter().map(|(_, v)| of(v)).collect();
    let results: Vec<Val> = updates.iter().map(|(_, v)| v.clone()).chain(outputs.iter().cloned()).collect();
    let parameters = arguments.iter().zip(&leaves).map(|(argument, (_, val))| {
        let updated = |name: &String| updates.iter().position(|(n, _)| n == name);
        let place = if let Argument::State(name) = argument { updated(name) } else { None };
        let alias = place.map_or(String::new(), |p| format!(" {{tf.aliasing_output = {p} : i32}}"));
        Ok(format!("{}: {}{alias}", val.name, val.ty()?))
    });
    let parameters = parameters.collect::<Result<Vec<_>, XlaError>>()?.join(",\n    ");
    let types = results.iter().map(Val::ty).collect::<Result<Vec<_>, _>>()?.join(", ");
    let names = results.iter().map(|v| v.name.clone()).collect::<Vec<_>>().join(", ");
    let end = if results.is_empty() { "return".to_string() } else { format!("return {names} : {types}") };
    let text = format!(
        "module @mlxcel {{\n  func.func public @main(\n    {parameters}\n  ) -> ({types}) {{\n{}    {end}\n  }}\n}}\n",
        e.body
    );
    let outputs = outputs.into_iter().map(|v| (v.dtype, v.sizes)).collect();
    Ok(Module {
        text,
        arguments,
        joined: vec![],
        updates: updates.into_iter().map(|(n, _)| n).collect(),
        outputs,
    })
}

/// The values that updates are, or are another shape of.
fn written(graph: &Graph) -> Vec<Value> {
    let of = |(_, value): &(String, Value)| {
        let mut value = *value;
        while matches!(graph.node(value).op, Op::Reshape { .. }) {
            value = graph.node(value).inputs[0];
        }
        value
    };
    graph.updates().iter().map(of).collect()
}

#[derive(Clone, Copy)]
enum Kind {
    Weight,
    State,
    Input,
}

impl Kind {
    fn is(self, op: &Op) -> bool {
        matches!(
            (self, op),
            (Kind::Weight, Op::Weight { .. })
                | (Kind::State, Op::State { .. })
                | (Kind::Input, Op::Input { .. })
        )
    }

    fn argument(self, op: &Op) -> Argument {
        match op {
            Op::Weight { name, .. } => Argument::Weight(name.clone()),
            Op::State { name, .. } => Argument::State(name.clone()),
            Op::Input { name, .. } => Argument::Input(name.clone()),
            other => unreachable!("{} is not a leaf", other.name()),
        }
    }
}

/// A name that the text form allows, with a prefix that keeps the kinds apart.
fn identifier(argument: &Argument) -> String {
    let (prefix, name) = match argument {
        Argument::Weight(name) => ("w.", name),
        Argument::State(name) => ("state.", name),
        Argument::Input(name) => ("in.", name),
    };
    let allowed = |c: char| if c.is_ascii_alphanumeric() || "$._-".contains(c) { c } else { '_' };
    prefix.chars().chain(name.chars().map(allowed)).collect()
}

impl Emitter {
    /// Writes a node and returns its results; `name` is what the first of them is called.
    fn node(&mut self, node: &Node, values: &[Vec<Val>], name: &str) -> Result<Vec<Val>, XlaError> {
        let x: Vec<&Val> = node.inputs.iter().map(|v| &values[v.node as usize][v.result as usize]).collect();
        let outs = node.types.iter().enumerate().map(|(r, t)| {
            let name = if r == 0 { name.to_string() } else { format!("{name}_{r}") };
            Ok(Val { name, dtype: t.dtype, sizes: sizes(t)? })
        });
        let outs = outs.collect::<Result<Vec<_>, XlaError>>()?;
        match &node.op {
            Op::Constant(t) => self.constant(&outs[0], t)?,
            Op::Iota { axis, .. } => self.iota(&outs[0], *axis)?,
            Op::Size { dim } => {
                let n = dim.as_fixed().ok_or_else(|| XlaError::Unbound { ty: dim.to_string() })?;
                self.constant(&outs[0], &mlxcel_ir::HostTensor::scalar(n as i32))?;
            }
            Op::Unary(_) | Op::Binary(_) | Op::Compare(_) | Op::Select | Op::Cast(_) => {
                self.elementwise(&node.op, &x, &outs[0])?;
            }
            Op::Reshape { .. }
            | Op::Broadcast { .. }
            | Op::Transpose { .. }
            | Op::Slice { .. }
            | Op::Concat { .. }
            | Op::Pad { .. }
            | Op::DynamicSlice { .. }
            | Op::UpdateSlice => self.movement(&node.op, &x, &outs[0])?,
            Op::Gather { .. } | Op::TakeAlong { .. } | Op::Scatter { .. } => {
                self.indexed(&node.op, &x, &outs[0])?
            }
            Op::Reduce { op, axes } => self.reduce(*op, axes, x[0], &outs[0])?,
            Op::Cumulative { op, axis } => self.cumulative(*op, *axis, x[0], &outs[0])?,
            Op::Sort { axis, descending } => self.sort((*axis, *descending), x[0], &outs)?,
            Op::ArgMax { axis } => self.arg_max(*axis, x[0], &outs[0])?,
            Op::DotGeneral { batch, contract, .. } => self.dot((x[0], x[1]), (batch, contract), &outs[0])?,
            Op::Conv { .. } => self.conv(&node.op, (x[0], x[1]), &outs[0])?,
            Op::If | Op::While { .. } | Op::Scan { .. } => return self.control(node, &x, outs),
            other => {
                let operands = x.iter().map(|v| format!("{}{:?}", v.dtype, v.sizes));
                let operands = operands.collect::<Vec<_>>().join(", ");
                return Err(XlaError::Unsupported { op: other.name(), operands });
            }
        }
        Ok(outs)
    }

    fn line(&mut self, text: std::fmt::Arguments<'_>) {
        for _ in 0..self.depth {
            self.body.push_str("  ");
        }
        self.body.write_fmt(text).expect("writing to a string does not fail");
        self.body.push('\n');
    }

    /// The same value, computed before anything that uses it.
    fn held(&mut self, value: &Val) -> Result<Val, XlaError> {
        let held = self.temporary(value.dtype, &value.sizes);
        self.same("optimization_barrier", &[value], &held)?;
        Ok(held)
    }

    /// A value that no node stands for.
    fn temporary(&mut self, dtype: DType, sizes: &[usize]) -> Val {
        self.fresh += 1;
        Val { name: format!("%t{}", self.fresh), dtype, sizes: sizes.to_vec() }
    }

    /// `out = op x, y, … : type`, for ops whose operands have the type of the result.
    fn same(&mut self, op: &str, x: &[&Val], out: &Val) -> Result<(), XlaError> {
        let names: Vec<&str> = x.iter().map(|v| v.name.as_str()).collect();
        let (names, ty) = (names.join(", "), out.ty()?);
        self.line(format_args!("{} = stablehlo.{op} {names} : {ty}", out.name));
        Ok(())
    }

    fn constant(&mut self, out: &Val, t: &mlxcel_ir::HostTensor) -> Result<(), XlaError> {
        let ty = out.ty()?;
        self.line(format_args!("{} = stablehlo.constant {} : {ty}", out.name, types::dense(t)));
        Ok(())
    }

    /// A number of a type, of any shape.
    fn number(&mut self, dtype: DType, sizes: &[usize], v: f64) -> Result<Val, XlaError> {
        let scalar = self.temporary(dtype, &[]);
        self.constant(&scalar, &mlxcel_ir::HostTensor::from_f64(dtype, &[], &[v]))?;
        self.spread(&scalar, sizes)
    }

    fn iota(&mut self, out: &Val, axis: usize) -> Result<(), XlaError> {
        let ty = out.ty()?;
        self.line(format_args!("{} = stablehlo.iota dim = {axis} : {ty}", out.name));
        Ok(())
    }

    fn convert(&mut self, x: &Val, dtype: DType) -> Result<Val, XlaError> {
        if x.dtype == dtype {
            return Ok(x.clone());
        }
        let out = self.temporary(dtype, &x.sizes);
        self.convert_to(x, &out)?;
        Ok(out)
    }

    fn convert_to(&mut self, x: &Val, out: &Val) -> Result<(), XlaError> {
        let (from, to) = (x.ty()?, out.ty()?);
        self.line(format_args!("{} = stablehlo.convert {} : ({from}) -> {to}", out.name, x.name));
        Ok(())
    }

    /// The value with another shape of as many elements.
    fn reshape(&mut self, x: &Val, sizes: &[usize]) -> Result<Val, XlaError> {
        let out = self.temporary(x.dtype, sizes);
        self.reshape_to(x, &out)?;
        Ok(out)
    }

    fn reshape_to(&mut self, x: &Val, out: &Val) -> Result<(), XlaError> {
        let (from, to) = (x.ty()?, out.ty()?);
        self.line(format_args!("{} = stablehlo.reshape {} : ({from}) -> {to}", out.name, x.name));
        Ok(())
    }

    /// The value broadcast to `sizes` by NumPy's rule.
    fn spread(&mut self, x: &Val, sizes: &[usize]) -> Result<Val, XlaError> {
        if x.sizes == sizes {
            return Ok(x.clone());
        }
        let out = self.temporary(x.dtype, sizes);
        self.spread_to(x, &out)?;
        Ok(out)
    }

    fn spread_to(&mut self, x: &Val, out: &Val) -> Result<(), XlaError> {
        let first = out.sizes.len() - x.sizes.len();
        let dims: Vec<usize> = (first..out.sizes.len()).collect();
        let (from, to) = (x.ty()?, out.ty()?);
        self.line(format_args!(
            "{} = stablehlo.broadcast_in_dim {}, dims = {dims:?} : ({from}) -> {to}",
            out.name, x.name
        ));
        Ok(())
    }
}
