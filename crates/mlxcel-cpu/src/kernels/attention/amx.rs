//! Attention of prompts with AMX tiles: the lines of a block over the keys of one stretch, rounded to `bf16` as the products
//! of prompts are.
//!
//! Algorithm: 32 lines at a time are multiplied with all keys of the stretch, the softmax runs once over their scores, and
//! their weights are multiplied with the values, every product two tiles by two. Keys and values are laid into tiles once
//! for all lines of a KV head.
//!
//! Layout: keys are panels of sixteen, values panels of sixteen columns; either is `[steps of 32][16 pairs][16][2]`, along
//! the width of keys, along the keys of values. Lines are `[steps of 32][2][16][32]`.
//!
//! Batch and chunk invariance: a sum is one tile element that products are added to in order; keys that a line does not see
//! weigh nothing, which changes no sum of finite values. Values that are not finite are left out of the tiles and added to the
//! lines that see them.
//!
//! Codes of eight bits are `bf16` as they are; the steps of the keys are multiplied to scores, and those of the values to weights.
#![allow(unsafe_code)]

use std::arch::x86_64::*;

use mlxcel_ir::DType;

use super::coded;
use super::core::{Attend, KEYS, Memory, STRETCH};
use super::soft::Running;
use super::turn::square;
use crate::kernels::packed::tiles::{Registers, STEP, TOKENS, WHOLE, multiply_near};
use crate::math;
use crate::memory::Aligned;

/// Lines of a pair of tiles, and keys or columns of a pair of panels.
const PAIR: usize = 2 * TOKENS;
/// Keys or columns of a panel.
const PANEL: usize = TOKENS;
/// Elements of a tile.
const TILE: usize = TOKENS * STEP;
/// Numbers from one line's scores to the next one's: a stretch and a cache line, so that lines do not share the same few places
/// of the first-level cache.
const SCORES: usize = STRETCH + TOKENS;

/// What a thread needs; kept between tasks.
#[derive(Debug, Default)]
pub(super) struct Tiles {
    keys: Aligned<u16>,
    values: Aligned<u16>,
    queries: Aligned<u16>,
    /// `[PAIR][SCORES]`.
    scores: Aligned<f32>,
    weights: Aligned<u16>,
    /// `[PAIR][PAIR]`, where results cannot be written to their lines.
    sums: Aligned<f32>,
    unbounded: Vec<Unbounded>,
    /// The steps of the keys and of the values of the stretch, where they are codes.
    steps: [Vec<f32>; 2],
}

/// A value that is not finite: its key, counted from the beginning of the stretch, and its column.
#[derive(Clone, Copy, Debug)]
struct Unbounded {
    key: usize,
    column: usize,
    value: f32,
}

/// Whether keys and values can be laid into tiles. A cache of `f32` is there to be exact.
pub(super) fn fits(keys: &Memory<'_>, values: &Memory<'_>) -> bool {
    let is_narrow = |m: &Memory<'_>| matches!(m.dtype, DType::F16 | DType::BF16 | DType::I8) && m.direct();
    is_narrow(keys) && is_narrow(values) && keys.width.is_multiple_of(STEP)
}

/// The keys of a stretch, counted from its beginning: how many of them are in tiles.
#[derive(Clone, Copy)]
struct Span {
    base: usize,
    count: usize,
}

