//! Products with packed weights: rows repacked once, at load, into panels of sixteen that the widest instructions of
//! the machine read in one stream.
//!
//! Algorithm: there are two. Codes of quantised weights are multiplied as whole numbers with activations of 24 bits, or
//! 16 where that is enough, which is exact inside a group (`vnni` for few tokens, `bytes` for many). `bf16` weights are multiplied in tiles (`tiles`),
//! with `f32` activations in two halves. Tokens that may be rounded take the tiles with one half, and codes are decoded
//! to `bf16` for them, in the first-level cache. Layout: see `pack`.
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
mod bytes;
mod codes;
mod format;
mod pack;
mod tiles;
mod vnni;

use std::cell::RefCell;
use std::ops::Range;

use mlxcel_engine::EngineError;
use mlxcel_ir::DType;

use self::activations::Activations;
use self::codes::Factors;
use self::format::{BLOCK, Format, ROWS};
use self::pack::Loose;
use self::tiles::{Halves, Registers, STEP, STRETCH, Tokens};
use self::vnni::Product;
use super::linear::{Panel, Sink};
use crate::context::{Context, Products};
use crate::memory::Buffer;
use crate::simd::SimdLevel;
use crate::view::Shared;
use crate::weight::Rows;

/// Bytes of weights that make a task worth a thread.
const TASK_MIN: usize = 16 * 1024;
/// Panels that tiles go through side by side, so that a stretch of all tokens stays in the second-level cache.
const TOGETHER: usize = 16;

thread_local! {
    static ROOM: RefCell<Room> = RefCell::default();
}

/// What a thread needs beside the registers of its tiles, kept from one product to the next.
#[derive(Default)]
struct Room {
    sums: Vec<f32>,
    decoded: Vec<u16>,
}

impl Room {
    /// Numbers of whatever was there before.
    fn of(&mut self, sums: usize, decoded: usize) -> (&mut [f32], &mut [u16]) {
        self.sums.resize(self.sums.len().max(sums), 0.0);
        self.decoded.resize(self.decoded.len().max(decoded), 0);
        (&mut self.sums[..sums], &mut self.decoded[..decoded])
    }
}

/// A weight in panels.
#[derive(Debug)]
pub(crate) struct Packed {
    numbers: Numbers,
    cols: usize,
    panels: usize,
    panel_bytes: usize,
    data: Buffer,
}

/// What panels hold.
#[derive(Clone, Copy, Debug)]
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

impl Packed {
    /// Whether weights of this type are packed at this level.
    pub(crate) fn suits(level: SimdLevel, dtype: DType) -> bool {
        Numbers::of(level, dtype).is_some()
    }

    /// Packs `n` rows. The type must suit the level.
    pub(crate) fn new(ctx: &Context, rows: &Rows<'_>, n: usize) -> Result<Self, EngineError> {
        let numbers = Numbers::of(ctx.level, rows.dtype).expect("only types that suit are packed");
        let (cols, panels) = (rows.cols, n.div_ceil(ROWS));
        let panel_bytes = numbers.panel_bytes(cols);
        let data = ctx.slabs.zeroed(panels * panel_bytes, "packed weights")?;
        let to = Shared(data.ptr());
        ctx.threads.each(panels, |panel| {
            // SAFETY: every panel lies in the buffer, and one task writes it.
            let to = unsafe { std::slice::from_raw_parts_mut(to.at(panel * panel_bytes), panel_bytes) };
            let range = panel * ROWS..((panel + 1) * ROWS).min(n);
            match &numbers {
                // SAFETY: types are only packed at levels that have AVX-512.
                Numbers::Codes(format) => unsafe { pack_codes(format, rows, range, to) },
                // SAFETY: as above.
                Numbers::Halves => unsafe { pack_halves(rows, range, to) },
            }
        });
        Ok(Packed { numbers, cols, panels, panel_bytes, data })
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
        let job = Job { packed: self, ctx, x: panel, panels: panels.clone(), sink };
        let Some(exact) = panel.exact.as_ref().filter(|_| self.rounds(ctx.level)) else { return job.exact() };
        // Every token first, since the exact ones are few; they are put again.
        job.in_tiles(Halves::One)?;
        for run in exact {
            let (x, sink) = (panel.part(run.clone()), sink.from(run.start));
            Job { packed: self, ctx, x: &x, panels: panels.clone(), sink: &sink }.exact()?;
        }
        Ok(())
    }

