//! Registers and what instructions do to them. Every loop runs over a slice of one class, so that it vectorises.

use mlxcel_ir::{Activation, BinaryOp, CompareOp, DType, UnaryOp};

use super::BLOCK;
use super::code::{Code, Instruction, Kind, Reg};
use crate::lanes::{Class, Lane, f32_to_bf16};
use crate::math;
use crate::simd::Simd;
use crate::view::View;

/// The registers of one task.
pub(super) struct Registers {
    f32s: Vec<[f32; BLOCK]>,
    f64s: Vec<[f64; BLOCK]>,
    i64s: Vec<[i64; BLOCK]>,
}

impl Registers {
    pub(super) fn new(code: &Code) -> Self {
        Registers {
            f32s: vec![[0.0; BLOCK]; code.counts[Class::F32 as usize]],
            f64s: vec![[0.0; BLOCK]; code.counts[Class::F64 as usize]],
            i64s: vec![[0; BLOCK]; code.counts[Class::I64 as usize]],
        }
    }

    #[inline(always)]
    pub(super) fn load(
        &mut self,
        code: &Code,
        operand: usize,
        view: &View<'_>,
        at: (usize, usize),
        n: usize,
    ) {
        let to = code.loads[operand];
        match to.class {
            Class::F32 => f32::load(view.dtype, view.bytes(), at, &mut self.f32s[to.index][..n]),
            Class::F64 | Class::I64 => self.load_wide(to, view, at, n),
        }
    }

    #[inline(never)]
    fn load_wide(&mut self, to: Reg, view: &View<'_>, at: (usize, usize), n: usize) {
        match to.class {
            Class::F64 => f64::load(view.dtype, view.bytes(), at, &mut self.f64s[to.index][..n]),
            _ => i64::load(view.dtype, view.bytes(), at, &mut self.i64s[to.index][..n]),
        }
    }

    #[inline(always)]
    pub(super) fn store(&self, code: &Code, dtype: DType, n: usize, bytes: &mut [u8]) {
        let from = code.result;
        match from.class {
            Class::F32 => f32::store(dtype, &self.f32s[from.index][..n], bytes),
            Class::F64 | Class::I64 => self.store_wide(from, dtype, n, bytes),
        }
    }

    #[inline(never)]
    fn store_wide(&self, from: Reg, dtype: DType, n: usize, bytes: &mut [u8]) {
        match from.class {
            Class::F64 => f64::store(dtype, &self.f64s[from.index][..n], bytes),
            _ => i64::store(dtype, &self.i64s[from.index][..n], bytes),
        }
    }

    #[inline(always)]
    pub(super) fn execute<S: Simd>(&mut self, code: &Code, n: usize) {
        for i in &code.instructions {
            let is_single = i.inputs[0].class == Class::F32 && i.output.class == Class::F32;
            match i.kind {
                Kind::Select | Kind::Compare(_) => self.execute_rare(i, n),
                _ if !is_single => self.execute_rare(i, n),
                Kind::Cast => {
                    let (before, out) = parts(&mut self.f32s, i.output.index);
                    out[..n].copy_from_slice(&before[i.inputs[0].index][..n]);
                    round_f32(i.dtype, &mut out[..n]);
                }
                kind => {
                    let (before, out) = parts(&mut self.f32s, i.output.index);
                    arithmetic_f32::<S>(kind, inputs(before, i), &mut out[..n]);
                    round_f32(i.dtype, &mut out[..n]);
                }
            }
        }
    }

    /// What is no arithmetic of `f32`. It is compiled once: models spend no time in it, and for every level it would take
    /// the compiler minutes.
    #[inline(never)]
    fn execute_rare(&mut self, i: &Instruction, n: usize) {
        match (i.kind, i.inputs[0].class) {
            (Kind::Cast, _) => self.cast(i, n),
            (Kind::Select, _) => self.select(i, n),
            (Kind::Compare(c), class) => self.compare(c, i, class, n),
            (_, Class::F32) => unreachable!("arithmetic of f32 gives f32"),
            (kind, Class::F64) => {
                let (before, out) = parts(&mut self.f64s, i.output.index);
                arithmetic_f64(kind, inputs(before, i), &mut out[..n]);
            }
            (kind, Class::I64) => {
                let (before, out) = parts(&mut self.i64s, i.output.index);
                let (a, b) = inputs(before, i);
                if !(i.unsigned && unsigned_i64(kind, (a, b), &mut out[..n])) {
                    arithmetic_i64(kind, i.dtype, (a, b), &mut out[..n]);
                }
                wrap(i.dtype, &mut out[..n]);
            }
        }
    }

