//! Weights of a graph as matrices, without a copy of what is only a join, a cut or another shape of them.

use std::collections::HashMap;

use mlxcel_engine::weights::{Bytes, WeightTensor};
use mlxcel_engine::{EngineError, Segments};
use mlxcel_ir::{Graph, Op, Type, Value};

use crate::context::Context;
use crate::kept::Keeper;
use crate::plan::{needed, reads_rows};
use crate::weight::Matrix;

/// Matrices, and which node each stands for.
pub(crate) struct Statics {
    pub(crate) matrices: Vec<Matrix>,
    pub(crate) of_node: HashMap<u32, usize>,
    /// Those that products read, in the order of their nodes.
    products: Vec<usize>,
}

/// The matrices that the nodes leading to `ends` read.
pub(crate) fn matrices(graph: &Graph, mut found: Segments, ends: &[Value]) -> Result<Statics, EngineError> {
    let uses = uses(graph, ends);
    let mut statics = Statics { matrices: vec![], of_node: HashMap::new(), products: vec![] };
    for (i, node) in graph.nodes().iter().enumerate() {
        let Some(segments) = found.remove(&(i as u32)) else { continue };
        let uses = uses[i];
        // A rearranged weight that is also wanted dense is computed like any other value.
        if !matches!(node.op, Op::Weight { .. }) && (uses.dense || !uses.rows) {
            continue;
        }
        let mut matrix = matrix(&node.op, &node.types[0], segments)?;
        if uses.dense {
            matrix.make_dense()?;
        }
        if uses.product {
            statics.products.push(statics.matrices.len());
        }
        statics.of_node.insert(i as u32, statics.matrices.len());
        statics.matrices.push(matrix);
    }
    Ok(statics)
}

impl Statics {
    /// Prepares for products what they read: in a file where one is kept of it, in memory otherwise.
    pub(crate) fn pack(&mut self, ctx: &Context, keeper: Option<&Keeper>) -> Result<(), EngineError> {
        if let Some(keeper) = keeper {
            keeper.pack(ctx, &mut self.matrices, &self.products)?;
        }
        for &i in &self.products {
            if self.matrices[i].packed().is_none() {
                self.matrices[i].pack(ctx)?;
            }
        }
        // Once more: what lay beside a weight in its file came back with it.
        self.matrices.iter().for_each(Matrix::release);
        Ok(())
    }
}

fn fixed(t: &Type) -> Option<Vec<usize>> {
    t.shape.iter().map(|d| d.as_fixed()).collect()
}

fn matrix(op: &Op, t: &Type, segments: Vec<WeightTensor>) -> Result<Matrix, EngineError> {
    let shape = fixed(t).ok_or_else(|| crate::unsupported(op, std::slice::from_ref(t)))?;
    if let Some(m) = Matrix::new(t.dtype, shape.clone(), segments.clone()) {
        return Ok(m);
    }
    // Pieces that do not end at a row are joined; packed ones cannot be.
    if t.dtype.is_quant() {
        return Err(crate::unsupported(op, std::slice::from_ref(t)));
    }
    let parts: Vec<&[u8]> = segments.iter().map(|s| &*s.parts[0]).collect();
    let joined = WeightTensor::new(t.dtype, shape.clone(), vec![Bytes::copied(&parts)])?;
    Matrix::new(t.dtype, shape, vec![joined]).ok_or_else(|| crate::unsupported(op, std::slice::from_ref(t)))
}

/// How a node's value is read.
#[derive(Clone, Copy, Default)]
struct Uses {
    /// Row by row, in any format.
    rows: bool,
    /// As one array.
    dense: bool,
    /// By products.
    product: bool,
}

/// Whether an op multiplies rows of an operand, in whole panels where there are several matrices in it.
fn is_product(op: &Op, at: usize, t: &Type) -> bool {
    match op {
        Op::Linear { .. } => at == 1,
        Op::ExpertLinear { .. } => {
            at == 1 && t.shape[1].as_fixed().is_some_and(|n| n.is_multiple_of(PANEL_ROWS))
        }
        _ => false,
    }
}

/// Experts begin at a panel of this many rows.
const PANEL_ROWS: usize = 16;

fn uses(graph: &Graph, ends: &[Value]) -> Vec<Uses> {
    let mut uses = vec![Uses::default(); graph.nodes().len()];
    let needed = needed(graph, ends.iter().copied());
    for (_, node) in graph.nodes().iter().enumerate().filter(|(i, _)| needed[*i]) {
        for (at, v) in node.inputs.iter().enumerate() {
            let u = &mut uses[v.node as usize];
            if reads_rows(&node.op, at) {
                u.rows = true
            } else {
                u.dense = true
            }
            u.product |= is_product(&node.op, at, graph.ty(*v));
        }
    }
    ends.iter().for_each(|v| uses[v.node as usize].dense = true);
    uses
}
