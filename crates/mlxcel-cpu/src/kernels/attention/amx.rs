//! Attention of prompts with AMX tiles: the lines of a block over the keys of one stretch after the other, rounded to `bf16` as the
//! products of prompts are.
//!
//! Algorithm: everything is turned, so that sixteen lines lie beside each other in a vector. Scores are keys times lines; the softmax
//! takes its maxima and sums over rows of them, with no sums across a vector; neighbouring rows of weights are a row of a
//! tile as it is; results are columns of values times weights, and turned once all keys are seen. Keys and values are laid into
//! tiles once for all lines of a KV head, lines once for all stretches. Scores and weights of sixteen lines stay in the first-level
//! cache, and keys and values pass it by.
//!
//! Layout: keys are four tiles at a time, `[steps of 32 along the width][4][16 keys][32]`; values too,
//! `[steps of 32 keys][4][16 columns][32]`; lines and weights are panels of sixteen lines, `[steps of 32][16 pairs][16 lines][2]`.
//! Scores and results are `[keys or columns][16 lines]`.
//!
//! Batch and chunk invariance: a sum is one tile element that products are added to in order, or one lane that weights are; keys that a
//! line does not see weigh nothing, which changes no sum of finite values. Values that are not finite are left out of the tiles and
//! added to the lines that see them. Stretches are joined in order, here as elsewhere.
//!
//! Codes of eight bits are `bf16` as they are; the steps of the keys are multiplied to scores, and those of the values to weights.
#![allow(unsafe_code)]

use std::arch::x86_64::*;

use mlxcel_ir::DType;

use super::coded;
use super::core::{Attend, KEYS, Memory, STRETCH, Widths};
use super::lay::{FOUR, PANEL, Unbounded, lay_keys, lay_lines, lay_values, paired, turn_back};
use super::soft::{Running, join_factors};
use crate::kernels::packed::tiles::{Registers, STEP, WHOLE, multiply_near};
use crate::lanes::Lane;
use crate::math;
use crate::memory::Aligned;
use crate::simd::Simd;

/// What a thread needs; kept between tasks.
#[derive(Debug, Default)]
pub(super) struct Tiles {
    keys: Aligned<u16>,
    values: Aligned<u16>,
    queries: Aligned<u16>,
    /// `[STRETCH][PANEL]`.
    scores: Aligned<f32>,
    weights: Aligned<u16>,
    /// Results of a stretch that are to be joined to those before it, `[columns][PANEL]`.
    sums: Aligned<f32>,
    /// Results so far of every panel.
    totals: Aligned<f32>,
    softmaxes: Vec<Softmax>,
    /// A panel of lines, one after the other.
    lines: Aligned<f32>,
    unbounded: Vec<Unbounded>,
    /// The steps of the keys and of the values of the stretch, where they are codes.
    steps: [Vec<f32>; 2],
}

/// The softmax of a panel's lines so far.
#[derive(Clone, Copy, Debug)]
struct Softmax {
    tops: [f32; PANEL],
    sums: [f32; PANEL],
    /// Whether there are no results yet.
    is_fresh: bool,
}

impl Softmax {
    const EMPTY: Self = Softmax { tops: [f32::NEG_INFINITY; PANEL], sums: [0.0; PANEL], is_fresh: true };
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

/// What a panel of lines sees of a stretch, counted from its beginning.
struct Seen {
    /// From which key on, and to which.
    lo: [i32; PANEL],
    hi: [i32; PANEL],
    /// The steps of keys of which any line sees some.
    keys: (usize, usize),
    /// The keys that all lines see.
    free: (usize, usize),
}

impl Seen {
    /// Whether all lines see all of a step of keys.
    fn is_free(&self, step: usize) -> bool {
        self.free.0 <= step && step + STEP <= self.free.1
    }
}

/// Columns of values in tiles.
fn columns(w: &Widths) -> usize {
    w.value.next_multiple_of(FOUR)
}

impl Attend<'_> {
    /// All lines over all of the keys.
    ///
    /// # Safety
    /// The machine must have AMX, and keys and values fit.
    #[inline(always)]
    pub(super) unsafe fn by_tiles<S: Simd>(&mut self) {
        debug_assert!(!self.scores.masked, "tiles know no masks");
        let w = self.widths;
        let panels = self.count().div_ceil(PANEL);
        let mut tiles = std::mem::take(&mut self.scratch.tiles);
        tiles.keys.resize(STRETCH * w.key);
        tiles.values.resize(STRETCH * columns(&w));
        tiles.queries.resize(panels * PANEL * w.key);
        tiles.scores.resize(STRETCH * PANEL);
        tiles.weights.resize(STRETCH * PANEL);
        tiles.sums.resize(columns(&w) * PANEL);
        tiles.totals.resize(panels * columns(&w) * PANEL);
        tiles.lines.resize(PANEL * w.key.max(w.value));
        // SAFETY: as the caller promises.
        let registers = unsafe { Registers::configure(&WHOLE) };
        for head in self.heads.clone() {
            self.begin(head, panels, &mut tiles);
            for stretch in self.keys.0 / STRETCH..self.keys.1.div_ceil(STRETCH) {
                let base = stretch * STRETCH;
                let end = self.keys.1.min(base + STRETCH);
                let span = Span { base, count: (end - base).next_multiple_of(KEYS) };
                // SAFETY: as the caller promises; the tiles have room for the stretch.
                unsafe { self.lay(head, span, &mut tiles) };
                for panel in 0..panels {
                    // SAFETY: the registers are configured, and the tiles hold the stretch and the lines.
                    unsafe { self.panel::<S>(&registers, panel, span, &mut tiles) };
                }
            }
            self.put(head, panels, &mut tiles);
        }
        self.scratch.tiles = tiles;
    }

