//! A tensor on the host: constants of a graph, what is fed to a program and what comes back.

use half::{bf16, f16};
use serde::{Deserialize, Serialize};

use crate::dtype::DType;

/// Row-major bytes with a type and a shape. Plain element types only.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct HostTensor {
    dtype: DType,
    shape: Vec<usize>,
    bytes: Vec<u8>,
}

/// A Rust number that is the in-memory form of one element type.
pub trait Element: Copy {
    const DTYPE: DType;
    fn write(self, out: &mut Vec<u8>);
    /// All of them, end to end.
    fn to_bytes(elements: &[Self]) -> Vec<u8>;
    fn read(bytes: &[u8]) -> Self;
}

macro_rules! element {
    ($($t:ty => $d:ident),*) => {$(
        impl Element for $t {
            const DTYPE: DType = DType::$d;
            fn write(self, out: &mut Vec<u8>) {
                out.extend_from_slice(&self.to_le_bytes());
            }
            fn to_bytes(elements: &[Self]) -> Vec<u8> {
                let mut bytes = vec![0; size_of_val(elements)];
                for (place, e) in bytes.as_chunks_mut().0.iter_mut().zip(elements) {
                    *place = e.to_le_bytes();
                }
                bytes
            }
            fn read(bytes: &[u8]) -> Self {
                Self::from_le_bytes(bytes.try_into().expect("the caller passes one element"))
            }
        }
    )*};
}
element!(u8 => U8, u16 => U16, u32 => U32, u64 => U64, i8 => I8, i16 => I16, i32 => I32, i64 => I64,
         f16 => F16, bf16 => BF16, f32 => F32, f64 => F64);

impl Element for bool {
    const DTYPE: DType = DType::Bool;
    fn write(self, out: &mut Vec<u8>) {
        out.push(self as u8);
    }
    fn to_bytes(elements: &[Self]) -> Vec<u8> {
        elements.iter().map(|e| u8::from(*e)).collect()
    }
    fn read(bytes: &[u8]) -> Self {
        bytes[0] != 0
    }
}

impl HostTensor {
    /// Elements in row-major order. Panics if their number is not the product of the shape.
    pub fn new<T: Element>(shape: &[usize], elements: &[T]) -> Self {
        assert_eq!(shape.iter().product::<usize>(), elements.len(), "element count does not fit {shape:?}");
        HostTensor { dtype: T::DTYPE, shape: shape.to_vec(), bytes: T::to_bytes(elements) }
    }

    pub fn scalar<T: Element>(value: T) -> Self {
        Self::new(&[], &[value])
    }

    /// Bytes that are already in memory order; `None` if they are not as many as type and shape need.
    pub fn from_bytes(dtype: DType, shape: Vec<usize>, bytes: Vec<u8>) -> Option<Self> {
        dtype.size()?;
        (dtype.storage_bytes(&shape)? == bytes.len()).then_some(HostTensor { dtype, shape, bytes })
    }

    /// Numbers rounded to `dtype`. Panics like [`HostTensor::new`], and on packed types.
    pub fn from_f64(dtype: DType, shape: &[usize], values: &[f64]) -> Self {
        assert_eq!(shape.iter().product::<usize>(), values.len(), "element count does not fit {shape:?}");
        let mut bytes = Vec::with_capacity(values.len() * dtype.size().expect("plain type"));
        for &v in values {
            match dtype {
                DType::Bool => (v != 0.0).write(&mut bytes),
                DType::U8 => (v as u8).write(&mut bytes),
                DType::U16 => (v as u16).write(&mut bytes),
                DType::U32 => (v as u32).write(&mut bytes),
                DType::U64 => (v as u64).write(&mut bytes),
                DType::I8 => (v as i8).write(&mut bytes),
                DType::I16 => (v as i16).write(&mut bytes),
                DType::I32 => (v as i32).write(&mut bytes),
                DType::I64 => (v as i64).write(&mut bytes),
                DType::F8E4M3 => f8::encode(v, f8::E4M3).write(&mut bytes),
                DType::F8E5M2 => f8::encode(v, f8::E5M2).write(&mut bytes),
                DType::F16 => f16::from_f64(v).write(&mut bytes),
                DType::BF16 => bf16::from_f64(v).write(&mut bytes),
                DType::F32 => (v as f32).write(&mut bytes),
                DType::F64 => v.write(&mut bytes),
                DType::Quant(_) => unreachable!("size() refused packed types above"),
            }
        }
        HostTensor { dtype, shape: shape.to_vec(), bytes }
    }

