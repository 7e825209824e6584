//! GGUF files, versions 2 and 3, little-endian (<https://github.com/ggml-org/ggml/blob/master/docs/gguf.md>):
//! typed metadata, then the table of tensors, then their data. Reads bytes, opens nothing, and does not know
//! what any metadata key means except the alignment and the numbering of split files.

mod cursor;
mod metadata;
mod tensors;
mod value;

pub use metadata::GgufMetadata;
pub use value::{GgufArray, GgufValue};

use std::collections::BTreeMap;

use crate::error::{Result, WeightsError};
use crate::tensor::TensorInfo;
use cursor::Cursor;

const MAGIC: &[u8; 4] = b"GGUF";
const ALIGNMENT_KEY: &str = "general.alignment";
const DEFAULT_ALIGNMENT: u64 = 32;
/// Nothing writes more than a page; larger values only serve to make offsets overflow.
const ALIGNMENT_LIMIT: u64 = 1 << 20;
/// An empty key, its type and a one-byte value.
const SMALLEST_PAIR: usize = 8 + 4 + 1;

/// Everything of a GGUF file but the data.
#[derive(Clone, Debug, PartialEq)]
pub struct Gguf {
    pub metadata: GgufMetadata,
    /// Shapes are row-major, `[out, in]` for a matrix: the reverse of the order in the file.
    pub tensors: BTreeMap<String, TensorInfo>,
}

/// Reads and checks metadata and tensor table of a whole file.
pub fn parse_gguf(file: &[u8]) -> Result<Gguf> {
    let mut cursor = Cursor::new(file);
    check_version(&mut cursor)?;
    let tensor_count = cursor.u64("the tensor count")?;
    let pair_count = cursor.u64("the metadata count")?;
    let metadata = read_metadata(&mut cursor, pair_count)?;
    let alignment = alignment(&metadata)?;
    let tensors = tensors::read(&mut cursor, tensor_count, alignment)?;
    Ok(Gguf { metadata, tensors })
}

fn check_version(cursor: &mut Cursor<'_>) -> Result<()> {
    let magic = cursor.take(MAGIC.len(), "the magic number")?;
    if magic != MAGIC {
        return Err(WeightsError::NotGguf { found: magic.to_vec() });
    }
    let version = cursor.u32("the version")?;
    match version {
        2 | 3 => Ok(()),
        _ if matches!(version.swap_bytes(), 1..=3) => Err(WeightsError::GgufBigEndian),
        _ => Err(WeightsError::GgufVersion { version }),
    }
}

fn read_metadata(cursor: &mut Cursor<'_>, count: u64) -> Result<GgufMetadata> {
    let count = cursor.count(count, SMALLEST_PAIR, "metadata entries")?;
    let mut pairs = BTreeMap::new();
    for _ in 0..count {
        let key = cursor.string("a metadata key")?;
        let value = value::read(cursor, &key)?;
        if pairs.insert(key.clone(), value).is_some() {
            return Err(WeightsError::DuplicateKey { key });
        }
    }
    Ok(GgufMetadata::new(pairs))
}

fn alignment(metadata: &GgufMetadata) -> Result<usize> {
    let alignment = metadata.find::<u64>(ALIGNMENT_KEY)?.unwrap_or(DEFAULT_ALIGNMENT);
    if !alignment.is_power_of_two() || alignment > ALIGNMENT_LIMIT {
        return Err(WeightsError::BadAlignment { alignment, limit: ALIGNMENT_LIMIT });
    }
    Ok(alignment as usize)
}
