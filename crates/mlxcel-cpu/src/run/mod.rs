//! Running a plan: each step's operands are looked up, its results are given their memory, and its kernel is called.
#![allow(unsafe_code)]

mod control;
mod dispatch;
mod views;

use mlxcel_engine::EngineError;
use mlxcel_ir::Bindings;

use crate::context::{Context, Operand};
use crate::kernels::copy;
use crate::layout::Dims;
use crate::plan::{Arena, Kernel, Leaf, Place, Placed, Plan, Step};
use crate::view::{Out, View};
use crate::weight::Matrix;

/// What a plan reads besides its own results.
#[derive(Clone, Copy)]
pub(crate) struct Sources<'a> {
    pub(crate) arguments: &'a [View<'a>],
    pub(crate) weights: &'a [Matrix],
    /// Views of memory that the plan may write, where it replaces the state.
    pub(crate) states: &'a [View<'a>],
}

/// One execution of a plan.
pub(crate) struct Run<'a> {
    ctx: &'a Context,
    plan: &'a Plan,
    bindings: &'a Bindings,
    /// The table of dimensions under the bindings.
    sizes: Vec<usize>,
    values: Vec<Option<Operand<'a>>>,
    arena: &'a mut Arena,
}

/// What a plan computed, in memory that the next run of it reuses.
pub(crate) struct Done<'a> {
    /// The values that were asked for.
    pub(crate) results: Vec<View<'a>>,
    /// The new values of states, by number.
    pub(crate) updates: Vec<(usize, View<'a>)>,
}

/// Runs all steps.
pub(crate) fn run<'a>(
    ctx: &'a Context,
    plan: &'a Plan,
    bindings: &'a Bindings,
    sources: Sources<'a>,
    arena: &'a mut Arena,
) -> Result<Done<'a>, EngineError> {
    let sizes = plan.dims.bind(bindings)?;
    let mut run = Run { ctx, plan, bindings, sizes, values: vec![None; plan.values], arena };
    for &(value, leaf) in &plan.leaves {
        run.values[value] = Some(run.leaf(leaf, &sources));
    }
    for step in &plan.steps {
        run.step(step)?;
    }
    let find = |v: usize| run.values[v].expect("every wanted value was computed").view;
    let results = plan.results.iter().map(|&v| find(v)).collect();
    Ok(Done { results, updates: plan.updates.iter().map(|&(s, v)| (s, find(v))).collect() })
}

impl<'a> Run<'a> {
    fn leaf(&self, leaf: Leaf, sources: &Sources<'a>) -> Operand<'a> {
        match leaf {
            Leaf::Argument(i) => Operand { view: sources.arguments[i], matrix: None },
            Leaf::State(i) => Operand { view: sources.states[i], matrix: None },
            Leaf::Weight(i) => {
                let matrix = &sources.weights[i];
                let view = matrix.view().unwrap_or_else(|| View::empty(matrix.dtype));
                Operand { view, matrix: Some(matrix) }
            }
            Leaf::Constant(i) => Operand { view: self.plan.constants[i].view(), matrix: None },
        }
    }

    fn step(&mut self, step: &'a Step) -> Result<(), EngineError> {
        let operands: Vec<Operand<'a>> =
            step.inputs.iter().map(|&i| self.values[i].expect("operands come before their users")).collect();
        if let Place::View | Place::ViewOr(_) = step.results[0].place {
            let result = &step.results[0];
            let shape = result.dims(&self.sizes);
            let view = self.moved(step, &operands, &shape)?;
            let view = match view {
                Some(view) => view,
                None => self.copied(result, &operands[0].view, shape)?,
            };
            self.values[result.value] = Some(Operand { view, matrix: None });
            return Ok(());
        }
        let mut outs = Vec::with_capacity(step.results.len());
        for result in &step.results {
            outs.push(self.out(result, &operands)?);
        }
        match &step.kernel {
            Kernel::Elementwise(code) => {
                let views: Vec<View<'_>> = operands.iter().map(|o| o.view).collect();
                crate::kernels::elementwise::run(self.ctx, code, &views, &mut outs[0]);
            }
            Kernel::Regions(regions) => self.control(step, regions, &operands, &mut outs)?,
            Kernel::Op => self.compute(&step.op, &operands, &mut outs)?,
        }
        for (result, out) in step.results.iter().zip(&outs) {
            self.values[result.value] = Some(Operand { view: out.view(), matrix: None });
        }
        Ok(())
    }

    /// The memory of a result, with its old contents where it continues an operand.
    fn out(&mut self, result: &Placed, operands: &[Operand<'a>]) -> Result<Out<'a>, EngineError> {
        let shape = result.dims(&self.sizes);
        match result.place {
            Place::Slot(slot) => self.fresh(slot, result, shape),
            Place::Copy(slot, operand) => {
                let mut out = self.fresh(slot, result, shape)?;
                copy::strided(self.ctx, &operands[operand].view, &mut out);
                Ok(out)
            }
            Place::Take(operand) => {
                let base = operands[operand].view.bytes().as_ptr().cast_mut();
                // SAFETY: the memory came from a buffer through a mutable pointer, and the planner found that nobody
                // reads this operand's memory during or after this step but through the result.
                Ok(unsafe { Out::new(base, result.dtype, shape) })
            }
            Place::View | Place::ViewOr(_) => unreachable!("views have no memory of their own"),
        }
    }

    fn fresh(&mut self, slot: usize, result: &Placed, shape: Dims) -> Result<Out<'a>, EngineError> {
        let base = self.arena.slot(slot, bytes(result, &shape)?)?;
        // SAFETY: the slot has room, is aligned, outlives the run, and holds no live value but this one.
        Ok(unsafe { Out::new(base, result.dtype, shape) })
    }

    fn copied(&mut self, result: &Placed, x: &View<'a>, shape: Dims) -> Result<View<'a>, EngineError> {
        let Place::ViewOr(slot) = result.place else { unreachable!("only reshapes may copy") };
        let mut out = self.fresh(slot, result, shape)?;
        copy::strided(self.ctx, x, &mut out);
        Ok(out.view())
    }
}

fn bytes(result: &Placed, shape: &Dims) -> Result<usize, EngineError> {
    result.dtype.storage_bytes(shape).ok_or_else(|| EngineError::OutOfMemory {
        what: format!("a result of {}{shape:?}", result.dtype),
        bytes: usize::MAX,
    })
}
