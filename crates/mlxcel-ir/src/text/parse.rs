//! Parsing. The text is hostile until it is a graph: every index, type and region is checked, nesting is limited,
//! and dimensions that would multiply into huge polynomials are refused before any arithmetic on them.

use std::str::{FromStr, Lines};

use serde::de::DeserializeOwned;

use super::REGION_DEPTH_MAX;
use crate::dtype::DType;
use crate::error::IrError;
use crate::graph::{Graph, Value};
use crate::op::Op;
use crate::shape::{Dim, Type};

/// Terms in the product of a shape's dimensions: what real models need is below ten.
const TERMS_MAX: usize = 1024;
const RANK_MAX: usize = 32;

impl FromStr for Graph {
    type Err = IrError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut lines = Source { lines: text.lines(), number: 0 };
        let (graph, end) = lines.graph(0).map_err(|reason| lines.error(reason))?;
        match end {
            End::Text => Ok(graph),
            End::Brace(_) => Err(lines.error("'}' closes nothing".into())),
        }
    }
}

type Parsed<T> = Result<T, String>;

/// The lines that are left, and the number of the one being read.
struct Source<'t> {
    lines: Lines<'t>,
    number: usize,
}

/// What ended a graph: the end of the text, or a brace and what follows it on the line.
enum End<'t> {
    Text,
    Brace(Cursor<'t>),
}

impl<'t> Source<'t> {
    fn error(&self, reason: String) -> IrError {
        IrError::Parse { line: self.number, reason }
    }

    fn graph(&mut self, depth: usize) -> Parsed<(Graph, End<'t>)> {
        let mut graph = Graph::default();
        while let Some(line) = self.lines.next() {
            self.number += 1;
            let mut c = Cursor { rest: line };
            if c.at_end() {
                continue;
            }
            if c.eat("}") {
                return Ok((graph, End::Brace(c)));
            }
            if c.eat("output ") {
                let (name, v) = named(&mut c)?;
                graph.add_output(&name, v).map_err(|e| e.to_string())?;
            } else if c.eat("update ") {
                let (name, v) = named(&mut c)?;
                graph.add_update(&name, v).map_err(|e| e.to_string())?;
            } else {
                c = self.node(&mut graph, c, depth)?;
            }
            if !c.at_end() {
                return Err(format!("unexpected '{}'", c.excerpt()));
            }
        }
        Ok((graph, End::Text))
    }

    /// One node and its regions; returns what is left of the line that ends it.
    fn node(&mut self, graph: &mut Graph, mut c: Cursor<'t>, depth: usize) -> Parsed<Cursor<'t>> {
        let index = c.value()?;
        let next = graph.nodes().len();
        if index != (Value { node: next as u32, result: 0 }) {
            return Err(format!("node %{} is out of order, expected %{next}", index.node));
        }
        c.expect("=")?;
        let op = c.op()?;
        attribute_shapes(&op).into_iter().try_for_each(modest)?;
        let inputs = if c.eat("(") { c.list(Cursor::value)? } else { vec![] };
        c.expect(":")?;
        let types = if c.eat("(") { c.list(Cursor::ty)? } else { vec![c.ty()?] };
        let label = if c.eat("@") { c.label()? } else { String::new() };
        let mut regions = vec![];
        while c.eat("{") {
            if depth >= REGION_DEPTH_MAX {
                return Err(format!("regions nest deeper than {REGION_DEPTH_MAX}"));
            }
            if !c.at_end() {
                return Err(format!("unexpected '{}'", c.excerpt()));
            }
            let (region, end) = self.graph(depth + 1)?;
            let End::Brace(after) = end else { return Err("a region is not closed".into()) };
            regions.push(region);
            c = after;
        }
        let node = graph.push(op, inputs, regions, &label).map_err(|e| e.to_string())?;
        check_types(graph, node, &types)?;
        Ok(c)
    }
}

fn named(c: &mut Cursor<'_>) -> Parsed<(String, Value)> {
    let name = c.json::<String>()?;
    c.expect("=")?;
    Ok((name, c.value()?))
}

fn check_types(graph: &Graph, node: u32, recorded: &[Type]) -> Parsed<()> {
    let n = &graph.nodes()[node as usize];
    if n.types != recorded {
        let list = |types: &[Type]| types.iter().map(|t| t.to_string()).collect::<Vec<_>>().join(", ");
        let (recorded, inferred) = (list(recorded), list(&n.types));
        let (op, label) = (n.op.name(), n.label.clone());
        return Err(IrError::TypeMismatch { op, node, label, recorded, inferred }.to_string());
    }
    n.types.iter().try_for_each(|t| modest(&t.shape))
}

/// The shapes in the attributes of an op.
fn attribute_shapes(op: &Op) -> Vec<&[Dim]> {
    match op {
        Op::Input { shape, .. }
        | Op::Weight { shape, .. }
        | Op::State { shape, .. }
        | Op::Iota { shape, .. }
        | Op::Reshape { shape }
        | Op::Broadcast { shape }
        | Op::DynamicSlice { sizes: shape } => vec![shape],
        Op::Size { dim } => vec![std::slice::from_ref(dim)],
        Op::Slice { start, end, .. } => vec![std::slice::from_ref(start), std::slice::from_ref(end)],
        _ => vec![],
    }
}

/// Refuses shapes whose number of elements would be a polynomial of very many terms.
fn modest(shape: &[Dim]) -> Parsed<()> {
    let terms = shape.iter().try_fold(1usize, |a, d| a.checked_mul(d.terms().max(1)));
    if shape.len() > RANK_MAX || terms.is_none_or(|n| n > TERMS_MAX) {
        return Err("the shape is too complicated".into());
    }
    Ok(())
}

/// The message without the place in the JSON, which is not the place in the text.
fn complaint(e: &serde_json::Error) -> String {
    let text = e.to_string();
    text.split(" at line ").next().unwrap_or_default().to_string()
}

/// What is left of a line.
#[derive(Clone, Copy)]
struct Cursor<'t> {
    rest: &'t str,
}

