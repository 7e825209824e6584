//! Rotary position embedding.
//!
//! Algorithm: the angle of a token and pair is `f32(position) * inv_freq` rounded to `f32`, as checkpoints were
//! trained; its sine and cosine are exact to `f32` (see [`math::sin_cos`]). They are computed once for all heads and
//! for all ops that rotate by the same angles, and laid out as heads are: element `j` becomes
//! `x[j] * factor[j] + x[partner of j] * partner_factor[j]`. Tokens are cut over the threads, or heads
//! are rotated where attention reads them. Checked against the decomposition at small positions, and against `f64` sines of the
//! rounded angle at large ones.
#![allow(unsafe_code)]

use std::ops::Range;

use mlxcel_ir::DType;

use crate::context::Context;
use crate::lanes::{Lane, indices};
use crate::math;
use crate::memory::Aligned;
use crate::simd::{Kernel, Simd, SimdLevel};
use crate::view::{Out, View};

/// The factors of every token.
#[derive(Debug)]
pub(crate) struct Table {
    /// `[tokens, 2, rotated]`: an element's own factors, then its partner's.
    factors: Aligned<f32>,
    /// Elements of a head that are rotated, the first ones.
    rotated: usize,
    interleaved: bool,
}

/// The factors for `positions [tokens]` and `inv_freq [half]` or `[tokens, half]`.
pub(crate) fn table(
    ctx: &Context,
    [positions, inv_freq]: [&View<'_>; 2],
    (interleaved, scale): (bool, f32),
) -> Table {
    let (positions, frequencies) = (indices(positions), inv_freq.floats());
    let half = inv_freq.shape()[inv_freq.layout.rank() - 1];
    let per_token = inv_freq.layout.rank() > 1;
    let token = 4 * half;
    let mut factors = Aligned::default();
    factors.resize(positions.len() * token);
    let per_task = ctx.threads.lines_per_task(positions.len(), token);
    ctx.threads.chunks(&mut factors[..positions.len() * token], per_task * token, |task, part| {
        for (i, factors) in part.chunks_mut(token.max(1)).enumerate() {
            let t = task * per_task + i;
            let from = if per_token { t * half } else { 0 };
            let frequencies = &frequencies[from..from + half];
            ctx.level.dispatch(Angles {
                position: positions[t] as f32,
                frequencies,
                scale,
                interleaved,
                factors,
            });
        }
    });
    Table { factors, rotated: 2 * half, interleaved }
}

/// The factors of one token.
struct Angles<'a> {
    position: f32,
    frequencies: &'a [f32],
    scale: f32,
    interleaved: bool,
    factors: &'a mut [f32],
}

impl Kernel for Angles<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self) {
        let half = self.frequencies.len();
        let (own, partner) = self.factors.split_at_mut(2 * half);
        // First as halves, from where pairs are spread from the last to the first.
        for i in 0..half {
            let (sin, cos) = math::sin_cos(self.position * self.frequencies[i]);
            own[i] = cos * self.scale;
            partner[half + i] = sin * self.scale;
        }
        if self.interleaved {
            for i in 0..half {
                let (cos, sin) = (own[half - 1 - i], partner[half + i]);
                own[2 * (half - 1 - i) + 1] = cos;
                own[2 * (half - 1 - i)] = cos;
                partner[2 * i] = -sin;
                partner[2 * i + 1] = sin;
            }
        } else {
            for i in 0..half {
                own[half + i] = own[i];
                partner[i] = -partner[half + i];
            }
        }
    }
}

/// `x [tokens, heads, dim]`.
pub(crate) fn rope(ctx: &Context, x: &View<'_>, table: &Table, out: &mut Out<'_>) {
    if out.elements() == 0 {
        return;
    }
    let token = out.shape[1] * out.shape[2];
    let per_task = ctx.threads.lines_per_task(out.shape[0], token);
    let (dtype, size) = (out.dtype, out.size());
    if dtype == DType::F32 {
        ctx.threads.chunks(out.slice::<f32>(), per_task * token, |task, part| {
            for (i, heads) in part.chunks_mut(token).enumerate() {
                table.rotate(ctx.level, x, (task * per_task + i, 0), heads);
            }
        });
        return;
    }
    ctx.threads.chunks(out.bytes(), per_task * token * size, |task, part| {
        let mut heads = vec![0.0; token];
        for (i, bytes) in part.chunks_mut(token * size).enumerate() {
            table.rotate(ctx.level, x, (task * per_task + i, 0), &mut heads);
            f32::store(dtype, &heads, bytes);
        }
    });
}

