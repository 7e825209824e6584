//! Typing of region ops: what goes into a region must be what its inputs declare, and what comes out must fit.

use super::{Inferred, ensure};
use crate::dtype::DType;
use crate::graph::Graph;
use crate::op::Op;
use crate::shape::Type;

pub(super) fn infer(op: &Op, x: &[&Type], regions: &[Graph]) -> Inferred {
    for r in regions {
        let leaf = r.nodes().iter().find(|n| matches!(n.op, Op::Weight { .. } | Op::State { .. }));
        ensure(leaf.is_none() && r.updates().is_empty(), || {
            "a region must capture weights and states".into()
        })?;
    }
    match op {
        Op::If => {
            let [then, other] = two(regions)?;
            let condition = x.first().ok_or("takes a condition")?;
            scalar_bool(condition)?;
            arguments(then, &x[1..], "then")?;
            arguments(other, &x[1..], "else")?;
            let (a, b) = (results(then), results(other));
            ensure(a == b, || format!("the branches give {a:?} and {b:?}"))?;
            Ok(a)
        }
        Op::While { carried } => {
            let [condition, body] = two(regions)?;
            ensure(*carried <= x.len(), || format!("{carried} carried of {} operands", x.len()))?;
            arguments(condition, x, "condition")?;
            arguments(body, x, "body")?;
            match results(condition).as_slice() {
                [t] => scalar_bool(t)?,
                other => return Err(format!("the condition gives {other:?}, expected one bool")),
            }
            carries(&x[..*carried], &results(body))?;
            ensure(results(body).len() == *carried, || "the body gives more than it carries".into())?;
            Ok(results(body))
        }
        Op::Scan { carried, scanned } => scan(x, regions, *carried, *scanned),
        Op::Fused => {
            let [body] = regions else { return Err("takes one region".into()) };
            arguments(body, x, "body")?;
            let other = body
                .nodes()
                .iter()
                .find(|n| !(n.op.is_elementwise() || matches!(n.op, Op::Input { .. } | Op::Constant(_))));
            ensure(other.is_none(), || "only elementwise ops can be fused".into())?;
            Ok(results(body))
        }
        other => unreachable!("{} has no region", other.name()),
    }
}

fn scan(x: &[&Type], regions: &[Graph], carried: usize, scanned: usize) -> Inferred {
    let [body] = regions else { return Err("takes one region".into()) };
    ensure(scanned > 0 && carried.saturating_add(scanned) <= x.len(), || {
        format!("{carried} carried and {scanned} scanned of {} operands", x.len())
    })?;
    let length = x[carried].shape.first().ok_or("a scanned operand needs an axis")?;
    let mut slices = Vec::new();
    for t in &x[carried..carried + scanned] {
        ensure(t.shape.first() == Some(length), || format!("scanned axes differ: {length} and {t}"))?;
        slices.push(t.with_shape(t.shape[1..].to_vec()));
    }
    let mut inside: Vec<&Type> = x[..carried].to_vec();
    inside.extend(&slices);
    inside.extend(&x[carried + scanned..]);
    arguments(body, &inside, "body")?;
    let mut out = results(body);
    carries(&x[..carried], &out)?;
    for t in &mut out[carried..] {
        t.shape.insert(0, length.clone());
    }
    Ok(out)
}

fn two(regions: &[Graph]) -> Result<&[Graph; 2], String> {
    regions.try_into().map_err(|_| format!("takes two regions, not {}", regions.len()))
}

fn scalar_bool(t: &Type) -> Result<(), String> {
    ensure(t.dtype == DType::Bool && t.rank() == 0, || format!("the condition is {t}, expected bool[]"))
}

fn results(g: &Graph) -> Vec<Type> {
    g.outputs().iter().map(|(_, v)| g.ty(*v).clone()).collect()
}

fn arguments(region: &Graph, x: &[&Type], name: &str) -> Result<(), String> {
    let declared: Vec<&Type> = region.inputs().map(|(_, n)| &n.types[0]).collect();
    ensure(declared == x, || format!("the {name} region takes {declared:?} but is given {x:?}"))
}

fn carries(before: &[&Type], after: &[Type]) -> Result<(), String> {
    let same = after.len() >= before.len() && before.iter().zip(after).all(|(a, b)| *a == b);
    ensure(same, || format!("carried values change from {before:?} to {after:?}"))
}