    fn compare(&mut self, op: CompareOp, i: &Instruction, class: Class, n: usize) {
        let (a, b) = (i.inputs[0].index, i.inputs[1].index);
        match class {
            Class::F32 => {
                ordered(op, &self.f32s[a][..n], &self.f32s[b][..n], &mut self.i64s[i.output.index][..n])
            }
            Class::F64 => {
                ordered(op, &self.f64s[a][..n], &self.f64s[b][..n], &mut self.i64s[i.output.index][..n])
            }
            Class::I64 => {
                let (before, out) = parts(&mut self.i64s, i.output.index);
                if i.unsigned {
                    zip(&before[a][..n], &before[b][..n], &mut out[..n], |x, y| {
                        holds(op, x as u64, y as u64)
                    });
                } else {
                    ordered(op, &before[a][..n], &before[b][..n], &mut out[..n]);
                }
            }
        }
    }

    fn select(&mut self, i: &Instruction, n: usize) {
        let [keep, a, b] = [0, 1, 2].map(|k: usize| i.inputs[k].index);
        match i.output.class {
            Class::F32 => {
                let (before, out) = parts(&mut self.f32s, i.output.index);
                choose(&self.i64s[keep][..n], &before[a][..n], &before[b][..n], &mut out[..n]);
            }
            Class::F64 => {
                let (before, out) = parts(&mut self.f64s, i.output.index);
                choose(&self.i64s[keep][..n], &before[a][..n], &before[b][..n], &mut out[..n]);
            }
            Class::I64 => {
                let (before, out) = parts(&mut self.i64s, i.output.index);
                choose(&before[keep][..n], &before[a][..n], &before[b][..n], &mut out[..n]);
            }
        }
    }

    fn cast(&mut self, i: &Instruction, n: usize) {
        let (from, to) = (i.inputs[0], i.output);
        match (from.class, to.class) {
            (Class::F32, Class::F32) => unreachable!("done where f32 is"),
            (Class::F64, Class::F64) => {
                let (before, out) = parts(&mut self.f64s, to.index);
                out[..n].copy_from_slice(&before[from.index][..n]);
            }
            (Class::I64, Class::I64) => {
                let (before, out) = parts(&mut self.i64s, to.index);
                out[..n].copy_from_slice(&before[from.index][..n]);
                wrap(i.dtype, &mut out[..n]);
            }
            (Class::F32, Class::F64) => {
                map(&self.f32s[from.index][..n], &mut self.f64s[to.index][..n], |v| v as f64);
            }
            (Class::F64, Class::F32) => {
                // Rounded once, from the double.
                let out = &mut self.f32s[to.index][..n];
                let round = |v: f64| match i.dtype {
                    DType::F16 => half::f16::from_f64(v).to_f32(),
                    DType::BF16 => half::bf16::from_f64(v).to_f32(),
                    _ => v as f32,
                };
                map(&self.f64s[from.index][..n], out, round);
                round_f32(i.dtype, out);
            }
            (Class::F32, Class::I64) => {
                let out = &mut self.i64s[to.index][..n];
                match i.dtype {
                    DType::Bool => map(&self.f32s[from.index][..n], out, |v| (v != 0.0) as i64),
                    DType::U64 => map(&self.f32s[from.index][..n], out, |v| v as u64 as i64),
                    _ => map(&self.f32s[from.index][..n], out, |v| v as i64),
                }
                wrap(i.dtype, out);
            }
            (Class::F64, Class::I64) => {
                let out = &mut self.i64s[to.index][..n];
                match i.dtype {
                    DType::Bool => map(&self.f64s[from.index][..n], out, |v| (v != 0.0) as i64),
                    DType::U64 => map(&self.f64s[from.index][..n], out, |v| v as u64 as i64),
                    _ => map(&self.f64s[from.index][..n], out, |v| v as i64),
                }
                wrap(i.dtype, out);
            }
            (Class::I64, Class::F64) => {
                let out = &mut self.f64s[to.index][..n];
                if i.unsigned {
                    map(&self.i64s[from.index][..n], out, |v| v as u64 as f64);
                } else {
                    map(&self.i64s[from.index][..n], out, |v| v as f64);
                }
            }
            (Class::I64, Class::F32) => {
                let out = &mut self.f32s[to.index][..n];
                if i.unsigned {
                    map(&self.i64s[from.index][..n], out, |v| v as u64 as f32);
                } else {
                    map(&self.i64s[from.index][..n], out, |v| v as f32);
                }
                round_f32(i.dtype, out);
            }
        }
    }
}

