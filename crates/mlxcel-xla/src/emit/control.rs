//! `if`, `while` and `scan`. Regions see the values around them, so that captures are used by name.

use mlxcel_ir::{DType, Graph, Node, Op};

use super::{Emitter, Val};
use crate::error::XlaError;

impl Emitter {
    pub(super) fn control(&mut self, node: &Node, x: &[&Val], outs: Vec<Val>) -> Result<Vec<Val>, XlaError> {
        match &node.op {
            Op::If => self.branch(node, x, outs),
            Op::While { carried } => self.repeat(node, x, *carried),
            Op::Scan { carried, scanned } => self.scan(node, x, (*carried, *scanned), outs),
            other => unreachable!("{} has no regions", other.name()),
        }
    }

    /// Writes a region's nodes and returns its outputs.
    fn region(&mut self, region: &Graph, arguments: &[Val]) -> Result<Vec<Val>, XlaError> {
        let mut values: Vec<Vec<Val>> = Vec::with_capacity(region.nodes().len());
        let mut given = arguments.iter();
        for node in region.nodes() {
            let results = match (&node.op, given.len()) {
                (Op::Input { .. }, n) if n > 0 => vec![given.next().expect("length was checked").clone()],
                _ => {
                    self.fresh += 1;
                    let name = format!("%r{}", self.fresh);
                    self.node(node, &values, &name)?
                }
            };
            values.push(results);
        }
        Ok(region.outputs().iter().map(|(_, v)| values[v.node as usize][v.result as usize].clone()).collect())
    }

    fn returned(&mut self, values: &[Val]) -> Result<(), XlaError> {
        let names = values.iter().map(|v| v.name.as_str()).collect::<Vec<_>>().join(", ");
        let types = values.iter().map(Val::ty).collect::<Result<Vec<_>, _>>()?.join(", ");
        self.line(format_args!("stablehlo.return {names} : {types}"));
        Ok(())
    }

    /// Names of the results of an op that has several.
    fn results(&mut self, like: &[Val]) -> (String, Vec<Val>) {
        self.fresh += 1;
        let name = format!("%c{}", self.fresh);
        let one = like.len() == 1;
        let result = |(i, v): (usize, &Val)| {
            let name = if one { name.clone() } else { format!("{name}#{i}") };
            Val { name, ..v.clone() }
        };
        let values = like.iter().enumerate().map(result).collect();
        (if one { name } else { format!("{name}:{}", like.len()) }, values)
    }

    fn branch(&mut self, node: &Node, x: &[&Val], outs: Vec<Val>) -> Result<Vec<Val>, XlaError> {
        let captures: Vec<Val> = x[1..].iter().map(|v| (*v).clone()).collect();
        let (name, results) = self.results(&outs);
        self.line(format_args!("{name} = \"stablehlo.if\"({}) ({{", x[0].name));
        for (i, region) in node.regions.iter().enumerate() {
            if i > 0 {
                self.line(format_args!("}}, {{"));
            }
            self.depth += 1;
            let values = self.region(region, &captures)?;
            self.returned(&values)?;
            self.depth -= 1;
        }
        let types = outs.iter().map(Val::ty).collect::<Result<Vec<_>, _>>()?.join(", ");
        self.line(format_args!("}}) : (tensor<i1>) -> ({types})"));
        Ok(results)
    }

    /// `while` over `carried`, whose names inside are given to the closures that write the two regions.
    fn looped(
        &mut self,
        carried: &[Val],
        condition: impl FnOnce(&mut Self, &[Val]) -> Result<Val, XlaError>,
        body: impl FnOnce(&mut Self, &[Val]) -> Result<Vec<Val>, XlaError>,
    ) -> Result<Vec<Val>, XlaError> {
        let (name, results) = self.results(carried);
        self.fresh += 1;
        let n = self.fresh;
        let inside = |(i, v): (usize, &Val)| Val { name: format!("%it{n}_{i}"), ..v.clone() };
        let inside: Vec<Val> = carried.iter().enumerate().map(inside).collect();
        let bound = inside.iter().zip(carried).map(|(i, c)| format!("{} = {}", i.name, c.name));
        let bound = bound.collect::<Vec<_>>().join(", ");
        let types = carried.iter().map(Val::ty).collect::<Result<Vec<_>, _>>()?.join(", ");
        self.line(format_args!("{name} = stablehlo.while({bound}) : {types}"));
        self.line(format_args!("cond {{"));
        self.depth += 1;
        let goes_on = condition(self, &inside)?;
        self.returned(&[goes_on])?;
        self.depth -= 1;
        self.line(format_args!("}} do {{"));
        self.depth += 1;
        let next = body(self, &inside)?;
        self.returned(&next)?;
        self.depth -= 1;
        self.line(format_args!("}}"));
        Ok(results)
    }

