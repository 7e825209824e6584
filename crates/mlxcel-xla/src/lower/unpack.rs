//! Packed weights in the graph. A weight in a packed format becomes plain arrays, codes with scales and perhaps biases,
//! which stay on the device as they are; where it is used, codes are shifted out of their bytes and scaled. Rows that
//! are taken by index are taken before they are unpacked. How the arrays are made is the business of [`crate::pack`].

use std::collections::HashMap;

use mlxcel_ir::{Builder, DType, Dim, Graph, HostTensor, Op, Tensor, Type, Value};

use crate::error::XlaError;
use crate::pack::Keeping;

/// How the arrays of a packed weight are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Packing {
    /// Bits of a code: 2, 4 or 8, from the low end of each byte.
    pub(crate) bits: usize,
    /// Codes that share a scale.
    pub(crate) group: usize,
    pub(crate) scale: DType,
    pub(crate) has_bias: bool,
    /// Codes are E2M1 floats rather than whole numbers.
    pub(crate) is_float: bool,
}

impl Packing {
    /// The arrays of a weight of this shape: suffix, type, shape.
    pub(crate) fn arrays(&self, shape: &[usize]) -> Vec<(&'static str, DType, Vec<usize>)> {
        let (last, outer) = shape.split_last().expect("a packed weight has an axis");
        let row = |n: usize| [outer, &[n]].concat();
        let scales = row(last / self.group);
        let mut all =
            vec![("codes", DType::U8, row(last * self.bits / 8)), ("scales", self.scale, scales.clone())];
        if self.has_bias {
            all.push(("biases", self.scale, scales));
        }
        all
    }

    /// How a format is kept; `None` if it is decoded when it is loaded.
    pub(crate) fn of(dtype: DType, keeping: Keeping) -> Option<Packing> {
        crate::pack::packing(dtype, keeping)
    }
}

/// What stands for a packed value: its arrays, or what it was decoded to.
#[derive(Clone)]
enum Parts {
    Packed(Packing, Vec<Value>),
    Plain(Value),
}

/// Replaces packed weights and every use of them.
pub(super) fn unpack(graph: &Graph, keeping: Keeping) -> Result<Graph, XlaError> {
    let mut packed: HashMap<Value, Vec<Parts>> = HashMap::new();
    let mut out = Graph::default();
    let mut map: Vec<Vec<Value>> = Vec::with_capacity(graph.nodes().len());
    let takes = taken_rows(graph);
    for (i, node) in graph.nodes().iter().enumerate() {
        let here = Value { node: i as u32, result: 0 };
        let find = |v: &Value| map[v.node as usize][v.result as usize];
        let results = match &node.op {
            Op::Weight { name, dtype, shape, .. } if dtype.is_quant() => {
                packed.insert(here, vec![weight(&mut out, (name, *dtype, shape), keeping)?]);
                vec![here]
            }
            Op::Concat { axis: 0 } if node.types[0].dtype.is_quant() => {
                let parts = node.inputs.iter().flat_map(|v| packed[v].clone()).collect();
                packed.insert(here, parts);
                vec![here]
            }
            // Its users take their rows first.
            Op::Dequantize { .. } if takes.contains(&here) => vec![here],
            Op::Dequantize { dtype } => {
                let parts = packed.get(&node.inputs[0]).ok_or_else(|| captured(&node.types[0]))?;
                vec![decoded(&mut out, parts, *dtype, &node.types[0])?]
            }
            Op::Gather { axis: 0 } if takes.contains(&node.inputs[0]) => {
                let source = graph.node(node.inputs[0]);
                let Op::Dequantize { dtype } = source.op else { unreachable!("only decoded rows are taken") };
                let parts = packed.get(&source.inputs[0]).ok_or_else(|| captured(&source.types[0]))?;
                let indices = find(&node.inputs[1]);
                vec![rows(&mut out, &parts[0], indices, (dtype, &node.types[0]))?]
            }
            _ => {
                let inputs = node.inputs.iter().map(find).collect();
                out.copy_node(node, inputs)?
            }
        };
        map.push(results);
    }
    let find = |v: &Value| map[v.node as usize][v.result as usize];
    for (name, v) in graph.outputs() {
        out.add_output(name, find(v))?;
    }
    for (name, v) in graph.updates() {
        out.add_update(name, find(v))?;
    }
    Ok(out)
}

fn captured(ty: &Type) -> XlaError {
    XlaError::Unsupported { op: "dequantize of what is not a weight".into(), operands: ty.to_string() }
}

/// Decoded weights of which only rows are used.
fn taken_rows(graph: &Graph) -> Vec<Value> {
    let mut users: HashMap<Value, (usize, usize)> = HashMap::new();
    for node in graph.nodes() {
        for (place, v) in node.inputs.iter().enumerate() {
            let count = users.entry(*v).or_default();
            count.0 += 1;
            count.1 += usize::from(matches!(node.op, Op::Gather { axis: 0 }) && place == 0);
        }
    }
    let ends = graph.outputs().iter().chain(graph.updates()).map(|(_, v)| *v).collect::<Vec<_>>();
    let is_decoded = |v: &Value| {
        let node = graph.node(*v);
        matches!(node.op, Op::Dequantize { .. }) && matches!(graph.node(node.inputs[0]).op, Op::Weight { .. })
    };
    let all = users.iter().filter(|(_, (uses, rows))| uses == rows).map(|(v, _)| *v);
    all.filter(|v| is_decoded(v) && !ends.contains(v)).collect()
}