    pub fn dtype(&self) -> DType {
        self.dtype
    }

    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    pub fn len(&self) -> usize {
        self.shape.iter().product()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The elements, if they are of type `T`.
    pub fn to_vec<T: Element>(&self) -> Option<Vec<T>> {
        (self.dtype == T::DTYPE).then(|| self.bytes.chunks_exact(size_of::<T>()).map(T::read).collect())
    }

    /// The elements as `f64`, whatever their type; 64-bit integers beyond 2^53 are rounded.
    pub fn to_f64(&self) -> Vec<f64> {
        let chunks = self.bytes.chunks_exact(self.dtype.size().expect("host tensors are plain"));
        chunks.map(|b| element_to_f64(self.dtype, b)).collect()
    }

    /// The elements as `i64`; floats are truncated.
    pub fn to_i64(&self) -> Vec<i64> {
        match self.dtype {
            DType::I64 => self.to_vec::<i64>().expect("type was matched"),
            DType::U64 => {
                self.to_vec::<u64>().expect("type was matched").into_iter().map(|v| v as i64).collect()
            }
            _ => self.to_f64().into_iter().map(|v| v as i64).collect(),
        }
    }
}

fn element_to_f64(dtype: DType, b: &[u8]) -> f64 {
    match dtype {
        DType::Bool => bool::read(b) as u8 as f64,
        DType::U8 => b[0] as f64,
        DType::U16 => u16::read(b) as f64,
        DType::U32 => u32::read(b) as f64,
        DType::U64 => u64::read(b) as f64,
        DType::I8 => b[0] as i8 as f64,
        DType::I16 => i16::read(b) as f64,
        DType::I32 => i32::read(b) as f64,
        DType::I64 => i64::read(b) as f64,
        DType::F8E4M3 => f8::decode(b[0], f8::E4M3),
        DType::F8E5M2 => f8::decode(b[0], f8::E5M2),
        DType::F16 => f16::read(b).to_f64(),
        DType::BF16 => bf16::read(b).to_f64(),
        DType::F32 => f32::read(b) as f64,
        DType::F64 => f64::read(b),
        DType::Quant(_) => unreachable!("host tensors are plain"),
    }
}

/// The two 8-bit floats of the OCP specification: E4M3 (no infinity, NaN at all ones) and E5M2 (IEEE-like).
pub mod f8 {
    /// One of the two formats.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Format {
        mantissa_bits: u32,
        bias: i32,
        has_infinity: bool,
    }

    pub const E4M3: Format = Format { mantissa_bits: 3, bias: 7, has_infinity: false };
    pub const E5M2: Format = Format { mantissa_bits: 2, bias: 15, has_infinity: true };

    pub fn decode(byte: u8, f: Format) -> f64 {
        let sign = if byte & 0x80 != 0 { -1.0 } else { 1.0 };
        let mantissa = (byte & ((1 << f.mantissa_bits) - 1)) as f64;
        let exponent = ((byte & 0x7f) >> f.mantissa_bits) as i32;
        let top = 0x7f >> f.mantissa_bits;
        if f.has_infinity && exponent == top {
            return if mantissa == 0.0 { sign * f64::INFINITY } else { f64::NAN };
        }
        if !f.has_infinity && byte & 0x7f == 0x7f {
            return f64::NAN;
        }
        let unit = 0.5f64.powi(f.mantissa_bits as i32);
        if exponent == 0 {
            sign * mantissa * unit * 2f64.powi(1 - f.bias)
        } else {
            sign * (1.0 + mantissa * unit) * 2f64.powi(exponent - f.bias)
        }
    }

