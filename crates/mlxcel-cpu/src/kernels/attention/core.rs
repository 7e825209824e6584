//! Queries against tiles of keys: scores, running softmax, weighted values.
#![allow(unsafe_code)]

use mlxcel_ir::DType;

use super::Scores;
use crate::lanes::Lane;
use crate::math;
use crate::simd::{Kernel, LANES_MAX, Simd};

/// Keys in a tile.
pub(super) const KEYS: usize = 16;

/// Sizes of a task: heads that share a KV head, and the widths of keys and values.
#[derive(Clone, Copy, Debug)]
pub(super) struct Widths {
    pub(super) group: usize,
    pub(super) key: usize,
    pub(super) value: usize,
}

impl Widths {
    /// Numbers from one query head to the next.
    pub(super) fn key_padded(&self) -> usize {
        self.key.next_multiple_of(LANES_MAX)
    }

    pub(super) fn value_padded(&self) -> usize {
        self.value.next_multiple_of(LANES_MAX)
    }
}

/// Where rows of keys or values lie.
#[derive(Clone, Copy, Debug)]
pub(super) struct Memory<'a> {
    pub(super) bytes: &'a [u8],
    pub(super) dtype: DType,
    /// Numbers of a row, and elements from one of them to the next.
    pub(super) width: usize,
    pub(super) stride: usize,
}

impl Memory<'_> {
    /// Whether rows can be read in whole vectors where they lie.
    fn direct(&self) -> bool {
        self.dtype == DType::F32 && self.stride == 1 && self.width.is_multiple_of(LANES_MAX)
    }

    /// Pointers to the rows that begin at `offsets`, widened to `scratch` if need be; the first `skip` are absent.
    #[inline(always)]
    fn rows(&self, skip: usize, offsets: &[usize], scratch: &mut [f32]) -> [*const f32; KEYS] {
        let mut rows = [std::ptr::null(); KEYS];
        if self.direct() {
            for (row, &offset) in rows[skip..].iter_mut().zip(offsets) {
                *row = self.bytes[offset * 4..(offset + self.width) * 4].as_ptr().cast();
            }
        } else {
            let padded = self.width.next_multiple_of(LANES_MAX);
            for ((row, &offset), to) in rows[skip..].iter_mut().zip(offsets).zip(scratch.chunks_mut(padded)) {
                f32::load(self.dtype, self.bytes, (offset, self.stride), &mut to[..self.width]);
                to[self.width..].fill(0.0);
                *row = to.as_ptr();
            }
        }
        // Absent keys repeat one that is there; their scores are never used.
        let some = rows[skip];
        rows[..skip].fill(some);
        rows[skip + offsets.len()..].fill(some);
        rows
    }
}

/// Keys, values, and what a query sees of them.
pub(super) trait Context {
    fn keys(&self) -> Memory<'_>;
    /// `None` if values are the beginnings of the keys.
    fn values(&self) -> Option<Memory<'_>>;
    /// The elements at which the rows of keys `start..start + count` begin, of keys and of values.
    fn offsets(&self, start: usize, count: usize) -> [[usize; KEYS]; 2];
    /// The keys that a query may see.
    fn visible(&self, query: usize) -> (usize, usize);
    /// Adds the mask to the scores of one query and head against keys from `start` on.
    fn mask(&self, query: usize, head: usize, start: usize, scores: &mut [f32]);
}

/// One task.
pub(super) struct Attend<'a, C> {
    pub(super) context: &'a C,
    pub(super) scores: Scores,
    pub(super) widths: Widths,
    /// `[queries][group][key_padded]`.
    pub(super) q: &'a [f32],
    /// One per head of the group.
    pub(super) sinks: Option<&'a [f32]>,
    /// `[queries][group][value_padded]`.
    pub(super) out: &'a mut [f32],
}

/// The running softmax of one query and head.
#[derive(Clone, Copy)]
struct Running {
    top: f32,
    sum: f32,
}

impl<C: Context> Kernel for Attend<'_, C> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(mut self) {
        let w = self.widths;
        let queries = self.q.len() / (w.group * w.key_padded());
        let ranges: Vec<(usize, usize)> = (0..queries).map(|q| self.context.visible(q)).collect();
        let seen = || ranges.iter().filter(|(lo, hi)| lo < hi);
        let start = |head: usize| match self.sinks {
            Some(s) => Running { top: s[head], sum: 1.0 },
            None => Running { top: f32::NEG_INFINITY, sum: 0.0 },
        };
        let mut running: Vec<Running> = (0..queries * w.group).map(|i| start(i % w.group)).collect();
        self.out.fill(0.0);
        let (Some(first), Some(last)) = (seen().map(|r| r.0).min(), seen().map(|r| r.1).max()) else {
            return;
        };
        let (keys, values) = (self.context.keys(), self.context.values());
        let mut scratch = [vec![0.0; KEYS * w.key_padded()], vec![0.0; KEYS * w.value_padded()]];
        for at in (first / KEYS * KEYS..last).step_by(KEYS) {
            let from = at.max(first);
            let count = (at + KEYS).min(last) - from;
            let offsets = self.context.offsets(from, count);
            let k = keys.rows(from - at, &offsets[0][..count], &mut scratch[0]);
            let v = values.map_or(k, |v| v.rows(from - at, &offsets[1][..count], &mut scratch[1]));
            for (q, &(lo, hi)) in ranges.iter().enumerate() {
                let (lo, hi) = (lo.max(from), hi.min(from + count));
                if lo < hi {
                    let tile = Tile { k, v, from: at, lo, hi };
                    self.query::<S>(q, &tile, &mut running[q * w.group..(q + 1) * w.group]);
                }
            }
        }
        for (line, r) in self.out.chunks_mut(w.value_padded()).zip(&running) {
            let scale = if r.sum == 0.0 { 0.0 } else { 1.0 / r.sum };
            line.iter_mut().for_each(|x| *x *= scale);
        }
    }
}

