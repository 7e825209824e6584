//! Running a plan: each step's operands are looked up, its results are given their memory, and its kernel is called. A
//! program that runs a plan again and again keeps what was looked up (`tape`).
#![allow(unsafe_code)]

mod control;
mod dispatch;
mod tape;
mod views;

use mlxcel_engine::EngineError;
use mlxcel_ir::{Bindings, DType, Op};

use crate::context::{Context, Operand};
use crate::kernels::{attention, copy, elementwise, linear, rope};
use crate::layout::{Dims, Layout};
use crate::plan::{Arena, Input, Kernel, Place, Placed, Plan, Rope, Source, Span};
use crate::roles::Roles;
use crate::view::{Out, View};
use crate::weight::Matrix;
pub(crate) use tape::Tape;

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
    /// Lists of sequences, in the same way.
    sequences: Vec<Option<attention::Sequences>>,
}

/// What steps are called with is found in here: the values that are still read, and the memory of results.
struct Values<'a> {
    registers: Vec<View<'a>>,
    arena: &'a mut Arena,
    /// Whether all of it depends on sizes alone, and on no number.
    are_fixed: bool,
}

/// The operands and results of calls, one after the other.
#[derive(Default)]
struct Lists<'a> {
    operands: Vec<Operand<'a>>,
    views: Vec<View<'a>>,
    outs: Vec<Out<'a>>,
}

impl Lists<'_> {
    fn clear(&mut self) {
        self.operands.clear();
        self.views.clear();
        self.outs.clear();
    }
}

/// A step that computes something, with what it reads and writes as parts of the lists.
#[derive(Clone, Copy)]
struct Call {
    step: u32,
    action: Action,
    operands: Span,
    views: Span,
    outs: Span,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Action {
    Compute,
    /// Some results begin as copies of operands.
    Continue,
    /// The result is a copy of the operand, and that is all.
    Copy,
}

/// What a plan computed, in memory that the next run of it reuses.
#[derive(Default)]
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
    let (mut run, mut lists) = (Run::new(ctx, plan, bindings, sources)?, Lists::default());
    let mut values = run.values(arena);
    for step in 0..plan.steps.len() {
        lists.clear();
        if let Some(call) = run.find(step, &mut values, &mut lists)? {
            run.call(&call, &mut lists)?;
        }
    }
    Ok(run.done(&values))
}

impl<'a> Run<'a> {
    fn new(
        ctx: &'a Context,
        plan: &'a Plan,
        bindings: &'a Bindings,
        sources: Sources<'a>,
    ) -> Result<Self, EngineError> {
        let sizes = plan.dims.bind(bindings)?;
        let rotations = (0..plan.rotations).map(|_| None).collect();
        let sequences = (0..plan.sequences).map(|_| None).collect();
        Ok(Run { ctx, plan, bindings, sources, sizes, rotations, sequences })
    }

