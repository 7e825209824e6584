//! Products with packed weights: rows repacked once, at load, into panels of sixteen that the widest instructions of
//! the machine read in one stream.
//!
//! Algorithm: there are two. Codes of quantised weights are multiplied as whole numbers with activations of 24 bits, or
//! 16 where that is enough, which is exact inside a group (`dots` for few tokens, for many `bytes` in tiles and `many` without). `bf16` weights are
//! multiplied in tiles (`tiles`), with `f32` activations in two halves. Tokens that may be rounded take the tiles with
//! one half, and codes are decoded to `bf16` for them, block by block; where there are no tiles, they are multiplied
//! as whole numbers of eight bits. Layout: see `pack`.
//!
//! Batch invariance: one order of additions for any number of tokens and rows.
//!
//! Versions tried for quantised weights with many tokens, in TFLOP/s of one busy core: byte products with three bytes
//! 0.07-0.2; byte tiles whose sums leave at every group of 32 elements 0.28, and 0.35 with activations of twelve bits
//! in one sum; weights decoded to `bf16` tiles 1.0 and more.
//!
//! Checked against products of the decoded weights in `f64`.
#![allow(unsafe_code)]

mod activations;
#[cfg(target_arch = "x86_64")]
mod bytes;
mod codes;
#[cfg(target_arch = "x86_64")]
pub(in crate::kernels) mod decode;
mod dots;
mod format;
#[cfg(target_arch = "x86_64")]
mod gated;
mod many;
mod pack;
mod part;
#[cfg(test)]
mod pinned;
#[cfg_attr(not(target_arch = "x86_64"), path = "untiled.rs")]
mod tiled;
#[cfg(target_arch = "x86_64")]
pub(crate) mod tiles;
#[cfg(target_arch = "x86_64")]
mod tokens;

use std::ops::Range;
use std::sync::OnceLock;

use mlxcel_engine::EngineError;
use mlxcel_ir::DType;

use self::activations::{Activations, TILE};
use self::dots::Product;
use self::format::{BLOCK, Format, ROWS};
#[cfg(target_arch = "x86_64")]
pub(crate) use self::gated::gated;
use self::pack::Loose;
use self::part::{Part, Shape, Task, simply};
use self::tiled::STEP;
#[cfg(not(target_arch = "x86_64"))]
pub(crate) use self::tiled::Tokens;
#[cfg(not(target_arch = "x86_64"))]
pub(crate) use self::tiled::gated;
#[cfg(target_arch = "x86_64")]
pub(crate) use self::tokens::Tokens;
use super::linear::{Panel, Sink};
use crate::context::{Context, Products};
use crate::memory::Memory;
use crate::simd::SimdLevel;
use crate::view::Shared;
use crate::weight::Rows;

/// Bytes of weights that make a task worth a thread.
const TASK_MIN: usize = 16 * 1024;
/// Tasks for each thread: when one thread is held up, others wait for its last task.
const TASKS: usize = 16;
/// Exact tokens at most that are multiplied panel by panel beside the others, and not all together after them.
const BESIDE: usize = 2 * dots::TOKENS;
/// Bytes that are packed before the memory of their source is given back, so that a large weight is not there twice.
const PACKED_AT_ONCE: usize = 16 << 20;

/// A weight in panels.
#[derive(Debug)]
pub(crate) struct Packed {
    numbers: Numbers,
    cols: usize,
    panels: usize,
    panel_bytes: usize,
    data: Memory,
}

/// What a weight in panels is like, which is known before there are any.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Form {
    numbers: Numbers,
    cols: usize,
    rows: usize,
    pub(crate) panels: usize,
    pub(crate) panel_bytes: usize,
}

/// What panels hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Numbers {
    Codes(Format),
    /// `bf16` in tiles: `[pairs of elements][rows][2]`, padded with zeros to whole steps.
    Halves,
}

impl Numbers {
    fn of(level: SimdLevel, dtype: DType) -> Option<Self> {
        match dtype {
            DType::BF16 => level.has_tiles().then_some(Numbers::Halves),
            _ => Format::of(dtype).filter(|_| level.has_byte_products()).map(Numbers::Codes),
        }
    }

