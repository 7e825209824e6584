//! Element types: plain numbers, and the packed formats quantised weights are stored in.
//!
//! A quantised tensor keeps its logical shape; only its storage is packed, always along the last axis. How the
//! bytes decode to numbers is the business of `mlxcel-weights` (files) and of the engines (kernels).

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// The type of one element of a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum DType {
    Bool,
    U8,
    U16,
    U32,
    U64,
    I8,
    I16,
    I32,
    I64,
    /// 8-bit floats occur in checkpoints; engines convert them when they load.
    F8E4M3,
    F8E5M2,
    F16,
    BF16,
    F32,
    F64,
    /// Packed weights. Only `concat` along the first axis, `dequantize`, `linear`, `expert_linear` and
    /// `embedding` take them.
    Quant(QuantFormat),
}

/// How a quantised tensor packs its last axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum QuantFormat {
    /// MLX affine: `w = scale * q + bias` per group. Codes of `bits` bits are packed little-end first into a
    /// continuous bit stream along the row; scales and biases are two further arrays of `[rows, groups]`.
    Affine { bits: u8, group: u16, scale: ScaleType },
    /// OCP microscaling FP4: 32 E2M1 codes and one E8M0 scale, codes and scales in two arrays.
    MxFp4,
    /// A GGUF block format: fixed-size blocks, codes and scales interleaved.
    Gguf(GgufFormat),
}

/// The type of the scales and biases of an affine format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ScaleType {
    F16,
    BF16,
    F32,
}

/// Block formats as they lie in a GGUF file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum GgufFormat {
    Q4_0,
    Q4_1,
    Q5_0,
    Q5_1,
    Q8_0,
    Q2K,
    Q3K,
    Q4K,
    Q5K,
    Q6K,
    Iq4Nl,
    Iq4Xs,
    Iq2Xxs,
    Iq3Xxs,
    MxFp4,
}

impl DType {
    /// Every plain type, in the order of their declaration.
    pub const PLAIN: [DType; 15] = [
        DType::Bool,
        DType::U8,
        DType::U16,
        DType::U32,
        DType::U64,
        DType::I8,
        DType::I16,
        DType::I32,
        DType::I64,
        DType::F8E4M3,
        DType::F8E5M2,
        DType::F16,
        DType::BF16,
        DType::F32,
        DType::F64,
    ];

    /// Bytes of one element, or `None` for packed formats.
    pub fn size(self) -> Option<usize> {
        Some(match self {
            DType::Bool | DType::U8 | DType::I8 | DType::F8E4M3 | DType::F8E5M2 => 1,
            DType::U16 | DType::I16 | DType::F16 | DType::BF16 => 2,
            DType::U32 | DType::I32 | DType::F32 => 4,
            DType::U64 | DType::I64 | DType::F64 => 8,
            DType::Quant(_) => return None,
        })
    }

    pub fn is_float(self) -> bool {
        matches!(self, DType::F8E4M3 | DType::F8E5M2 | DType::F16 | DType::BF16 | DType::F32 | DType::F64)
    }

    pub fn is_int(self) -> bool {
        !self.is_float() && self != DType::Bool && !self.is_quant()
    }

    pub fn is_quant(self) -> bool {
        matches!(self, DType::Quant(_))
    }

    pub fn is_signed(self) -> bool {
        matches!(self, DType::I8 | DType::I16 | DType::I32 | DType::I64) || self.is_float()
    }

    /// Bytes that a tensor of this type and shape takes in one piece, all its arrays together; `None` if the
    /// product overflows or the last axis does not divide into blocks.
    pub fn storage_bytes(self, shape: &[usize]) -> Option<usize> {
        let elements = shape.iter().try_fold(1usize, |a, &d| a.checked_mul(d))?;
        match self {
            DType::Quant(q) => {
                let last = *shape.last()?;
                if last % q.block_len() != 0 {
                    return None;
                }
                (elements / q.block_len()).checked_mul(q.block_bytes())
            }
            plain => elements.checked_mul(plain.size()?),
        }
    }
}

impl QuantFormat {
    /// Elements that share a scale block: the last axis is a multiple of it.
    pub fn block_len(self) -> usize {
        match self {
            QuantFormat::Affine { group, .. } => group as usize,
            QuantFormat::MxFp4 => 32,
            QuantFormat::Gguf(g) => g.block().0,
        }
    }

    /// Bytes per block, counting codes and scales.
    pub fn block_bytes(self) -> usize {
        match self {
            QuantFormat::Affine { bits, group, scale } => {
                bits as usize * group as usize / 8 + 2 * scale.dtype().size().expect("scales are plain")
            }
            QuantFormat::MxFp4 => 17,
            QuantFormat::Gguf(g) => g.block().1,
        }
    }
}

impl ScaleType {
    pub fn dtype(self) -> DType {
        match self {
            ScaleType::F16 => DType::F16,
            ScaleType::BF16 => DType::BF16,
            ScaleType::F32 => DType::F32,
        }
    }
}

impl GgufFormat {
    pub const ALL: [GgufFormat; 15] = [
        GgufFormat::Q4_0,
        GgufFormat::Q4_1,
        GgufFormat::Q5_0,
        GgufFormat::Q5_1,
        GgufFormat::Q8_0,
        GgufFormat::Q2K,
        GgufFormat::Q3K,
        GgufFormat::Q4K,
        GgufFormat::Q5K,
        GgufFormat::Q6K,
        GgufFormat::Iq4Nl,
        GgufFormat::Iq4Xs,
        GgufFormat::Iq2Xxs,
        GgufFormat::Iq3Xxs,
        GgufFormat::MxFp4,
    ];

