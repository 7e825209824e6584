//! Rotary position embedding.
//!
//! Algorithm: the angle of a token and pair is `f32(position) * inv_freq` rounded to `f32`, as checkpoints were
//! trained; its sine and cosine are exact to `f32` (see [`math::sin_cos`]) and are computed once per token for all
//! heads. Tokens are cut over the threads. Checked against the decomposition at small positions, and against `f64`
//! sines of the rounded angle at large ones.

use crate::context::Context;
use crate::lanes::{Lane, indices};
use crate::math;
use crate::simd::{Kernel, Simd};
use crate::view::{Out, View};

/// `x [tokens, heads, dim]`, `positions [tokens]`, `inv_freq [half]` or `[tokens, half]`.
pub(crate) fn rope(
    ctx: &Context,
    [x, positions, inv_freq]: [&View<'_>; 3],
    (interleaved, scale): (bool, f32),
    out: &mut Out<'_>,
) {
    let [_, heads, dim] = [out.shape[0], out.shape[1], out.shape[2]];
    if out.elements() == 0 {
        return;
    }
    let half = inv_freq.shape()[inv_freq.layout.rank() - 1];
    let per_token = inv_freq.layout.rank() > 1;
    let frequencies = inv_freq.numbers::<f32>();
    let positions = indices(positions);
    let (dtype, size) = (out.dtype, out.size());
    let strides = &x.layout.strides;
    let tokens = out.shape[0];
    let per_task = ctx.threads.lines_per_task(tokens, heads * dim);
    ctx.threads.chunks(out.bytes(), per_task * heads * dim * size, |task, bytes| {
        let mut table = vec![(0.0, 0.0); half];
        let mut head = vec![0.0; dim];
        for (i, token) in bytes.chunks_mut(heads * dim * size).enumerate() {
            let t = task * per_task + i;
            let from = if per_token { t * half } else { 0 };
            let angles = &frequencies[from..from + half];
            ctx.level.dispatch(Angles { position: positions[t] as f32, angles, scale, table: &mut table });
            for (h, line) in token.chunks_mut(dim * size).enumerate() {
                f32::load(x.dtype, x.bytes(), (t * strides[0] + h * strides[1], strides[2]), &mut head);
                rotate(&mut head, &table, interleaved);
                f32::store(dtype, &head, line);
            }
        }
    });
}

/// The scaled sine and cosine of each pair's angle.
struct Angles<'a> {
    position: f32,
    angles: &'a [f32],
    scale: f32,
    table: &'a mut [(f32, f32)],
}

impl Kernel for Angles<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self) {
        for (entry, &frequency) in self.table.iter_mut().zip(self.angles) {
            let (sin, cos) = math::sin_cos(self.position * frequency);
            *entry = (sin * self.scale, cos * self.scale);
        }
    }
}

fn rotate(head: &mut [f32], table: &[(f32, f32)], interleaved: bool) {
    let half = table.len();
    for (i, &(sin, cos)) in table.iter().enumerate() {
        let (a, b) = if interleaved { (2 * i, 2 * i + 1) } else { (i, half + i) };
        let (x, y) = (head[a], head[b]);
        head[a] = x * cos - y * sin;
        head[b] = y * cos + x * sin;
    }
}