/// The arrays of a packed weight, as weights of their own.
fn weight(
    out: &mut Graph,
    (name, dtype, shape): (&str, DType, &[Dim]),
    keeping: Keeping,
) -> Result<Parts, XlaError> {
    let mut push = |name: String, dtype: DType, shape: Vec<Dim>| -> Result<Value, XlaError> {
        let op = Op::Weight { name, dtype, shape, pieces: vec![] };
        let node = out.push(op, vec![], vec![], "")?;
        Ok(Value { node, result: 0 })
    };
    let Some(packing) = Packing::of(dtype, keeping) else {
        return Ok(Parts::Plain(push(format!("{name}.decoded"), keeping.decoded, shape.to_vec())?));
    };
    let sizes: Option<Vec<usize>> = shape.iter().map(|d| d.as_fixed()).collect();
    let sizes = sizes.ok_or_else(|| XlaError::Unbound { ty: name.to_string() })?;
    let mut arrays = vec![];
    for (suffix, dtype, sizes) in packing.arrays(&sizes) {
        arrays.push(push(format!("{name}.{suffix}"), dtype, sizes.into_iter().map(Dim::fixed).collect())?);
    }
    Ok(Parts::Packed(packing, arrays))
}

/// All rows of the parts, one under the other.
fn decoded(out: &mut Graph, parts: &[Parts], dtype: DType, ty: &Type) -> Result<Value, XlaError> {
    let mut values = vec![];
    for part in parts {
        let (types, inputs) = inputs(out, part, None);
        let body = super::region(&types, |b, x| vec![numbers(b, part, x, dtype)])?;
        values.push(out.inline(&body, &inputs)?[0]);
    }
    if values.len() == 1 {
        return Ok(values[0]);
    }
    let joined = out.push(Op::Concat { axis: 0 }, values, vec![], "")?;
    debug_assert_eq!(out.nodes()[joined as usize].types[0].shape, ty.shape);
    Ok(Value { node: joined, result: 0 })
}

/// Only the rows at `indices`.
fn rows(
    out: &mut Graph,
    part: &Parts,
    indices: Value,
    (dtype, _): (DType, &Type),
) -> Result<Value, XlaError> {
    let (types, inputs) = inputs(out, part, Some(indices));
    let body = super::region(&types, |b, x| {
        let (indices, arrays) = x.split_last().expect("the indices come last");
        let taken: Vec<Tensor<'_>> = arrays.iter().map(|a| a.gather(*indices, 0)).collect();
        vec![numbers(b, part, &taken, dtype)]
    })?;
    Ok(out.inline(&body, &inputs)?[0])
}

fn inputs(out: &Graph, part: &Parts, more: Option<Value>) -> (Vec<Type>, Vec<Value>) {
    let mut values = match part {
        Parts::Packed(_, arrays) => arrays.clone(),
        Parts::Plain(v) => vec![*v],
    };
    values.extend(more);
    (values.iter().map(|v| out.ty(*v).clone()).collect(), values)
}

/// Codes, scales and biases as numbers.
fn numbers<'g>(b: &'g Builder, part: &Parts, x: &[Tensor<'g>], dtype: DType) -> Tensor<'g> {
    let Parts::Packed(packing, _) = part else { return x[0].cast(dtype) };
    let wide = if dtype == DType::F64 { DType::F64 } else { DType::F32 };
    let (codes, scales) = (x[0], x[1]);
    let outer = codes.shape()[..codes.rank() - 1].to_vec();
    let groups = scales.dim(scales.rank() - 1);
    let grouped: Vec<Dim> = [outer.as_slice(), &[groups.clone(), Dim::fixed(packing.group)]].concat();
    let whole: Vec<Dim> = [outer.as_slice(), &[groups.times(&Dim::fixed(packing.group))]].concat();
    let codes = codes_of(b, codes, packing.bits).reshape(grouped);
    let q = if packing.is_float { e2m1(codes, wide) } else { codes.cast(wide) };
    let column = |t: Tensor<'g>| t.unsqueeze(t.rank()).cast(wide);
    let scaled = q * column(scales);
    let value = x.get(2).map_or(scaled, |bias| scaled + column(*bias));
    value.reshape(whole).cast(dtype)
}

/// The codes in the bytes, low bits first.
fn codes_of<'g>(b: &'g Builder, bytes: Tensor<'g>, bits: usize) -> Tensor<'g> {
    if bits == 8 {
        return bytes;
    }
    let per_byte = 8 / bits;
    let shifts: Vec<u8> = (0..per_byte).map(|i| (i * bits) as u8).collect();
    let shifts = b.constant(HostTensor::new(&[per_byte], &shifts));
    let spread = bytes.unsqueeze(bytes.rank());
    (spread >> shifts) & bytes.number(f64::from((1u32 << bits) - 1))
}

/// E2M1: a sign, two bits of exponent, one of mantissa.
fn e2m1(codes: Tensor<'_>, wide: DType) -> Tensor<'_> {
    let bits = |shift: f64, mask: f64| (codes >> codes.number(shift)) & codes.number(mask);
    let half = bits(0.0, 1.0).cast(wide) * 0.5;
    let exponent = bits(1.0, 3.0);
    let power = exponent.number(1.0) << (exponent.max(exponent.number(1.0)) - 1.0);
    let leading = exponent.gt(exponent.number(0.0)).cast(wide);
    let sign = bits(3.0, 1.0).cast(wide) * -2.0 + 1.0;
    (leading + half) * power.cast(wide) * sign
}
