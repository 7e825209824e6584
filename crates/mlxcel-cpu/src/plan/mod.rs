//! What a graph becomes when it is compiled: steps in order, and for every value where it lives. Slots of memory are
//! assigned once, by when values are last used; how large they are is only known when a step runs, so they grow to what
//! it needs and are kept.

mod build;
mod lives;
mod slots;

use std::sync::Mutex;

use mlxcel_engine::EngineError;
use mlxcel_ir::{Bindings, DType, Dim, Op};

use crate::kernels::elementwise::Code;
use crate::layout::Dims;
use crate::memory::Buffer;
use crate::stored::Stored;

pub(crate) use build::{Leaves, build, reads_rows};
pub(crate) use lives::needed;

/// A compiled graph or region.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) steps: Vec<Step>,
    /// Values that exist before the first step.
    pub(crate) leaves: Vec<(usize, Leaf)>,
    pub(crate) constants: Vec<Stored>,
    /// How many values there are.
    pub(crate) values: usize,
    pub(crate) slots: usize,
    /// The values that were asked for, in order.
    pub(crate) results: Vec<usize>,
    /// What each state becomes: its number and a value.
    pub(crate) updates: Vec<(usize, usize)>,
    pub(crate) dims: DimTable,
}

impl Plan {
    /// What its slots grow to when it runs under these bindings.
    pub(crate) fn working_bytes(&self, bindings: &Bindings) -> Result<u64, EngineError> {
        let sizes = self.dims.bind(bindings)?;
        let mut slots = vec![0; self.slots];
        let mut total = 0u64;
        for step in &self.steps {
            for result in &step.results {
                if let Place::Slot(slot) | Place::ViewOr(slot) | Place::Copy(slot, _) = result.place {
                    let bytes = result.dtype.storage_bytes(&result.dims(&sizes)).unwrap_or(usize::MAX);
                    slots[slot] = bytes.max(slots[slot]);
                }
            }
            if let Kernel::Regions(regions) = &step.kernel {
                for region in regions {
                    total = total.saturating_add(region.plan.working_bytes(bindings)?);
                }
            }
        }
        Ok(slots.into_iter().fold(total, |sum, bytes| sum.saturating_add(bytes as u64)))
    }
}

/// Where a value comes from that no step computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Leaf {
    /// A feed of the graph or an argument of the region, in order.
    Argument(usize),
    Weight(usize),
    State(usize),
    Constant(usize),
}

/// One op.
#[derive(Debug)]
pub(crate) struct Step {
    pub(crate) op: Op,
    pub(crate) kernel: Kernel,
    pub(crate) inputs: Vec<usize>,
    pub(crate) results: Vec<Placed>,
}

/// A result and its memory.
#[derive(Clone, Debug)]
pub(crate) struct Placed {
    pub(crate) value: usize,
    pub(crate) dtype: DType,
    /// Entries of the table of dimensions.
    pub(crate) shape: Vec<usize>,
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
    Op,
    Elementwise(Code),
    Regions(Vec<Region>),
}

/// A region with slots of its own.
#[derive(Debug)]
pub(crate) struct Region {
    pub(crate) plan: Plan,
    pub(crate) arena: Mutex<Arena>,
}

/// The slots of a plan.
#[derive(Debug, Default)]
pub(crate) struct Arena(Vec<Buffer>);

impl Arena {
    /// The memory of a slot, made at least `bytes` large. The planner sees to it that nobody uses the slot now.
    pub(crate) fn slot(&mut self, slot: usize, bytes: usize) -> Result<*mut u8, EngineError> {
        while self.0.len() <= slot {
            self.0.push(Buffer::zeroed(0, "a result")?);
        }
        if self.0[slot].len() < bytes {
            // The old memory goes first, so that growing never needs both.
            self.0[slot] = Buffer::zeroed(0, "a result")?;
            self.0[slot] = Buffer::zeroed(bytes, "a result")?;
        }
        Ok(self.0[slot].ptr())
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

    pub(crate) fn find(&self, dim: &Dim) -> Option<usize> {
        self.0.iter().position(|d| d == dim)
    }

    pub(crate) fn bind(&self, bindings: &Bindings) -> Result<Vec<usize>, EngineError> {
        let unbound = |d: &Dim| EngineError::Unbound { what: "a value".to_string(), dim: d.to_string() };
        self.0.iter().map(|d| d.eval(bindings).ok_or_else(|| unbound(d))).collect()
    }
}

impl Placed {
    pub(crate) fn dims(&self, sizes: &[usize]) -> Dims {
        self.shape.iter().map(|&d| sizes[d]).collect()
    }
}