    fn panel_bytes(&self, cols: usize) -> usize {
        match self {
            Numbers::Codes(format) => format.panel_bytes(cols),
            Numbers::Halves => cols.next_multiple_of(STEP) * ROWS * 2,
        }
    }
}

impl Form {
    /// The place of everything in panels. Raised when it changes, since panels are also kept in files.
    pub(crate) const LAYOUT: u32 = 1;

    /// `None` if weights of this type are not packed at this level, or there is nothing in them.
    pub(crate) fn of(level: SimdLevel, dtype: DType, (rows, cols): (usize, usize)) -> Option<Self> {
        let numbers = Numbers::of(level, dtype).filter(|_| rows > 0 && cols > 0)?;
        let (panels, panel_bytes) = (rows.div_ceil(ROWS), numbers.panel_bytes(cols));
        Some(Form { numbers, cols, rows, panels, panel_bytes })
    }

    pub(crate) fn bytes(&self) -> usize {
        self.panels * self.panel_bytes
    }

    /// Whether panels hold codes, which are the same at every level that has them.
    pub(crate) fn has_codes(&self) -> bool {
        matches!(self.numbers, Numbers::Codes(_))
    }

    /// Packs the rows of one panel to bytes that are zero.
    pub(crate) fn pack(&self, rows: &Rows<'_>, panel: usize, to: &mut [u8]) {
        let range = panel * ROWS..((panel + 1) * ROWS).min(self.rows);
        // SAFETY: a form is only made for levels that the machine has and that have byte products.
        unsafe { simply(Packing { numbers: &self.numbers, rows, range, to }) };
    }
}

impl Packed {
    /// Packs rows of a form. `done` is called now and then, when the rows so far are not needed any more.
    pub(crate) fn new(
        ctx: &Context,
        form: Form,
        rows: &Rows<'_>,
        done: impl Fn(),
    ) -> Result<Self, EngineError> {
        let Form { panels, panel_bytes, .. } = form;
        let data = ctx.slabs.zeroed(form.bytes(), "packed weights")?;
        let to = Shared(data.ptr());
        let pack = |panel: usize| {
            // SAFETY: every panel lies in the buffer, and one task writes it.
            let to = unsafe { std::slice::from_raw_parts_mut(to.at(panel * panel_bytes), panel_bytes) };
            form.pack(rows, panel, to);
        };
        let at_once = (PACKED_AT_ONCE / panel_bytes.max(1)).max(1);
        for first in (0..panels).step_by(at_once) {
            ctx.threads.each(at_once.min(panels - first), |panel| pack(first + panel));
            done();
        }
        Ok(Self::of(form, Memory::Own(data)))
    }

    /// Panels of a form that are there already, as many bytes as it has.
    pub(crate) fn of(form: Form, data: Memory) -> Self {
        let Form { numbers, cols, panels, panel_bytes, .. } = form;
        Packed { numbers, cols, panels, panel_bytes, data }
    }

    #[cfg(test)]
    pub(crate) fn data(&self) -> &Memory {
        &self.data
    }

    /// Fills the sink with the products of all tokens and `n` rows from `first` on, a multiple of the rows of a panel.
    pub(crate) fn multiply(
        &self,
        ctx: &Context,
        panel: &Panel<'_>,
        (first, n): (usize, usize),
        sink: &Sink<'_>,
    ) -> Result<(), EngineError> {
        let panels = first / ROWS..first / ROWS + n.div_ceil(ROWS);
        assert!(first.is_multiple_of(ROWS) && panels.end <= self.panels, "rows of the weight");
        let job = Job { packed: self, ctx, x: panel, panels: panels.clone(), sink, row: 0 };
        let Some(exact) = panel.exact.as_ref().filter(|_| self.rounds(ctx.level)) else { return job.exact() };
        // Every token first, since the exact ones are fewer; they are put again.
        let tokens: Vec<usize> = exact.iter().cloned().flatten().collect();
        match &self.numbers {
            Numbers::Codes(format) if !ctx.level.has_tiles() => job.in_bytes(format, 1)?,
            Numbers::Codes(_) if tokens.len() > BESIDE => job.alike(true)?,
            Numbers::Halves if panel.is_bf16 => return job.alike(true),
            _ => return job.mixed(&tokens),
        }
        for run in exact {
            let (x, sink) = (panel.part(run.clone()), sink.from(run.start));
            Job { x: &x, sink: &sink, panels: panels.clone(), ..job }.exact()?;
        }
        Ok(())
    }