    /// Elements and bytes of one block.
    pub fn block(self) -> (usize, usize) {
        match self {
            GgufFormat::Q4_0 => (32, 18),
            GgufFormat::Q4_1 => (32, 20),
            GgufFormat::Q5_0 => (32, 22),
            GgufFormat::Q5_1 => (32, 24),
            GgufFormat::Q8_0 => (32, 34),
            GgufFormat::Q2K => (256, 84),
            GgufFormat::Q3K => (256, 110),
            GgufFormat::Q4K => (256, 144),
            GgufFormat::Q5K => (256, 176),
            GgufFormat::Q6K => (256, 210),
            GgufFormat::Iq4Nl => (32, 18),
            GgufFormat::Iq4Xs => (256, 136),
            GgufFormat::Iq2Xxs => (256, 66),
            GgufFormat::Iq3Xxs => (256, 98),
            GgufFormat::MxFp4 => (32, 17),
        }
    }

    fn name(self) -> &'static str {
        match self {
            GgufFormat::Q4_0 => "q4_0",
            GgufFormat::Q4_1 => "q4_1",
            GgufFormat::Q5_0 => "q5_0",
            GgufFormat::Q5_1 => "q5_1",
            GgufFormat::Q8_0 => "q8_0",
            GgufFormat::Q2K => "q2_k",
            GgufFormat::Q3K => "q3_k",
            GgufFormat::Q4K => "q4_k",
            GgufFormat::Q5K => "q5_k",
            GgufFormat::Q6K => "q6_k",
            GgufFormat::Iq4Nl => "iq4_nl",
            GgufFormat::Iq4Xs => "iq4_xs",
            GgufFormat::Iq2Xxs => "iq2_xxs",
            GgufFormat::Iq3Xxs => "iq3_xxs",
            GgufFormat::MxFp4 => "gguf_mxfp4",
        }
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self {
            DType::Bool => "bool",
            DType::U8 => "u8",
            DType::U16 => "u16",
            DType::U32 => "u32",
            DType::U64 => "u64",
            DType::I8 => "i8",
            DType::I16 => "i16",
            DType::I32 => "i32",
            DType::I64 => "i64",
            DType::F8E4M3 => "f8e4m3",
            DType::F8E5M2 => "f8e5m2",
            DType::F16 => "f16",
            DType::BF16 => "bf16",
            DType::F32 => "f32",
            DType::F64 => "f64",
            DType::Quant(QuantFormat::Affine { bits, group, scale }) => {
                return write!(f, "affine{bits}g{group}_{}", scale.dtype());
            }
            DType::Quant(QuantFormat::MxFp4) => "mxfp4",
            DType::Quant(QuantFormat::Gguf(g)) => g.name(),
        };
        f.write_str(name)
    }
}

/// The text is not the name of an element type.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown element type '{0}'")]
pub struct UnknownDType(pub String);

impl FromStr for DType {
    type Err = UnknownDType;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let unknown = || UnknownDType(text.to_string());
        if let Some(plain) = DType::PLAIN.into_iter().find(|d| d.to_string() == text) {
            return Ok(plain);
        }
        if text == "mxfp4" {
            return Ok(DType::Quant(QuantFormat::MxFp4));
        }
        if let Some(g) = GgufFormat::ALL.into_iter().find(|g| g.name() == text) {
            return Ok(DType::Quant(QuantFormat::Gguf(g)));
        }
        let rest = text.strip_prefix("affine").ok_or_else(unknown)?;
        let (bits, rest) = rest.split_once('g').ok_or_else(unknown)?;
        let (group, scale) = rest.split_once('_').ok_or_else(unknown)?;
        let scale = match scale {
            "f16" => ScaleType::F16,
            "bf16" => ScaleType::BF16,
            "f32" => ScaleType::F32,
            _ => return Err(unknown()),
        };
        let bits = bits.parse().map_err(|_| unknown())?;
        let group = group.parse().map_err(|_| unknown())?;
        if !matches!(bits, 2..=6 | 8) || group == 0 {
            return Err(unknown());
        }
        Ok(DType::Quant(QuantFormat::Affine { bits, group, scale }))
    }
}

impl Serialize for DType {
    fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for DType {
    fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        String::deserialize(d)?.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_type_name_parses_back_to_its_type() {
        let affine = |bits| DType::Quant(QuantFormat::Affine { bits, group: 64, scale: ScaleType::BF16 });
        let quants = GgufFormat::ALL.map(|g| DType::Quant(QuantFormat::Gguf(g)));
        let all = DType::PLAIN.into_iter().chain(quants).chain([2, 3, 4, 5, 6, 8].map(affine));
        for d in all.chain([DType::Quant(QuantFormat::MxFp4)]) {
            assert_eq!(d.to_string().parse::<DType>(), Ok(d));
        }
        for bad in ["affine4g", "affine4g0_f16", "affine7g64_f16", "affine0g64_f16"] {
            assert!(bad.parse::<DType>().is_err(), "{bad}");
        }
    }

    #[test]
    fn storage_is_counted_in_whole_blocks() {
        let q4 = DType::Quant(QuantFormat::Gguf(GgufFormat::Q4_1));
        assert_eq!(q4.storage_bytes(&[3, 64]), Some(3 * 2 * 20));
        assert_eq!(q4.storage_bytes(&[3, 65]), None);
        assert_eq!(DType::BF16.storage_bytes(&[usize::MAX, 2]), None);
        let q3 = DType::Quant(QuantFormat::Affine { bits: 3, group: 64, scale: ScaleType::F16 });
        assert_eq!(q3.storage_bytes(&[1, 64]), Some(24 + 4));
    }
}