impl Attend<'_> {
    /// All lines over the keys of the stretch.
    ///
    /// # Safety
    /// The machine must have AMX, and keys and values fit.
    #[inline(always)]
    pub(super) unsafe fn by_tiles(&mut self) {
        debug_assert!(!self.scores.masked, "tiles know no masks");
        let w = self.widths;
        let base = self.keys.0 / STRETCH * STRETCH;
        let span = Span { base, count: (self.keys.1 - base).next_multiple_of(PAIR) };
        let mut tiles = std::mem::take(&mut self.scratch.tiles);
        tiles.keys.resize(STRETCH * w.key);
        tiles.values.resize(STRETCH * w.value);
        tiles.queries.resize(PAIR * w.key);
        tiles.scores.resize(PAIR * SCORES);
        tiles.weights.resize(PAIR * STRETCH);
        tiles.sums.resize(PAIR * PAIR);
        // SAFETY: as the caller promises.
        let registers = unsafe { Registers::configure(&WHOLE) };
        let lines = self.part.running.len() / self.heads.len();
        for head in self.heads.clone() {
            // SAFETY: as the caller promises; the tiles have room for the stretch.
            unsafe { self.lay(head, span, &mut tiles) };
            let first = (head - self.heads.start) * lines;
            for line in (first..first + lines).step_by(PAIR) {
                let some = (line, PAIR.min(first + lines - line));
                // SAFETY: the registers are configured, the lines exist, and the tiles hold the stretch.
                unsafe { self.pair(&registers, some, span, &mut tiles) };
            }
        }
        self.scratch.tiles = tiles;
    }

    /// Lays the keys and values of a head into tiles, with zeros for those that are not there.
    ///
    /// # Safety
    /// As for [`Attend::by_tiles`].
    unsafe fn lay(&self, head: usize, span: Span, tiles: &mut Tiles) {
        let (keys, values) = (self.context.keys(), self.values());
        let stored = [keys, self.context.values().unwrap_or(keys)];
        tiles.unbounded.clear();
        for (steps, memory) in tiles.steps.iter_mut().zip(&stored) {
            steps.clear();
            steps.resize(if memory.dtype == DType::I8 { STRETCH } else { 0 }, 0.0);
        }
        for from in (0..span.count).step_by(KEYS) {
            let (start, lanes) = (span.base + from, KEYS.min(span.count - from));
            let mut rows = [[std::ptr::null(); KEYS]; 2];
            if self.keys.0 < start + KEYS && start < self.keys.1 {
                let place = self.place(start, self.keys);
                for lane in place.present.0..place.present.1 {
                    rows[0][lane] = place.keys[lane].wrapping_add(head * keys.head_bytes());
                    rows[1][lane] = place.values[lane].wrapping_add(head * values.head_bytes());
                }
                for ((steps, memory), rows) in tiles.steps.iter_mut().zip(&stored).zip(&rows) {
                    let Some(steps) = steps.get_mut(from..from + KEYS) else { continue };
                    let (lo, hi) = place.present;
                    // SAFETY: the rows are whole, which end with their steps.
                    unsafe { coded::steps(&rows[lo..hi], memory.width, &mut steps[lo..hi]) };
                }
            }
            for lane in (0..lanes).step_by(PANEL) {
                let to = &mut tiles.keys[(from + lane) * keys.width..][..PANEL * keys.width];
                // SAFETY: sixteen rows are whole or nowhere, and the panel has their width.
                unsafe { lay_keys(&keys, &rows[0][lane..lane + PANEL], to) };
            }
            for lane in (0..lanes).step_by(STEP) {
                let place = (from + lane, span.count * PANEL);
                // SAFETY: 32 rows are whole or nowhere, and every panel has the step.
                unsafe { lay_values(&values, &rows[1][lane..lane + STEP], place, tiles) };
            }
        }
    }

    /// Up to 32 lines over the whole stretch.
    ///
    /// # Safety
    /// The registers must be configured, the lines exist, and the tiles hold the stretch of their head.
    #[inline(always)]
    unsafe fn pair(
        &mut self,
        registers: &Registers,
        (line, lines): (usize, usize),
        span: Span,
        tiles: &mut Tiles,
    ) {
        let w = self.widths;
        let mut seen = [(0, 0); PAIR];
        let (mut first, mut end) = (span.count, 0);
        for (l, seen) in seen[..lines].iter_mut().enumerate() {
            let (lo, hi) = self.ranges[(line + l) / w.group % self.ranges.len()];
            let (lo, hi) = (lo.max(self.keys.0), hi.min(self.keys.1));
            *seen = if lo < hi { (lo - span.base, hi - span.base) } else { (0, 0) };
            if lo < hi {
                (first, end) = (first.min(seen.0 / PAIR * PAIR), end.max(seen.1.next_multiple_of(PAIR)));
            }
        }
        if first >= end {
            return;
        }
        for l in 0..PAIR {
            let q = if l < lines { self.q[(line + l) * w.key..].as_ptr() } else { std::ptr::null() };
            // SAFETY: a line has as many numbers as a key, or is nowhere; its tiles are there.
            unsafe { lay_line(q, w.key, tiles.queries.as_mut_ptr().add(slot(l))) };
        }
        for key in (first..end).step_by(PAIR) {
            let panels = [key, key + PANEL].map(|key| tiles.keys[key * w.key..].as_ptr());
            let operands = (tiles.queries.as_ptr(), panels, w.key / STEP);
            // SAFETY: as the caller promises; a panel of keys is as deep as a line, and scores have all lines and keys.
            unsafe { multiply_near(registers, operands, (tiles.scores[key..].as_mut_ptr(), SCORES)) };
        }
        // Maxima come first, so that no line waits for its own.
        let mut tops = [f32::NEG_INFINITY; PAIR];
        for (l, top) in tops[..lines].iter_mut().enumerate() {
            *top = self.top(l, (first, end), seen[l], tiles);
        }
        for l in 0..PAIR {
            if let Some(running) = weigh((l, tops[l]), (first, end), seen[l], tiles) {
                self.part.running[line + l] = running;
            }
        }
        let width = w.value_padded();
        for panel in (0..w.value / PANEL).step_by(2) {
            let next = (panel + 1).min(w.value / PANEL - 1);
            let panels =
                [panel, next].map(|p| tiles.values[p * span.count * PANEL + first * PANEL..].as_ptr());
            let operands = (tiles.weights.as_ptr(), panels, (end - first) / STEP);
            let out = &mut self.part.out[line * width..][..lines * width];
            if lines == PAIR && next > panel {
                // SAFETY: as the caller promises; a panel of values is as deep as the stretch has keys, and the result has
                // all lines and columns.
                unsafe { multiply_near(registers, operands, (out[panel * PANEL..].as_mut_ptr(), width)) };
                continue;
            }
            // SAFETY: as above.
            unsafe { multiply_near(registers, operands, (tiles.sums.as_mut_ptr(), PAIR)) };
            let columns = (next + 1 - panel) * PANEL;
            for (to, sums) in out.chunks_mut(width).zip(tiles.sums.chunks(PAIR)) {
                to[panel * PANEL..][..columns].copy_from_slice(&sums[..columns]);
            }
        }
        for &Unbounded { key, column, value } in &tiles.unbounded {
            for l in (0..lines).filter(|&l| (seen[l].0..seen[l].1).contains(&key)) {
                let weight = tiles.scores[l * SCORES + key];
                self.part.out[(line + l) * width + column] += weight * value;
            }
        }
    }

    /// The highest of the scores that a line, one of a pair, sees from key `first` to `end` of the stretch. Where keys are codes or
    /// there is a cap, scores are finished first.
    #[inline(always)]
    fn top(&self, line: usize, (first, end): (usize, usize), seen: (usize, usize), tiles: &mut Tiles) -> f32 {
        let scores = &mut tiles.scores[line * SCORES..][..STRETCH];
        if let [of_keys, _] = &tiles.steps
            && !of_keys.is_empty()
        {
            coded::scale(&mut scores[first..end], &of_keys[first..end]);
        }
        if let Some(cap) = self.scores.softcap {
            for s in &mut scores[seen.0..seen.1] {
                *s = math::tanh(*s / cap) * cap;
            }
        }
        // SAFETY: lines are only multiplied in tiles where the machine has them.
        unsafe { highest(scores, seen) }
    }
}