    /// Whether products of rounded tokens have a kernel of their own.
    pub(crate) fn rounds(&self, level: SimdLevel) -> bool {
        match self.numbers {
            Numbers::Halves => true,
            Numbers::Codes(_) => !level.has_tiles() || self.cols.is_multiple_of(STEP),
        }
    }

    fn panel(&self, panel: usize) -> *const u8 {
        self.data.ptr().wrapping_add(panel * self.panel_bytes)
    }
}

/// One product.
struct Job<'a> {
    packed: &'a Packed,
    ctx: &'a Context,
    x: &'a Panel<'a>,
    panels: Range<usize>,
    sink: &'a Sink<'a>,
    /// The row of the sink that belongs to the first of the panels.
    row: usize,
}

impl Job<'_> {
    /// Calls `work` with runs of `count` panels, `per_task` or a few more so that they are a multiple of `unit`.
    fn spread(
        &self,
        (count, unit, per_task): (usize, usize, usize),
        work: impl Fn(Range<usize>) -> Result<(), EngineError> + Sync,
    ) -> Result<(), EngineError> {
        let per_task = per_task.next_multiple_of(unit);
        let failure = OnceLock::new();
        self.ctx.threads.each(count.div_ceil(per_task), |task| {
            if let Err(e) = work(task * per_task..((task + 1) * per_task).min(count)) {
                // One of them is enough to say.
                let _ = failure.set(e);
            }
        });
        failure.into_inner().map_or(Ok(()), Err)
    }

    /// How many panels of every stream are worth a task.
    fn per_task(&self, streams: usize) -> usize {
        let worth = self.packed.panel_bytes.max(1) * streams * self.x.tokens.div_ceil(dots::TOKENS);
        let fair = self.panels.len().div_ceil(streams * TASKS * self.ctx.threads.count());
        fair.max(TASK_MIN.div_ceil(worth))
    }

    #[inline(always)]
    fn put(&self, token: usize, panel: usize, sums: &[f32; ROWS]) {
        self.sink.put(token, self.row + panel * ROWS, sums);
    }

    fn exact(&self) -> Result<(), EngineError> {
        match &self.packed.numbers {
            Numbers::Halves => self.alike(self.x.is_bf16),
            Numbers::Codes(format) => self.in_bytes(format, self.bytes()),
        }
    }

    /// Bytes of an activation that is not rounded.
    fn bytes(&self) -> usize {
        let is_narrow = self.x.is_bf16 || self.ctx.products == Products::Fast;
        if is_narrow { 2 } else { 3 }
    }

    /// With so many bytes for an activation.
    fn in_bytes(&self, format: &Format, bytes: usize) -> Result<(), EngineError> {
        let (cols, tokens) = (self.packed.cols, self.x.tokens);
        let row = |t: usize| self.x.row(t, 0);
        // SAFETY: weights are only packed at levels that have the features; rows of a panel have all columns.
        let x = unsafe { Activations::new(self.ctx, format, [tokens, cols, bytes], row) }?;
        if tokens > dots::TOKENS && !self.ctx.level.has_tiles() {
            return self.in_registers(format, &x);
        }
        // Tokens that tiles take; a few that are left are not worth one.
        let rest = tokens % TILE;
        let tiled = if rest > dots::TOKENS { tokens.next_multiple_of(TILE) } else { tokens - rest };
        if tiled > 0 {
            self.in_byte_tiles(format, &x, tiled)?;
        }
        if tiled >= tokens {
            return Ok(());
        }
        let streams = if tokens - tiled <= dots::TOKENS { self.streams() } else { 1 };
        let apart = self.panels.len().div_ceil(streams);
        self.spread((apart, 1, self.per_task(streams)), |lines| {
            dots::Room::with(|room| {
                for line in lines {
                    let first = self.packed.panel(self.panels.start + line);
                    let is_there = |stream: &usize| line + stream * apart < self.panels.len();
                    let count = (0..streams).take_while(is_there).count();
                    let panels = dots::Panels { first, apart: apart * self.packed.panel_bytes, count };
                    for t in (tiled..tokens).step_by(dots::TOKENS) {
                        let some = dots::TOKENS.min(tokens - t);
                        let level = self.ctx.level;
                        let product = Product { level, format, panels, cols, x: &x, first: t };
                        // SAFETY: the level has the features; the panels lie in the buffer and the tokens are there.
                        let sums = unsafe { product.run(some, room) };
                        for (sums, p) in sums.iter().zip((line..).step_by(apart)) {
                            for (i, sums) in sums.iter().enumerate().take(some) {
                                self.put(t + i, p, sums);
                            }
                        }
                    }
                }
            });
            Ok(())
        })
    }

    /// Many tokens, where there are no tiles.
    fn in_registers(&self, format: &Format, x: &Activations<'_>) -> Result<(), EngineError> {
        let together = Shape::of(self.ctx.level).panels;
        self.spread((self.panels.len(), together, self.per_task(1)), |panels| {
            many::Room::with(|room| {
                for first in panels.clone().step_by(together) {
                    let panels = first..panels.end.min(first + together);
                    // SAFETY: the level has the features, and tokens lie as it wants them.
                    unsafe { many::Product { job: self, format, x, panels }.run(room) };
                }
            });
            Ok(())
        })
    }

    /// At how many places the panels are read at a time: as many as leave all threads the same work, but for a little.
    fn streams(&self) -> usize {
        let (panels, threads) = (self.panels.len(), self.ctx.threads.count());
        let tasks_of = |streams: usize| panels.div_ceil(streams).next_multiple_of(threads);
        let fair = (1..=dots::Reading::of_machine().streams)
            .rev()
            .find(|&streams| tasks_of(streams) * streams <= panels + panels / 16);
        fair.unwrap_or(1)
    }
}

