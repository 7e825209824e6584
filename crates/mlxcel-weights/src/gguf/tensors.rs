//! The tensor table of a GGUF file: names, dimensions, types and offsets, checked against the data that
//! follows.

use std::collections::BTreeMap;

use mlxcel_ir::{DType, GgufFormat, QuantFormat};

use super::cursor::Cursor;
use crate::error::{Result, WeightsError};
use crate::tensor::TensorInfo;

const RANK_LIMIT: u32 = 4;
/// An empty name, no dimensions, a type and an offset.
const SMALLEST_ENTRY: usize = 8 + 4 + 4 + 8;

/// An entry before the start of the data is known.
struct Entry {
    name: String,
    dtype: DType,
    shape: Vec<usize>,
    offset: u64,
    bytes: usize,
}

pub(super) fn read(
    cursor: &mut Cursor<'_>,
    declared: u64,
    alignment: usize,
) -> Result<BTreeMap<String, TensorInfo>> {
    let count = cursor.count(declared, SMALLEST_ENTRY, "tensors")?;
    let entries = (0..count).map(|_| read_entry(cursor)).collect::<Result<Vec<_>>>()?;
    let data_start = cursor.position().next_multiple_of(alignment).min(cursor.file_len());
    let mut tensors = BTreeMap::new();
    for entry in entries {
        let begin = locate(&entry, cursor.file_len() - data_start, alignment)?;
        let range = data_start + begin..data_start + begin + entry.bytes;
        let info = TensorInfo { dtype: entry.dtype, shape: entry.shape, range };
        if tensors.insert(entry.name.clone(), info).is_some() {
            return Err(WeightsError::DuplicateTensor { tensor: entry.name });
        }
    }
    check_overlap(&tensors)?;
    Ok(tensors)
}

fn read_entry(cursor: &mut Cursor<'_>) -> Result<Entry> {
    let name = cursor.string("a tensor name")?;
    let rank = cursor.u32("a tensor's rank")?;
    if rank > RANK_LIMIT {
        return Err(WeightsError::BadRank { tensor: name, rank, limit: RANK_LIMIT });
    }
    let dims = (0..rank).map(|_| cursor.u64("a tensor's shape")).collect::<Result<Vec<u64>>>()?;
    let code = cursor.u32("a tensor's type")?;
    let Some(dtype) = element_type(code) else {
        return Err(WeightsError::UnknownGgufType { tensor: name, code });
    };
    let offset = cursor.u64("a tensor's offset")?;
    // The file lists the fastest axis first.
    let shape: Option<Vec<usize>> = dims.iter().rev().map(|&d| usize::try_from(d).ok()).collect();
    let sized = shape.and_then(|s| dtype.storage_bytes(&s).map(|bytes| (s, bytes)));
    let Some((shape, bytes)) = sized else {
        return Err(WeightsError::BadShape { tensor: name, dtype, shape: dims });
    };
    Ok(Entry { name, dtype, shape, offset, bytes })
}

/// Where in the data the tensor begins.
fn locate(entry: &Entry, available: usize, alignment: usize) -> Result<usize> {
    let tensor = || entry.name.clone();
    if !entry.offset.is_multiple_of(alignment as u64) {
        return Err(WeightsError::Misaligned { tensor: tensor(), offset: entry.offset, alignment });
    }
    let begin = usize::try_from(entry.offset).ok();
    let inside = begin.filter(|b| b.checked_add(entry.bytes).is_some_and(|end| end <= available));
    inside.ok_or_else(|| WeightsError::OutOfFile {
        tensor: tensor(),
        offset: entry.offset,
        bytes: entry.bytes,
        available,
    })
}

fn check_overlap(tensors: &BTreeMap<String, TensorInfo>) -> Result<()> {
    let mut order: Vec<_> = tensors.iter().filter(|(_, info)| !info.range.is_empty()).collect();
    order.sort_by_key(|(_, info)| info.range.start);
    for pair in order.windows(2) {
        let [(other, first), (tensor, second)] = pair else { unreachable!("windows have two entries") };
        if second.range.start < first.range.end {
            return Err(WeightsError::Overlap { tensor: tensor.to_string(), other: other.to_string() });
        }
    }
    Ok(())
}

/// The numbers of `ggml_type`.
fn element_type(code: u32) -> Option<DType> {
    let format = match code {
        0 => return Some(DType::F32),
        1 => return Some(DType::F16),
        24 => return Some(DType::I8),
        25 => return Some(DType::I16),
        26 => return Some(DType::I32),
        27 => return Some(DType::I64),
        28 => return Some(DType::F64),
        30 => return Some(DType::BF16),
        2 => GgufFormat::Q4_0,
        3 => GgufFormat::Q4_1,
        6 => GgufFormat::Q5_0,
        7 => GgufFormat::Q5_1,
        8 => GgufFormat::Q8_0,
        10 => GgufFormat::Q2K,
        11 => GgufFormat::Q3K,
        12 => GgufFormat::Q4K,
        13 => GgufFormat::Q5K,
        14 => GgufFormat::Q6K,
        16 => GgufFormat::Iq2Xxs,
        18 => GgufFormat::Iq3Xxs,
        20 => GgufFormat::Iq4Nl,
        23 => GgufFormat::Iq4Xs,
        39 => GgufFormat::MxFp4,
        _ => return None,
    };
    Some(DType::Quant(QuantFormat::Gguf(format)))
}
