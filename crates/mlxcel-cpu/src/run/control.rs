//! Control flow: regions are plans of their own, run with their arguments as leaves. Carried values live in the
//! results of the node, from where the region reads them and to where its outputs are copied after each round.

use std::sync::PoisonError;

use mlxcel_engine::EngineError;
use mlxcel_ir::Op;

use super::{Run, Sources, run};
use crate::kernels::copy;
use crate::plan::{Region, Step};
use crate::view::{Out, View};

impl Run<'_> {
    pub(super) fn control(
        &self,
        step: &Step,
        regions: &[Region],
        views: &[View<'_>],
        outs: &mut [Out<'_>],
    ) -> Result<(), EngineError> {
        match step.op {
            Op::If => {
                let chosen = &regions[if truth(&views[0]) { 0 } else { 1 }];
                self.enter(chosen, &views[1..], |results| {
                    for (r, out) in results.iter().zip(outs.iter_mut()) {
                        copy::strided(self.ctx, r, out);
                    }
                })
            }
            Op::While { carried } => self.repeat(regions, views, carried, outs),
            Op::Scan { carried, scanned } => self.scan(&regions[0], views, (carried, scanned), outs),
            _ => unreachable!("only control flow has regions here"),
        }
    }

    /// Runs a region and hands its results over while they are still in its memory.
    fn enter<T>(
        &self,
        region: &Region,
        arguments: &[View<'_>],
        then: impl FnOnce(&[View<'_>]) -> T,
    ) -> Result<T, EngineError> {
        let mut arena = region.arena.lock().unwrap_or_else(PoisonError::into_inner);
        let sources = Sources { arguments, weights: &[], arrays: &[], states: &[], roles: None };
        let done = run(self.ctx, &region.plan, self.bindings, sources, &mut arena)?;
        Ok(then(&done.results))
    }

    fn repeat(
        &self,
        regions: &[Region],
        x: &[View<'_>],
        carried: usize,
        outs: &mut [Out<'_>],
    ) -> Result<(), EngineError> {
        self.carry_in(x, outs);
        loop {
            let arguments = self.arguments(outs, carried, &[], &x[carried..]);
            if !self.enter(&regions[0], &arguments, |r| truth(&r[0]))? {
                return Ok(());
            }
            self.enter(&regions[1], &arguments, |r| self.carry_out(r, outs))??;
        }
    }

    fn scan(
        &self,
        region: &Region,
        x: &[View<'_>],
        (carried, scanned): (usize, usize),
        outs: &mut [Out<'_>],
    ) -> Result<(), EngineError> {
        self.carry_in(&x[..carried], outs);
        let length = x[carried].shape()[0];
        for i in 0..length {
            let slices: Vec<View<'_>> = x[carried..carried + scanned].iter().map(|v| slice(v, i)).collect();
            let arguments = self.arguments(outs, carried, &slices, &x[carried + scanned..]);
            self.enter(region, &arguments, |results| {
                for (r, out) in results[carried..].iter().zip(&mut outs[carried..]) {
                    let row = r.elements();
                    let flat = r.with_layout(0, r.layout);
                    let shape = [&[1], r.shape()].concat();
                    let one = flat.with_layout(0, flat.layout.broadcast(&shape));
                    copy::place(&one, out, i * row);
                }
                self.carry_out(&results[..carried], outs)
            })??;
        }
        Ok(())
    }

    /// Copies the first operands to the results that carry them.
    fn carry_in(&self, x: &[View<'_>], outs: &mut [Out<'_>]) {
        for (v, out) in x.iter().zip(outs) {
            copy::strided(self.ctx, v, out);
        }
    }

    /// Copies what a region gave to the carried results. Where it gave a carried value itself, perhaps in another
    /// place, all are copied aside first.
    fn carry_out(&self, results: &[View<'_>], outs: &mut [Out<'_>]) -> Result<(), EngineError> {
        let ranges: Vec<_> = outs[..results.len()].iter_mut().map(|o| o.bytes().as_ptr_range()).collect();
        let shared = results.iter().any(|r| ranges.iter().any(|range| range.contains(&r.bytes().as_ptr())));
        if !shared {
            self.carry_in(results, outs);
            return Ok(());
        }
        let aside: Vec<Vec<u8>> = results.iter().map(|r| self.bytes(r)).collect::<Result<_, _>>()?;
        for (bytes, out) in aside.iter().zip(outs) {
            out.bytes().copy_from_slice(bytes);
        }
        Ok(())
    }

    fn bytes(&self, view: &View<'_>) -> Result<Vec<u8>, EngineError> {
        Ok(self.ctx.dense(view)?.view.bytes().to_vec())
    }

    fn arguments<'v>(
        &self,
        outs: &[Out<'v>],
        carried: usize,
        slices: &[View<'v>],
        captures: &[View<'v>],
    ) -> Vec<View<'v>> {
        let now = outs[..carried].iter().map(|o| o.view());
        now.chain(slices.iter().copied()).chain(captures.iter().copied()).collect()
    }
}

fn truth(v: &View<'_>) -> bool {
    v.bytes()[0] != 0
}

/// Entry `i` of the first axis.
fn slice<'v>(v: &View<'v>, i: usize) -> View<'v> {
    let perm: Vec<usize> = (1..v.layout.rank()).collect();
    v.with_layout(i * v.layout.strides[0], v.layout.transpose(&perm))
}