/// Turns the scores of a line, one of a pair, into weights in tiles, from key `first` to `end` of the stretch: their softmax, if it sees
/// any. What it does not see weighs nothing; where values are codes, weights are multiplied by their steps.
#[inline(always)]
fn weigh(
    (line, top): (usize, f32),
    (first, end): (usize, usize),
    seen: (usize, usize),
    tiles: &mut Tiles,
) -> Option<Running> {
    let scores = &mut tiles.scores[line * SCORES..][..STRETCH];
    // SAFETY: lines are only multiplied in tiles where the machine has them; the scores are those of the stretch, and the weights of a
    // line have as many tiles as the stretch has keys.
    unsafe {
        let to = tiles.weights.as_mut_ptr().add(slot(line));
        if seen.0 >= seen.1 {
            lay_line(std::ptr::null(), end - first, to);
            return None;
        }
        let running = soften((scores, top), (first, end), seen, to);
        let [_, of_values] = &tiles.steps;
        if !of_values.is_empty() {
            coded::scale(&mut scores[first..end], &of_values[first..end]);
            lay_line(scores[first..end].as_ptr(), end - first, to);
        }
        Some(running)
    }
}

/// The highest score that a line sees, from `lo` to `hi` of the stretch, unless it is no number.
///
/// # Safety
/// The machine must have the features.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
unsafe fn highest(scores: &[f32], (lo, hi): (usize, usize)) -> f32 {
    let hidden = _mm512_set1_ps(f32::NEG_INFINITY);
    let mut most = [hidden; 2];
    let (steps, _) = scores.as_chunks::<STEP>();
    for step in lo / STEP..hi.div_ceil(STEP) {
        let (masks, x) = (masks(step * STEP, (lo, hi)), steps[step].as_ptr());
        for i in 0..2 {
            // SAFETY: a step has two vectors. Of a score that is no number the maximum stays what it was.
            most[i] =
                unsafe { _mm512_max_ps(_mm512_mask_loadu_ps(hidden, masks[i], x.add(16 * i)), most[i]) };
        }
    }
    _mm512_reduce_max_ps(_mm512_max_ps(most[0], most[1]))
}

