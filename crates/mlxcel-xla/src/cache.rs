//! Compiled modules, each made once: in memory, and on disk where a folder is given. An entry's name is the hash of
//! everything it depends on; it is written beside its place and renamed, so that readers see all of it or nothing; it
//! begins with the hash of its content, so that a damaged one is noticed and made anew. It knows no compiler.

use std::collections::{BTreeSet, HashMap};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, Once};
use std::time::SystemTime;

use sha2::{Digest, Sha256};

use crate::error::XlaError;
use crate::executor::Executable;

/// Changes when the form of entries does.
const FORM: &str = "mlxcel xla cache 1";

/// No executable is larger.
const ENTRY_MAX: u64 = 1 << 30;

/// Bytes of all entries. Beyond them the ones go that were not used for longest.
const FOLDER_MAX: u64 = 4 << 30;

/// A module that was just compiled, with its form on disk if it has one.
pub(crate) type Made = (Arc<dyn Executable>, Option<Vec<u8>>);

/// Hears why nothing can be kept. The engine works without, so that it is no error of a step.
pub type Complain = fn(&XlaError);

/// The compiled modules of an executor.
pub(crate) struct Modules {
    disk: Option<Cache>,
    /// By the hash of their text.
    known: Mutex<HashMap<[u8; 32], Arc<dyn Executable>>>,
}

impl Modules {
    pub(crate) fn new(disk: Option<Cache>) -> Self {
        Modules { disk, known: Mutex::default() }
    }

    /// The compiled module: the known one, else what `load` makes of the entry on disk, else what `make` compiles.
    pub(crate) fn get(
        &self,
        (module, options): (&str, &[u8]),
        load: impl FnOnce(&[u8]) -> Result<Arc<dyn Executable>, XlaError>,
        make: impl FnOnce() -> Result<Made, XlaError>,
    ) -> Result<Arc<dyn Executable>, XlaError> {
        let name = hash(&[module.as_bytes()]);
        let lock = || self.known.lock().unwrap_or_else(|e| e.into_inner());
        let known = lock().get(&name).cloned();
        if let Some(done) = known {
            return Ok(done);
        }
        let key = self.disk.as_ref().map(|disk| (disk, disk.key(module, options)));
        let kept = key.as_ref().and_then(|(disk, key)| disk.read(key));
        let done = match kept.and_then(|bytes| load(&bytes).ok()) {
            Some(loaded) => loaded,
            None => {
                let (made, bytes) = make()?;
                if let (Some((disk, key)), Some(bytes)) = (&key, &bytes) {
                    disk.keep(key, bytes);
                }
                made
            }
        };
        lock().insert(name, done.clone());
        Ok(done)
    }
}

/// Instructions of the processor, since code for one may not run on another that shares the cache.
pub(crate) fn processor() -> String {
    of_info(&std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default())
}

/// Lines that say which instructions there are, on x86 and on ARM, where cores may differ.
const PROCESSOR: [&str; 6] =
    ["model name", "flags", "Features", "CPU implementer", "CPU variant", "CPU part"];

fn of_info(info: &str) -> String {
    let tells = |line: &&str| line.split(':').next().is_some_and(|name| PROCESSOR.contains(&name.trim()));
    let lines: BTreeSet<&str> = info.lines().filter(tells).collect();
    [std::env::consts::ARCH].into_iter().chain(lines).collect::<Vec<_>>().join("\n")
}

/// A folder of compiled modules.
pub(crate) struct Cache {
    folder: PathBuf,
    identity: Vec<String>,
    complain: Option<Complain>,
    complained: Once,
}

pub(crate) fn hash(parts: &[&[u8]]) -> [u8; 32] {
    let mut sha = Sha256::new();
    for part in parts {
        sha.update((part.len() as u64).to_le_bytes());
        sha.update(part);
    }
    sha.finalize().into()
}

