//! Rotary position embedding.
//!
//! Algorithm: the angle of a token and pair is `f32(position) * inv_freq` rounded to `f32`, as checkpoints were
//! trained; its sine and cosine are exact to `f32` (see [`math::sin_cos`]). They are computed once for all heads and
//! for all ops that rotate by the same angles, and laid out as heads are: element `j` becomes
//! `x[j] * factor[j] + x[partner of j] * partner_factor[j]`. Tokens are cut over the threads. Checked against the
//! decomposition at small positions, and against `f64` sines of the rounded angle at large ones.
#![allow(unsafe_code)]

use mlxcel_ir::DType;

use crate::context::Context;
use crate::lanes::{Lane, indices};
use crate::math;
use crate::simd::{Kernel, Simd, SimdLevel};
use crate::view::{Out, View};

/// The factors of every token.
#[derive(Debug)]
pub(crate) struct Table {
    /// `[tokens, 2, rotated]`: an element's own factors, then its partner's.
    factors: Vec<f32>,
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
    let mut factors = vec![0.0; positions.len() * token];
    let per_task = ctx.threads.lines_per_task(positions.len(), token);
    ctx.threads.chunks(&mut factors, per_task * token, |task, part| {
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
        let (own, partner) = self.factors.split_at(self.factors.len() / 2);
        for (h, head) in self.heads.chunks_exact_mut(self.dim).enumerate() {
            let from = self.from.map(|(from, apart)| &from[h * apart..][..self.dim]);
            if self.interleaved {
                if let Some(from) = from {
                    head.copy_from_slice(from);
                }
                pairs(&mut head[..own.len()], own, partner);
                continue;
            }
            let (rotated, rest) = head.split_at_mut(own.len());
            if let Some(from) = from {
                rest.copy_from_slice(&from[own.len()..]);
            }
            let from = from.map_or(rotated.as_ptr(), |from| from.as_ptr());
            // SAFETY: there are as many numbers to rotate, which may be those that they become.
            unsafe { halves::<S>(from, rotated, own, partner) };
        }
    }
}

/// Element `2i` with `2i + 1`.
#[inline(always)]
fn pairs(head: &mut [f32], own: &[f32], partner: &[f32]) {
    const WIDTH: usize = 16;
    let (blocks, rest) = head.as_chunks_mut::<WIDTH>();
    let (own_blocks, own_rest) = own.as_chunks::<WIDTH>();
    let (partner_blocks, partner_rest) = partner.as_chunks::<WIDTH>();
    for ((x, own), partner) in blocks.iter_mut().zip(own_blocks).zip(partner_blocks) {
        let old = *x;
        for j in 0..WIDTH {
            x[j] = old[j] * own[j] + old[j ^ 1] * partner[j];
        }
    }
    for i in 0..rest.len() / 2 {
        let (x, y) = (rest[2 * i], rest[2 * i + 1]);
        rest[2 * i] = x * own_rest[2 * i] + y * partner_rest[2 * i];
        rest[2 * i + 1] = y * own_rest[2 * i + 1] + x * partner_rest[2 * i + 1];
    }
}

/// Element `i` with `half + i`.
///
/// # Safety
/// There must be as many numbers at `from` as become others, in the same place or in another.
#[inline(always)]
unsafe fn halves<S: Simd>(from: *const f32, to: &mut [f32], own: &[f32], partner: &[f32]) {
    let half = to.len() / 2;
    assert!(own.len() >= 2 * half && partner.len() >= 2 * half, "a factor for each number");
    let (to, own, partner) = (to.as_mut_ptr(), own.as_ptr(), partner.as_ptr());
    let whole = half / S::LANES * S::LANES;
    for i in (0..whole).step_by(S::LANES) {
        // SAFETY: whole vectors of every half are there.
        unsafe {
            let (x, y) = (S::load(from.add(i)), S::load(from.add(half + i)));
            let of = |at: usize, x: S::F, y: S::F| {
                S::add(S::mul(x, S::load(own.add(at))), S::mul(y, S::load(partner.add(at))))
            };
            S::store(to.add(i), of(i, x, y));
            S::store(to.add(half + i), of(half + i, y, x));
        }
    }
    for i in whole..half {
        // SAFETY: every half has the element.
        unsafe {
            let (x, y) = (*from.add(i), *from.add(half + i));
            *to.add(i) = x * *own.add(i) + y * *partner.add(i);
            *to.add(half + i) = y * *own.add(half + i) + x * *partner.add(half + i);
        }
    }
}
