//! Reading wheels (zips) and gzipped tarballs, member by member.
//!
//! An archive that tries to climb out of its folder is refused whole. Nothing is written beyond the size that the
//! caller allows, whatever the archive declares.

use std::{
    fs::File,
    io::{self, BufReader, Read},
    ops::ControlFlow,
    path::Path,
};

use flate2::read::GzDecoder;

use crate::{Error, Result, digest, paths};

/// One file in an archive: its name there, its declared size and its bytes.
pub(crate) struct Entry<'a> {
    pub(crate) name: &'a str,
    pub(crate) size: u64,
    /// Whether the archive marks it as a program.
    pub(crate) is_program: bool,
    pub(crate) bytes: &'a mut dyn Read,
}

/// What the caller does with each file; it may stop the walk.
type Visitor<'a> = dyn FnMut(Entry<'_>) -> Result<ControlFlow<()>> + 'a;

/// Shows every regular file in the archive to `visit`, in the archive's order. `.whl` and `.zip` are zips, anything
/// else is a gzipped tarball.
pub(crate) fn walk(archive: &Path, visit: &mut Visitor<'_>) -> Result<()> {
    let file = BufReader::new(File::open(archive).map_err(Error::io("open", archive))?);
    let label = archive.file_name().unwrap_or_default().to_string_lossy();
    match archive.extension().and_then(|extension| extension.to_str()) {
        Some("whl" | "zip") => walk_zip(file, &label, visit),
        _ => walk_tar(GzDecoder::new(file), &label, visit),
    }
}

fn walk_zip(file: impl Read + io::Seek, label: &str, visit: &mut Visitor<'_>) -> Result<()> {
    let bad = |e: zip::result::ZipError| bad_archive(label)(e.into());
    let mut zip = zip::ZipArchive::new(file).map_err(bad)?;
    for name in zip.file_names_raw() {
        check_name(label, &String::from_utf8_lossy(name))?;
    }
    for index in 0..zip.len() {
        let mut entry = zip.by_index(index).map_err(bad)?;
        if !entry.is_file() {
            continue;
        }
        let (name, size) = (entry.name().map_err(bad)?.into_owned(), entry.size());
        let is_program = entry.unix_mode().is_some_and(|mode| mode & 0o111 != 0);
        if visit(Entry { name: &name, size, is_program, bytes: &mut entry })?.is_break() {
            break;
        }
    }
    Ok(())
}

fn walk_tar(file: impl Read, label: &str, visit: &mut Visitor<'_>) -> Result<()> {
    let mut tar = tar::Archive::new(file);
    for entry in tar.entries().map_err(bad_archive(label))? {
        let mut entry = entry.map_err(bad_archive(label))?;
        let name = String::from_utf8_lossy(&entry.path_bytes()).into_owned();
        // Some writers put `./` before every name.
        let name = name.trim_start_matches("./");
        if !name.is_empty() {
            check_name(label, name)?;
        }
        if !entry.header().entry_type().is_file() {
            continue;
        }
        let size = entry.size();
        let is_program = entry.header().mode().is_ok_and(|mode| mode & 0o111 != 0);
        if visit(Entry { name, size, is_program, bytes: &mut entry })?.is_break() {
            break;
        }
    }
    Ok(())
}

/// Writes the first `size` bytes of an entry to the new file `to`, waits until they are on the disk, and returns
/// their SHA-256.
pub(crate) fn keep(entry: Entry<'_>, size: u64, to: &Path) -> Result<String> {
    let mut file = File::create_new(to).map_err(Error::io("create", to))?;
    let (got, sha256) =
        digest::copy(&mut entry.bytes.take(size), &mut file).map_err(bad_archive(entry.name))?;
    digest::check_size(entry.name, size, got)?;
    file.sync_all().map_err(Error::io("write", to))?;
    Ok(sha256)
}

/// Refuses names that would leave the folder they are unpacked in, on any platform. A folder's name may end in `/`.
fn check_name(label: &str, name: &str) -> Result<()> {
    if paths::is_within(name.strip_suffix('/').unwrap_or(name)) {
        return Ok(());
    }
    Err(Error::UnsafeMember { archive: label.into(), member: name.into() })
}

fn bad_archive(label: &str) -> impl Fn(io::Error) -> Error {
    move |source| Error::BadArchive { archive: label.to_owned(), source }
}
