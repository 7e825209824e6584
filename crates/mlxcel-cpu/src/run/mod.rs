//! Running a plan: each step's operands are looked up, its results are given their memory, and its kernel is called.
#![allow(unsafe_code)]

mod control;
mod dispatch;
mod views;

use mlxcel_engine::EngineError;
use mlxcel_ir::{Bindings, DType, Op};

use crate::context::{Context, Operand};
use crate::kernels::{copy, elementwise, rope};
use crate::layout::{Dims, Layout};
use crate::plan::{Arena, Input, Kernel, Place, Placed, Plan, Source, Step};
use crate::roles::Roles;
use crate::view::{Out, View};
use crate::weight::Matrix;

/// What a plan reads besides its own results.
#[derive(Clone, Copy)]
pub(crate) struct Sources<'a> {
    pub(crate) arguments: &'a [View<'a>],
    pub(crate) weights: &'a [Matrix],
    /// Their dense arrays.
    pub(crate) arrays: &'a [View<'a>],
    /// Views of memory that the plan may write, where it replaces the state.
    pub(crate) states: &'a [View<'a>],
    /// The roles of the step's tokens, if products depend on them.
    pub(crate) roles: Option<&'a Roles>,
}

/// One execution of a plan.
pub(crate) struct Run<'a> {
    ctx: &'a Context,
    plan: &'a Plan,
    bindings: &'a Bindings,
    sources: Sources<'a>,
    /// The table of dimensions under the bindings.
    sizes: Vec<usize>,
    /// Tables of rotations, made when they are first needed.
    rotations: Vec<Option<rope::Table>>,
    /// The values that are still read.
    registers: Vec<View<'a>>,
    arena: &'a mut Arena,
}

/// The operands and results of one step, in memory that the next step uses again.
#[derive(Default)]
struct Call<'a> {
    operands: Vec<Operand<'a>>,
    views: Vec<View<'a>>,
    outs: Vec<Out<'a>>,
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
    let registers = vec![View::empty(DType::U8); plan.registers];
    let rotations = (0..plan.rotations).map(|_| None).collect();
    let mut run = Run { ctx, plan, bindings, sources, sizes, rotations, registers, arena };
    let mut call = Call::default();
    for step in &plan.steps {
        run.step(step, &mut call)?;
    }
    let results = plan.results.iter().map(|v| run.view(v)).collect();
    Ok(Done { results, updates: plan.updates.iter().map(|(s, v)| (*s, run.view(v))).collect() })
}

impl<'a> Run<'a> {
    #[inline(always)]
    fn view(&self, input: &Input) -> View<'a> {
        let view = match input.from {
            Source::Register(i) => self.registers[i as usize],
            Source::Argument(i) => self.sources.arguments[i as usize],
            Source::State(i) => self.sources.states[i as usize],
            Source::Constant(i) => self.plan.constants[i as usize].view(),
            Source::Weight(i) => self.sources.arrays[i as usize],
        };
        let Some(shape) = input.shape else { return view };
        view.with_layout(0, Layout::contiguous(&self.plan.shape(shape, &self.sizes)))
    }

    /// An operand of an op that takes weights in their stored form.
    fn operand(&self, input: &Input) -> Operand<'a> {
        let matrix = match input {
            Input { from: Source::Weight(i), shape: None } => Some(&self.sources.weights[*i as usize]),
            _ => None,
        };
        Operand { view: self.view(input), matrix }
    }

    fn step(&mut self, step: &'a Step, call: &mut Call<'a>) -> Result<(), EngineError> {
        let Call { operands, views, outs } = call;
        let inputs = step.inputs.of(&self.plan.inputs);
        let results = step.results.of(&self.plan.placed);
        views.clear();
        outs.clear();
        if let Kernel::Rows { .. } | Kernel::Feed { .. } = step.kernel {
            operands.clear();
            operands.extend(inputs.iter().map(|i| self.operand(i)));
        } else {
            views.extend(inputs.iter().map(|i| self.view(i)));
        }
        if let Place::View | Place::ViewOr(_) = results[0].place {
            let shape = self.plan.shape(results[0].shape, &self.sizes);
            let view = match self.moved(step, views, &shape)? {
                Some(view) => view,
                None => self.copied(&results[0], &views[0], shape)?,
            };
            self.registers[results[0].register as usize] = view;
            return Ok(());
        }
        for result in results {
            outs.push(self.out(result, views)?);
        }
        match &step.kernel {
            Kernel::Op => self.compute(step, views, outs)?,
            Kernel::Rows { by_token } => {
                let roles = self.sources.roles.filter(|_| *by_token);
                self.compute_rows(&step.op, operands, &mut outs[0], roles)?;
            }
            Kernel::Feed { feed, by_token } => {
                let roles = self.sources.roles.filter(|_| *by_token);
                feed.run(self.ctx, operands, outs, roles)?;
            }
            Kernel::Rope(table) => self.rotate(&step.op, *table, views, &mut outs[0]),
            Kernel::Elementwise(code) => elementwise::run(self.ctx, code, views, &mut outs[0]),
            Kernel::Regions(regions) => self.control(step, regions, views, outs)?,
        }
        for (result, out) in results.iter().zip(outs) {
            self.registers[result.register as usize] = out.view();
        }
        Ok(())
    }

    fn rotate(&mut self, op: &Op, table: u32, x: &[View<'_>], out: &mut Out<'_>) {
        let Op::Rope { interleaved, scale } = *op else { unreachable!("only rotations have tables") };
        let make = || rope::table(self.ctx, [&x[1], &x[2]], (interleaved, scale as f32));
        let table = self.rotations[table as usize].get_or_insert_with(make);
        rope::rope(self.ctx, &x[0], table, out);
    }

    /// The memory of a result, with its old contents where it continues an operand.
    fn out(&mut self, result: &Placed, operands: &[View<'a>]) -> Result<Out<'a>, EngineError> {
        let shape = self.plan.shape(result.shape, &self.sizes);
        match result.place {
            Place::Slot(slot) => self.fresh(slot, result, shape),
            Place::Copy(slot, operand) => {
                let mut out = self.fresh(slot, result, shape)?;
                copy::strided(self.ctx, &operands[operand], &mut out);
                Ok(out)
            }
            Place::Take(operand) => {
                let base = operands[operand].bytes().as_ptr().cast_mut();
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
