//! The three kinds of numbers that kernels compute in, and how every element type is read into them and written back.
//! Floats up to 32 bits are computed as `f32`, doubles as `f64`, integers and booleans as `i64`, each rounded or
//! wrapped to its own type when it is stored.

use half::{bf16, f16};
use mlxcel_engine::weights::quant::{bf16_to_f32, f16_to_f32};
use mlxcel_ir::{DType, f8};

/// What a type is computed in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Class {
    F32,
    F64,
    I64,
}

impl Class {
    pub(crate) fn of(dtype: DType) -> Class {
        match dtype {
            DType::F64 => Class::F64,
            d if d.is_float() => Class::F32,
            _ => Class::I64,
        }
    }
}

/// A number that kernels compute in.
pub(crate) trait Lane: Copy + Default + PartialOrd + Send + Sync + 'static {
    /// Elements of type `dtype` in `bytes`: the first at `offset`, the others `stride` elements apart.
    fn load(dtype: DType, bytes: &[u8], at: (usize, usize), out: &mut [Self]);

    /// Rounds or wraps to `dtype`; `bytes` holds exactly as many elements.
    fn store(dtype: DType, values: &[Self], bytes: &mut [u8]);

    fn is_nan(self) -> bool;
}

#[inline(always)]
fn each<L: Copy, const N: usize>(
    bytes: &[u8],
    (offset, stride): (usize, usize),
    out: &mut [L],
    f: impl Fn([u8; N]) -> L,
) {
    let (elements, _) = bytes.as_chunks::<N>();
    match stride {
        0 => out.fill(f(elements[offset])),
        1 => {
            let line = &elements[offset..offset + out.len()];
            out.iter_mut().zip(line).for_each(|(o, &e)| *o = f(e));
        }
        _ => {
            let line = elements[offset..].iter().step_by(stride);
            out.iter_mut().zip(line).for_each(|(o, &e)| *o = f(e));
        }
    }
}

#[inline(always)]
fn put<L: Copy, const N: usize>(values: &[L], bytes: &mut [u8], f: impl Fn(L) -> [u8; N]) {
    let (elements, _) = bytes.as_chunks_mut::<N>();
    assert_eq!(elements.len(), values.len(), "a store of another length");
    elements.iter_mut().zip(values).for_each(|(e, &v)| *e = f(v));
}

/// To the nearest, ties to even; NaN stays NaN.
#[inline(always)]
pub(crate) fn f32_to_bf16(v: f32) -> u16 {
    let bits = v.to_bits();
    let rounded = bits.wrapping_add(0x7fff + (bits >> 16 & 1)) >> 16;
    if v.is_nan() { (bits >> 16 | 0x40) as u16 } else { rounded as u16 }
}

