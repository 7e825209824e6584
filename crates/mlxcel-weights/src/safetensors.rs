//! The header of a safetensors file (<https://github.com/huggingface/safetensors#format>): eight bytes of
//! length, a JSON object, then the data, which the tensors must cover without gaps or overlaps. Reads bytes,
//! opens nothing.

use std::collections::BTreeMap;
use std::fmt;

use mlxcel_ir::DType;
use serde::Deserialize;
use serde::de::{Deserializer, Error as _, IgnoredAny, MapAccess, Visitor};

use crate::error::{Result, WeightsError};
use crate::tensor::TensorInfo;

/// The limit that the format's own readers set.
const HEADER_LIMIT: u64 = 100_000_000;
const LENGTH_BYTES: usize = 8;

/// Reads and checks the header of a whole file.
pub fn parse_header(file: &[u8]) -> Result<BTreeMap<String, TensorInfo>> {
    let (header, data_start) = split_header(file)?;
    let header: Header = serde_json::from_slice(header)
        .map_err(|source| WeightsError::Json { what: "the safetensors header", source })?;
    let data_length = file.len() - data_start;
    let mut order: Vec<&(String, WireInfo)> = header.0.iter().collect();
    order.sort_by_key(|(_, info)| info.data_offsets);
    check_cover(&order, data_length)?;
    let mut tensors = BTreeMap::new();
    for (name, wire) in header.0 {
        let info = wire.check(&name, data_start)?;
        if tensors.insert(name.clone(), info).is_some() {
            return Err(WeightsError::DuplicateTensor { tensor: name });
        }
    }
    Ok(tensors)
}

/// The JSON text and the offset where the data begins.
fn split_header(file: &[u8]) -> Result<(&[u8], usize)> {
    let truncated = |what, offset: usize, needed| {
        let available = file.len() - offset;
        WeightsError::Truncated { what, offset, needed, available }
    };
    let length = file.first_chunk::<LENGTH_BYTES>();
    let length = u64::from_le_bytes(*length.ok_or_else(|| truncated("the header length", 0, 8))?);
    if length > HEADER_LIMIT {
        return Err(WeightsError::HeaderTooLong { length, limit: HEADER_LIMIT });
    }
    let end = LENGTH_BYTES + length as usize;
    let header = file.get(LENGTH_BYTES..end);
    let header = header.ok_or_else(|| truncated("the safetensors header", LENGTH_BYTES, length))?;
    if header.first() != Some(&b'{') {
        return Err(WeightsError::HeaderStart);
    }
    Ok((header, end))
}

/// Tensors in the order of their offsets must follow each other from the first byte of the data to its last.
fn check_cover(order: &[&(String, WireInfo)], data_length: usize) -> Result<()> {
    let mut previous = 0;
    for (name, info) in order {
        let (begin, end) = info.data_offsets;
        if begin != previous || end < begin {
            return Err(WeightsError::BadOffsets { tensor: name.clone(), begin, end, previous });
        }
        previous = end;
    }
    if previous != data_length {
        return Err(WeightsError::Uncovered { covered: previous, length: data_length });
    }
    Ok(())
}

#[derive(Deserialize)]
struct WireInfo {
    dtype: String,
    shape: Vec<usize>,
    data_offsets: (usize, usize),
}

impl WireInfo {
    fn check(self, name: &str, data_start: usize) -> Result<TensorInfo> {
        let tensor = || name.to_string();
        let dtype = element_type(&self.dtype)
            .ok_or_else(|| WeightsError::UnknownDtype { tensor: tensor(), dtype: self.dtype.clone() })?;
        let (begin, end) = self.data_offsets;
        if dtype.storage_bytes(&self.shape) != Some(end - begin) {
            let (shape, bytes) = (self.shape, end - begin);
            return Err(WeightsError::SizeMismatch { tensor: tensor(), dtype, shape, bytes });
        }
        Ok(TensorInfo { dtype, shape: self.shape, range: data_start + begin..data_start + end })
    }
}

fn element_type(name: &str) -> Option<DType> {
    Some(match name {
        "BOOL" => DType::Bool,
        "U8" => DType::U8,
        "U16" => DType::U16,
        "U32" => DType::U32,
        "U64" => DType::U64,
        "I8" => DType::I8,
        "I16" => DType::I16,
        "I32" => DType::I32,
        "I64" => DType::I64,
        "F8_E4M3" => DType::F8E4M3,
        "F8_E5M2" => DType::F8E5M2,
        "F16" => DType::F16,
        "BF16" => DType::BF16,
        "F32" => DType::F32,
        "F64" => DType::F64,
        _ => return None,
    })
}

/// The entries in file order, duplicates included: a map would silently keep only the last of them.
struct Header(Vec<(String, WireInfo)>);

impl<'de> Deserialize<'de> for Header {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        deserializer.deserialize_map(HeaderVisitor)
    }
}

struct HeaderVisitor;

impl<'de> Visitor<'de> for HeaderVisitor {
    type Value = Header;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of tensors by name")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> std::result::Result<Header, A::Error> {
        let mut entries = Vec::new();
        while let Some(name) = map.next_key::<String>()? {
            if name == "__metadata__" {
                map.next_value::<IgnoredAny>()?;
                continue;
            }
            let info = map
                .next_value()
                .map_err(|e| A::Error::custom(format_args!("tensor '{}': {e}", name.escape_debug())))?;
            entries.push((name, info));
        }
        Ok(Header(entries))
    }
}
