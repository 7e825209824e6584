//! Printing.

use std::fmt::{self, Display, Formatter, Write};

use crate::dtype::DType;
use crate::graph::{Graph, Node, Value};
use crate::op::Op;
use crate::tensor::HostTensor;

/// Constants of at most this many elements show their values in a comment.
const SHOWN_MAX: usize = 8;

impl Display for Graph {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        graph(f, self, 0)
    }
}

fn graph(f: &mut Formatter<'_>, g: &Graph, depth: usize) -> fmt::Result {
    let indent = "  ".repeat(depth);
    for (i, n) in g.nodes().iter().enumerate() {
        write!(f, "{indent}%{i} = ")?;
        node(f, g, n, depth)?;
        f.write_char('\n')?;
    }
    let lists = [("output", g.outputs()), ("update", g.updates())];
    for (word, list) in lists {
        for (name, v) in list {
            writeln!(f, "{indent}{word} {} = {}", quoted(name), value(g, *v))?;
        }
    }
    Ok(())
}

fn node(f: &mut Formatter<'_>, g: &Graph, n: &Node, depth: usize) -> fmt::Result {
    op(f, &n.op)?;
    if !n.inputs.is_empty() {
        let operands: Vec<String> = n.inputs.iter().map(|v| value(g, *v)).collect();
        write!(f, " ({})", operands.join(", "))?;
    }
    match n.types.as_slice() {
        [one] => write!(f, " : {one}")?,
        many => {
            let many: Vec<String> = many.iter().map(|t| t.to_string()).collect();
            write!(f, " : ({})", many.join(", "))?;
        }
    }
    if super::is_plain(&n.label) {
        if !n.label.is_empty() {
            write!(f, " @ {}", n.label)?;
        }
    } else {
        write!(f, " @ {}", quoted(&n.label))?;
    }
    for region in &n.regions {
        f.write_str(" {\n")?;
        graph(f, region, depth + 1)?;
        write!(f, "{}}}", "  ".repeat(depth))?;
    }
    match &n.op {
        Op::Constant(t) if (1..=SHOWN_MAX).contains(&t.len()) => write!(f, " // {}", elements(t)),
        _ => Ok(()),
    }
}

fn op(f: &mut Formatter<'_>, op: &Op) -> fmt::Result {
    match op.to_json() {
        serde_json::Value::Object(map) => {
            let (name, attributes) =
                map.into_iter().next().expect("a serialised variant has its name as key");
            write!(f, "{name} {attributes}")
        }
        _ => f.write_str(&op.name()),
    }
}

fn value(g: &Graph, v: Value) -> String {
    match g.node(v).types.len() {
        1 => format!("%{}", v.node),
        _ => format!("%{}.{}", v.node, v.result),
    }
}

fn quoted(name: &str) -> String {
    serde_json::Value::from(name).to_string()
}

fn elements(t: &HostTensor) -> String {
    let texts: Vec<String> = match t.dtype() {
        DType::U64 => t.to_i64().iter().map(|&i| (i as u64).to_string()).collect(),
        d if d.is_float() => t.to_f64().iter().map(f64::to_string).collect(),
        _ => t.to_i64().iter().map(i64::to_string).collect(),
    };
    if t.shape().is_empty() { texts.concat() } else { format!("[{}]", texts.join(", ")) }
}
