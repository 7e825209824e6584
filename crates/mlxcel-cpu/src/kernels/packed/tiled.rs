//! Products in AMX tiles, panel by panel and over the threads: how weights get into tiles and sums out of them.
#![allow(unsafe_code)]

use std::cell::RefCell;
use std::ops::Range;

use mlxcel_engine::EngineError;

use super::activations::Activations;
use super::format::{BLOCK, Format, ROWS};
pub(super) use super::tiles::{Halves, STEP};
use super::tiles::{Registers, STRETCH, Tokens};
use super::{Job, Numbers, bytes, decode, tiles};
use crate::memory::Buffer;

/// Panels that tiles go through side by side, while a stretch of all tokens stays in the second-level cache.
const TOGETHER: usize = 32;
/// Tiles of tokens that do, at most: their sums are kept there too.
const TILES: usize = 32;
/// Tasks for each thread. Many tokens are read from far away by every one of them, so there are few.
const TASKS: usize = 4;
const TASKS_OF_MANY: usize = 2;
/// Bytes of a thread's sums at least: as many as are worth a large page.
const ROOM_MIN: usize = 4 << 20;

thread_local! {
    static ROOM: RefCell<Room> = RefCell::default();
}

/// What a thread needs beside the registers of its tiles, kept from one product to the next.
#[derive(Default)]
struct Room {
    sums: Option<Buffer>,
    decoded: Vec<u16>,
}

impl Room {
    /// Numbers of whatever was there before.
    fn of(&mut self, sums: usize, decoded: usize) -> Result<(&mut [f32], &mut [u16]), EngineError> {
        let bytes = sums * size_of::<f32>();
        let kept = match self.sums.take().filter(|kept| kept.len() >= bytes) {
            Some(kept) => self.sums.insert(kept),
            None => self.sums.insert(Buffer::zeroed(bytes.max(ROOM_MIN), "sums of tiles")?),
        };
        self.decoded.resize(self.decoded.len().max(decoded), 0);
        // SAFETY: the buffer is aligned, has that many numbers, and is borrowed as long as they are.
        let sums = unsafe { std::slice::from_raw_parts_mut(kept.ptr().cast(), sums) };
        Ok((sums, &mut self.decoded[..decoded]))
    }
}

impl Job<'_> {
    pub(super) fn in_byte_tiles(
        &self,
        format: &Format,
        x: &Activations<'_>,
        tokens: usize,
    ) -> Result<(), EngineError> {
        let configuration = bytes::configuration(format);
        self.spread((1, self.per_task()), |panels| {
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
            Ok(())
        })
    }

    pub(super) fn in_tiles(&self, halves: Halves) -> Result<(), EngineError> {
        let (cols, tokens) = (self.packed.cols, self.x.tokens);
        let row = |t: usize| self.x.row(t, 0);
        // SAFETY: the level has the features; rows of a panel have all columns.
        let x = unsafe { Tokens::new(self.ctx, [tokens, cols], halves, row) }?;
        let tasks = if x.tiles < TILES { TASKS } else { TASKS_OF_MANY };
        let per_task = self.panels.len().div_ceil(tasks * self.ctx.threads.count());
        self.spread((2, per_task.min(TOGETHER)), |panels| {
            ROOM.with_borrow_mut(|room| {
                // SAFETY: the level has tiles, which includes the permission.
                let registers = unsafe { Registers::configure(&tiles::WHOLE) };
                let each = tiles::sums_len(x.tiles.min(TILES));
                let (sums, decoded) = room.of(each * panels.len().div_ceil(2), self.decoded_len())?;
                for first in (0..x.tiles).step_by(TILES) {
                    let some = first..x.tiles.min(first + TILES);
                    let each = tiles::sums_len(some.len());
                    let sums = &mut sums[..each * panels.len().div_ceil(2)];
                    for start in (0..x.depth).step_by(STRETCH) {
                        let stretch = (start, STRETCH.min(x.depth - start));
                        for (pair, sums) in panels.clone().step_by(2).zip(sums.chunks_mut(each)) {
                            let pair = [pair, (pair + 1).min(panels.end - 1)];
                            let rows = self.rows(pair, stretch, decoded);
                            // SAFETY: the rows hold the stretch, the sums all tiles, and the registers are ours.
                            unsafe {
                                let tokens = (&x, some.clone());
                                tiles::multiply(&registers, tokens, rows, stretch, sums.as_mut_ptr());
                            }
                        }
                    }
                    let per_tile = if halves == Halves::One { tiles::TOKENS } else { tiles::TOKENS / 2 };
                    let range = some.start * per_tile..(some.end * per_tile).min(tokens);
                    self.put_tiles(halves, panels.clone(), range, sums);
                }
                Ok(())
            })
        })
    }

    /// The sums of some tokens with some panels, from what the products left for every pair of them. Token by token, so
    /// that what is written together lies together.
    fn put_tiles(&self, halves: Halves, panels: Range<usize>, tokens: Range<usize>, sums: &[f32]) {
        let each = sums.len() / panels.len().div_ceil(2);
        let sink = self.sink.from(tokens.start);
        let Some((to, bias)) = sink.in_order() else {
            for t in 0..tokens.len() {
                for (i, p) in panels.clone().enumerate() {
                    sink.put(t, p * ROWS, &tiles::sums(&sums[i / 2 * each..], halves, i % 2, t));
                }
            }
            return;
        };
        let lines = tiles::Lines { sums, each, halves, panels, n: self.sink.rows(), bias };
        assert!(lines.panels.end.saturating_sub(1) * ROWS < lines.n, "rows beyond the result");
        // SAFETY: the level has the features; the rows of these panels are this task's, in every token's result.
        unsafe { lines.store(tokens.len(), to) };
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
                    unsafe { decode::decode(format, from, len, base.add(i * STRETCH * ROWS)) };
                }
                [base, base.wrapping_add(STRETCH * ROWS)].map(|p| p.cast_const())
            }
        }
    }
}
