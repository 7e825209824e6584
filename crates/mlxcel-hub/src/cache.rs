//! The folder in which fetched files are kept, safe against other processes and against being killed.
//!
//! Layout: `packages/KEY/FILE` and `models/OWNER--NAME/snapshots/KEY` hold what is whole, `staging/KEY/` what is on its
//! way, `locks/KEY.lock` says who works on `KEY`. A file or folder enters its place by one rename, after its bytes are
//! on the disk, so what is there needs no second check beyond its size.
//!
//! `packed/KEY/` holds what the cpu engine packed of a file, whoever put that file on this machine: it is written and checked by
//! the engine alone, under the key of the file's canonical path (`mlxcel_platform::files::key`), and goes with the file.

use std::{
    fs::{self, File, TryLockError},
    path::{Path, PathBuf},
    sync::atomic::{AtomicU64, Ordering},
};

use serde::Serialize;

use crate::{Error, Event, Package, Progress, Result};

/// The cache below one root folder.
pub(crate) struct Cache {
    root: PathBuf,
}

/// The right to work on one key. It ends when this is dropped, or when the process ends however it ends.
pub(crate) struct Claim {
    /// A folder on the cache's filesystem, for what is on its way.
    pub(crate) staging: PathBuf,
    is_cleared: bool,
    // Dropped after `drop` has emptied the staging folder.
    _lock: File,
}

impl Cache {
    pub(crate) fn new(root: PathBuf) -> Self {
        Self { root }
    }

    pub(crate) fn packages(&self) -> PathBuf {
        self.root.join("packages")
    }

    pub(crate) fn models(&self) -> PathBuf {
        self.root.join("models")
    }

    pub(crate) fn staging(&self) -> PathBuf {
        self.root.join("staging")
    }

    pub(crate) fn packed(&self) -> PathBuf {
        self.root.join("packed")
    }

    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    /// Where the file or folder `name` of a package is kept once it is whole.
    pub(crate) fn place(&self, package: &Package<'_>, name: &str) -> PathBuf {
        self.packages().join(key(package)).join(plain(name))
    }

    /// Waits for the right to work on `key`, a plain name; `what` is what a person calls it.
    pub(crate) fn claim(&self, key: &str, what: &str, progress: &dyn Progress) -> Result<Claim> {
        let locks = self.root.join("locks");
        create_folder(&locks)?;
        let path = locks.join(format!("{key}.lock"));
        let lock = File::options().create(true).append(true).open(&path).map_err(Error::io("open", &path))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                progress.on(Event::Waiting { what });
                lock.lock().map_err(Error::io("lock", &path))?;
            }
            Err(TryLockError::Error(e)) => return Err(Error::io("lock", &path)(e)),
        }
        let staging = self.staging().join(key);
        if fs::symlink_metadata(&staging).is_ok_and(|data| !data.is_dir()) {
            remove(&staging).map_err(Error::io("clear away", &staging))?;
        }
        create_folder(&staging)?;
        Ok(Claim { staging, is_cleared: false, _lock: lock })
    }
}

impl Claim {
    /// Clears away what a killed run left behind, and everything again on drop.
    pub(crate) fn cleared(mut self) -> Result<Self> {
        remove(&self.staging).map_err(Error::io("clear away", &self.staging))?;
        create_folder(&self.staging)?;
        self.is_cleared = true;
        Ok(self)
    }

    /// Clears away what was on its way, which is no longer needed.
    pub(crate) fn finish(self) -> Result<()> {
        remove(&self.staging).map_err(Error::io("clear away", &self.staging))
    }

    /// Moves a whole file or folder, already on the disk, to its place. What is there is replaced.
    pub(crate) fn publish(&self, made: &Path, place: &Path) -> Result<()> {
        let folder = place.parent().expect("a place is always inside the cache");
        create_folder(folder)?;
        if fs::symlink_metadata(place).is_ok_and(|there| there.is_dir()) {
            remove(place).map_err(Error::io("clear away", place))?;
        }
        fs::rename(made, place).map_err(Error::io("move to", place))?;
        sync_folder(folder)
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        if self.is_cleared {
            // If this fails, the next claim on the same key clears the folder and reports why it cannot.
            let _ = remove(&self.staging);
        }
    }
}

/// Whether a file of this size is at its place. A link to one is not: who knows what put it there.
pub(crate) fn is_whole(place: &Path, size: u64) -> bool {
    fs::symlink_metadata(place).is_ok_and(|data| data.is_file() && data.len() == size)
}

/// The folder name for a package: readable, and different for different bytes.
pub(crate) fn key(package: &Package<'_>) -> String {
    let digest: String = package.sha256.chars().take(12).collect();
    plain(&format!("{}-{}-{digest}", package.name, package.version))
}

/// A name that is one path component on every platform.
pub(crate) fn plain(name: &str) -> String {
    let kept = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | '+');
    let name: String = name.chars().map(|c| if kept(c) { c } else { '_' }).collect();
    if name.trim_matches('.').is_empty() { format!("_{name}") } else { name }
}

/// Writes a small file in one rename, so that a reader sees all of it or nothing. Several may write the same one at once.
pub(crate) fn write_json(place: &Path, value: &impl Serialize) -> Result<()> {
    static DRAFTS: AtomicU64 = AtomicU64::new(0);
    let text = serde_json::to_vec(value).expect("plain data has a JSON form");
    let number = DRAFTS.fetch_add(1, Ordering::Relaxed);
    let draft = place.with_added_extension(format!("{}-{number}.new", std::process::id()));
    fs::write(&draft, text).map_err(Error::write(&draft))?;
    fs::rename(&draft, place).map_err(Error::io("move to", place))
}

pub(crate) fn create_folder(path: &Path) -> Result<()> {
    fs::create_dir_all(path).map_err(Error::io("create the folder", path))
}

/// Removes a folder with its content, or the file or link that is in its place. Links are not followed.
pub(crate) fn remove(path: &Path) -> std::io::Result<()> {
    if fs::symlink_metadata(path)?.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) }
}

/// Makes a rename survive a power cut. Only Unix lets a folder be opened for that.
fn sync_folder(path: &Path) -> Result<()> {
    if cfg!(unix) {
        File::open(path).and_then(|folder| folder.sync_all()).map_err(Error::io("write", path))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SMOLLM2;

    #[test]
    fn threads_write_the_same_file_at_once() {
        let folder = tempfile::tempdir().unwrap();
        let place = folder.path().join("listing.json");
        std::thread::scope(|scope| {
            let writers = [1, 2, 3, 4].map(|n| {
                let place = &place;
                scope.spawn(move || (0..200).try_for_each(|_| write_json(place, &n)))
            });
            writers.into_iter().for_each(|writer| writer.join().unwrap().unwrap());
        });
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "no draft is left");
    }

    #[test]
    fn a_place_is_always_inside_the_cache() {
        let cache = Cache::new("/cache".into());
        let package = Package { name: "@scope/../x", ..SMOLLM2.package };
        for name in ["../../etc/passwd", "..", "", "a/b", "c:\\d"] {
            let place = cache.place(&package, name);
            assert_eq!(place.components().count(), 5, "{name}: {}", place.display());
            assert!(place.components().all(|part| part.as_os_str() != ".."), "{}", place.display());
        }
    }

    #[test]
    fn different_pins_of_one_version_have_different_places() {
        let cache = Cache::new("/cache".into());
        let other = Package { sha256: "00", ..SMOLLM2.package };
        assert_ne!(cache.place(&SMOLLM2.package, "f"), cache.place(&other, "f"));
    }
}