/// Some rows on their way to a panel.
struct Packing<'a> {
    numbers: &'a Numbers,
    rows: &'a Rows<'a>,
    range: Range<usize>,
    to: &'a mut [u8],
}

impl Task for Packing<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<P: Part, const N: usize>(self) {
        match self.numbers {
            Numbers::Codes(format) => pack_codes(format, self.rows, self.range, self.to),
            Numbers::Halves => pack_halves(self.rows, self.range, self.to),
        }
    }
}

#[inline(always)]
fn pack_codes(format: &Format, rows: &Rows<'_>, range: Range<usize>, mut to: &mut [u8]) {
    let mut loose: [Loose; ROWS] = std::array::from_fn(|_| Loose::new());
    for start in (0..rows.cols).step_by(BLOCK) {
        let len = BLOCK.min(rows.cols - start);
        for (row, loose) in range.clone().zip(&mut loose) {
            loose.read(rows.dtype, rows.parts(row), start, len);
        }
        let (block, rest) = to.split_at_mut(format.block_bytes(len));
        pack::write(format, &loose, len, block);
        to = rest;
    }
}

#[inline(always)]
fn pack_halves(rows: &Rows<'_>, range: Range<usize>, to: &mut [u8]) {
    for (r, row) in range.enumerate() {
        let (numbers, _) = rows.parts(row)[0].as_chunks::<2>();
        for (i, number) in numbers.iter().enumerate() {
            let at = (i / 2 * ROWS + r) * 4 + i % 2 * 2;
            to[at..at + 2].copy_from_slice(number);
        }
    }
}
