//! Recurrent layers over a ragged batch: the selective scan of state-space models and the causal convolution before
//! it.
//!
//! Algorithm: channels are independent, so they are cut over the threads; each task walks the tokens in order and
//! updates the state of each token's slot in place. Position 0 starts from zero. Checked against the decompositions.
//! Reference: Gu and Dao, Mamba, arXiv 2312.00752.

use crate::context::Context;
use crate::lanes::{Lane, indices};
use crate::math;
use crate::simd::{Kernel, Simd};
use crate::view::{Out, Shared, View};
use mlxcel_ir::DType;

/// Channels of a task.
const CHANNELS: usize = 64;

/// Where each token's state is read and, unless its slot does not exist, written.
struct Slots {
    start: Vec<bool>,
    read: Vec<usize>,
    write: Vec<bool>,
}

impl Slots {
    fn new(positions: &View<'_>, slots: &View<'_>, count: usize) -> Self {
        let ids = indices(slots);
        Slots {
            start: indices(positions).iter().map(|&p| p == 0).collect(),
            read: ids.iter().map(|&s| s.clamp(0, count as i64 - 1) as usize).collect(),
            write: ids.iter().map(|s| (0..count as i64).contains(s)).collect(),
        }
    }
}

/// `(x, dt, a, b, c, d, state, positions, slot_ids)`; `outs` are `y` and the state, which holds its old contents.
pub(crate) fn selective_scan(ctx: &Context, x: &[View<'_>], outs: &mut [Out<'_>]) {
    let [y, state] = outs else { unreachable!("the op has two results") };
    let [tokens, channels] = [y.shape[0], y.shape[1]];
    let n = state.shape[2];
    if y.elements() == 0 || state.elements() == 0 {
        return;
    }
    let slots = Slots::new(&x[7], &x[8], state.shape[0]);
    let [input, dt, a, b, c, d] = [0, 1, 2, 3, 4, 5].map(|i: usize| x[i].numbers::<f32>());
    let job = Scan { tokens, channels, n, slots: &slots, input: &input, dt: &dt, a: &a, b: &b, c: &c, d: &d };
    let (dtype, states, ys) =
        (state.dtype, Shared(state.bytes().as_mut_ptr()), Shared(y.bytes().as_mut_ptr()));
    ctx.threads.each(channels.div_ceil(CHANNELS), |task| {
        let range = task * CHANNELS..((task + 1) * CHANNELS).min(channels);
        for channel in range {
            ctx.level.dispatch(Channel { job: &job, channel, memory: Memory { dtype, states, ys } });
        }
    });
}

struct Scan<'a> {
    tokens: usize,
    channels: usize,
    n: usize,
    slots: &'a Slots,
    input: &'a [f32],
    dt: &'a [f32],
    a: &'a [f32],
    b: &'a [f32],
    c: &'a [f32],
    d: &'a [f32],
}

/// State and result, of which every channel is used by one task.
#[derive(Clone, Copy)]
struct Memory {
    dtype: DType,
    states: Shared<u8>,
    ys: Shared<u8>,
}

impl Memory {
    /// Elements of the state from `at` on.
    #[allow(unsafe_code)]
    #[inline(always)]
    fn load(&self, at: usize, out: &mut [f32]) {
        let size = self.dtype.size().expect("states are plain");
        // SAFETY: callers ask for rows of their own channel, within the state.
        let bytes = unsafe { std::slice::from_raw_parts(self.states.at(at * size), out.len() * size) };
        f32::load(self.dtype, bytes, (0, 1), out);
    }

    #[allow(unsafe_code)]
    #[inline(always)]
    fn save(&self, at: usize, row: &[f32]) {
        let size = self.dtype.size().expect("states are plain");
        // SAFETY: as above.
        f32::store(self.dtype, row, unsafe {
            std::slice::from_raw_parts_mut(self.states.at(at * size), row.len() * size)
        });
    }

    #[allow(unsafe_code)]
    #[inline(always)]
    fn put(&self, at: usize, value: f32) {
        let size = self.dtype.size().expect("results are plain");
        // SAFETY: callers write the results of their own channel.
        f32::store(self.dtype, &[value], unsafe {
            std::slice::from_raw_parts_mut(self.ys.at(at * size), size)
        });
    }
}

struct Channel<'a> {
    job: &'a Scan<'a>,
    channel: usize,
    memory: Memory,
}

impl Kernel for Channel<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self) {
        let (j, c) = (self.job, self.channel);
        let a = &j.a[c * j.n..(c + 1) * j.n];
        let mut h = vec![0.0; j.n];
        for t in 0..j.tokens {
            let at = (j.slots.read[t] * j.channels + c) * j.n;
            if j.slots.start[t] {
                h.fill(0.0);
            } else {
                self.memory.load(at, &mut h);
            }
            let (x, dt) = (j.input[t * j.channels + c], j.dt[t * j.channels + c]);
            let (b, out) = (&j.b[t * j.n..(t + 1) * j.n], &j.c[t * j.n..(t + 1) * j.n]);
            for i in 0..j.n {
                h[i] = h[i] * math::exp(dt * a[i]) + dt * b[i] * x;
            }
            if j.slots.write[t] {
                self.memory.save(at, &h);
            }
            let y = h.iter().zip(out).map(|(h, c)| h * c).sum::<f32>();
            self.memory.put(t * j.channels + c, y + j.d[c] * x);
        }
    }
}

/// `(x, w, bias, state, positions, slot_ids)`; `outs` are `y` and the state, which holds its old contents.
pub(crate) fn causal_conv(ctx: &Context, x: &[View<'_>], outs: &mut [Out<'_>]) {
    let [y, state] = outs else { unreachable!("the op has two results") };
    let [tokens, channels] = [y.shape[0], y.shape[1]];
    let past = state.shape[2];
    if y.elements() == 0 || state.elements() == 0 {
        return;
    }
    let slots = Slots::new(&x[4], &x[5], state.shape[0]);
    let [input, w, bias] = [0, 1, 2].map(|i: usize| x[i].numbers::<f32>());
    let dtype = state.dtype;
    let memory =
        Memory { dtype, states: Shared(state.bytes().as_mut_ptr()), ys: Shared(y.bytes().as_mut_ptr()) };
    ctx.threads.each(channels.div_ceil(CHANNELS), |task| {
        let mut window = vec![0.0; past + 1];
        for c in task * CHANNELS..((task + 1) * CHANNELS).min(channels) {
            for t in 0..tokens {
                let at = (slots.read[t] * channels + c) * past;
                if slots.start[t] {
                    window.fill(0.0);
                } else {
                    memory.load(at, &mut window[..past]);
                }
                window[past] = input[t * channels + c];
                if slots.write[t] {
                    memory.save(at, &window[1..]);
                }
                let weights = &w[c * (past + 1)..(c + 1) * (past + 1)];
                let sum = window.iter().zip(weights).map(|(x, w)| x * w).sum::<f32>();
                memory.put(t * channels + c, sum + bias[c]);
            }
        }
    });
}
