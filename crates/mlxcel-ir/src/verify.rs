//! The verifier: infers every type of a finished graph again and checks its names. Graphs are typed as they are
//! built, so this guards what edits graphs afterwards, and adds the rules that span nodes.

use std::collections::{BTreeMap, BTreeSet};

use crate::error::IrError;
use crate::graph::{Graph, Node};
use crate::infer::infer;
use crate::op::Op;
use crate::shape::Type;

impl Graph {
    /// Checks that operands come before their uses, recorded types are the inferred ones (in regions too), names of
    /// inputs, weights, states, outputs and updates are unique, and updates have the type of their state.
    pub fn verify(&self) -> Result<(), IrError> {
        for (index, node) in self.nodes().iter().enumerate() {
            verify_node(&self.nodes()[..index], node)?;
        }
        unique("input", self.inputs().map(|(_, n)| leaf_name(n)))?;
        unique("weight", self.weights().map(|(_, n)| leaf_name(n)))?;
        unique("state", self.states().map(|(_, n)| leaf_name(n)))?;
        unique("output", self.outputs().iter().map(|(n, _)| n.as_str()))?;
        unique("state update", self.updates().iter().map(|(n, _)| n.as_str()))?;
        for (name, v) in self.outputs().iter().chain(self.updates()) {
            let known = self.nodes().get(v.node as usize).and_then(|n| n.types.get(v.result as usize));
            known.ok_or_else(|| IrError::UndefinedOutput { name: name.clone(), node: v.node })?;
        }
        self.verify_updates()
    }

    fn verify_updates(&self) -> Result<(), IrError> {
        let states: BTreeMap<&str, &Type> = self.states().map(|(_, n)| (leaf_name(n), &n.types[0])).collect();
        for (name, v) in self.updates() {
            let declared =
                states.get(name.as_str()).ok_or_else(|| IrError::UnknownState { name: name.clone() })?;
            if *declared != self.ty(*v) {
                let (declared, updated) = (declared.to_string(), self.ty(*v).to_string());
                return Err(IrError::StateType { name: name.clone(), declared, updated });
            }
        }
        Ok(())
    }
}

/// Checks a node against the ones before it.
fn verify_node(before: &[Node], node: &Node) -> Result<(), IrError> {
    let index = before.len() as u32;
    let (op, label) = (|| node.op.name(), || node.label.clone());
    for region in &node.regions {
        region.verify().map_err(|e| IrError::Region {
            op: op(),
            node: index,
            label: label(),
            source: Box::new(e),
        })?;
    }
    let fail = |operands: &[&Type], reason: String| IrError::Op {
        op: op(),
        node: index,
        label: label(),
        operands: operands.iter().map(|t| t.to_string()).collect(),
        reason,
    };
    let mut operands = Vec::with_capacity(node.inputs.len());
    for v in &node.inputs {
        let t = before.get(v.node as usize).and_then(|n| n.types.get(v.result as usize));
        operands.push(t.ok_or_else(|| fail(&[], format!("operand %{} is not defined yet", v.node)))?);
    }
    let inferred = infer(&node.op, &operands, &node.regions).map_err(|reason| fail(&operands, reason))?;
    if inferred != node.types {
        let list = |types: &[Type]| types.iter().map(|t| t.to_string()).collect::<Vec<_>>().join(", ");
        let (recorded, inferred) = (list(&node.types), list(&inferred));
        return Err(IrError::TypeMismatch { op: op(), node: index, label: label(), recorded, inferred });
    }
    Ok(())
}

fn leaf_name(node: &Node) -> &str {
    match &node.op {
        Op::Input { name, .. } | Op::Weight { name, .. } | Op::State { name, .. } => name,
        other => unreachable!("{} is not a leaf", other.name()),
    }
}