/// The softmax of a line's scores from `first` to `end` of its stretch, of which it sees `lo` to `hi`: they become weights, in place
/// and as the line of a tile.
///
/// # Safety
/// The machine must have the features; the scores must be there, from one step of tiles to another, and the tiles writable.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")]
unsafe fn soften(
    (scores, top): (&mut [f32], f32),
    (first, end): (usize, usize),
    (lo, hi): (usize, usize),
    to: *mut u16,
) -> Running {
    let (steps, _) = scores.as_chunks_mut::<STEP>();
    // Scores that are all as low as can be weigh nothing; one that is no number makes all of the line none.
    let scaled = _mm512_set1_ps(if top == f32::NEG_INFINITY { 0.0 } else { -top * std::f32::consts::LOG2_E });
    let mut sums = [_mm512_setzero_ps(); 2];
    for step in first / STEP..end / STEP {
        let (masks, x) = (masks(step * STEP, (lo, hi)), steps[step].as_mut_ptr());
        let mut weights = [_mm512_setzero_ps(); 2];
        // SAFETY: a step has two vectors, and the line a place in every step's tile.
        unsafe {
            for i in 0..2 {
                weights[i] = power(masks[i], _mm512_loadu_ps(x.add(16 * i)), scaled);
                sums[i] = _mm512_add_ps(sums[i], weights[i]);
                _mm512_storeu_ps(x.add(16 * i), weights[i]);
            }
            let to: *mut u8 = to.add((step - first / STEP) * 2 * TILE).cast();
            _mm512_storeu_si512(to.cast(), narrowed(weights[0], weights[1]));
        }
    }
    let mut running = Running { top, sums: [0.0; 16] };
    // SAFETY: the sums are a whole vector.
    unsafe { _mm512_storeu_ps(running.sums.as_mut_ptr(), _mm512_add_ps(sums[0], sums[1])) };
    running
}

/// Which of the 32 keys from `at` on are among those that are seen.
#[inline]
fn masks(at: usize, (lo, hi): (usize, usize)) -> [__mmask16; 2] {
    let below = |end: usize| (1u64 << end.saturating_sub(at).min(STEP)) - 1;
    let seen = below(hi) & !below(lo);
    [seen as u16, (seen >> 16) as u16]
}