    /// Lines of a KV head.
    fn count(&self) -> usize {
        self.block.count * self.widths.group
    }

    /// Lays the lines of a head into tiles, scaled as their scores are to be; results are those before any key.
    #[inline(always)]
    fn begin(&self, head: usize, panels: usize, tiles: &mut Tiles) {
        let w = self.widths;
        tiles.softmaxes.clear();
        tiles.softmaxes.resize(panels, Softmax::EMPTY);
        for panel in 0..panels {
            let (first, count) = (panel * PANEL, PANEL.min(self.count() - panel * PANEL));
            tiles.lines[count * w.key..].fill(0.0);
            let mut slot = 0;
            while slot < count {
                // Heads of a query are lines one after the other.
                let (query, at) = ((first + slot) / w.group, (first + slot) % w.group);
                let end = count.min(slot + w.group - at);
                let to = &mut tiles.lines[slot * w.key..end * w.key];
                self.context.query(self.block, query, head * w.group + at, to);
                slot = end;
            }
            if let Some(sinks) = self.rows.and(self.sinks) {
                let softmax = &mut tiles.softmaxes[panel];
                softmax.is_fresh = false;
                for slot in 0..count {
                    let query_head = head * w.group + (first + slot) % w.group;
                    (softmax.tops[slot], softmax.sums[slot]) = (sinks[query_head], 1.0);
                }
            }
            let to = &mut tiles.queries[panel * PANEL * w.key..][..PANEL * w.key];
            // SAFETY: a panel has sixteen lines, as long as a key.
            unsafe { lay_lines(&tiles.lines, (w.key, self.scores.scale), to) };
        }
        if tiles.softmaxes.iter().any(|softmax| !softmax.is_fresh) {
            tiles.totals.fill(0.0);
        }
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
            let start = span.base + from;
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
            let to = &mut tiles.keys[from * keys.width..][..KEYS * keys.width];
            // SAFETY: 64 rows are whole or nowhere, and four tiles have their width.
            unsafe { lay_keys(&keys, &rows[0], to) };
            for lane in (0..KEYS).step_by(STEP) {
                let place = (from + lane, span.count * FOUR);
                let to = (&mut tiles.values[..], &mut tiles.unbounded);
                // SAFETY: 32 rows are whole or nowhere, and all columns have the step.
                unsafe { lay_values(&values, &rows[1][lane..lane + STEP], place, to) };
            }
        }
    }

    /// What a panel of lines sees of a stretch, if it is anything.
    fn sees(&self, panel: usize, span: Span) -> Option<Seen> {
        let group = self.widths.group;
        let (first, count) = (panel * PANEL, PANEL.min(self.count() - panel * PANEL));
        let (mut lo, mut hi) = ([0; PANEL], [0; PANEL]);
        let (mut keys, mut free) = ((span.count, 0), (0, span.count));
        let (mut line, mut query) = (0, first / group);
        while line < count {
            let lines = line..count.min((query + 1) * group - first);
            let (from, to) = self.ranges[query];
            let (from, to) = (from.max(self.keys.0), to.min(self.keys.1).min(span.base + STRETCH));
            let (from, to) = (from.saturating_sub(span.base), to.saturating_sub(span.base));
            let (from, to) = if from < to { (from, to) } else { (0, 0) };
            if from < to {
                keys = (keys.0.min(from), keys.1.max(to));
            }
            free = (free.0.max(from), free.1.min(to));
            lo[lines.clone()].fill(from as i32);
            hi[lines.clone()].fill(to as i32);
            (line, query) = (lines.end, query + 1);
        }
        // Of lines that are not there nobody asks.
        let some = (lo[0], hi[0]);
        lo[count..].fill(some.0);
        hi[count..].fill(some.1);
        let steps = (keys.0 / KEYS * KEYS, keys.1.next_multiple_of(STEP));
        (keys.0 < keys.1).then_some(Seen { lo, hi, keys: steps, free })
    }

    /// A panel of lines over the stretch.
    ///
    /// # Safety
    /// The registers must be configured, and the tiles hold the lines and the stretch of their head.
    #[inline(always)]
    unsafe fn panel<S: Simd>(&mut self, registers: &Registers, panel: usize, span: Span, tiles: &mut Tiles) {
        let w = self.widths;
        let Some(seen) = self.sees(panel, span) else { return };
        let (first, end) = seen.keys;
        let lines = tiles.queries[panel * PANEL * w.key..].as_ptr();
        for key in (first..end).step_by(FOUR) {
            let operands = (tiles.keys[key * w.key..].as_ptr(), lines, w.key / STEP);
            let to = tiles.scores[key * PANEL..][..FOUR * PANEL].as_mut_ptr();
            // SAFETY: as the caller promises; a panel of lines is as deep as keys are, and scores have all keys.
            unsafe { multiply_near(registers, operands, (to, key + FOUR <= end)) };
        }
        let [of_keys, of_values] = &tiles.steps;
        if !of_keys.is_empty() || self.scores.softcap.is_some() {
            let scores = tiles.scores[first * PANEL..end * PANEL].chunks_exact_mut(PANEL);
            for (scores, key) in scores.zip(first..) {
                if let Some(step) = of_keys.get(key) {
                    coded::scale(scores, &[*step; PANEL]);
                }
                if let Some(cap) = self.scores.softcap {
                    for s in scores {
                        *s = math::tanh(*s / cap) * cap;
                    }
                }
            }
        }
        let mut part = Softmax::EMPTY;
        let steps = (!of_values.is_empty()).then_some(&of_values[..]);
        let kept = !tiles.unbounded.is_empty();
        // SAFETY: lines are only multiplied in tiles where the machine has them.
        unsafe { soften((&mut tiles.scores, &mut tiles.weights), &seen, (steps, kept), &mut part) };
        let softmax = &mut tiles.softmaxes[panel];
        let total = &mut tiles.totals[panel * columns(&w) * PANEL..][..columns(&w) * PANEL];
        let out = if softmax.is_fresh { &mut *total } else { &mut tiles.sums[..] };
        for column in (0..w.value).step_by(FOUR) {
            let values = tiles.values[column * span.count + first * FOUR..].as_ptr();
            let operands = (values, tiles.weights.as_ptr(), (end - first) / STEP);
            let to = out[column * PANEL..][..FOUR * PANEL].as_mut_ptr();
            // SAFETY: as the caller promises; columns of values are as deep as the weights, and the result has all of them.
            unsafe { multiply_near(registers, operands, (to, w.value - column > FOUR / 2)) };
        }
        for &Unbounded { key, column, value } in &tiles.unbounded {
            for l in (0..PANEL).filter(|&l| (seen.lo[l]..seen.hi[l]).contains(&(key as i32))) {
                out[column * PANEL + l] += tiles.scores[key * PANEL + l] * value;
            }
        }
        if softmax.is_fresh {
            *softmax = Softmax { is_fresh: false, ..part };
            return;
        }
        let (mut old, mut new) = (softmax.tops, part.tops);
        join_factors::<S, PANEL>(&mut softmax.tops, (&mut old, &mut new));
        for l in 0..PANEL {
            softmax.sums[l] = softmax.sums[l] * old[l] + part.sums[l] * new[l];
        }
        for (total, more) in total.chunks_exact_mut(PANEL).zip(tiles.sums.chunks_exact(PANEL)) {
            for l in 0..PANEL {
                total[l] = total[l] * old[l] + more[l] * new[l];
            }
        }
    }

    /// Puts the results of a head where they go: divided by the sums of their weights to their rows, or as they are beside the
    /// state of their softmax.
    #[inline(always)]
    fn put(&mut self, head: usize, panels: usize, tiles: &mut Tiles) {
        let w = self.widths;
        let (first, lines) = ((head - self.heads.start) * self.count(), self.count());
        for panel in 0..panels {
            let total = &mut tiles.totals[panel * columns(&w) * PANEL..][..columns(&w) * PANEL];
            let softmax = &tiles.softmaxes[panel];
            if softmax.is_fresh {
                total.fill(0.0);
            }
            let (from, count) = (panel * PANEL, PANEL.min(lines - panel * PANEL));
            let row_and_head =
                |line: usize| (self.block.row + line / w.group, head * w.group + line % w.group);
            let mut factors = [1.0; PANEL];
            let mut to = [std::ptr::null_mut(); PANEL];
            for l in 0..count {
                let (line, sum) = (from + l, softmax.sums[l]);
                let Some(rows) = self.rows else {
                    self.part.running[first + line] = Running::of(softmax.tops[l], sum);
                    to[l] = self.part.out[(first + line) * w.value..][..w.value].as_mut_ptr();
                    continue;
                };
                factors[l] = if sum == 0.0 { 0.0 } else { 1.0 / sum };
                let (row, head) = row_and_head(line);
                to[l] = match rows.dtype {
                    // SAFETY: every row and head belongs to one task, and its line lies within the result.
                    DType::F32 => unsafe { rows.line(row, head, w.value) }.as_mut_ptr().cast(),
                    _ => tiles.lines[l * w.value..][..w.value].as_mut_ptr(),
                };
            }
            // SAFETY: the totals have all columns, and each of the places is as long as a line.
            unsafe { turn_back(total, &factors, &to[..count], w.value) };
            let Some(rows) = self.rows.filter(|rows| rows.dtype != DType::F32) else { continue };
            for (l, numbers) in tiles.lines.chunks_exact(w.value).take(count).enumerate() {
                let (row, head) = row_and_head(from + l);
                // SAFETY: as above.
                f32::store(rows.dtype, numbers, unsafe { rows.line(row, head, w.value) });
            }
        }
    }
}