/// The registers before the output, and the output: operands always come earlier.
#[inline(always)]
fn parts<T>(registers: &mut [[T; BLOCK]], output: usize) -> (&[[T; BLOCK]], &mut [T; BLOCK]) {
    let (before, rest) = registers.split_at_mut(output);
    (before, &mut rest[0])
}

/// The first operand and the second, or the first again.
#[inline(always)]
fn inputs<'r, T>(before: &'r [[T; BLOCK]], i: &Instruction) -> (&'r [T; BLOCK], &'r [T; BLOCK]) {
    (&before[i.inputs[0].index], &before[i.inputs[i.inputs.len() - 1].index])
}

#[inline(always)]
fn map<A: Copy, B>(a: &[A], out: &mut [B], f: impl Fn(A) -> B) {
    for (o, &x) in out.iter_mut().zip(a) {
        *o = f(x);
    }
}

#[inline(always)]
fn zip<A: Copy, B>(a: &[A], b: &[A], out: &mut [B], f: impl Fn(A, A) -> B) {
    for ((o, &x), &y) in out.iter_mut().zip(a).zip(b) {
        *o = f(x, y);
    }
}

#[inline(always)]
fn choose<T: Copy>(keep: &[i64], a: &[T], b: &[T], out: &mut [T]) {
    for (((o, &k), &x), &y) in out.iter_mut().zip(keep).zip(a).zip(b) {
        *o = if k != 0 { x } else { y };
    }
}

fn holds(op: CompareOp, x: u64, y: u64) -> i64 {
    let mut out = [0];
    ordered(op, &[x], &[y], &mut out);
    out[0]
}

#[inline(always)]
fn ordered<T: Copy + PartialOrd>(op: CompareOp, a: &[T], b: &[T], out: &mut [i64]) {
    match op {
        CompareOp::Eq => zip(a, b, out, |x, y| (x == y) as i64),
        CompareOp::Ne => zip(a, b, out, |x, y| (x != y) as i64),
        CompareOp::Lt => zip(a, b, out, |x, y| (x < y) as i64),
        CompareOp::Le => zip(a, b, out, |x, y| (x <= y) as i64),
        CompareOp::Gt => zip(a, b, out, |x, y| (x > y) as i64),
        CompareOp::Ge => zip(a, b, out, |x, y| (x >= y) as i64),
    }
}

/// Rounds to a type narrower than `f32`.
#[inline(always)]
fn round_f32(dtype: DType, out: &mut [f32]) {
    match dtype {
        DType::BF16 => out.iter_mut().for_each(|v| *v = f32::from_bits((f32_to_bf16(*v) as u32) << 16)),
        DType::F16 => out.iter_mut().for_each(|v| *v = half::f16::from_f32(*v).to_f32()),
        DType::F8E4M3 | DType::F8E5M2 => round_to_bytes(dtype, out),
        _ => {}
    }
}

#[inline(never)]
fn round_to_bytes(dtype: DType, out: &mut [f32]) {
    let mut bytes = [0; BLOCK];
    let bytes = &mut bytes[..out.len()];
    f32::store(dtype, out, bytes);
    f32::load(dtype, bytes, (0, 1), out);
}