/// Types that weights and activations have are read and written within the kernels, for each level; the others in functions
/// of their own, since every kernel has a copy of what is within it.
macro_rules! float_lane {
    ($t:ty, $load:ident, $store:ident, $from16:expr, $frombf:expr, $to16:expr, $tobf:expr) => {
        impl Lane for $t {
            #[inline(always)]
            fn load(dtype: DType, bytes: &[u8], at: (usize, usize), out: &mut [Self]) {
                if out.is_empty() {
                    return;
                }
                match dtype {
                    DType::F32 => each(bytes, at, out, |b| f32::from_le_bytes(b) as $t),
                    DType::BF16 => each(bytes, at, out, |b| $frombf(u16::from_le_bytes(b))),
                    DType::F16 => each(bytes, at, out, |b| $from16(u16::from_le_bytes(b))),
                    _ => $load(dtype, bytes, at, out),
                }
            }

            #[inline(always)]
            fn store(dtype: DType, values: &[Self], bytes: &mut [u8]) {
                match dtype {
                    DType::F32 => put(values, bytes, |v| (v as f32).to_le_bytes()),
                    DType::BF16 => put(values, bytes, |v| $tobf(v).to_le_bytes()),
                    DType::F16 => put(values, bytes, |v| $to16(v).to_le_bytes()),
                    _ => $store(dtype, values, bytes),
                }
            }

            #[inline(always)]
            fn is_nan(self) -> bool {
                <$t>::is_nan(self)
            }
        }

        #[inline(never)]
        fn $load(dtype: DType, bytes: &[u8], at: (usize, usize), out: &mut [$t]) {
            match dtype {
                DType::F64 => each(bytes, at, out, |b| f64::from_le_bytes(b) as $t),
                DType::F8E4M3 => each(bytes, at, out, |b: [u8; 1]| f8::decode(b[0], f8::E4M3) as $t),
                DType::F8E5M2 => each(bytes, at, out, |b: [u8; 1]| f8::decode(b[0], f8::E5M2) as $t),
                DType::Bool => each(bytes, at, out, |b: [u8; 1]| (b[0] != 0) as u8 as $t),
                DType::U8 => each(bytes, at, out, |b| u8::from_le_bytes(b) as $t),
                DType::U16 => each(bytes, at, out, |b| u16::from_le_bytes(b) as $t),
                DType::U32 => each(bytes, at, out, |b| u32::from_le_bytes(b) as $t),
                DType::U64 => each(bytes, at, out, |b| u64::from_le_bytes(b) as $t),
                DType::I64 => each(bytes, at, out, |b| i64::from_le_bytes(b) as $t),
                DType::I8 => each(bytes, at, out, |b| i8::from_le_bytes(b) as $t),
                DType::I16 => each(bytes, at, out, |b| i16::from_le_bytes(b) as $t),
                DType::I32 => each(bytes, at, out, |b| i32::from_le_bytes(b) as $t),
                DType::Quant(_) => unreachable!("packed weights are decoded, not loaded"),
                DType::F32 | DType::BF16 | DType::F16 => unreachable!("these are loaded in place"),
            }
        }

        #[inline(never)]
        fn $store(dtype: DType, values: &[$t], bytes: &mut [u8]) {
            match dtype {
                DType::F64 => put(values, bytes, |v| (v as f64).to_le_bytes()),
                DType::F8E4M3 => put(values, bytes, |v| [f8::encode(v as f64, f8::E4M3)]),
                DType::F8E5M2 => put(values, bytes, |v| [f8::encode(v as f64, f8::E5M2)]),
                DType::Bool => put(values, bytes, |v| [(v != 0.0) as u8]),
                DType::U8 | DType::I8 => put(values, bytes, |v| (v as i64 as u8).to_le_bytes()),
                DType::U16 | DType::I16 => put(values, bytes, |v| (v as i64 as u16).to_le_bytes()),
                DType::U32 | DType::I32 => put(values, bytes, |v| (v as i64 as u32).to_le_bytes()),
                DType::U64 => put(values, bytes, |v| (v as u64).to_le_bytes()),
                DType::I64 => put(values, bytes, |v| (v as i64).to_le_bytes()),
                DType::Quant(_) => unreachable!("nothing is stored packed"),
                DType::F32 | DType::BF16 | DType::F16 => unreachable!("these are stored in place"),
            }
        }
    };
}
float_lane!(
    f32,
    load_rare_f32,
    store_rare_f32,
    f16_to_f32,
    bf16_to_f32,
    |v| f16::from_f32(v).to_bits(),
    f32_to_bf16
);
float_lane!(
    f64,
    load_rare_f64,
    store_rare_f64,
    |b| f16_to_f32(b) as f64,
    |b| bf16_to_f32(b) as f64,
    |v| f16::from_f64(v).to_bits(),
    |v| { bf16::from_f64(v).to_bits() }
);

impl Lane for i64 {
    fn load(dtype: DType, bytes: &[u8], at: (usize, usize), out: &mut [Self]) {
        if out.is_empty() {
            return;
        }
        match dtype {
            DType::Bool => each(bytes, at, out, |b: [u8; 1]| (b[0] != 0) as i64),
            DType::U8 => each(bytes, at, out, |b| u8::from_le_bytes(b) as i64),
            DType::U16 => each(bytes, at, out, |b| u16::from_le_bytes(b) as i64),
            DType::U32 => each(bytes, at, out, |b| u32::from_le_bytes(b) as i64),
            DType::U64 | DType::I64 => each(bytes, at, out, i64::from_le_bytes),
            DType::I8 => each(bytes, at, out, |b| i8::from_le_bytes(b) as i64),
            DType::I16 => each(bytes, at, out, |b| i16::from_le_bytes(b) as i64),
            DType::I32 => each(bytes, at, out, |b| i32::from_le_bytes(b) as i64),
            float => unreachable!("{float} is not loaded as an integer"),
        }
    }