    fn values(&self, arena: &'a mut Arena) -> Values<'a> {
        Values { registers: vec![View::empty(DType::U8); self.plan.registers], arena, are_fixed: true }
    }

    fn done(&self, values: &Values<'a>) -> Done<'a> {
        let view = |v: &Input| self.view(v, values);
        let updates = self.plan.updates.iter().map(|(s, v)| (*s, view(v))).collect();
        Done { results: self.plan.results.iter().map(view).collect(), updates }
    }

    #[inline(always)]
    fn view(&self, input: &Input, values: &Values<'a>) -> View<'a> {
        let view = match input.from {
            Source::Register(i) => values.registers[i as usize],
            Source::Argument(i) => self.sources.arguments[i as usize],
            Source::State(i) => self.sources.states[i as usize],
            Source::Constant(i) => self.plan.constants[i as usize].view(),
            Source::Weight(i) => self.sources.arrays[i as usize],
        };
        let Some(shape) = input.shape else { return view };
        view.with_layout(0, Layout::contiguous(&self.plan.shape(shape, &self.sizes)))
    }

    /// An operand of an op that takes weights in their stored form.
    fn operand(&self, input: &Input, values: &Values<'a>) -> Operand<'a> {
        let matrix = match input {
            Input { from: Source::Weight(i), shape: None } => Some(&self.sources.weights[*i as usize]),
            _ => None,
        };
        Operand { view: self.view(input, values), matrix }
    }

    /// What a step is called with; its results are values from then on. `None` if it only looks at an operand differently.
    fn find(
        &self,
        number: usize,
        values: &mut Values<'a>,
        lists: &mut Lists<'a>,
    ) -> Result<Option<Call>, EngineError> {
        let step = &self.plan.steps[number];
        let starts = [lists.operands.len(), lists.views.len(), lists.outs.len()];
        let results = step.results.of(&self.plan.placed);
        for input in step.inputs.of(&self.plan.inputs) {
            match step.kernel {
                Kernel::Rows(_) | Kernel::Feed(..) => {
                    lists.operands.push(self.operand(input, values));
                }
                _ => lists.views.push(self.view(input, values)),
            }
        }
        let mut action = Action::Compute;
        if let Place::View | Place::ViewOr(_) = results[0].place {
            let shape = self.plan.shape(results[0].shape, &self.sizes);
            values.are_fixed &= !matches!(step.op, Op::DynamicSlice { .. });
            if let Some(view) = self.moved(step, &lists.views[starts[1]..], &shape)? {
                lists.views.truncate(starts[1]);
                values.registers[results[0].register as usize] = view;
                return Ok(None);
            }
            action = Action::Copy;
        }
        for result in results {
            let operand = |at: usize| match lists.operands.get(starts[0] + at) {
                Some(operand) => operand.view,
                None => lists.views[starts[1] + at],
            };
            let out = self.out(result, operand, values.arena)?;
            values.registers[result.register as usize] = out.view();
            lists.outs.push(out);
            if let Place::Copy(..) = result.place {
                action = Action::Continue;
            }
        }
        Ok(Some(Call {
            step: number as u32,
            action,
            operands: Span::since(starts[0], &lists.operands),
            views: Span::since(starts[1], &lists.views),
            outs: Span::since(starts[2], &lists.outs),
        }))
    }

    fn call(&mut self, call: &Call, lists: &mut Lists<'_>) -> Result<(), EngineError> {
        let plan = self.plan;
        let step = &plan.steps[call.step as usize];
        let (operands, views) = (call.operands.of(&lists.operands), call.views.of(&lists.views));
        let outs = call.outs.of_mut(&mut lists.outs);
        match call.action {
            Action::Compute => {}
            Action::Continue => {
                for (result, out) in step.results.of(&plan.placed).iter().zip(&mut *outs) {
                    if let Place::Copy(_, operand) = result.place {
                        let view = operands.get(operand).map_or_else(|| &views[operand], |o| &o.view);
                        copy::strided(self.ctx, view, out);
                    }
                }
            }
            Action::Copy => {
                copy::strided(self.ctx, &views[0], &mut outs[0]);
                return Ok(());
            }
        }
        match &step.kernel {
            Kernel::Op => self.compute(step, views, outs)?,
            Kernel::Rows(multiplied) => {
                let roles = self.sources.roles.filter(|_| multiplied.by_token);
                match multiplied.norm {
                    Some(eps) => linear::normed(self.ctx, eps, operands, outs, roles)?,
                    None => self.compute_rows(&step.op, operands, &mut outs[0], roles)?,
                }
            }
            Kernel::Feed(feed, multiplied) => {
                let roles = self.sources.roles.filter(|_| multiplied.by_token);
                feed.run(self.ctx, (multiplied.norm, operands), outs, roles)?;
            }
            Kernel::Rope(of) => {
                self.prepare(of, views);
                rope::rope(self.ctx, &views[0], self.table(of), &mut outs[0]);
            }
            Kernel::Paged { list, ropes } => self.attend(&step.op, (*list, ropes), views, outs),
            Kernel::Elementwise(code) => elementwise::run(self.ctx, code, views, &mut outs[0]),
            Kernel::Regions(regions) => self.control(step, regions, views, outs)?,
        }
        Ok(())
    }

    /// Makes the table of a rotation if no step did before.
    fn prepare(&mut self, of: &Rope, x: &[View<'_>]) {
        let angles = [&x[of.angles], &x[of.angles + 1]];
        let make = || rope::table(self.ctx, angles, (of.interleaved, of.scale));
        self.rotations[of.table as usize].get_or_insert_with(make);
    }

    fn table(&self, of: &Rope) -> &rope::Table {
        self.rotations[of.table as usize].as_ref().expect("tables are prepared")
    }

    fn attend(
        &mut self,
        op: &Op,
        (list, ropes): (u32, &[Option<Rope>; 2]),
        x: &[View<'_>],
        outs: &mut [Out<'_>],
    ) {
        let Op::PagedAttention(spec) = op else { unreachable!("only this attention has lists") };
        ropes.iter().flatten().for_each(|of| self.prepare(of, x));
        let own = ropes.iter().flatten().map(|of| of.angles).min().unwrap_or(x.len());
        let list = list as usize;
        self.sequences[list].get_or_insert_with(|| attention::Sequences::new(spec, x));
        let step = attention::Step {
            x: &x[..own],
            ropes: ropes.each_ref().map(|of| of.as_ref().map(|of| self.table(of))),
            sequences: self.sequences[list].as_ref().expect("the list is there"),
            roles: self.sources.roles,
        };
        attention::paged(self.ctx, spec, &step, outs);
    }

    /// The memory of a result.
    fn out(
        &self,
        result: &Placed,
        operand: impl Fn(usize) -> View<'a>,
        arena: &mut Arena,
    ) -> Result<Out<'a>, EngineError> {
        let shape = self.plan.shape(result.shape, &self.sizes);
        let base = match result.place {
            Place::Slot(slot) | Place::ViewOr(slot) | Place::Copy(slot, _) => {
                arena.slot(slot, bytes(result, &shape)?)?
            }
            Place::Take(at) => operand(at).bytes().as_ptr().cast_mut(),
            Place::View => unreachable!("views have no memory of their own"),
        };
        // SAFETY: a slot has room, is aligned, outlives the run, and holds no live value but this one. An operand's memory
        // came from a buffer through a mutable pointer, and the planner found that nobody reads it during or after this
        // step but through the result.
        Ok(unsafe { Out::new(base, result.dtype, shape) })
    }
}

fn bytes(result: &Placed, shape: &Dims) -> Result<usize, EngineError> {
    result.dtype.storage_bytes(shape).ok_or_else(|| EngineError::OutOfMemory {
        what: format!("a result of {}{shape:?}", result.dtype),
        bytes: usize::MAX,
    })
}