fn wrap(dtype: DType, out: &mut [i64]) {
    match dtype {
        DType::Bool => out.iter_mut().for_each(|v| *v = (*v != 0) as i64),
        DType::U8 => out.iter_mut().for_each(|v| *v = *v as u8 as i64),
        DType::U16 => out.iter_mut().for_each(|v| *v = *v as u16 as i64),
        DType::U32 => out.iter_mut().for_each(|v| *v = *v as u32 as i64),
        DType::I8 => out.iter_mut().for_each(|v| *v = *v as i8 as i64),
        DType::I16 => out.iter_mut().for_each(|v| *v = *v as i16 as i64),
        DType::I32 => out.iter_mut().for_each(|v| *v = *v as i32 as i64),
        _ => {}
    }
}

type Pair<'r, T> = (&'r [T; BLOCK], &'r [T; BLOCK]);

#[inline(always)]
fn arithmetic_f32<S: Simd>(kind: Kind, (a, b): Pair<'_, f32>, out: &mut [f32]) {
    match kind {
        Kind::Unary(UnaryOp::Exp) => map(a, out, math::exp),
        Kind::Unary(UnaryOp::Sigmoid) => sigmoids::<S>(a, out, |x| x),
        Kind::Unary(UnaryOp::Tanh) => map(a, out, math::tanh),
        Kind::Unary(UnaryOp::Erf) => map(a, out, math::erf),
        Kind::Unary(UnaryOp::Sin) => angles(a, out, |x| math::sin_cos(x).0, f64::sin),
        Kind::Unary(UnaryOp::Cos) => angles(a, out, |x| math::sin_cos(x).1, f64::cos),
        Kind::Unary(UnaryOp::Neg) => map(a, out, |x| -x),
        Kind::Unary(UnaryOp::Abs) => map(a, out, f32::abs),
        Kind::Unary(UnaryOp::Sign) => map(a, out, |x| if x == 0.0 || x.is_nan() { x } else { x.signum() }),
        Kind::Unary(UnaryOp::Log) => map(a, out, f32::ln),
        Kind::Unary(UnaryOp::Log1p) => map(a, out, f32::ln_1p),
        Kind::Unary(UnaryOp::Sqrt) => map(a, out, f32::sqrt),
        Kind::Unary(UnaryOp::Rsqrt) => map(a, out, |x| 1.0 / x.sqrt()),
        Kind::Unary(UnaryOp::Floor) => map(a, out, f32::floor),
        Kind::Unary(UnaryOp::Ceil) => map(a, out, f32::ceil),
        Kind::Unary(UnaryOp::Round) => map(a, out, f32::round_ties_even),
        Kind::Binary(BinaryOp::Add) => zip(a, b, out, |x, y| x + y),
        Kind::Binary(BinaryOp::Sub) => zip(a, b, out, |x, y| x - y),
        Kind::Binary(BinaryOp::Mul) => zip(a, b, out, |x, y| x * y),
        Kind::Binary(BinaryOp::Div) => zip(a, b, out, |x, y| x / y),
        Kind::Binary(BinaryOp::Rem) => zip(a, b, out, |x, y| x % y),
        Kind::Binary(BinaryOp::Pow) => zip(a, b, out, |x, y| x.powf(y)),
        Kind::Binary(BinaryOp::Max) => zip(a, b, out, |x, y| if x > y || x.is_nan() { x } else { y }),
        Kind::Binary(BinaryOp::Min) => zip(a, b, out, |x, y| if x < y || x.is_nan() { x } else { y }),
        Kind::Activation(kind) => activate::<S>(kind, a, out),
        other => unreachable!("the verifier keeps floats from {other:?}"),
    }
}

/// Reduced angles in fast steps; a block with an angle beyond them one by one.
#[inline(always)]
fn angles(a: &[f32; BLOCK], out: &mut [f32], fast: impl Fn(f32) -> f32, exact: impl Fn(f64) -> f64) {
    if a[..out.len()].iter().all(|x| x.abs() <= math::ANGLE_MAX) {
        map(a, out, fast);
    } else {
        map(a, out, |x| exact(x as f64) as f32);
    }
}