/// `e^x` of scores, relative to the one whose negative in powers of two is `scaled`; nothing where the mask has none, nor where it would
/// be too small for an exponent of its own: numbers below that are slow to compute with. Errors are a few units in the last place of
/// the exponent's, far below what rounding to `bf16` leaves.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
fn power(mask: __mmask16, x: __m512, scaled: __m512) -> __m512 {
    // `(2^x - 1) / x` from 0 to 1, at the nodes of Chebyshev's polynomials.
    const FACTORS: [f32; 5] = [0.001_788_368_8, 0.009_199_387, 0.055_657_055, 0.240_207_2, 0.693_147_54];
    const FLOOR: i32 = 0x01;
    let x = _mm512_fmadd_ps(x, _mm512_set1_ps(std::f32::consts::LOG2_E), scaled);
    let rest = _mm512_reduce_ps::<FLOOR>(x);
    let mut p = _mm512_set1_ps(FACTORS[0]);
    for factor in &FACTORS[1..] {
        p = _mm512_fmadd_ps(p, rest, _mm512_set1_ps(*factor));
    }
    p = _mm512_fmadd_ps(p, rest, _mm512_set1_ps(1.0));
    // What is no number is not small.
    let mask = _mm512_mask_cmp_ps_mask::<_CMP_NLT_UQ>(mask, x, _mm512_set1_ps(-126.0));
    _mm512_maskz_scalef_ps(mask, p, x)
}

/// Where a line of a pair of tiles begins; its next step is two tiles further on.
fn slot(line: usize) -> usize {
    line / TOKENS * TILE + line % TOKENS * STEP
}

/// One line at all its steps, or zeros if it is nowhere.
///
/// # Safety
/// The line must have its numbers, a multiple of 32; every step must be writable, two tiles further on each time.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")]
unsafe fn lay_line(line: *const f32, count: usize, to: *mut u16) {
    for at in (0..count).step_by(STEP) {
        // SAFETY: as the caller promises.
        unsafe {
            let bits = if line.is_null() {
                _mm512_setzero_si512()
            } else {
                narrowed(_mm512_loadu_ps(line.add(at)), _mm512_loadu_ps(line.add(at + 16)))
            };
            _mm512_storeu_si512(to.add(at / STEP * 2 * TILE).cast(), bits);
        }
    }
}

/// Sixteen keys as a panel.
///
/// # Safety
/// Rows must be whole or null, and the panel have their width.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")]
unsafe fn lay_keys(keys: &Memory<'_>, rows: &[*const u8], to: &mut [u16]) {
    for at in (0..keys.width).step_by(STEP) {
        let mut v = [_mm512_setzero_ps(); PANEL];
        for (v, row) in v.iter_mut().zip(rows).filter(|(_, row)| !row.is_null()) {
            // SAFETY: the row has 32 numbers from there on.
            *v = _mm512_castsi512_ps(unsafe {
                narrowed(widened(keys.dtype, *row, at), widened(keys.dtype, *row, at + 16))
            });
        }
        for (pair, v) in square(v).into_iter().enumerate() {
            let to = &mut to[at * PANEL + pair * 2 * PANEL..][..2 * PANEL];
            // SAFETY: a line of a tile is a whole vector.
            unsafe { _mm512_storeu_ps(to.as_mut_ptr().cast(), v) };
        }
    }
}

/// A step of 32 values, the first of them at `place.0` keys of the stretch, in all panels, which lie `place.1` apart; those that
/// are not finite are put down instead.
///
/// # Safety
/// Rows must be whole or null.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")]
unsafe fn lay_values(
    values: &Memory<'_>,
    rows: &[*const u8],
    (first, apart): (usize, usize),
    tiles: &mut Tiles,
) {
    for (pair, rows) in rows.as_chunks::<2>().0.iter().enumerate() {
        for panel in 0..values.width / PANEL {
            let mut both = [_mm512_setzero_ps(); 2];
            for (i, row) in rows.iter().enumerate().filter(|(_, row)| !row.is_null()) {
                let at = (first + 2 * pair + i, panel * PANEL);
                // SAFETY: the row has the columns of the panel.
                both[i] = bounded(unsafe { widened(values.dtype, *row, at.1) }, at, &mut tiles.unbounded);
            }
            let bits = narrowed(both[0], both[1]);
            let near = _mm512_cvtepu16_epi32(_mm512_castsi512_si256(bits));
            let far = _mm512_cvtepu16_epi32(_mm512_extracti64x4_epi64::<1>(bits));
            let mixed = _mm512_or_si512(near, _mm512_slli_epi32::<16>(far));
            let to = &mut tiles.values[panel * apart + first * PANEL + pair * 2 * PANEL..][..2 * PANEL];
            // SAFETY: a line of a tile is a whole vector.
            unsafe { _mm512_storeu_si512(to.as_mut_ptr().cast(), mixed) };
        }
    }
}

