//! Compiled modules on disk. An entry's name is the hash of everything it depends on; it is written beside its place
//! and renamed, so that readers see all of it or nothing; it begins with the hash of its content, so that a damaged one
//! is noticed and made anew.

use std::io::Write as _;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use crate::error::XlaError;

/// Changes when the form of entries does.
const FORM: &str = "mlxcel xla cache 1";

/// No executable is larger.
const ENTRY_MAX: u64 = 1 << 30;

/// A folder of compiled modules.
pub(super) struct Cache {
    folder: PathBuf,
    identity: Vec<String>,
}

pub(super) fn hash(parts: &[&[u8]]) -> [u8; 32] {
    let mut sha = Sha256::new();
    for part in parts {
        sha.update((part.len() as u64).to_le_bytes());
        sha.update(part);
    }
    sha.finalize().into()
}

impl Cache {
    /// `identity` is what entries depend on besides module and options: plugin, device, processor.
    pub(super) fn new(folder: &Path, identity: &[String]) -> Self {
        Cache { folder: folder.to_path_buf(), identity: identity.to_vec() }
    }

    pub(super) fn key(&self, module: &str, options: &[u8]) -> String {
        let mut parts: Vec<&[u8]> = vec![FORM.as_bytes(), module.as_bytes(), options];
        parts.extend(self.identity.iter().map(|s| s.as_bytes()));
        hash(&parts).iter().map(|b| format!("{b:02x}")).collect()
    }

    fn path(&self, key: &str) -> PathBuf {
        self.folder.join(format!("{key}.xla"))
    }

    /// The entry, if there is one and it is whole; a damaged one is removed.
    pub(super) fn read(&self, key: &str) -> Option<Vec<u8>> {
        let path = self.path(key);
        if std::fs::metadata(&path).ok()?.len() > ENTRY_MAX {
            return None;
        }
        let mut bytes = std::fs::read(&path).ok()?;
        let whole = bytes.len() >= 32 && hash(&[&bytes[32..]])[..] == bytes[..32];
        if !whole {
            // Another process may be replacing it; either way the next write puts a whole one there.
            let _ = std::fs::remove_file(&path);
            return None;
        }
        Some(bytes.split_off(32))
    }

    pub(super) fn write(&self, key: &str, content: &[u8]) -> Result<(), XlaError> {
        let fail = |source| XlaError::Cache { path: self.folder.clone(), source };
        std::fs::create_dir_all(&self.folder).map_err(fail)?;
        let mut file = tempfile::NamedTempFile::new_in(&self.folder).map_err(fail)?;
        file.write_all(&hash(&[content])).and_then(|()| file.write_all(content)).map_err(fail)?;
        file.persist(self.path(key)).map_err(|e| fail(e.error))?;
        Ok(())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    fn cache(folder: &Path) -> Cache {
        Cache::new(folder, &["cpu".to_string(), "1".to_string()])
    }

    #[test]
    fn an_entry_is_read_back_as_it_was_written() {
        let folder = tempfile::tempdir().unwrap();
        let cache = cache(&folder.path().join("not yet there"));
        let key = cache.key("module", b"options");
        assert_eq!(cache.read(&key), None);
        cache.write(&key, b"machine code").unwrap();
        assert_eq!(cache.read(&key).as_deref(), Some(&b"machine code"[..]));
    }

    #[test]
    fn a_damaged_or_cut_entry_is_removed_and_made_anew() {
        let folder = tempfile::tempdir().unwrap();
        let cache = cache(folder.path());
        let key = cache.key("module", b"");
        let path = cache.path(&key);
        let damages: [fn(&mut Vec<u8>); 3] = [|b| b[40] ^= 1, |b| b.truncate(35), |b| b.clear()];
        for damage in damages {
            cache.write(&key, b"machine code").unwrap();
            let mut bytes = std::fs::read(&path).unwrap();
            damage(&mut bytes);
            std::fs::write(&path, &bytes).unwrap();
            assert_eq!(cache.read(&key), None);
            assert!(!path.exists());
        }
    }

    #[test]
    fn what_a_crashed_writer_left_is_not_an_entry() {
        let folder = tempfile::tempdir().unwrap();
        let cache = cache(folder.path());
        std::fs::write(folder.path().join(".tmpAbCd"), b"half of it").unwrap();
        assert_eq!(cache.read(&cache.key("module", b"")), None);
    }

    #[test]
    fn keys_differ_by_module_options_and_device() {
        let folder = tempfile::tempdir().unwrap();
        let (a, b) = (cache(folder.path()), Cache::new(folder.path(), &["cpu1".to_string(), String::new()]));
        let keys = [a.key("m", b"o"), a.key("mo", b""), a.key("m", b"p"), b.key("m", b"o")];
        let distinct: std::collections::BTreeSet<_> = keys.iter().collect();
        assert_eq!(distinct.len(), keys.len());
    }
}