    fn repeat(&mut self, node: &Node, x: &[&Val], carried: usize) -> Result<Vec<Val>, XlaError> {
        let all: Vec<Val> = x.iter().map(|v| (*v).clone()).collect();
        let (first, captures) = all.split_at(carried);
        let arguments = |inside: &[Val]| [inside, captures].concat();
        self.looped(
            first,
            |e, inside| Ok(e.region(&node.regions[0], &arguments(inside))?.remove(0)),
            |e, inside| e.region(&node.regions[1], &arguments(inside)),
        )
    }

    /// A loop that counts along the first axis of what is scanned, and writes each output at its place.
    fn scan(
        &mut self,
        node: &Node,
        x: &[&Val],
        (carried, scanned): (usize, usize),
        outs: Vec<Val>,
    ) -> Result<Vec<Val>, XlaError> {
        let Some(n) = x.get(carried).filter(|_| scanned > 0).map(|v| v.sizes[0]) else {
            return Err(XlaError::Unsupported { op: "scan".into(), operands: "nothing scanned".into() });
        };
        let mut first = vec![self.number(DType::I32, &[], 0.0)?];
        first.extend(x[..carried].iter().map(|v| (*v).clone()));
        for out in &outs[carried..] {
            let empty = self.number(out.dtype, &out.sizes, 0.0)?;
            first.push(empty);
        }
        let slices: Vec<Val> = x[carried..carried + scanned].iter().map(|v| (*v).clone()).collect();
        let captures: Vec<Val> = x[carried + scanned..].iter().map(|v| (*v).clone()).collect();
        let results = self.looped(
            &first,
            |e, inside| {
                let end = e.number(DType::I32, &[], n as f64)?;
                e.compared(mlxcel_ir::CompareOp::Lt, &inside[0], &end)
            },
            |e, inside| {
                let at = &inside[0];
                let mut arguments = inside[1..1 + carried].to_vec();
                for whole in &slices {
                    arguments.push(e.entry(whole, at)?);
                }
                arguments.extend(captures.iter().cloned());
                let mut values = e.region(&node.regions[0], &arguments)?;
                let stacked = values.split_off(carried);
                let one = e.number(DType::I32, &[], 1.0)?;
                let next = e.temporary(DType::I32, &[]);
                e.same("add", &[at, &one], &next)?;
                let mut all = vec![next];
                all.extend(values);
                for (whole, value) in inside[1 + carried..].iter().zip(&stacked) {
                    all.push(e.put_entry(whole, value, at)?);
                }
                Ok(all)
            },
        )?;
        Ok(results[1..].to_vec())
    }

    pub(super) fn entry_starts(&mut self, whole: &Val, at: &Val) -> Result<Vec<Val>, XlaError> {
        let zero = self.number(at.dtype, &[], 0.0)?;
        Ok(std::iter::once(at.clone()).chain(whole.sizes[1..].iter().map(|_| zero.clone())).collect())
    }

    fn entry(&mut self, whole: &Val, at: &Val) -> Result<Val, XlaError> {
        let starts = self.entry_starts(whole, at)?;
        let sizes: Vec<usize> = std::iter::once(1).chain(whole.sizes[1..].iter().copied()).collect();
        let slice = self.temporary(whole.dtype, &sizes);
        self.dynamic_slice(whole, &starts, &slice)?;
        self.reshape(&slice, &whole.sizes[1..])
    }

    fn put_entry(&mut self, whole: &Val, value: &Val, at: &Val) -> Result<Val, XlaError> {
        let starts = self.entry_starts(whole, at)?;
        let sizes: Vec<usize> = std::iter::once(1).chain(value.sizes.iter().copied()).collect();
        let row = self.reshape(value, &sizes)?;
        let out = self.temporary(whole.dtype, &whole.sizes);
        self.update_slice((whole, &row), &starts, &out)?;
        Ok(out)
    }
}
