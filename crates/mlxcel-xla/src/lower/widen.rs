//! Matrices of 16-bit floats as f32, for processors: XLA's products of those are fast for f32 only, and widening in every
//! step costs more than reading twice as much. Numbers stay what they are, and so does every result.

use std::collections::HashMap;

use mlxcel_ir::{DType, Dim, Graph, IrError, Op, Value};

/// Whether a weight is kept as f32 where weights are widened.
pub(crate) fn is_widened(dtype: DType, rank: usize) -> bool {
    matches!(dtype, DType::BF16 | DType::F16) && rank >= 2
}

/// What a widened weight is called.
pub(crate) fn wide_name(name: &str) -> String {
    format!("{name}.wide")
}

/// Replaces matrices and what is done to them.
pub(super) fn widen(graph: &Graph) -> Result<Graph, IrError> {
    let mut pass = Pass { out: Graph::default(), wide: HashMap::new() };
    let mut map: Vec<Vec<Value>> = Vec::with_capacity(graph.nodes().len());
    for (i, node) in graph.nodes().iter().enumerate() {
        let here = Value { node: i as u32, result: 0 };
        let find = |v: &Value| map[v.node as usize][v.result as usize];
        let inputs: Vec<Value> = node.inputs.iter().map(find).collect();
        let wide: Vec<Option<Value>> = node.inputs.iter().map(|v| pass.wide.get(v).copied()).collect();
        let first = wide.first().copied().flatten();
        let results = match (&node.op, first) {
            (Op::Weight { name, dtype, shape, .. }, _) if is_widened(*dtype, shape.len()) => {
                let weight = pass.weight(name, shape)?;
                vec![pass.keep(here, weight, *dtype)?]
            }
            (Op::Cast(DType::F32), Some(weight)) => vec![weight],
            (Op::Cast(_), Some(weight)) => pass.out.copy_node(node, vec![weight])?,
            (Op::Reshape { .. } | Op::Transpose { .. } | Op::Slice { .. }, Some(weight)) => {
                let moved = pass.out.copy_node(node, vec![weight])?[0];
                vec![pass.keep(here, moved, node.types[0].dtype)?]
            }
            (Op::Gather { axis: 0 }, Some(weight)) => {
                let rows = pass.out.copy_node(node, vec![weight, inputs[1]])?[0];
                vec![pass.cast(rows, node.types[0].dtype)?]
            }
            (Op::DotGeneral { .. }, _) if wide.iter().any(Option::is_some) => {
                let mut operands = vec![];
                for (value, wide) in inputs.iter().zip(&wide) {
                    operands.push(wide.map_or_else(|| pass.cast(*value, DType::F32), Ok)?);
                }
                pass.out.copy_node(node, operands)?
            }
            _ => pass.out.copy_node(node, inputs)?,
        };
        map.push(results);
    }
    let find = |v: &Value| map[v.node as usize][v.result as usize];
    for (name, v) in graph.outputs() {
        pass.out.add_output(name, find(v))?;
    }
    for (name, v) in graph.updates() {
        pass.out.add_update(name, find(v))?;
    }
    Ok(pass.out)
}

struct Pass {
    out: Graph,
    /// The f32 values, by the values that they stand for.
    wide: HashMap<Value, Value>,
}

impl Pass {
    fn push(&mut self, op: Op, inputs: Vec<Value>) -> Result<Value, IrError> {
        Ok(Value { node: self.out.push(op, inputs, vec![], "")?, result: 0 })
    }

    fn weight(&mut self, name: &str, shape: &[Dim]) -> Result<Value, IrError> {
        let (name, shape) = (wide_name(name), shape.to_vec());
        self.push(Op::Weight { name, dtype: DType::F32, shape, pieces: vec![] }, vec![])
    }

    fn cast(&mut self, value: Value, dtype: DType) -> Result<Value, IrError> {
        if self.out.ty(value).dtype == dtype { Ok(value) } else { self.push(Op::Cast(dtype), vec![value]) }
    }

    /// Remembers what stands for a value, and gives it in the value's own type, for users that need that.
    fn keep(&mut self, of: Value, wide: Value, dtype: DType) -> Result<Value, IrError> {
        self.wide.insert(of, wide);
        self.cast(wide, dtype)
    }
}

#[cfg(test)]
mod tests {
    use mlxcel_ir::{Bindings, Builder, shape};

    use super::*;
    use crate::lower::{StepKind, lower};
    use crate::pack::Keeping;

    #[test]
    fn matrices_are_multiplied_and_looked_up_as_they_are_kept() {
        for computed in [DType::F32, DType::BF16] {
            let b = Builder::new();
            let ids = b.input("ids", DType::I32, shape![3]);
            let table = b.weight("table", DType::BF16, &[7, 4]);
            let x = table.embedding(ids, computed);
            b.output(
                "y",
                x.linear(b.weight("w", DType::BF16, &[5, 4]), None)
                    .linear(b.weight("v", DType::BF16, &[2, 5]), Some(b.weight("bias", DType::F16, &[2]))),
            );
            let kind = StepKind { keeping: Keeping::on_processor(), ..StepKind::default() };
            let graph = lower(&b.finish().unwrap(), &Bindings::new(), kind).unwrap();
            let weights: Vec<_> = graph.weights().map(|(_, node)| node.types[0].to_string()).collect();
            assert_eq!(weights, ["f32[7, 4]", "f32[5, 4]", "f32[2, 5]", "f16[2]"], "{computed}");
            for node in graph.nodes().iter().filter(|node| matches!(node.op, Op::Cast(_))) {
                let is_matrix = |v: &Value| {
                    matches!(graph.node(*v).op, Op::Weight { .. }) && graph.ty(*v).shape.len() > 1
                };
                assert!(!node.inputs.iter().any(is_matrix), "{computed}: a matrix is converted in the step");
            }
        }
    }
}