fn unique<'a>(what: &'static str, names: impl Iterator<Item = &'a str>) -> Result<(), IrError> {
    let mut seen = BTreeSet::new();
    for name in names {
        if !seen.insert(name) {
            return Err(IrError::DuplicateName { what, name: name.to_string() });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Builder, DType, Value, shape};

    fn value(node: u32) -> Value {
        Value { node, result: 0 }
    }

    /// A node that nothing has inferred.
    fn node(op: Op, inputs: &[u32], ty: Type) -> Node {
        let inputs = inputs.iter().map(|&i| value(i)).collect();
        Node { op, inputs, regions: vec![], types: vec![ty], label: "layers.3".into() }
    }

    fn f32s(shape: crate::Shape) -> Type {
        Type::new(DType::F32, shape)
    }

    fn input(name: &str, shape: crate::Shape) -> Node {
        let op = Op::Input { name: name.into(), dtype: DType::F32, shape: shape.clone(), pad: 0 };
        node(op, &[], f32s(shape))
    }

    fn message(nodes: Vec<Node>) -> String {
        Graph::unchecked(nodes, vec![], vec![]).verify().unwrap_err().to_string()
    }

    #[test]
    fn a_graph_from_the_builder_is_correct() {
        let b = Builder::new();
        let x = b.input("x", DType::F32, shape!["tokens", 4]);
        let s = b.state("s", DType::F32, shape!["tokens", 4]);
        b.update("s", x + s);
        let condition = b.scalar(true);
        let y = b.if_else(condition, &[x], |_, x| vec![x[0]], |_, x| vec![x[0] * 2.0]);
        b.output("y", y[0]);
        assert_eq!(b.finish().unwrap().verify(), Ok(()));
    }

    #[test]
    fn a_recorded_type_that_is_not_inferred_is_named_with_both() {
        let add = Op::Binary(crate::BinaryOp::Add);
        let wrong = node(add, &[0, 0], f32s(shape!["tokens", 5]));
        assert_eq!(
            message(vec![input("x", shape!["tokens", 4]), wrong]),
            "binary at node %1 (layers.3): the recorded type f32[tokens, 5] is not the inferred type f32[tokens, 4]"
        );
    }

    #[test]
    fn operands_must_come_before_their_uses() {
        let neg = Op::Unary(crate::UnaryOp::Neg);
        assert_eq!(
            message(vec![node(neg, &[1], f32s(shape![4])), input("x", shape![4])]),
            "unary at node %0 (layers.3): operand %1 is not defined yet; operands: "
        );
    }

    #[test]
    fn errors_in_a_region_name_the_node_that_holds_it() {
        let mut inner = vec![input("arg0", shape![4])];
        inner.push(node(Op::Unary(crate::UnaryOp::Neg), &[0], f32s(shape![5])));
        let region = Graph::unchecked(inner, vec![("out0".into(), value(1))], vec![]);
        let mut fused = node(Op::Fused, &[0], f32s(shape![5]));
        fused.regions.push(region);
        assert_eq!(
            message(vec![input("x", shape![4]), fused]),
            "in a region of fused at node %1 (layers.3): unary at node %1 (layers.3): the recorded type f32[5] is \
             not the inferred type f32[4]"
        );
    }

    #[test]
    fn names_of_one_kind_occur_once() {
        let twice = message(vec![input("x", shape![4]), input("x", shape![4])]);
        assert_eq!(twice, "input 'x' occurs twice");
        let outputs = vec![("y".to_string(), value(0)), ("y".to_string(), value(0))];
        let g = Graph::unchecked(vec![input("x", shape![4])], outputs, vec![]);
        assert_eq!(g.verify().unwrap_err().to_string(), "output 'y' occurs twice");
    }

    #[test]
    fn outputs_and_updates_must_refer_to_what_exists() {
        let nodes = || vec![input("x", shape![4])];
        let g = Graph::unchecked(nodes(), vec![("y".into(), value(7))], vec![]);
        assert_eq!(g.verify().unwrap_err().to_string(), "output 'y' refers to node %7, which is not defined");
        let g = Graph::unchecked(nodes(), vec![], vec![("s".into(), value(0))]);
        assert_eq!(g.verify().unwrap_err().to_string(), "state 's' is updated but not declared");
        let state = Op::State { name: "s".into(), dtype: DType::F32, shape: shape![8] };
        let both = vec![input("x", shape![4]), node(state, &[], f32s(shape![8]))];
        let g = Graph::unchecked(both, vec![], vec![("s".into(), value(0))]);
        assert_eq!(
            g.verify().unwrap_err().to_string(),
            "state 's' is declared as f32[8] but updated with f32[4]"
        );
    }
}