/// The softmax of a panel of lines over a stretch: scores become weights in tiles, and those of keys that a line does not see weigh
/// nothing. Where values are codes, weights are multiplied by their steps. If weights are kept, they are where the scores
/// were, too.
///
/// # Safety
/// The machine must have the features.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")]
unsafe fn soften(
    (scores, weights): (&mut [f32], &mut [u16]),
    seen: &Seen,
    (steps, kept): (Option<&[f32]>, bool),
    part: &mut Softmax,
) {
    let (first, end) = seen.keys;
    assert!(scores.len() >= end * PANEL && weights.len() >= (end - first) * PANEL, "a stretch of scores");
    assert!(steps.is_none_or(|steps| steps.len() >= end), "a step for each key");
    let hidden = _mm512_set1_ps(f32::NEG_INFINITY);
    // SAFETY: a row of scores is a vector, and two of weights are.
    unsafe {
        let rows = scores.as_mut_ptr();
        let row = |key: usize| rows.add(key * PANEL);
        let range = [&seen.lo, &seen.hi].map(|ends| _mm512_loadu_si512(ends.as_ptr().cast()));
        // Maxima come first. Of a score that is no number the maximum stays what it was.
        let mut most = [hidden; 4];
        for step in (first..end).step_by(STEP) {
            let is_free = seen.is_free(step);
            for key in (step..step + STEP).step_by(most.len()) {
                for i in 0..most.len() {
                    let score = _mm512_loadu_ps(row(key + i));
                    most[i] = if is_free {
                        _mm512_max_ps(score, most[i])
                    } else {
                        _mm512_mask_max_ps(most[i], sees(range, key + i), score, most[i])
                    };
                }
            }
        }
        let top = _mm512_max_ps(_mm512_max_ps(most[0], most[1]), _mm512_max_ps(most[2], most[3]));
        _mm512_storeu_ps(part.tops.as_mut_ptr(), top);
        // Scores that are all as low as can be weigh nothing; one that is no number makes all of the line none.
        let is_some = _mm512_cmp_ps_mask::<_CMP_NEQ_OQ>(top, hidden);
        let scaled = _mm512_maskz_mul_ps(is_some, top, _mm512_set1_ps(-std::f32::consts::LOG2_E));
        let mut sums = [_mm512_setzero_ps(); 2];
        for step in (first..end).step_by(STEP) {
            let is_free = seen.is_free(step);
            for key in (step..step + STEP).step_by(2) {
                let mut both = [_mm512_setzero_ps(); 2];
                for i in 0..2 {
                    let mask = if is_free { __mmask16::MAX } else { sees(range, key + i) };
                    both[i] = power(mask, _mm512_loadu_ps(row(key + i)), scaled);
                    sums[i] = _mm512_add_ps(sums[i], both[i]);
                    if let Some(steps) = steps {
                        both[i] = _mm512_mul_ps(both[i], _mm512_set1_ps(*steps.get_unchecked(key + i)));
                    }
                    if kept {
                        _mm512_storeu_ps(row(key + i), both[i]);
                    }
                }
                let to = weights.as_mut_ptr().add((key - first) * PANEL);
                _mm512_storeu_si512(to.cast(), paired(both));
            }
        }
        _mm512_storeu_ps(part.sums.as_mut_ptr(), _mm512_add_ps(sums[0], sums[1]));
    }
}

