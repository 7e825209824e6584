//! Reading the small files of a checkpoint folder, with their sizes checked before anything is allocated.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use crate::error::{Error, Result};

/// The largest `tokenizer.json` seen in the wild is about 35 MB.
pub(crate) const TOKENIZER_LIMIT: u64 = 256 << 20;
/// Configuration and template files are kilobytes.
pub(crate) const CONFIG_LIMIT: u64 = 16 << 20;

/// The file's bytes, or `None` when there is no such file.
pub(crate) fn read_optional(path: &Path, limit: u64) -> Result<Option<Vec<u8>>> {
    let read_error = |source| Error::Read { path: path.to_owned(), source };
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(read_error(error)),
    };
    let bytes = file.metadata().map_err(read_error)?.len();
    if bytes > limit {
        return Err(Error::FileTooLarge { path: path.to_owned(), bytes, limit });
    }
    let mut content = Vec::new();
    // The limit holds even for a file that grows while it is read.
    file.take(limit).read_to_end(&mut content).map_err(read_error)?;
    Ok(Some(content))
}

/// The file parsed as a JSON object, or `None` when there is no such file.
pub(crate) fn read_optional_object(
    path: &Path,
) -> Result<Option<serde_json::Map<String, serde_json::Value>>> {
    let Some(bytes) = read_optional(path, CONFIG_LIMIT)? else { return Ok(None) };
    let parsed =
        serde_json::from_slice(&bytes).map_err(|source| Error::Json { path: path.to_owned(), source })?;
    Ok(Some(parsed))
}
