//! SHA-256 of files and folders.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result};
use sha2::{Digest as _, Sha256};

pub(crate) fn of_file(path: &Path) -> Result<String> {
    Ok(of_bytes(&fs::read(path).with_context(|| format!("cannot read {}", path.display()))?))
}

pub(crate) fn of_bytes(bytes: &[u8]) -> String {
    hex(&of(bytes))
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

pub(crate) fn of(bytes: &[u8]) -> [u8; 32] {
    Sha256::digest(bytes).into()
}

/// A digest of the names and contents of all files below a folder, whatever order they are listed in.
pub(crate) fn of_folder(folder: &Path) -> Result<String> {
    let mut files = Vec::new();
    list(folder, &mut files)?;
    files.sort();
    let mut all = Sha256::new();
    for path in files {
        let name = path.strip_prefix(folder)?.to_string_lossy().replace('\\', "/");
        all.update(format!("{}  {name}\n", of_file(&path)?));
    }
    Ok(hex(&all.finalize()))
}

fn list(folder: &Path, files: &mut Vec<PathBuf>) -> Result<()> {
    for entry in fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))? {
        let path = entry?.path();
        if path.is_dir() { list(&path, files)? } else { files.push(path) }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_has_the_digest_that_sha256sum_gives() {
        let folder = tempfile::tempdir().expect("a folder can be made");
        fs::create_dir(folder.path().join("b")).expect("a folder can be made");
        fs::write(folder.path().join("b/c"), "two").expect("a file can be written");
        fs::write(folder.path().join("a"), "one").expect("a file can be written");
        // `printf one > a; printf two > b/c; sha256sum a b/c | sha256sum`
        let wanted = "2978063142a8ffa542a84cde5ef0261a8ecd99de3dd1186e5d2d020c922f9978";
        assert_eq!(of_folder(folder.path()).expect("it can be read"), wanted);
    }
}