/// Rows of keys `from…`, of which a query sees `lo..hi`.
struct Tile {
    k: [*const f32; KEYS],
    v: [*const f32; KEYS],
    from: usize,
    lo: usize,
    hi: usize,
}

impl<C: Context> Attend<'_, C> {
    /// One query with all heads of the group.
    #[inline(always)]
    fn query<S: Simd>(&mut self, query: usize, tile: &Tile, running: &mut [Running]) {
        let w = self.widths;
        for (head, r) in running.iter_mut().enumerate() {
            let line = query * w.group + head;
            let q = self.q[line * w.key_padded()..(line + 1) * w.key_padded()].as_ptr();
            let mut s = [0.0; KEYS];
            for first in ((tile.lo - tile.from) / 4 * 4..tile.hi - tile.from).step_by(4) {
                let rows = std::array::from_fn(|i| tile.k[first + i]);
                // SAFETY: the query and every row have `key_padded` numbers.
                let dots = unsafe { dots::<S>(q, rows, w.key_padded()) };
                s[first..first + 4].copy_from_slice(&dots);
            }
            let (lo, hi) = (tile.lo - tile.from, tile.hi - tile.from);
            s.iter_mut().for_each(|x| *x *= self.scores.scale);
            if let Some(cap) = self.scores.softcap {
                s.iter_mut().for_each(|x| *x = math::tanh(*x / cap) * cap);
            }
            self.context.mask(query, head, tile.lo, &mut s[lo..hi]);
            s[..lo].fill(f32::NEG_INFINITY);
            s[hi..].fill(f32::NEG_INFINITY);
            let top = s.iter().fold(r.top, |a, &x| if x > a || x.is_nan() { x } else { a });
            if top == f32::NEG_INFINITY {
                continue;
            }
            let fade = math::exp(r.top - top);
            let mut p = s;
            for x in &mut p {
                *x = math::exp(*x - top);
            }
            *r = Running { top, sum: r.sum * fade + total(p) };
            let out = &mut self.out[line * w.value_padded()..(line + 1) * w.value_padded()];
            // SAFETY: the result and every row of values have `value_padded` numbers.
            unsafe { weigh::<S>(out, fade, &p[lo..hi], &tile.v[lo..hi]) };
        }
    }
}

/// The sum of a tile's weights, always in the same order.
#[inline(always)]
fn total(p: [f32; KEYS]) -> f32 {
    let eight: [f32; 8] = std::array::from_fn(|i| p[i] + p[i + 8]);
    let four: [f32; 4] = std::array::from_fn(|i| eight[i] + eight[i + 4]);
    (four[0] + four[2]) + (four[1] + four[3])
}

/// One query against four keys.
///
/// # Safety
/// `k` numbers, a multiple of the lanes, must be readable at all pointers.
#[inline(always)]
unsafe fn dots<S: Simd>(q: *const f32, rows: [*const f32; 4], k: usize) -> [f32; 4] {
    let mut acc = [S::splat(0.0); 4];
    let mut at = 0;
    while at < k {
        // SAFETY: as the caller promises.
        unsafe {
            let x = S::load(q.add(at));
            for (sum, row) in acc.iter_mut().zip(rows) {
                *sum = S::fma(x, S::load(row.add(at)), *sum);
            }
        }
        at += S::LANES;
    }
    S::sums(acc)
}

/// `out = out * fade + Σ p · v`, in order of the keys.
///
/// # Safety
/// Every row must have as many readable numbers as `out`, a multiple of [`LANES_MAX`].
#[inline(always)]
unsafe fn weigh<S: Simd>(out: &mut [f32], fade: f32, p: &[f32], rows: &[*const f32]) {
    let fade = S::splat(fade);
    let mut at = 0;
    while at < out.len() {
        // SAFETY: as the caller promises; chunks are whole vectors.
        unsafe {
            let place = out.as_mut_ptr().add(at);
            let mut acc: [S::F; 4] = [S::splat(0.0); 4];
            let vectors = ((out.len() - at) / S::LANES).min(4);
            for (i, a) in acc[..vectors].iter_mut().enumerate() {
                *a = S::mul(S::load(place.add(i * S::LANES)), fade);
            }
            for (&p, row) in p.iter().zip(rows) {
                let p = S::splat(p);
                for (i, a) in acc[..vectors].iter_mut().enumerate() {
                    *a = S::fma(p, S::load(row.add(at + i * S::LANES)), *a);
                }
            }
            for (i, a) in acc[..vectors].iter().enumerate() {
                S::store(place.add(i * S::LANES), *a);
            }
            at += vectors * S::LANES;
        }
    }
}