impl<'t> Cursor<'t> {
    fn skip_space(&mut self) {
        self.rest = self.rest.trim_start();
    }

    /// Whether only space or a comment is left.
    fn at_end(&mut self) -> bool {
        self.skip_space();
        self.rest.is_empty() || self.rest.starts_with("//")
    }

    fn eat(&mut self, token: &str) -> bool {
        self.skip_space();
        let after = self.rest.strip_prefix(token);
        self.rest = after.unwrap_or(self.rest);
        after.is_some()
    }

    fn expect(&mut self, token: &str) -> Parsed<()> {
        if self.eat(token) { Ok(()) } else { Err(format!("expected '{token}' before '{}'", self.excerpt())) }
    }

    /// The beginning of the rest, for messages.
    fn excerpt(&self) -> String {
        self.rest.chars().take(24).collect()
    }

    /// The longest prefix of characters that satisfy `keep`.
    fn take(&mut self, keep: impl Fn(char) -> bool) -> &'t str {
        self.skip_space();
        let end = self.rest.find(|c| !keep(c)).unwrap_or(self.rest.len());
        let (taken, rest) = self.rest.split_at(end);
        self.rest = rest;
        taken
    }

    fn json<T: DeserializeOwned>(&mut self) -> Parsed<T> {
        let mut values = serde_json::Deserializer::from_str(self.rest).into_iter::<T>();
        let value = values.next().ok_or("expected JSON before the end of the line")?;
        let end = values.byte_offset();
        let value = value.map_err(|e| format!("'{}': {}", self.excerpt(), complaint(&e)))?;
        self.rest = self.rest.get(end..).unwrap_or_default();
        Ok(value)
    }

    fn op(&mut self) -> Parsed<Op> {
        let name = self.take(|c| c.is_ascii_alphanumeric() || c == '_').to_string();
        self.skip_space();
        let bare = self.rest.starts_with(['(', ':']);
        let json = if bare {
            serde_json::Value::from(name.as_str())
        } else {
            serde_json::Value::Object([(name.clone(), self.json()?)].into_iter().collect())
        };
        serde_json::from_value(json).map_err(|e| format!("op '{name}': {}", complaint(&e)))
    }

    /// `%node` or `%node.result`.
    fn value(&mut self) -> Parsed<Value> {
        self.expect("%")?;
        let node = self.number("a node")?;
        let result = if self.rest.starts_with('.') {
            self.rest = &self.rest[1..];
            self.number("a result")?
        } else {
            0
        };
        Ok(Value { node, result })
    }

    fn number<N: FromStr>(&mut self, what: &str) -> Parsed<N> {
        let digits = self.take(|c| c.is_ascii_digit());
        digits.parse().map_err(|_| format!("expected the number of {what}, not '{digits}{}'", self.excerpt()))
    }

    /// Items between an opening parenthesis, already read, and the closing one.
    fn list<T>(&mut self, item: impl Fn(&mut Self) -> Parsed<T>) -> Parsed<Vec<T>> {
        let mut items = vec![];
        if self.eat(")") {
            return Ok(items);
        }
        loop {
            items.push(item(self)?);
            if self.eat(")") {
                return Ok(items);
            }
            self.expect(",")?;
        }
    }

    fn ty(&mut self) -> Parsed<Type> {
        let name = self.take(|c| c.is_ascii_alphanumeric() || c == '_');
        let dtype: DType = name.parse().map_err(|e: crate::UnknownDType| e.to_string())?;
        self.expect("[")?;
        let dims = self.take(|c| c != ']');
        self.expect("]")?;
        let parts = dims.split(',').filter(|_| !dims.trim().is_empty());
        let shape = parts.map(|d| d.trim().parse::<Dim>().map_err(|e| e.to_string()));
        Ok(Type::new(dtype, shape.collect::<Parsed<_>>()?))
    }

    fn label(&mut self) -> Parsed<String> {
        self.skip_space();
        if self.rest.starts_with('"') {
            return self.json();
        }
        Ok(self.take(|c| super::is_plain(c.encode_utf8(&mut [0; 4]))).to_string())
    }
}
