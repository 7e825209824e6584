//! What engines packed of models, as far as it is looked for and removed here. What is in it is theirs to know.

use std::{
    fs,
    path::{Path, PathBuf},
};

use mlxcel_platform::files;

use crate::Hub;

impl Hub {
    /// The folders of what was packed of a file, or of the files below a folder.
    pub(crate) fn packed_of(&self, path: &Path) -> Vec<PathBuf> {
        // What was kept before it was switched off is still there.
        let root = self.settings.packed.clone().unwrap_or_else(|| self.cache.packed());
        let place = |file: PathBuf| root.join(files::key(&file));
        let is_there = |folder: &PathBuf| fs::symlink_metadata(folder).is_ok_and(|data| data.is_dir());
        files_of(path).into_iter().map(place).filter(is_there).collect()
    }
}

/// The canonical paths of the files at a path or below it. Links to files lead to them, as Hugging Face's cache has it; links to
/// folders lead nowhere.
fn files_of(path: &Path) -> Vec<PathBuf> {
    let Ok(data) = fs::metadata(path) else { return vec![] };
    if data.is_file() {
        return path.canonicalize().into_iter().collect();
    }
    let is_folder = fs::symlink_metadata(path).is_ok_and(|data| data.is_dir());
    let entries = is_folder.then(|| fs::read_dir(path).ok()).flatten();
    entries.into_iter().flatten().flatten().flat_map(|entry| files_of(&entry.path())).collect()
}
