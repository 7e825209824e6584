//! Packing to a file: into two buffers in turn, of which one is written while the other is filled. What is written begins with
//! a large page and is as long as several of them, in one call: only so does the system have it in large pages.

use std::fs::File;
use std::io::{self, Seek as _, SeekFrom, Write as _};
use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};

use mlxcel_engine::EngineError;
use mlxcel_platform::large_pages;

use super::KeptError;
use super::head::{self, Head};
use super::place::Place;
use super::plan::{ALIGNMENT, Piece, Plan};
use crate::context::Context;
use crate::memory::{Buffer, Mapped};
use crate::weight::{Matrix, Rows};

/// Bytes at most that are packed and written at a time, whole large pages: their source is given back afterwards, so that a
/// large weight is not there twice. Tests have little to pack and want many turns.
pub(super) const WINDOW_MAX: usize = if cfg!(test) { 1 } else { 8 } * large_pages::SIZE;

/// Why nothing was made.
pub(super) enum Failure {
    Engine(EngineError),
    /// Packing to memory may still do.
    Kept(KeptError),
}

/// Packs a plan to an empty file. `None` if the file would be read in small pages, which is found out before most of it is
/// packed.
pub(super) fn fill(
    ctx: &Context,
    plan: &Plan,
    matrices: &[Matrix],
    (place, file): (&Place, &File),
) -> Result<Option<Mapped>, Failure> {
    let io = |source| Failure::Kept(KeptError::Io { path: place.folder(), source });
    let mut filling = Filling::new(ctx, plan, matrices)?;
    let bytes = filling.window;
    for window in 0..=plan.len.div_ceil(bytes) {
        filling.step(window, file).map_err(io)?;
        // The first window is written, and another one is packed.
        if window == 1 && !(place.suits)(&Mapped::of(file, head::BYTES as u64, bytes).map_err(io)?) {
            return Ok(None);
        }
    }
    let head = Head::of(plan, head::hash_of_parts(&filling.hashes)).bytes();
    write(file, 0, &head).map_err(io)?;
    let map = Mapped::of(file, head::BYTES as u64, plan.len).map_err(io)?;
    // Memory may have been too scattered for large pages later on.
    Ok(Some(map).filter(place.suits))
}

fn write(mut file: &File, at: usize, bytes: &[u8]) -> io::Result<()> {
    file.seek(SeekFrom::Start(at as u64))?;
    file.write_all(bytes)
}

struct Filling<'a> {
    ctx: &'a Context,
    plan: &'a Plan,
    matrices: &'a [Matrix],
    rows: Vec<Rows<'a>>,
    /// Bytes that are packed and written at a time.
    window: usize,
    /// What was packed last, and what is packed next.
    buffers: [Buffer; 2],
    /// The first panel that is not packed yet: of which piece, and which one.
    next: (usize, usize),
    /// Where the last one that is ends.
    end: usize,
    /// Of what is written.
    hashes: Vec<u64>,
}

/// A panel on its way to a buffer.
struct Task<'a> {
    piece: usize,
    panel: usize,
    /// Where it ends in the contents, with what pads it.
    end: usize,
    to: Mutex<&'a mut [u8]>,
}

impl<'a> Filling<'a> {
    fn new(ctx: &'a Context, plan: &'a Plan, matrices: &'a [Matrix]) -> Result<Self, Failure> {
        // A panel that begins in a window may end behind it.
        let widest = plan.pieces.iter().map(|piece| piece.form.panel_bytes).max().unwrap_or(0);
        let window = WINDOW_MAX.min(plan.len);
        let buffer = || Buffer::zeroed(window + widest + ALIGNMENT, "packed weights on their way to a file");
        let buffers = [buffer().map_err(Failure::Engine)?, buffer().map_err(Failure::Engine)?];
        let rows = plan.pieces.iter().map(|piece| matrices[piece.matrix].rows()).collect();
        Ok(Filling { ctx, plan, matrices, rows, window, buffers, next: (0, 0), end: 0, hashes: vec![] })
    }

    /// Packs the panels that begin in a window while those of the one before are written.
    fn step(&mut self, number: usize, file: &File) -> io::Result<()> {
        let Filling { ctx, plan, matrices, rows, window, buffers: [before, now], .. } = self;
        let window = *window;
        let (start, first) = (number * window, self.next.0);
        let (before, now) = (before.bytes_mut(), now.bytes_mut());
        let (tasks, next) = tasks(&plan.pieces, self.next, start..start + window, now);
        let written = match number {
            0 => &[][..],
            _ => &before[..window.min(plan.len + window - start)],
        };
        let parts: Vec<(&[u8], Mutex<u64>)> = head::parts(written).map(|p| (p, Mutex::default())).collect();
        let done = Mutex::new(Ok(()));
        ctx.threads.each(1 + parts.len() + tasks.len(), |i| match i.checked_sub(1) {
            None if written.is_empty() => {}
            None => *lock(&done) = write(file, head::BYTES + start - window, written),
            Some(i) if i < parts.len() => *lock(&parts[i].1) = head::hash_of_part(parts[i].0),
            Some(i) => pack(plan, rows, &tasks[i - parts.len()]),
        });
        self.hashes.extend(parts.iter().map(|(_, hash)| *lock(hash)));
        self.end = tasks.last().map_or(self.end, |task| task.end);
        drop(tasks);
        // What is behind the window begins the next one; what is behind the last panel is zero.
        let over = self.end.saturating_sub(start + window);
        before[..over].copy_from_slice(&now[window..window + over]);
        now[self.end.saturating_sub(start).min(window)..window].fill(0);
        let touched = &plan.pieces[first..plan.pieces.len().min(next.0 + 1)];
        touched.iter().for_each(|piece| matrices[piece.matrix].release_rows());
        self.next = next;
        self.buffers.swap(0, 1);
        done.into_inner().unwrap_or_else(PoisonError::into_inner)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn pack(plan: &Plan, rows: &[Rows<'_>], task: &Task<'_>) {
    let mut to = lock(&task.to);
    // Something else was there before, and some of it is only padding.
    to.fill(0);
    let form = &plan.pieces[task.piece].form;
    form.pack(&rows[task.piece], task.panel, &mut to[..form.panel_bytes]);
}

/// The panels from `next` on that begin before the end of a window, each with its place in the window's buffer and what pads it;
/// and the first that does not.
fn tasks<'b>(
    pieces: &[Piece],
    mut next: (usize, usize),
    window: Range<usize>,
    buffer: &'b mut [u8],
) -> (Vec<Task<'b>>, (usize, usize)) {
    let mut tasks = vec![];
    // The bytes of the buffer that no panel has, this window's or the one's before, and where they begin.
    let (mut rest, mut given) = (buffer, window.start);
    while let Some(piece) = pieces.get(next.0) {
        let (panel, form) = (next.1, &piece.form);
        let at = piece.at + panel * form.panel_bytes;
        if at >= window.end {
            break;
        }
        let is_last = panel + 1 == form.panels;
        let end = if is_last { piece.end() } else { at + form.panel_bytes };
        let (_, from) = std::mem::take(&mut rest).split_at_mut(at - given);
        let (to, after) = from.split_at_mut(end - at);
        (rest, given) = (after, end);
        tasks.push(Task { piece: next.0, panel, end, to: Mutex::new(to) });
        next = if is_last { (next.0 + 1, 0) } else { (next.0, panel + 1) };
    }
    (tasks, next)
}