/// Values of a key from a column on with zeros for those that are not finite, which are put down.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")]
fn bounded(v: __m512, (key, column): (usize, usize), unbounded: &mut Vec<Unbounded>) -> __m512 {
    // Not a number, or infinite.
    const UNBOUNDED: i32 = 0x99;
    let mask = _mm512_fpclass_ps_mask::<UNBOUNDED>(v);
    if mask == 0 {
        return v;
    }
    let mut numbers = [0.0; PANEL];
    // SAFETY: they are a whole vector.
    unsafe { _mm512_storeu_ps(numbers.as_mut_ptr(), v) };
    for (i, value) in numbers.into_iter().enumerate().filter(|(i, _)| mask >> i & 1 == 1) {
        unbounded.push(Unbounded { key, column: column + i, value });
    }
    _mm512_maskz_mov_ps(!mask, v)
}

/// Sixteen numbers of a row of 16-bit floats or of codes.
///
/// # Safety
/// The row must have them.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")]
unsafe fn widened(dtype: DType, row: *const u8, at: usize) -> __m512 {
    // SAFETY: as the caller promises.
    unsafe {
        match dtype {
            DType::I8 => _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(row.add(at).cast()))),
            DType::F16 => _mm512_cvtph_ps(_mm256_loadu_si256(row.add(at * 2).cast())),
            _ => {
                let bits = _mm512_cvtepu16_epi32(_mm256_loadu_si256(row.add(at * 2).cast()));
                _mm512_castsi512_ps(_mm512_slli_epi32::<16>(bits))
            }
        }
    }
}

/// The nearest `bf16` of 32 numbers.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")]
fn narrowed(low: __m512, high: __m512) -> __m512i {
    // SAFETY: both are 64 bytes.
    unsafe { std::mem::transmute::<__m512bh, __m512i>(_mm512_cvtne2ps_pbh(high, low)) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simd::SimdLevel;

    #[test]
    fn weights_in_tiles_are_exponentials_of_what_a_line_sees() {
        if !SimdLevel::Amx.is_available() {
            return;
        }
        let of = |i: usize| (i * 7919 % 4001) as f32 * 0.03 - 110.0;
        for (lo, hi) in [(0, STRETCH), (3, 200), (64, 65), (31, 33)] {
            let mut scores: Vec<f32> = (0..STRETCH).map(of).collect();
            let mut tiles = vec![0xffff; STRETCH / STEP * 2 * TILE];
            // SAFETY: the machine has tiles; there are a stretch of scores, and tiles for it.
            let running = unsafe {
                let top = highest(&scores, (lo, hi));
                soften((&mut scores, top), (0, STRETCH), (lo, hi), tiles.as_mut_ptr())
            };
            let top = (lo..hi).map(of).fold(f32::MIN, f32::max);
            assert_eq!(running.top, top);
            let mut sum = 0.0;
            for i in 0..STRETCH {
                let is_seen = (lo..hi).contains(&i);
                let expected = if is_seen { f64::from(of(i) - top).exp() } else { 0.0 };
                sum += expected;
                let found = f64::from(scores[i]);
                assert!((found - expected).abs() <= 2e-5 * expected + 1e-37, "{i}: {found} for {expected}");
                let rounded = f32::from_bits(u32::from(tiles[i / STEP * 2 * TILE + i % STEP]) << 16);
                assert!((f64::from(rounded) - found).abs() <= found / 256.0, "{i}: {rounded} for {found}");
            }
            assert!((f64::from(running.sum()) - sum).abs() < 1e-5 * sum, "{:?} for {sum}", running.sums);
        }
    }
}