/// The sigmoids of what `inner` makes of numbers.
#[inline(always)]
fn sigmoids<S: Simd>(a: &[f32], out: &mut [f32], inner: impl Fn(f32) -> f32) {
    map(a, out, inner);
    S::sigmoids(out);
}

/// Numbers times such sigmoids.
#[inline(always)]
fn gated_by_sigmoid<S: Simd>(a: &[f32], out: &mut [f32], inner: impl Fn(f32) -> f32) {
    sigmoids::<S>(a, out, inner);
    for (o, x) in out.iter_mut().zip(a) {
        *o *= x;
    }
}

#[inline(always)]
pub(in crate::kernels) fn activate<S: Simd>(kind: Activation, a: &[f32], out: &mut [f32]) {
    let relu = |x: f32| if x > 0.0 || x.is_nan() { x } else { 0.0 };
    match kind {
        Activation::Relu => map(a, out, relu),
        Activation::Relu2 => map(a, out, |x| relu(x) * relu(x)),
        Activation::Silu => gated_by_sigmoid::<S>(a, out, |x| x),
        Activation::Gelu => map(a, out, |x| x * 0.5 * (math::erf(x * std::f32::consts::FRAC_1_SQRT_2) + 1.0)),
        Activation::GeluTanh => map(a, out, |x| {
            let inner = (x + x * x * x * 0.044_715) * 0.797_884_6;
            x * 0.5 * (math::tanh(inner) + 1.0)
        }),
        Activation::QuickGelu => gated_by_sigmoid::<S>(a, out, |x| 1.702 * x),
        Activation::Softplus => map(a, out, |x| relu(x) + (-x.abs()).exp().ln_1p()),
    }
}

fn arithmetic_f64(kind: Kind, (a, b): Pair<'_, f64>, out: &mut [f64]) {
    match kind {
        Kind::Unary(op) => map(a, out, |x| unary_f64(op, x)),
        Kind::Binary(op) => zip(a, b, out, |x, y| binary_f64(op, x, y)),
        Kind::Activation(kind) => map(a, out, |x| activation_f64(kind, x)),
        other => unreachable!("{other:?} is handled before"),
    }
}

fn unary_f64(op: UnaryOp, x: f64) -> f64 {
    match op {
        UnaryOp::Neg => -x,
        UnaryOp::Abs => x.abs(),
        UnaryOp::Sign if x == 0.0 || x.is_nan() => x,
        UnaryOp::Sign => x.signum(),
        UnaryOp::Exp => x.exp(),
        UnaryOp::Log => x.ln(),
        UnaryOp::Log1p => x.ln_1p(),
        UnaryOp::Sqrt => x.sqrt(),
        UnaryOp::Rsqrt => 1.0 / x.sqrt(),
        UnaryOp::Sin => x.sin(),
        UnaryOp::Cos => x.cos(),
        UnaryOp::Tanh => x.tanh(),
        UnaryOp::Erf => mlxcel_ir::erf(x),
        UnaryOp::Sigmoid => 1.0 / (1.0 + (-x).exp()),
        UnaryOp::Floor => x.floor(),
        UnaryOp::Ceil => x.ceil(),
        UnaryOp::Round => x.round_ties_even(),
        UnaryOp::Not => unreachable!("the verifier keeps floats from logic"),
    }
}

#[inline(always)]
fn binary_f64(op: BinaryOp, x: f64, y: f64) -> f64 {
    match op {
        BinaryOp::Add => x + y,
        BinaryOp::Sub => x - y,
        BinaryOp::Mul => x * y,
        BinaryOp::Div => x / y,
        BinaryOp::Rem => x % y,
        BinaryOp::Pow => x.powf(y),
        BinaryOp::Max => {
            if x > y || x.is_nan() {
                x
            } else {
                y
            }
        }
        BinaryOp::Min => {
            if x < y || x.is_nan() {
                x
            } else {
                y
            }
        }
        _ => unreachable!("the verifier keeps floats from {op:?}"),
    }
}

