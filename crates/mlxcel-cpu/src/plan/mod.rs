//! What a graph becomes when it is compiled: steps in order, and for every value where it lives. Slots of memory are
//! assigned once, by when values are last used; how large they are is only known when a step runs, so they grow to what
//! it needs and are kept.

mod build;
mod feeds;
mod lives;
mod norms;
mod registers;
mod ropes;
mod slots;

use std::sync::Mutex;

use mlxcel_engine::EngineError;
use mlxcel_ir::{Bindings, DType, Dim, Op};

use crate::kernels::elementwise::Code;
use crate::kernels::linear::Feed;
use crate::layout::Dims;
use crate::memory::Buffer;
use crate::stored::Stored;

pub(crate) use build::{Leaves, build, reads_rows};
pub(crate) use lives::needed;

/// A compiled graph or region. Steps run in order and name their operands and results by ranges of the lists beside
/// them, so that a run reads memory from front to back.
#[derive(Debug, Default)]
pub(crate) struct Plan {
    pub(crate) steps: Vec<Step>,
    /// The operands of all steps.
    pub(crate) inputs: Vec<Input>,
    /// The results of all steps.
    pub(crate) placed: Vec<Placed>,
    /// Shapes, as entries of the table of dimensions.
    pub(crate) shapes: Vec<u32>,
    pub(crate) constants: Vec<Stored>,
    /// How many tables of rotations there are, and how many lists of sequences.
    pub(crate) rotations: usize,
    pub(crate) sequences: usize,
    /// How many views exist at once.
    pub(crate) registers: usize,
    pub(crate) slots: usize,
    /// The values that were asked for, in order.
    pub(crate) results: Vec<Input>,
    /// What each state becomes: its number and a value.
    pub(crate) updates: Vec<(usize, Input)>,
    pub(crate) dims: DimTable,
}

/// A part of one of the plan's lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    start: u32,
    end: u32,
}

impl Span {
    /// What was appended to a list since it had `start` entries.
    pub(crate) fn since<T>(start: usize, list: &[T]) -> Self {
        let number = |n: usize| u32::try_from(n).expect("a graph has fewer than 2^32 values");
        Span { start: number(start), end: number(list.len()) }
    }

    pub(crate) fn of<T>(self, list: &[T]) -> &[T] {
        &list[self.start as usize..self.end as usize]
    }

    pub(crate) fn of_mut<T>(self, list: &mut [T]) -> &mut [T] {
        &mut list[self.start as usize..self.end as usize]
    }
}

/// An operand: where it comes from, and the shape it is read under if that is another one. Only row-major values are
/// read under another shape, so a reshape of one is no step.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Input {
    pub(crate) from: Source,
    pub(crate) shape: Option<Span>,
}

/// Where a value comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// A step's result.
    Register(u32),
    /// A feed of the graph or an argument of the region, in order.
    Argument(u32),
    Weight(u32),
    State(u32),
    Constant(u32),
}

/// One op.
#[derive(Debug)]
pub(crate) struct Step {
    pub(crate) op: Op,
    pub(crate) kernel: Kernel,
    pub(crate) inputs: Span,
    pub(crate) results: Span,
    /// The sizes that the op itself names: the start and the end of a slice, or what it is the size of.
    pub(crate) sizes: Span,
}

/// A result and its memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Placed {
    pub(crate) register: u32,
    pub(crate) dtype: DType,
    pub(crate) shape: Span,
    pub(crate) place: Place,
}

/// The memory of a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    Slot(usize),
    /// A view of the first operand.
    View,
    /// A view of the first operand if its strides allow, a copy in the slot otherwise.
    ViewOr(usize),
    /// The memory of this operand, which nobody reads afterwards.
    Take(usize),
    /// The slot, into which this operand is copied first.
    Copy(usize, usize),
}