    /// The nearest code, ties to the even one; what exceeds the range becomes NaN or infinity.
    pub fn encode(value: f64, f: Format) -> u8 {
        let sign = if value.is_sign_negative() { 0x80 } else { 0 };
        let (overflow, largest) = if f.has_infinity { (0x7c, 0x7b) } else { (0x7f, 0x7e) };
        if value.is_nan() {
            return sign | 0x7f;
        }
        let magnitude = value.abs();
        let below =
            (0..=largest).rev().find(|&c| decode(c, f) <= magnitude).expect("zero is below everything");
        let (low, high) =
            (decode(below, f), if below == largest { None } else { Some(decode(below + 1, f)) });
        let code = match high {
            None => {
                let step = low - decode(below - 1, f);
                if magnitude < low + step / 2.0 { below } else { overflow }
            }
            Some(high) => match (magnitude - low).total_cmp(&(high - magnitude)) {
                std::cmp::Ordering::Less => below,
                std::cmp::Ordering::Greater => below + 1,
                std::cmp::Ordering::Equal => below + (below & 1),
            },
        };
        sign | code
    }
}

impl std::fmt::Debug for HostTensor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}{:?}", self.dtype, self.shape)?;
        if self.len() <= 8 {
            write!(f, " {:?}", self.to_f64())
        } else {
            write!(f, " {} bytes", self.bytes.len())
        }
    }
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Wire {
    dtype: DType,
    shape: Vec<usize>,
    hex: String,
}

impl Serialize for HostTensor {
    fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        let hex = self.bytes.iter().map(|b| format!("{b:02x}")).collect();
        Wire { dtype: self.dtype, shape: self.shape.clone(), hex }.serialize(s)
    }
}

impl<'de> Deserialize<'de> for HostTensor {
    fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let wire = Wire::deserialize(d)?;
        let digits: Option<Vec<u8>> = wire.hex.chars().map(|c| c.to_digit(16).map(|v| v as u8)).collect();
        let digits = digits.filter(|d| d.len() % 2 == 0);
        let digits = digits.ok_or_else(|| serde::de::Error::custom("tensor data is not hexadecimal"))?;
        let bytes = digits.chunks_exact(2).map(|p| p[0] << 4 | p[1]).collect();
        HostTensor::from_bytes(wire.dtype, wire.shape, bytes)
            .ok_or_else(|| serde::de::Error::custom("tensor data does not fit its type and shape"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn eight_bit_floats_match_the_ocp_tables() {
        for (code, value) in [(0x00, 0.0), (0x38, 1.0), (0x7e, 448.0), (0x01, 0.001953125), (0xc0, -2.0)] {
            assert_eq!(f8::decode(code, f8::E4M3), value);
            assert_eq!(f8::encode(value, f8::E4M3), code);
        }
        for (code, value) in [(0x3c, 1.0), (0x7b, 57344.0), (0x01, 1.52587890625e-5)] {
            assert_eq!(f8::decode(code, f8::E5M2), value);
            assert_eq!(f8::encode(value, f8::E5M2), code);
        }
        assert!(f8::decode(0x7f, f8::E4M3).is_nan());
        assert_eq!(f8::decode(0x7c, f8::E5M2), f64::INFINITY);
    }

    #[test]
    fn bytes_that_do_not_fit_the_shape_are_refused() {
        assert!(HostTensor::from_bytes(DType::F32, vec![2], vec![0; 7]).is_none());
        assert!(HostTensor::from_bytes(DType::F32, vec![usize::MAX, usize::MAX], vec![]).is_none());
    }

    #[test]
    fn a_tensor_survives_its_json_form() {
        let t = HostTensor::new(&[3], &[1.5f32, f32::NAN, -0.0]);
        let back: HostTensor = serde_json::from_str(&serde_json::to_string(&t).unwrap()).unwrap();
        assert_eq!(back.bytes(), t.bytes());
        assert!(serde_json::from_str::<HostTensor>(r#"{"dtype":"f32","shape":[1],"hex":"00"}"#).is_err());
    }
}