impl Cache {
    /// `identity` is what entries depend on besides module and options: plugin, device, processor.
    pub(crate) fn new(folder: &Path, identity: &[String], complain: Option<Complain>) -> Self {
        let (folder, identity) = (folder.to_path_buf(), identity.to_vec());
        Cache { folder, identity, complain, complained: Once::new() }
    }

    pub(crate) fn key(&self, module: &str, options: &[u8]) -> String {
        let mut parts: Vec<&[u8]> = vec![FORM.as_bytes(), module.as_bytes(), options];
        parts.extend(self.identity.iter().map(|s| s.as_bytes()));
        hash(&parts).iter().map(|b| format!("{b:02x}")).collect()
    }

    fn path(&self, key: &str) -> PathBuf {
        self.folder.join(format!("{key}.xla"))
    }

    /// The entry, if there is one and it is whole; a damaged one is removed.
    pub(crate) fn read(&self, key: &str) -> Option<Vec<u8>> {
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
        // Those used last stay longest; where that cannot be noted, those written last do.
        let used = std::fs::File::options().append(true).open(&path);
        let _ = used.and_then(|file| file.set_modified(SystemTime::now()));
        Some(bytes.split_off(32))
    }

    /// Writes the entry, or complains once that it cannot.
    fn keep(&self, key: &str, content: &[u8]) {
        if let (Err(error), Some(complain)) = (self.write(key, content), self.complain) {
            self.complained.call_once(|| complain(&error));
        }
    }

    /// Writes the entry, unless it is too large to be read again.
    fn write(&self, key: &str, content: &[u8]) -> Result<(), XlaError> {
        if (content.len() + 32) as u64 > ENTRY_MAX {
            return Ok(());
        }
        let fail = |source| XlaError::Cache { path: self.folder.clone(), source };
        std::fs::create_dir_all(&self.folder).map_err(fail)?;
        let mut file = tempfile::NamedTempFile::new_in(&self.folder).map_err(fail)?;
        file.write_all(&hash(&[content])).and_then(|()| file.write_all(content)).map_err(fail)?;
        let path = self.path(key);
        file.persist(&path).map_err(|e| fail(e.error))?;
        self.thin_out(&path, FOLDER_MAX);
        Ok(())
    }

