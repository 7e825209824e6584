//! What can be wrong with weights. Every variant names what a person needs to find and mend the file.

use std::path::PathBuf;

use mlxcel_ir::DType;

pub(crate) type Result<T> = std::result::Result<T, WeightsError>;

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WeightsError {
    #[error("{}: {error}", path.display())]
    InFile { path: PathBuf, error: Box<WeightsError> },
    #[error("cannot read {}: {source}", path.display())]
    Io { path: PathBuf, source: std::io::Error },
    #[error("{} is not a regular file", path.display())]
    NotAFile { path: PathBuf },
    #[error(
        "{} holds no weights: expected model.safetensors, model.safetensors.index.json or a .gguf file",
        folder.display()
    )]
    NoWeights { folder: PathBuf },
    #[error("{} holds several weight files ({}) and no index; name one", folder.display(), files.join(", "))]
    Ambiguous { folder: PathBuf, files: Vec<String> },
    #[error("'{}' is neither a folder, a .safetensors nor a .gguf file", path.display())]
    UnknownKind { path: PathBuf },
    #[error("the file has {bytes} bytes, more than the {limit} allowed for it")]
    TooLarge { bytes: u64, limit: u64 },
    #[error("{what} is not valid: {source}")]
    Json { what: &'static str, source: serde_json::Error },
    #[error(
        "the file ends inside {what}: {needed} bytes are needed at offset {offset}, {available} are left"
    )]
    Truncated { what: &'static str, offset: usize, needed: u64, available: usize },

    #[error("the safetensors header says it is {length} bytes long; the limit is {limit}")]
    HeaderTooLong { length: u64, limit: u64 },
    #[error("the safetensors header does not begin with '{{'")]
    HeaderStart,
    #[error("tensor '{tensor}' has the element type '{dtype}', which is not supported")]
    UnknownDtype { tensor: String, dtype: String },
    #[error("tensor '{tensor}' occurs twice")]
    DuplicateTensor { tensor: String },
    #[error("tensor '{tensor}': {dtype} {shape:?} does not take the {bytes} bytes the file gives it")]
    SizeMismatch { tensor: String, dtype: DType, shape: Vec<usize>, bytes: usize },
    #[error("tensor '{tensor}' lies at bytes {begin}..{end}, but the tensor before it ends at {previous}")]
    BadOffsets { tensor: String, begin: usize, end: usize, previous: usize },
    #[error("the tensors end at byte {covered} of the data, which has {length} bytes")]
    Uncovered { covered: usize, length: usize },
    #[error("the index names the shard '{file}', which is not a plain relative path")]
    BadShardPath { file: String },
    #[error("the index puts tensor '{tensor}' in '{file}', which does not have it")]
    NotInShard { tensor: String, file: String },

    #[error("the checkpoint is quantised with '{method}', which is not supported")]
    UnsupportedQuantization { method: String },
    #[error("'{field}' in the quantisation settings of config.json is {found}; expected {expected}")]
    BadQuantConfig { field: String, found: String, expected: &'static str },
    #[error(
        "tensor '{tensor}' is quantised, but config.json does not say with how many bits and which group size"
    )]
    NoQuantConfig { tensor: String },
    #[error("tensor '{tensor}' is quantised, but '{part}' is missing")]
    MissingPart { tensor: String, part: String },
    #[error("'{part}' is {dtype} {shape:?}, which does not fit the other parts of its quantised tensor")]
    BadPart { part: String, dtype: DType, shape: Vec<usize> },

    #[error("this is not a GGUF file: it begins with {found:02x?}")]
    NotGguf { found: Vec<u8> },
    #[error("GGUF version {version} is not supported; versions 2 and 3 are")]
    GgufVersion { version: u32 },
    #[error("this GGUF file is big-endian, which is not supported")]
    GgufBigEndian,
    #[error("the file declares {count} {what}, more than the {limit} that can fit in it")]
    TooMany { what: &'static str, count: u64, limit: u64 },
    #[error("{what} at offset {offset} is not UTF-8")]
    NotUtf8 { what: &'static str, offset: usize },
    #[error("metadata '{key}' has the unknown value type {code}")]
    UnknownValueType { key: String, code: u32 },
    #[error("metadata '{key}' nests arrays more than {limit} deep")]
    NestedTooDeep { key: String, limit: usize },
    #[error("metadata '{key}' occurs twice")]
    DuplicateKey { key: String },
    #[error("metadata '{key}' is missing")]
    MissingKey { key: String },
    #[error("metadata '{key}' is {found}; expected {expected}")]
    KeyType { key: String, found: String, expected: &'static str },
    #[error("general.alignment is {alignment}; expected a power of two up to {limit}")]
    BadAlignment { alignment: u64, limit: u64 },
    #[error("tensor '{tensor}' has {rank} dimensions; GGUF allows {limit}")]
    BadRank { tensor: String, rank: u32, limit: u32 },
    #[error("tensor '{tensor}' has the GGUF type {code}, which is not supported")]
    UnknownGgufType { tensor: String, code: u32 },
    #[error("tensor '{tensor}' of type {dtype} cannot have the shape {shape:?}")]
    BadShape { tensor: String, dtype: DType, shape: Vec<u64> },
    #[error("tensor '{tensor}' lies at offset {offset}, which is not a multiple of {alignment}")]
    Misaligned { tensor: String, offset: u64, alignment: usize },
    #[error(
        "tensor '{tensor}' ({bytes} bytes at offset {offset}) reaches beyond the {available} bytes of data"
    )]
    OutOfFile { tensor: String, offset: u64, bytes: usize, available: usize },
    #[error("tensor '{tensor}' overlaps tensor '{other}'")]
    Overlap { tensor: String, other: String },
    #[error("the file says it is part {number} of {count}, but its name says part {named} of {named_count}")]
    BadSplit { number: u64, count: u64, named: usize, named_count: usize },

    #[error("the checkpoint has no tensor '{name}'")]
    UnknownTensor { name: String },
    #[error("rows {start}..{end} cannot be taken from {dtype} {shape:?}")]
    RowRange { start: usize, end: usize, dtype: DType, shape: Vec<usize> },
    #[error("{dtype} {shape:?} cannot be joined with {other_dtype} {other_shape:?} along the first axis")]
    ConcatMismatch { dtype: DType, shape: Vec<usize>, other_dtype: DType, other_shape: Vec<usize> },
    #[error("there is nothing to join")]
    ConcatEmpty,
    #[error("{dtype} {shape:?} cannot be seen as {wanted:?}")]
    Reshape { dtype: DType, shape: Vec<usize>, wanted: Vec<usize> },
    #[error("arrays of {found:?} bytes are not the storage of {dtype} {shape:?}")]
    BadParts { dtype: DType, shape: Vec<usize>, found: Vec<usize> },
    #[error("{values} values cannot be quantised in rows of {cols} with {bits} bits in groups of {group}")]
    CannotEncode { values: usize, cols: usize, bits: u8, group: u16 },
    #[error("tensor '{tensor}' of shape {shape:?} cannot be written as {dtype}")]
    CannotStore { tensor: String, dtype: DType, shape: Vec<usize> },
    #[error("safetensors files cannot hold tensor '{tensor}' as {dtype}")]
    NotInSafetensors { tensor: String, dtype: DType },
    #[error("GGUF files cannot hold tensor '{tensor}' as {dtype}")]
    NotInGguf { tensor: String, dtype: DType },
    #[error("writing failed: {source}")]
    Write { source: std::io::Error },
    #[error("writing was ended before it was done")]
    Stopped,
}

impl WeightsError {
    pub(crate) fn io(path: &std::path::Path, source: std::io::Error) -> Self {
        WeightsError::Io { path: path.to_path_buf(), source }
    }

    pub(crate) fn in_file(self, path: &std::path::Path) -> Self {
        WeightsError::InFile { path: path.to_path_buf(), error: Box::new(self) }
    }
}