/// What was prepared for a step when it was compiled.
#[derive(Debug)]
pub(crate) enum Kernel {
    /// Takes views.
    Op,
    /// Takes weights in their stored form.
    Rows(Multiplied),
    /// A gated feed-forward block, whose weights are taken in their stored form.
    Feed(Feed, Multiplied),
    Rope(Rope),
    /// Attention over the sequences of a list that other steps may share, by number; queries and keys may have to be rotated.
    Paged {
        list: u32,
        ropes: [Option<Rope>; 2],
    },
    Elementwise(Code),
    Regions(Vec<Region>),
}

/// What is multiplied with rows of weights.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Multiplied {
    /// Whether its first axis is the tokens of the step.
    pub(crate) by_token: bool,
    /// The least that squares are taken for, if it is the norm of a sum: then the first operands are those of the norm,
    /// and its results the last ones.
    pub(crate) norm: Option<f32>,
}

/// A rotation by a table that other steps may share.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rope {
    /// Its number.
    pub(crate) table: u32,
    /// Where positions and frequencies stand among the operands.
    pub(crate) angles: usize,
    pub(crate) interleaved: bool,
    pub(crate) scale: f32,
}

/// A region with slots of its own.
#[derive(Debug)]
pub(crate) struct Region {
    pub(crate) plan: Plan,
    pub(crate) arena: Mutex<Arena>,
}

/// The slots of a plan.
#[derive(Debug, Default)]
pub(crate) struct Arena {
    slots: Vec<Buffer>,
    /// How often a slot was given other memory.
    version: u64,
}

impl Arena {
    /// The memory of a slot, made at least `bytes` large. The planner sees to it that nobody uses the slot now.
    pub(crate) fn slot(&mut self, slot: usize, bytes: usize) -> Result<*mut u8, EngineError> {
        while self.slots.len() <= slot {
            self.slots.push(Buffer::zeroed(0, "a result")?);
        }
        if self.slots[slot].len() < bytes {
            self.version += 1;
            // The old memory goes first, so that growing never needs both.
            self.slots[slot] = Buffer::zeroed(0, "a result")?;
            self.slots[slot] = Buffer::of_results(bytes)?;
        }
        Ok(self.slots[slot].ptr())
    }

    /// Another number after any slot was given other memory.
    pub(crate) fn version(&self) -> u64 {
        self.version
    }
}

/// Every dimension that occurs, once, so that a step binds each only once.
#[derive(Debug, Default)]
pub(crate) struct DimTable(Vec<Dim>);

impl DimTable {
    pub(crate) fn add(&mut self, dim: &Dim) -> usize {
        self.0.iter().position(|d| d == dim).unwrap_or_else(|| {
            self.0.push(dim.clone());
            self.0.len() - 1
        })
    }

    pub(crate) fn bind(&self, bindings: &Bindings) -> Result<Vec<usize>, EngineError> {
        let unbound = |d: &Dim| EngineError::Unbound { what: "a value".to_string(), dim: d.to_string() };
        self.0.iter().map(|d| d.eval(bindings).ok_or_else(|| unbound(d))).collect()
    }
}

impl Plan {
    /// A shape under the sizes that a run bound.
    pub(crate) fn shape(&self, shape: Span, sizes: &[usize]) -> Dims {
        shape.of(&self.shapes).iter().map(|&d| sizes[d as usize]).collect()
    }

    /// What its slots grow to when it runs under these bindings.
    pub(crate) fn working_bytes(&self, bindings: &Bindings) -> Result<u64, EngineError> {
        let sizes = self.dims.bind(bindings)?;
        let mut slots = vec![0; self.slots];
        for result in &self.placed {
            if let Place::Slot(slot) | Place::ViewOr(slot) | Place::Copy(slot, _) = result.place {
                let shape = self.shape(result.shape, &sizes);
                let bytes = result.dtype.storage_bytes(&shape).unwrap_or(usize::MAX);
                slots[slot] = bytes.max(slots[slot]);
            }
        }
        let mut total = 0u64;
        for step in &self.steps {
            let Kernel::Regions(regions) = &step.kernel else { continue };
            for region in regions {
                total = total.saturating_add(region.plan.working_bytes(bindings)?);
            }
        }
        Ok(slots.into_iter().fold(total, |sum, bytes| sum.saturating_add(bytes as u64)))
    }
}