fn activation_f64(kind: Activation, x: f64) -> f64 {
    let relu = |x: f64| if x > 0.0 || x.is_nan() { x } else { 0.0 };
    let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
    match kind {
        Activation::Relu => relu(x),
        Activation::Relu2 => relu(x) * relu(x),
        Activation::Silu => x * sigmoid(x),
        Activation::Gelu => x * 0.5 * (mlxcel_ir::erf(x * std::f64::consts::FRAC_1_SQRT_2) + 1.0),
        Activation::GeluTanh => {
            let inner = (x + x * x * x * 0.044715) * (2.0 / std::f64::consts::PI).sqrt();
            x * 0.5 * (inner.tanh() + 1.0)
        }
        Activation::QuickGelu => x * sigmoid(1.702 * x),
        Activation::Softplus => relu(x) + (-x.abs()).exp().ln_1p(),
    }
}

fn arithmetic_i64(kind: Kind, dtype: DType, (a, b): Pair<'_, i64>, out: &mut [i64]) {
    match kind {
        Kind::Unary(UnaryOp::Neg) => map(a, out, i64::wrapping_neg),
        Kind::Unary(UnaryOp::Abs) => map(a, out, i64::wrapping_abs),
        Kind::Unary(UnaryOp::Sign) => map(a, out, i64::signum),
        Kind::Unary(UnaryOp::Not) if dtype == DType::Bool => map(a, out, |x| (x == 0) as i64),
        Kind::Unary(UnaryOp::Not) => map(a, out, |x| !x),
        Kind::Binary(BinaryOp::Add) => zip(a, b, out, i64::wrapping_add),
        Kind::Binary(BinaryOp::Sub) => zip(a, b, out, i64::wrapping_sub),
        Kind::Binary(BinaryOp::Mul) => zip(a, b, out, i64::wrapping_mul),
        Kind::Binary(BinaryOp::Div) => zip(a, b, out, |x, y| if y == 0 { 0 } else { x.wrapping_div(y) }),
        Kind::Binary(BinaryOp::Rem) => zip(a, b, out, |x, y| if y == 0 { 0 } else { x.wrapping_rem(y) }),
        Kind::Binary(BinaryOp::Max) => zip(a, b, out, i64::max),
        Kind::Binary(BinaryOp::Min) => zip(a, b, out, i64::min),
        Kind::Binary(BinaryOp::And) => zip(a, b, out, |x, y| x & y),
        Kind::Binary(BinaryOp::Or) => zip(a, b, out, |x, y| x | y),
        Kind::Binary(BinaryOp::Xor) => zip(a, b, out, |x, y| x ^ y),
        Kind::Binary(BinaryOp::Shl) => {
            zip(a, b, out, |x, y| shift(y).and_then(|s| x.checked_shl(s)).unwrap_or(0))
        }
        Kind::Binary(BinaryOp::Shr) => {
            zip(a, b, out, |x, y| shift(y).and_then(|s| x.checked_shr(s)).unwrap_or(0))
        }
        other => unreachable!("the verifier keeps integers from {other:?}"),
    }
}

/// What 64-bit unsigned numbers do otherwise than signed ones; false if nothing.
fn unsigned_i64(kind: Kind, (a, b): Pair<'_, i64>, out: &mut [i64]) -> bool {
    let each =
        |out: &mut [i64], f: &dyn Fn(u64, u64) -> u64| zip(a, b, out, |x, y| f(x as u64, y as u64) as i64);
    match kind {
        Kind::Unary(UnaryOp::Abs) => map(a, out, |x| x),
        Kind::Unary(UnaryOp::Sign) => map(a, out, |x| (x != 0) as i64),
        Kind::Binary(BinaryOp::Div) => each(out, &|x, y| x.checked_div(y).unwrap_or(0)),
        Kind::Binary(BinaryOp::Rem) => each(out, &|x, y| x.checked_rem(y).unwrap_or(0)),
        Kind::Binary(BinaryOp::Max) => each(out, &u64::max),
        Kind::Binary(BinaryOp::Min) => each(out, &u64::min),
        Kind::Binary(BinaryOp::Shr) => {
            each(out, &|x, y| u32::try_from(y).ok().and_then(|s| x.checked_shr(s)).unwrap_or(0));
        }
        _ => return false,
    }
    true
}

#[inline(always)]
fn shift(by: i64) -> Option<u32> {
    u32::try_from(by).ok()
}
