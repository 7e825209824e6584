//! Taking a whole folder out of a gzipped tarball: a corpus of files that belong together.
//!
//! The package is pinned by its digest, so what lies in it needs no second check; still nothing is written outside of
//! the staging folder, and no more than a bound. The folder enters the cache by one rename.

use std::{
    fs::{self, File},
    io::{BufReader, Read},
    path::{Path, PathBuf},
};

use flate2::read::GzDecoder;

use crate::{
    Error, Event, Folder, Hub, Result,
    archive::{bad_archive, check_name},
    digest,
};

/// More than any folder that is pinned here has.
const FOLDER_BYTES_MAX: u64 = 1 << 30;

impl Hub {
    /// The path of one folder out of a pinned tarball, fetched if it is not yet in the cache.
    pub fn fetch_folder(&self, folder: &Folder<'_>) -> Result<PathBuf> {
        let package = &folder.package;
        let place = self.cache.place(package, folder.save_as);
        if place.is_dir() {
            return Ok(place);
        }
        let claim = self.cache.claim(package, &*self.progress)?;
        if !place.is_dir() {
            let archive = self.download(package, &claim.staging)?;
            self.progress.on(Event::Unpacking { what: &package.to_string() });
            digest::verify(&archive, package.file, package.size, package.sha256)?;
            let staged = claim.staging.join("folder");
            extract(&archive, folder, &staged)?;
            claim.publish(&staged, &place)?;
            self.progress.on(Event::Finished { what: &package.to_string(), path: &place });
        }
        Ok(place)
    }
}

/// Writes the regular files of the folder below `to`; links and devices are left out.
fn extract(archive: &Path, folder: &Folder<'_>, to: &Path) -> Result<()> {
    let bad = |error| bad_archive(&folder.package, error);
    let file = File::open(archive).map_err(Error::io("open", archive))?;
    let mut tar = tar::Archive::new(GzDecoder::new(BufReader::new(file)));
    let mut left = FOLDER_BYTES_MAX;
    for entry in tar.entries().map_err(bad)? {
        let mut entry = entry.map_err(bad)?;
        let name = String::from_utf8_lossy(&entry.path_bytes()).into_owned();
        check_name(&folder.package, &name)?;
        let inside = name.strip_prefix(folder.path).filter(|inside| !inside.is_empty());
        if let (Some(inside), true) = (inside, entry.header().entry_type().is_file()) {
            left = left.checked_sub(entry.size()).ok_or_else(|| too_large(folder))?;
            keep(&mut entry, folder, &to.join(inside))?;
        }
    }
    if to.is_dir() { Ok(()) } else { Err(missing(folder)) }
}

fn keep(entry: &mut impl Read, folder: &Folder<'_>, to: &Path) -> Result<()> {
    let parent = to.parent().expect("a file is inside the folder");
    fs::create_dir_all(parent).map_err(Error::io("create the folder", parent))?;
    let mut file = File::create_new(to).map_err(Error::io("create", to))?;
    std::io::copy(entry, &mut file).map_err(|error| bad_archive(&folder.package, error))?;
    file.sync_all().map_err(Error::io("write", to))
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
