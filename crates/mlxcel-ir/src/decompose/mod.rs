//! Every composite as primitives: the definition of what a composite means, and how an engine that lacks one runs
//! it anyway.

mod attention;
mod expert;
mod fft;
mod norm;
mod pool;
mod recurrent;
mod sample;

use crate::builder::{Builder, Tensor};
use crate::dtype::DType;
use crate::error::IrError;
use crate::graph::{Graph, Node};
use crate::op::{Activation, Op};
use crate::shape::{Dim, Type};

/// Whether an engine runs an op with operands of these types itself.
pub type Native<'a> = dyn Fn(&Op, &[Type]) -> bool + 'a;

/// Replaces every composite that is not native by its decomposition, until none is left.
pub fn decompose(graph: &Graph, native: &Native<'_>) -> Result<Graph, IrError> {
    let mut current = graph.clone();
    while has_foreign(&current, native) {
        let source = current;
        current = source.rewrite(|out, node, inputs| {
            let types: Vec<Type> = inputs.iter().map(|v| out.ty(*v).clone()).collect();
            if !node.regions.is_empty() && node.op != Op::Fused {
                let regions = node.regions.iter().map(|r| decompose(r, native)).collect::<Result<_, _>>()?;
                let index = out.push(node.op.clone(), inputs.to_vec(), regions, &node.label)?;
                return Ok(Some(out.results(index)));
            }
            if !node.op.is_composite() || native(&node.op, &types) {
                return Ok(None);
            }
            let body = match node.regions.first() {
                Some(fused) => fused.clone(),
                None => Builder::region(&types, |b, x| expand(b, node, x))?,
            };
            let first = out.nodes().len();
            let results = out.inline(&body, inputs)?;
            out.relabel(first, &node.label);
            Ok(Some(results))
        })?;
    }
    Ok(current)
}

fn has_foreign(graph: &Graph, native: &Native<'_>) -> bool {
    graph.nodes().iter().any(|n| {
        let types = || n.inputs.iter().map(|v| graph.ty(*v).clone()).collect::<Vec<_>>();
        (n.op.is_composite() && !native(&n.op, &types()))
            || (n.op != Op::Fused && n.regions.iter().any(|r| has_foreign(r, native)))
    })
}

/// The results of a composite in terms of simpler ops.
fn expand<'g>(b: &'g Builder, node: &Node, x: &[Tensor<'g>]) -> Vec<Tensor<'g>> {
    match &node.op {
        Op::Activation(kind) => vec![activation(*kind, x[0])],
        Op::Softmax { axis } => vec![norm::softmax(x[0], *axis)],
        Op::LayerNorm { eps, weight, bias } => {
            let mut rest = x[1..].iter().copied();
            let weight = if *weight { rest.next() } else { None };
            let bias = if *bias { rest.next() } else { None };
            vec![norm::layer_norm(x[0], *eps, weight, bias)]
        }
        Op::RmsNorm { eps, .. } => vec![norm::rms_norm(x[0], *eps, x.get(1).copied())],
        Op::AddRmsNorm { eps } => {
            let sum = x[0] + x[1];
            vec![sum, sum.rms_norm(*eps, Some(x[2]))]
        }
        Op::GroupNorm { eps, groups } => vec![norm::group_norm(x, *eps, *groups)],
        Op::Rope { interleaved, scale } => vec![attention::rope(x, *interleaved, *scale)],
        Op::Attention(spec) => vec![attention::dense(b, x, spec)],
        Op::PagedAttention(spec) => attention::paged(b, x, spec),
        Op::Linear { .. } => vec![linear(x)],
        Op::Embedding { dtype } => vec![x[0].dequantize(*dtype).gather(x[1], 0)],
        Op::ExpertLinear { .. } => vec![expert::linear(x)],
        Op::MoeRoute(spec) => expert::route(b, x, spec),
        Op::TopK { k } => {
            let axis = x[0].rank() - 1;
            x[0].sort_descending(axis).map(|t| t.slice(axis, 0, *k)).to_vec()
        }
        Op::ArgMax { axis } => {
            let [_, order] = x[0].sort_descending(*axis);
            let mut shape = x[0].shape();
            shape.remove(*axis);
            vec![order.slice(*axis, 0, 1).reshape(shape)]
        }
        Op::Sample => vec![sample::sample(b, x)],
        Op::SelectiveScan => recurrent::selective_scan(b, x),
        Op::CausalConv => recurrent::causal_conv(b, x),
        Op::Pool { kind, window, strides, padding } => {
            vec![pool::pool(x[0], *kind, (window, strides, padding))]
        }
        Op::Fft { inverse } => fft::complex(b, x[0], x[1], *inverse).to_vec(),
        Op::Rfft => fft::forward_real(b, x[0]).to_vec(),
        Op::Irfft { n } => vec![fft::inverse_real(b, x[0], x[1], *n)],
        other => unreachable!("{} is not a composite without a region", other.name()),
    }
}

fn activation(kind: Activation, x: Tensor<'_>) -> Tensor<'_> {
    match kind {
        Activation::Relu => x.max(x.number(0.0)),
        Activation::Relu2 => {
            let r = x.max(x.number(0.0));
            r * r
        }
        Activation::Silu => x * x.sigmoid(),
        Activation::Gelu => x * 0.5 * ((x * std::f64::consts::FRAC_1_SQRT_2).erf() + 1.0),
        Activation::GeluTanh => {
            let inner = (x + x * x * x * 0.044715) * (2.0 / std::f64::consts::PI).sqrt();
            x * 0.5 * (inner.tanh() + 1.0)
        }
        Activation::QuickGelu => x * (x * 1.702).sigmoid(),
        // Stable on both sides: max(x, 0) + ln(1 + e^-|x|).
        Activation::Softplus => x.max(x.number(0.0)) + (-x.abs()).exp().log1p(),
    }
}

fn linear<'g>(x: &[Tensor<'g>]) -> Tensor<'g> {
    let last = x[0].rank() - 1;
    let y = x[0].dot_general(x[1].dequantize(x[0].dtype()), &[], &[(last, 1)]);
    x.get(2).map_or(y, |bias| y + bias.cast(y.dtype()))
}

/// `0 … n-1` as `i32 [n]`, with `n` fixed or symbolic.
fn count<'g>(b: &'g Builder, n: Dim) -> Tensor<'g> {
    b.iota(DType::I32, vec![n], 0)
}
