//! The step's inputs as one array. Each is a few numbers long, and what an upload to an accelerator costs is the call, so
//! that one takes the place of many; the module cuts it apart again.

use mlxcel_ir::{DType, Dim, Graph, Op, Value, product};

use crate::error::XlaError;

/// The name of the array that stands for all inputs of whole numbers.
pub(crate) const JOINED: &str = "joined inputs";

/// The graph with one input in the place of those of 32-bit whole numbers, and their names in its order.
pub(crate) fn join_inputs(graph: &Graph) -> Result<(Graph, Vec<String>), XlaError> {
    let mut names = vec![];
    let mut total = 0;
    for node in graph.nodes() {
        if let Op::Input { name, dtype: DType::I32, shape, .. } = &node.op
            && let Some(size) = product(shape).as_fixed()
        {
            names.push(name.clone());
            total += size;
        }
    }
    if names.len() < 2 {
        return Ok((graph.rewrite(|_, _, _| Ok(None))?, vec![]));
    }
    let (mut joined, mut at): (Option<Value>, usize) = (None, 0);
    let out = graph.rewrite(|out, node, _| {
        let Op::Input { name, dtype: DType::I32, shape, .. } = &node.op else { return Ok(None) };
        if !names.contains(name) {
            return Ok(None);
        }
        let all = match joined {
            Some(all) => all,
            None => {
                let shape = vec![Dim::fixed(total)];
                let op = Op::Input { name: JOINED.to_string(), dtype: DType::I32, shape, pad: 0 };
                let node = out.push(op, vec![], vec![], "")?;
                *joined.insert(Value { node, result: 0 })
            }
        };
        let size = product(shape).as_fixed().unwrap_or(0);
        let types = [out.ty(all).clone()];
        let body = super::region(&types, |_, x| vec![x[0].slice(0, at, at + size).reshape(shape.clone())])?;
        at += size;
        Ok(Some(out.inline(&body, &[all])?))
    })?;
    Ok((out, names))
}
