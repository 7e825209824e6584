//! Runs that repeat. Step after step draws one more token of the same sequences, with the same sizes and in the same
//! memory; to find out each time what every op reads and writes took SmolLM2 a twelfth of its time.
#![allow(unsafe_code)]

use mlxcel_engine::EngineError;
use mlxcel_ir::Bindings;

use super::{Call, Done, Lists, Run, Sources};
use crate::context::Context;
use crate::plan::{Arena, Plan};
use crate::view::View;

/// All calls of a plan's last run.
#[derive(Default)]
pub(crate) struct Tape {
    /// What the calls were found under, unless they depend on more.
    found: Option<Found>,
    calls: Vec<Call>,
    lists: Lists<'static>,
    done: Done<'static>,
}

/// What operands and results depend on, besides weights and states, which stay where they are.
struct Found {
    sizes: Vec<usize>,
    arguments: Vec<View<'static>>,
    /// Of the memory of results.
    version: u64,
}

impl Found {
    fn holds(&self, run: &Run<'_>, arena: &Arena) -> bool {
        let arguments = run.sources.arguments;
        self.version == arena.version()
            && self.sizes == run.sizes
            && self.arguments.len() == arguments.len()
            && self.arguments.iter().zip(arguments).all(|(a, b)| a.is_same(b))
    }
}

impl Tape {
    /// Runs all steps.
    ///
    /// # Safety
    /// It must be one plan with one arena each time, and its weights and states must stay where they are. What was computed
    /// must not be read after the memory of arguments and results was given back.
    pub(crate) unsafe fn run(
        &mut self,
        ctx: &Context,
        plan: &Plan,
        bindings: &Bindings,
        sources: Sources<'_>,
        arena: &mut Arena,
    ) -> Result<&Done<'static>, EngineError> {
        let mut run = Run::new(ctx, plan, bindings, sources)?;
        if !self.found.as_ref().is_some_and(|found| found.holds(&run, arena)) {
            // SAFETY: as the caller promises.
            unsafe { self.record(run, arena) }?;
            return Ok(&self.done);
        }
        for call in &self.calls {
            run.call(call, &mut self.lists)?;
        }
        Ok(&self.done)
    }

    /// Runs all steps, and keeps their calls.
    ///
    /// # Safety
    /// As for [`Self::run`].
    unsafe fn record(&mut self, mut run: Run<'_>, arena: &mut Arena) -> Result<(), EngineError> {
        *self = Tape::default();
        let (mut lists, version) = (Lists::default(), arena.version());
        let mut values = run.values(arena);
        for step in 0..run.plan.steps.len() {
            if let Some(call) = run.find(step, &mut values, &mut lists)? {
                run.call(&call, &mut lists)?;
                self.calls.push(call);
            }
        }
        let done = run.done(&values);
        // Where a slot grew, what was found before that is gone.
        let is_fixed = values.are_fixed && version == values.arena.version();
        let arguments = run.sources.arguments.to_vec();
        // SAFETY: weights and states stay where they are; calls are not used again when arguments or results lie elsewhere.
        let (arguments, lists, done) = unsafe {
            (
                std::mem::transmute::<Vec<View<'_>>, Vec<View<'static>>>(arguments),
                std::mem::transmute::<Lists<'_>, Lists<'static>>(lists),
                std::mem::transmute::<Done<'_>, Done<'static>>(done),
            )
        };
        self.found = is_fixed.then_some(Found { sizes: run.sizes, arguments, version });
        (self.lists, self.done) = (lists, done);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use mlxcel_ir::{Builder, DType, ReduceOp, Value, shape};

    use super::*;
    use crate::context::Products;
    use crate::memory::{Pool, Slabs};
    use crate::plan::{Leaves, build};
    use crate::simd::SimdLevel;
    use crate::threads::Threads;

    #[test]
    fn results_never_lie_in_memory_that_was_given_back() {
        let b = Builder::new();
        let x = b.input("x", DType::F32, shape!["n"]);
        b.output("sum", x.reduce(ReduceOp::Sum, &[0]));
        b.output("y", x * 2.0);
        let graph = b.finish().unwrap();
        let ends: Vec<Value> = graph.outputs().iter().map(|(_, v)| *v).collect();
        let plan = build(&graph, &Leaves::default(), &ends).unwrap();
        let ctx = Context {
            level: SimdLevel::best(),
            threads: Threads::new(Some(1)).unwrap(),
            pool: Pool::default(),
            slabs: Slabs::new(0),
            products: Products::default(),
        };
        let numbers: Vec<u8> = (0..8).flat_map(|i| (i as f32).to_le_bytes()).collect();
        let (mut tape, mut arena) = (Tape::default(), Arena::default());
        let mut recorded = vec![];
        for (n, grown) in [(2, false), (2, false), (2, false), (2, true), (2, false), (8, false), (8, false)]
        {
            if grown {
                // As another plan's step does.
                (0..plan.slots).for_each(|slot| drop(arena.slot(slot, 1 << 20)));
            }
            let x = View::of_bytes(&numbers[..4 * n], DType::F32, &[n]).unwrap();
            let sources = Sources { arguments: &[x], weights: &[], arrays: &[], states: &[], roles: None };
            let bindings = Bindings::from([("n".to_string(), n)]);
            recorded.push(tape.found.is_some());
            // SAFETY: there is one plan and one arena; all of it outlives the tape.
            let done = unsafe { tape.run(&ctx, &plan, &bindings, sources, &mut arena) }.unwrap();
            let expected: Vec<f32> = (0..n).map(|i| 2.0 * i as f32).collect();
            assert_eq!(*done.results[1].floats(), *expected);
            assert_eq!(*done.results[0].floats(), [(0..n).sum::<usize>() as f32]);
            let mut slots: Vec<*mut u8> = (0..plan.slots).map(|slot| arena.slot(slot, 0).unwrap()).collect();
            for result in &done.results {
                let at = slots.iter().position(|slot| slot.cast_const() == result.bytes().as_ptr());
                slots.remove(at.expect("a result lies in a slot"));
            }
        }
        assert_eq!(recorded, [false, false, true, true, true, true, true]);
    }
}
