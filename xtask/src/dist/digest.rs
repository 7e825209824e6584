//! SHA-256 of files.

use std::{fs, path::Path};

use anyhow::{Context as _, Result};
use sha2::{Digest as _, Sha256};

pub(crate) fn of_file(path: &Path) -> Result<String> {
    Ok(of_bytes(&fs::read(path).with_context(|| format!("cannot read {}", path.display()))?))
}

pub(crate) fn of_bytes(bytes: &[u8]) -> String {
    of(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

pub(crate) fn of(bytes: &[u8]) -> [u8; 32] {
    Sha256::digest(bytes).into()
}