/// Which lines see a key.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
fn sees([lo, hi]: [__m512i; 2], key: usize) -> __mmask16 {
    let key = _mm512_set1_epi32(key as i32);
    _mm512_mask_cmpgt_epi32_mask(_mm512_cmple_epi32_mask(lo, key), hi, key)
}

/// `e^x` of scores, relative to the one whose negative in powers of two is `scaled`; nothing where the mask has none, nor where it would
/// be too small for an exponent of its own: numbers below that are slow to compute with. Errors are below one in a hundred thousand,
/// far less than what rounding to `bf16` leaves.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
fn power(mask: __mmask16, x: __m512, scaled: __m512) -> __m512 {
    // `(2^x - 1) / x` from 0 to 1, at the nodes of Chebyshev's polynomials.
    const FACTORS: [f32; 4] = [0.012_763_114, 0.053_441_03, 0.240_647_05, 0.693_134];
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simd::SimdLevel;

    #[test]
    fn weights_in_tiles_are_exponentials_of_what_a_line_sees() {
        if !SimdLevel::Amx.is_available() {
            return;
        }
        let of = |key: usize, line: usize| ((key * 7919 + line * 104_729) % 4001) as f32 * 0.03 - 110.0;
        // Lines see a part of the first step and all of the others, or nothing but the part, or all of some and nothing.
        let ranges = [(0, STRETCH), (3, 200), (64, 65), (31, 33), (0, 0)];
        for all_see in [false, true] {
            let range = |line: usize| if all_see { ranges[0] } else { ranges[line % ranges.len()] };
            let ends = |end: usize| std::array::from_fn(|l| [range(l).0, range(l).1][end] as i32);
            let free = if all_see { (0, STRETCH) } else { (64, 0) };
            let seen = Seen { lo: ends(0), hi: ends(1), keys: (0, STRETCH), free };
            let mut scores: Vec<f32> = (0..STRETCH * PANEL).map(|i| of(i / PANEL, i % PANEL)).collect();
            let mut weights = vec![0xffff; STRETCH * PANEL];
            let mut part = Softmax::EMPTY;
            // SAFETY: the machine has tiles; there are a stretch of scores, and weights for it.
            unsafe { soften((&mut scores, &mut weights), &seen, (None, true), &mut part) };
            for line in 0..PANEL {
                let (lo, hi) = range(line);
                let top = (lo..hi).map(|key| of(key, line)).fold(f32::NEG_INFINITY, f32::max);
                assert_eq!(part.tops[line], top);
                let mut sum = 0.0;
                for key in 0..STRETCH {
                    let is_seen = (lo..hi).contains(&key);
                    let expected = if is_seen { f64::from(of(key, line) - top).exp() } else { 0.0 };
                    sum += expected;
                    let found = f64::from(scores[key * PANEL + line]);
                    let error = (found - expected).abs();
                    assert!(error <= 2e-5 * expected + 1e-37, "{line} {key}: {found} for {expected}");
                    let place = key / 2 * 2 * PANEL + line * 2 + key % 2;
                    let rounded = f64::from(f32::from_bits(u32::from(weights[place]) << 16));
                    assert!((rounded - found).abs() <= found / 256.0, "{line} {key}: {rounded} for {found}");
                }
                assert!((f64::from(part.sums[line]) - sum).abs() <= 1e-5 * sum, "{line}: {sum}");
            }
        }
    }
}