impl Table {
    /// Fills `heads` with as many rotated heads of a token `x [tokens, heads, dim]`, from one on.
    pub(crate) fn rotate(
        &self,
        level: SimdLevel,
        x: &View<'_>,
        (t, head): (usize, usize),
        heads: &mut [f32],
    ) {
        let (strides, dim) = (&x.layout.strides, x.shape()[2]);
        let at = t * strides[0] + head * strides[1];
        let factors = &self.factors[t * 2 * self.rotated..(t + 1) * 2 * self.rotated];
        let mut job = Rotate { factors, interleaved: self.interleaved, from: None, heads, dim };
        if x.dtype == DType::F32 && strides[2] == 1 {
            job.from = Some((&x.elements_of::<f32>()[at..], strides[1]));
        } else {
            for (h, head) in job.heads.chunks_mut(dim).enumerate() {
                f32::load(x.dtype, x.bytes(), (at + h * strides[1], strides[2]), head);
            }
        }
        level.dispatch(job);
    }
}

/// The heads of one token.
struct Rotate<'a> {
    factors: &'a [f32],
    interleaved: bool,
    /// Where they lie, if not where they go: the first one, and how far the next one is.
    from: Option<(&'a [f32], usize)>,
    heads: &'a mut [f32],
    dim: usize,
}

impl Kernel for Rotate<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self) {
        let Rotate { factors, interleaved, from, heads, dim } = self;
        let (own, partner) = factors.split_at(factors.len() / 2);
        let rotated = own.len();
        for (h, head) in heads.chunks_exact_mut(dim).enumerate() {
            if let Some((from, apart)) = from {
                let from = &from[h * apart..][..dim];
                if rotated < dim {
                    head[rotated..].copy_from_slice(&from[rotated..]);
                }
                // SAFETY: there are as many numbers to rotate, which become others elsewhere.
                unsafe { rotate::<S>(from.as_ptr(), &mut head[..rotated], (own, partner), interleaved) };
            } else {
                // SAFETY: they become others where they are.
                unsafe { rotate::<S>(head.as_ptr(), &mut head[..rotated], (own, partner), interleaved) };
            }
        }
    }
}

/// Rotates numbers of a head to where they go.
///
/// # Safety
/// There must be as many numbers at `from` as become others, in the same place or in another.
#[inline(always)]
unsafe fn rotate<S: Simd>(
    from: *const f32,
    to: &mut [f32],
    (own, partner): (&[f32], &[f32]),
    interleaved: bool,
) {
    let count = to.len();
    assert!(own.len() == count && partner.len() == count, "a factor for each number");
    let (to, own, partner) = (to.as_mut_ptr(), own.as_ptr(), partner.as_ptr());
    // Element `2i` goes with `2i + 1`, or `i` with `half + i`.
    let apart = if interleaved { 1 } else { count / 2 };
    let whole = count / 2 / S::LANES * S::LANES;
    // SAFETY: as the caller promises; whole vectors of both partners are there.
    unsafe {
        let mut i = 0;
        while i < whole {
            let (a, b) = if interleaved { (2 * i, 2 * i + S::LANES) } else { (i, i + apart) };
            let (x, y) = (S::load(from.add(a)), S::load(from.add(b)));
            let (of_x, of_y) = if interleaved { (S::swapped(x), S::swapped(y)) } else { (y, x) };
            let first = S::mul(of_x, S::load(partner.add(a)));
            let second = S::mul(of_y, S::load(partner.add(b)));
            S::store(to.add(a), S::add(S::mul(x, S::load(own.add(a))), first));
            S::store(to.add(b), S::add(S::mul(y, S::load(own.add(b))), second));
            i += S::LANES;
        }
        if whole < count / 2 {
            one_by_one(from, to, [own, partner], (whole..count / 2, apart));
        }
    }
}

/// Some of the pairs, whose partners are so far apart. Within the loop above the compiler would prepare for long ones at every call.
///
/// # Safety
/// They must be there.
#[inline(never)]
unsafe fn one_by_one(
    from: *const f32,
    to: *mut f32,
    [own, partner]: [*const f32; 2],
    (pairs, apart): (Range<usize>, usize),
) {
    for i in pairs {
        let a = if apart == 1 { 2 * i } else { i };
        let b = a + apart;
        // SAFETY: as the caller promises.
        unsafe {
            let (x, y) = (*from.add(a), *from.add(b));
            *to.add(a) = x * *own.add(a) + y * *partner.add(a);
            *to.add(b) = y * *own.add(b) + x * *partner.add(b);
        }
    }
}