    fn store(dtype: DType, values: &[Self], bytes: &mut [u8]) {
        match dtype {
            DType::Bool => put(values, bytes, |v| [(v != 0) as u8]),
            DType::U8 | DType::I8 => put(values, bytes, |v| (v as u8).to_le_bytes()),
            DType::U16 | DType::I16 => put(values, bytes, |v| (v as u16).to_le_bytes()),
            DType::U32 | DType::I32 => put(values, bytes, |v| (v as u32).to_le_bytes()),
            DType::U64 | DType::I64 => put(values, bytes, |v| v.to_le_bytes()),
            DType::F64 => put(values, bytes, |v| (v as f64).to_le_bytes()),
            DType::F32 => put(values, bytes, |v| (v as f32).to_le_bytes()),
            float => f64::store(float, &values.iter().map(|&v| v as f64).collect::<Vec<_>>(), bytes),
        }
    }

    #[inline(always)]
    fn is_nan(self) -> bool {
        false
    }
}

/// The only type whose numbers do not fit an `i64`; for ops that depend on their order.
impl Lane for u64 {
    fn load(dtype: DType, bytes: &[u8], at: (usize, usize), out: &mut [Self]) {
        assert_eq!(dtype, DType::U64, "only 64-bit unsigned numbers are loaded as such");
        if !out.is_empty() {
            each(bytes, at, out, u64::from_le_bytes);
        }
    }

    fn store(dtype: DType, values: &[Self], bytes: &mut [u8]) {
        assert_eq!(dtype, DType::U64, "only 64-bit unsigned numbers are stored as such");
        put(values, bytes, u64::to_le_bytes);
    }

    #[inline(always)]
    fn is_nan(self) -> bool {
        false
    }
}

/// Integers of an operand: token ids, positions, slots.
pub(crate) fn indices(view: &crate::view::View<'_>) -> Vec<i64> {
    view.numbers::<i64>()
}

#[cfg(test)]
mod tests {
    use super::*;
    use mlxcel_ir::HostTensor;

    #[test]
    fn every_type_is_read_and_written_as_the_host_does() {
        let numbers = [0.0, 1.0, -1.0, 3.0, 100.0, -100.0, 0.375, 7.0];
        for d in DType::PLAIN {
            let host = HostTensor::from_f64(d, &[8], &numbers);
            let mut bytes = vec![0; host.bytes().len()];
            match Class::of(d) {
                Class::F32 => {
                    let mut out = [0f32; 8];
                    f32::load(d, host.bytes(), (0, 1), &mut out);
                    assert_eq!(out.map(f64::from).to_vec(), host.to_f64(), "{d}");
                    f32::store(d, &out, &mut bytes);
                }
                Class::F64 => {
                    let mut out = [0f64; 8];
                    f64::load(d, host.bytes(), (0, 1), &mut out);
                    f64::store(d, &out, &mut bytes);
                }
                Class::I64 => {
                    let mut out = [0i64; 8];
                    i64::load(d, host.bytes(), (0, 1), &mut out);
                    assert_eq!(out.to_vec(), host.to_i64(), "{d}");
                    i64::store(d, &out, &mut bytes);
                }
            }
            assert_eq!(bytes, host.bytes(), "{d}");
        }
    }

    #[test]
    fn strides_pick_and_repeat() {
        let host = HostTensor::new(&[6], &[0f32, 1.0, 2.0, 3.0, 4.0, 5.0]);
        let mut out = [0f32; 3];
        f32::load(DType::F32, host.bytes(), (1, 2), &mut out);
        assert_eq!(out, [1.0, 3.0, 5.0]);
        f32::load(DType::F32, host.bytes(), (4, 0), &mut out);
        assert_eq!(out, [4.0; 3]);
    }

    #[test]
    fn bf16_rounds_as_the_half_crate_does() {
        for i in 0..200_000u32 {
            let v = f32::from_bits(i.wrapping_mul(0x9e37_79b9));
            let (ours, theirs) = (bf16::from_bits(f32_to_bf16(v)), bf16::from_f32(v));
            assert!(ours == theirs || ours.is_nan() && theirs.is_nan(), "{v}");
        }
    }
}