    /// Removes entries, the ones used longest ago first, until no more than `most` bytes are left with the one just written. What a
    /// writer left behind when it was stopped goes with them. Another process may do the same, so that a file that is gone is
    /// no error.
    fn thin_out(&self, written: &Path, most: u64) {
        let Ok(files) = std::fs::read_dir(&self.folder) else { return };
        let now = SystemTime::now();
        let mut files: Vec<(SystemTime, u64, PathBuf)> = files
            .filter_map(|file| {
                let file = file.ok()?;
                let name = file.file_name().into_string().ok()?;
                let facts = file.metadata().ok().filter(std::fs::Metadata::is_file)?;
                // What a clock that was put back calls the future is not used most.
                let used =
                    facts.modified().ok().filter(|used| *used <= now).unwrap_or(SystemTime::UNIX_EPOCH);
                let is_ours = name.ends_with(".xla") || name.starts_with(".tmp");
                is_ours.then(|| (used, facts.len(), file.path()))
            })
            .collect();
        files.sort();
        let mut all: u64 = files.iter().map(|(_, bytes, _)| bytes).sum();
        for (_, bytes, path) in files.into_iter().filter(|(_, _, path)| path != written) {
            if all <= most {
                return;
            }
            let removed = std::fs::remove_file(path);
            if removed.is_ok() || removed.is_err_and(|e| e.kind() == std::io::ErrorKind::NotFound) {
                all -= bytes;
            }
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    fn cache(folder: &Path) -> Cache {
        Cache::new(folder, &["cpu".to_string(), "1".to_string()], None)
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
    fn what_was_not_used_for_longest_goes_first() {
        let folder = tempfile::tempdir().unwrap();
        let cache = cache(folder.path());
        let keys = ["a", "b", "c"].map(|module| cache.key(module, b""));
        for (age, key) in [300, 200, 100].into_iter().zip(&keys) {
            cache.write(key, &[0; 68]).unwrap();
            let file = std::fs::File::options().append(true).open(cache.path(key)).unwrap();
            file.set_modified(SystemTime::now() - std::time::Duration::from_secs(age)).unwrap();
        }
        assert!(cache.read(&keys[0]).is_some(), "it is used now");
        let left = |written: &str, most: u64| {
            cache.thin_out(&cache.path(written), most);
            keys.each_ref().map(|key| cache.path(key).exists())
        };
        std::fs::write(folder.path().join("a stranger's"), [0; 500]).unwrap();
        assert_eq!(left(&keys[2], 300), [true; 3]);
        assert_eq!(left(&keys[2], 299), [true, false, true]);
        let later = std::fs::File::options().append(true).open(cache.path(&keys[0])).unwrap();
        later.set_modified(SystemTime::now() + std::time::Duration::from_secs(3600)).unwrap();
        assert_eq!(left(&keys[0], 100), [true, false, false], "what was just written stays");
        assert_eq!(left("another", 0), [false; 3]);
        assert!(folder.path().join("a stranger's").exists());
    }

    struct Nothing;

    impl Executable for Nothing {
        fn run(&self, _: &[&crate::executor::Buffer]) -> Result<Vec<crate::executor::Buffer>, XlaError> {
            Ok(vec![])
        }
    }

    #[test]
    fn modules_are_made_where_the_folder_cannot_be_written_and_that_is_told_once() {
        static TOLD: Mutex<Vec<String>> = Mutex::new(vec![]);
        let file = tempfile::NamedTempFile::new().unwrap();
        let mut cache = cache(&file.path().join("below a file"));
        cache.complain = Some(|error| TOLD.lock().unwrap().push(error.to_string()));
        let modules = Modules::new(Some(cache));
        for module in ["one", "another"] {
            let make = || Ok((Arc::new(Nothing) as Arc<dyn Executable>, Some(b"machine code".to_vec())));
            modules.get((module, b""), |_| unreachable!("nothing is kept"), make).unwrap();
        }
        let told = TOLD.lock().unwrap();
        assert_eq!(told.len(), 1);
        assert!(told[0].contains("below a file"), "{}", told[0]);
    }

    #[test]
    fn an_entry_that_would_be_too_large_to_read_is_not_written() {
        let folder = tempfile::tempdir().unwrap();
        let cache = cache(folder.path());
        cache.write("key", &vec![0; ENTRY_MAX as usize - 31]).unwrap();
        assert!(!cache.path("key").exists());
    }

    #[test]
    fn processors_of_arm_are_told_apart() {
        let core = |part: &str, features: &str| {
            format!(
                "processor\t: 0\nBogoMIPS\t: 50.00\nFeatures\t: {features}\nCPU implementer\t: 0x41\n\
                 CPU architecture: 8\nCPU variant\t: 0x1\nCPU part\t: {part}\nCPU revision\t: 0\n\n"
            )
        };
        let (small, large) = (core("0xd05", "fp asimd"), core("0xd40", "fp asimd sve"));
        assert_ne!(of_info(&small), of_info(&large));
        assert_ne!(of_info(&core("0xd0c", "fp asimd")), of_info(&small));
        assert_ne!(of_info(&(small.clone() + &large)), of_info(&(small.clone() + &small)));
        assert_eq!(of_info(&(small.clone() + &small)), of_info(&small));
        assert!(of_info(&small).contains(std::env::consts::ARCH));
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
        let (a, b) =
            (cache(folder.path()), Cache::new(folder.path(), &["cpu1".to_string(), String::new()], None));
        let keys = [a.key("m", b"o"), a.key("mo", b""), a.key("m", b"p"), b.key("m", b"o")];
        let distinct: std::collections::BTreeSet<_> = keys.iter().collect();
        assert_eq!(distinct.len(), keys.len());
    }
}