    /// Whether products of rounded tokens have a kernel of their own.
    pub(crate) fn rounds(&self, level: SimdLevel) -> bool {
        level.has_tiles() && (matches!(self.numbers, Numbers::Halves) || self.cols.is_multiple_of(STEP))
    }

    fn panel(&self, panel: usize) -> *const u8 {
        self.data.ptr().wrapping_add(panel * self.panel_bytes).cast_const()
    }
}

/// One product.
struct Job<'a> {
    packed: &'a Packed,
    ctx: &'a Context,
    x: &'a Panel<'a>,
    panels: Range<usize>,
    sink: &'a Sink<'a>,
}

impl Job<'_> {
    /// Calls `work` with runs of panels, of a multiple of `unit`, counted from the first of the job.
    fn spread(&self, unit: usize, work: impl Fn(Range<usize>) + Sync) {
        let count = self.panels.len();
        let worth = self.packed.panel_bytes.max(1) * self.x.tokens.div_ceil(vnni::TOKENS);
        let per_task = count.div_ceil(4 * self.ctx.threads.count()).max(TASK_MIN.div_ceil(worth));
        let per_task = per_task.next_multiple_of(unit);
        self.ctx.threads.each(count.div_ceil(per_task), |task| {
            work(task * per_task..((task + 1) * per_task).min(count));
        });
    }

    fn put(&self, token: usize, panel: usize, sums: &[f32; ROWS]) {
        self.sink.put(token, panel * ROWS, sums);
    }

    fn exact(&self) -> Result<(), EngineError> {
        match &self.packed.numbers {
            Numbers::Halves => self.in_tiles(if self.x.is_bf16 { Halves::One } else { Halves::Two }),
            Numbers::Codes(format) => self.in_bytes(format),
        }
    }

    fn in_bytes(&self, format: &Format) -> Result<(), EngineError> {
        let (cols, tokens) = (self.packed.cols, self.x.tokens);
        let row = |t: usize| self.x.row(t, 0);
        let is_narrow = self.x.is_bf16 || self.ctx.products == Products::Fast;
        let bytes = if is_narrow { 2 } else { 3 };
        // SAFETY: weights are only packed at levels that have the features; rows of a panel have all columns.
        let x = unsafe { Activations::new(self.ctx, [tokens, cols, format.group, bytes], row) }?;
        // Tokens that tiles take; a few that are left are not worth one.
        let rest = tokens % bytes::TOKENS;
        let tiled = if rest > vnni::TOKENS { tokens.next_multiple_of(bytes::TOKENS) } else { tokens - rest };
        let tiled = if self.ctx.level.has_tiles() { tiled } else { 0 };
        if tiled > 0 {
            self.in_byte_tiles(format, &x, tiled);
        }
        self.spread(1, |panels| {
            let mut factors = Factors::new();
            for p in panels {
                let panel = self.packed.panel(self.panels.start + p);
                for t in (tiled..tokens).step_by(vnni::TOKENS) {
                    let count = vnni::TOKENS.min(tokens - t);
                    // SAFETY: the level has the features; the panel lies in the buffer and the tokens are there.
                    let sums =
                        unsafe { Product { format, panel, cols, x: &x, first: t }.run(count, &mut factors) };
                    for (i, sums) in sums.iter().enumerate().take(count) {
                        self.put(t + i, p, sums);
                    }
                }
            }
        });
        Ok(())
    }

    fn in_byte_tiles(&self, format: &Format, x: &Activations<'_>, tokens: usize) {
        let configuration = bytes::configuration(format);
        self.spread(1, |panels| {
            // SAFETY: the level has tiles, which includes the permission.
            let registers = unsafe { Registers::configure(&configuration) };
            let mut block = bytes::Block::new();
            let mut sums = vec![[0.0; ROWS]; tokens];
            for p in panels {
                let panel = self.packed.panel(self.panels.start + p);
                let product = bytes::Product { format, panel, cols: self.packed.cols, x };
                // SAFETY: the level has the features; the panel lies in the buffer and the tokens in tiles.
                unsafe { product.run(&registers, &mut block, &mut sums) };
                for (t, sums) in sums.iter().enumerate().take(self.x.tokens) {
                    self.put(t, p, sums);
                }
            }
        });
    }

    fn in_tiles(&self, halves: Halves) -> Result<(), EngineError> {
        let (cols, tokens) = (self.packed.cols, self.x.tokens);
        let row = |t: usize| self.x.row(t, 0);
        // SAFETY: the level has the features; rows of a panel have all columns.
        let x = unsafe { Tokens::new(self.ctx, [tokens, cols], halves, row) }?;
        let each = tiles::sums_len(x.tiles);
        self.spread(2, |panels| {
            ROOM.with_borrow_mut(|room| {
                // SAFETY: the level has tiles, which includes the permission.
                let registers = unsafe { Registers::configure(&tiles::WHOLE) };
                let (sums, decoded) =
                    room.of(each * panels.len().min(TOGETHER).div_ceil(2), self.decoded_len());
                for first in panels.clone().step_by(TOGETHER) {
                    let together = first..panels.end.min(first + TOGETHER);
                    let sums = &mut sums[..each * together.len().div_ceil(2)];
                    for start in (0..x.depth).step_by(STRETCH) {
                        let stretch = (start, STRETCH.min(x.depth - start));
                        for (pair, sums) in together.clone().step_by(2).zip(sums.chunks_mut(each)) {
                            let pair = [pair, (pair + 1).min(together.end - 1)];
                            let rows = self.rows(pair, stretch, decoded);
                            // SAFETY: the rows hold the stretch, the sums all tiles, and the registers are ours.
                            unsafe { tiles::multiply(&registers, &x, rows, stretch, sums.as_mut_ptr()) };
                        }
                    }
                    self.put_tiles(halves, together, sums);
                }
            })
        });
        Ok(())
    }

    /// The sums of all tokens with some panels, from what the products left for every pair of them. Token by token, so
    /// that what is written together lies together.
    fn put_tiles(&self, halves: Halves, panels: Range<usize>, sums: &[f32]) {
        let each = sums.len() / panels.len().div_ceil(2);
        let Some((to, bias)) = self.sink.in_order() else {
            for t in 0..self.x.tokens {
                for (i, p) in panels.clone().enumerate() {
                    self.put(t, p, &tiles::sums(&sums[i / 2 * each..], halves, i % 2, t));
                }
            }
            return;
        };
        let lines = tiles::Lines { sums, each, halves, panels, n: self.sink.rows(), bias };
        assert!(lines.panels.end.saturating_sub(1) * ROWS < lines.n, "rows beyond the result");
        // SAFETY: the level has the features; the rows of these panels are this task's, in every token's result.
        unsafe { lines.store(self.x.tokens, to) };
    }

    /// Numbers that [`Job::rows`] decodes at a time.
    fn decoded_len(&self) -> usize {
        match self.packed.numbers {
            Numbers::Codes(_) => 2 * STRETCH * ROWS,
            Numbers::Halves => 0,
        }
    }

    /// Where a stretch of two panels lies in tiles.
    fn rows(&self, pair: [usize; 2], (start, len): (usize, usize), decoded: &mut [u16]) -> [*const u16; 2] {
        let panel = |p: usize| self.packed.panel(self.panels.start + p);
        match &self.packed.numbers {
            Numbers::Halves => pair.map(|p| panel(p).wrapping_add(start * ROWS * 2).cast()),
            Numbers::Codes(format) => {
                let base = decoded.as_mut_ptr();
                for (i, p) in pair.into_iter().enumerate() {
                    let from = panel(p).wrapping_add(start / BLOCK * format.block_bytes(BLOCK));
                    // SAFETY: stretches are whole blocks; there is room for two of them.
                    unsafe { codes::decode(format, from, len, base.add(i * STRETCH * ROWS)) };
                }
                [base, base.wrapping_add(STRETCH * ROWS)].map(|p| p.cast_const())
            }
        }
    }
}

/// # Safety
/// The machine must have the features.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
unsafe fn pack_codes(format: &Format, rows: &Rows<'_>, range: Range<usize>, mut to: &mut [u8]) {
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

/// # Safety
/// The machine must have the features.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
unsafe fn pack_halves(rows: &Rows<'_>, range: Range<usize>, to: &mut [u8]) {
    for (r, row) in range.enumerate() {
        let (numbers, _) = rows.parts(row)[0].as_chunks::<2>();
        for (i, number) in numbers.iter().enumerate() {
            let at = (i / 2 * ROWS + r) * 4 + i % 2 * 2;
            to[at..at + 2].copy_from_slice(number);
        }
    }
}
