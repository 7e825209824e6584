//! Safetensors files (<https://github.com/huggingface/safetensors#format>). A quantised matrix becomes the arrays that
//! MLX gives it: `X.weight` in words of 32 bits, `X.scales` and `X.biases`.
//!
//! The format allows no gaps between arrays, so those of wide elements come first: then every array begins at a
//! multiple of its element's size, and a reader can use it as it lies.

use std::io::{Seek, SeekFrom, Write};

use mlxcel_ir::{DType, QuantFormat};
use serde_json::{Map, Value, json};

use super::stream::{Sink, stream};
use super::{NewTensor, Watch};
use crate::error::{Result, WeightsError};
use crate::tensor::part_sizes;

/// The data begins at a multiple of this.
const ALIGNMENT: usize = 8;

/// One array of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stored {
    pub name: String,
    pub dtype: DType,
    pub shape: Vec<usize>,
    pub bytes: u64,
}

/// The arrays that a tensor is stored in, in the order of its parts.
pub fn arrays(tensor: &NewTensor) -> Result<Vec<Stored>> {
    tensor.bytes()?;
    let refuse = || WeightsError::NotInSafetensors { tensor: tensor.name.clone(), dtype: tensor.dtype };
    let sizes = part_sizes(tensor.dtype, &tensor.shape).ok_or_else(refuse)?;
    let (name, shape) = (&tensor.name, &tensor.shape);
    let parts = match tensor.dtype {
        DType::Quant(QuantFormat::Affine { bits, group, scale }) => {
            let module = name.strip_suffix(".weight").ok_or_else(refuse)?;
            let words = scaled(shape, bits as usize, 32).ok_or_else(refuse)?;
            let groups = scaled(shape, 1, group as usize).ok_or_else(refuse)?;
            vec![
                (name.clone(), DType::U32, words),
                (format!("{module}.scales"), scale.dtype(), groups.clone()),
                (format!("{module}.biases"), scale.dtype(), groups),
            ]
        }
        DType::Quant(QuantFormat::MxFp4) => {
            // The reader takes both spellings; this is the one without a module's name.
            let stem = name.strip_suffix(".weight");
            let groups = scaled(shape, 1, 32).ok_or_else(refuse)?;
            match stem {
                Some(module) => vec![
                    (name.clone(), DType::U32, scaled(shape, 4, 32).ok_or_else(refuse)?),
                    (format!("{module}.scales"), DType::U8, groups),
                ],
                None => {
                    let blocks = [&groups[..], &[16]].concat();
                    vec![
                        (format!("{name}_blocks"), DType::U8, blocks),
                        (format!("{name}_scales"), DType::U8, groups),
                    ]
                }
            }
        }
        DType::Quant(QuantFormat::Gguf(_)) => return Err(refuse()),
        plain => vec![(name.clone(), plain, shape.clone())],
    };
    let with_size = |((name, dtype, shape), bytes)| Stored { name, dtype, shape, bytes: bytes as u64 };
    Ok(parts.into_iter().zip(sizes).map(with_size).collect())
}

/// The shape with its last axis times `numerator / denominator`.
fn scaled(shape: &[usize], numerator: usize, denominator: usize) -> Option<Vec<usize>> {
    let (&last, lead) = shape.split_last()?;
    let bits = last.checked_mul(numerator).filter(|bits| bits.is_multiple_of(denominator))?;
    Some([lead, &[bits / denominator]].concat())
}

/// Writes one file, from where `out` stands.
pub fn write_safetensors(
    out: &mut (impl Write + Seek),
    tensors: &[NewTensor],
    watch: &mut dyn Watch,
) -> Result<()> {
    let stored = tensors.iter().map(arrays).collect::<Result<Vec<_>>>()?;
    let offsets = place(&stored);
    let header = header(&stored, &offsets);
    let failed = |source| WeightsError::Write { source };
    let start = out.stream_position().map_err(failed)?;
    out.write_all(&(header.len() as u64).to_le_bytes()).map_err(failed)?;
    out.write_all(header.as_bytes()).map_err(failed)?;
    let data = start + 8 + header.len() as u64;
    let mut end = data;
    for ((tensor, stored), offsets) in tensors.iter().zip(&stored).zip(offsets) {
        end = end.max(offsets.iter().zip(stored).map(|(o, s)| data + o + s.bytes).max().unwrap_or(data));
        let at = offsets.into_iter().map(|offset| data + offset).collect();
        stream(tensor, &mut Placed { out, at }, watch)?;
    }
    out.seek(SeekFrom::Start(end)).map_err(failed)?;
    Ok(())
}

/// Where each array of each tensor begins in the data: wide elements first.
fn place(stored: &[Vec<Stored>]) -> Vec<Vec<u64>> {
    let mut order: Vec<(usize, usize)> =
        stored.iter().enumerate().flat_map(|(i, parts)| (0..parts.len()).map(move |j| (i, j))).collect();
    order.sort_by_key(|&(i, j)| std::cmp::Reverse(stored[i][j].dtype.size()));
    let mut offsets: Vec<Vec<u64>> = stored.iter().map(|parts| vec![0; parts.len()]).collect();
    let mut next = 0;
    for (i, j) in order {
        offsets[i][j] = next;
        next += stored[i][j].bytes;
    }
    offsets
}

fn header(stored: &[Vec<Stored>], offsets: &[Vec<u64>]) -> String {
    let mut fields = Map::new();
    // Readers of other projects ask for it.
    fields.insert("__metadata__".to_string(), json!({ "format": "pt" }));
    for (array, &begin) in stored.iter().flatten().zip(offsets.iter().flatten()) {
        let entry = json!({
            "dtype": type_name(array.dtype),
            "shape": array.shape,
            "data_offsets": [begin, begin + array.bytes],
        });
        fields.insert(array.name.clone(), entry);
    }
    let mut text = Value::Object(fields).to_string();
    let padded = text.len().next_multiple_of(ALIGNMENT);
    text.extend(std::iter::repeat_n(' ', padded - text.len()));
    text
}

fn type_name(dtype: DType) -> &'static str {
    match dtype {
        DType::Bool => "BOOL",
        DType::U8 => "U8",
        DType::U16 => "U16",
        DType::U32 => "U32",
        DType::U64 => "U64",
        DType::I8 => "I8",
        DType::I16 => "I16",
        DType::I32 => "I32",
        DType::I64 => "I64",
        DType::F8E4M3 => "F8_E4M3",
        DType::F8E5M2 => "F8_E5M2",
        DType::F16 => "F16",
        DType::BF16 => "BF16",
        DType::F32 => "F32",
        DType::F64 => "F64",
        DType::Quant(_) => unreachable!("arrays are of plain types"),
    }
}

/// Puts every array at its own place.
struct Placed<'a, W> {
    out: &'a mut W,
    at: Vec<u64>,
}

impl<W: Write + Seek> Sink for Placed<'_, W> {
    fn put(&mut self, part: usize, bytes: &[u8]) -> std::io::Result<()> {
        self.out.seek(SeekFrom::Start(self.at[part]))?;
        self.at[part] += bytes.len() as u64;
        self.out.write_all(bytes)
    }
}
