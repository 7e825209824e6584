//! Archives that have the same bytes whenever they are made of the same files: sorted, with one date, without names of
//! users.

use std::{
    fs,
    io::{Cursor, Write as _},
    path::Path,
};

use anyhow::{Context as _, Result};
use flate2::{Compression, GzBuilder};
use zip::{CompressionMethod, ZipWriter, write::SimpleFileOptions};

/// A file of an archive.
pub(crate) struct Entry {
    /// Its path in the archive, with forward slashes.
    pub(crate) name: String,
    pub(crate) bytes: Vec<u8>,
    pub(crate) mode: u32,
}

impl Entry {
    pub(crate) fn text(name: impl Into<String>, text: impl Into<String>) -> Self {
        Entry { name: name.into(), bytes: text.into().into_bytes(), mode: 0o644 }
    }

    pub(crate) fn file(name: impl Into<String>, from: &Path, mode: u32) -> Result<Self> {
        let bytes = fs::read(from).with_context(|| format!("cannot read {}", from.display()))?;
        Ok(Entry { name: name.into(), bytes, mode })
    }
}

/// A gzipped tarball with everything dated `seconds` after 1970.
pub(crate) fn tarball(entries: &[Entry], seconds: u64) -> Result<Vec<u8>> {
    let date = u32::try_from(seconds).context("a date within gzip's range")?;
    let packed = GzBuilder::new().mtime(date).write(Vec::new(), Compression::best());
    let mut archive = tar::Builder::new(packed);
    for entry in sorted(entries) {
        let mut header = tar::Header::new_gnu();
        header.set_size(entry.bytes.len() as u64);
        header.set_mode(entry.mode);
        header.set_mtime(seconds);
        header.set_uid(0);
        header.set_gid(0);
        archive.append_data(&mut header, &entry.name, entry.bytes.as_slice())?;
    }
    Ok(archive.into_inner()?.finish()?)
}

/// A zip with everything dated 1980, the first day that it can write.
pub(crate) fn zip(entries: &[Entry]) -> Result<Vec<u8>> {
    let mut archive = ZipWriter::new(Cursor::new(Vec::new()));
    for entry in sorted(entries) {
        write(&mut archive, entry)?;
    }
    Ok(archive.finish()?.into_inner())
}

/// A zip whose last entry is `last`, as wheels want their record.
pub(crate) fn zip_with_last(entries: &[Entry], last: &Entry) -> Result<Vec<u8>> {
    let mut archive = ZipWriter::new(Cursor::new(Vec::new()));
    for entry in sorted(entries).into_iter().chain([last]) {
        write(&mut archive, entry)?;
    }
    Ok(archive.finish()?.into_inner())
}

fn write(archive: &mut ZipWriter<Cursor<Vec<u8>>>, entry: &Entry) -> Result<()> {
    let options = SimpleFileOptions::default()
        .compression_method(CompressionMethod::Deflated)
        .last_modified_time(zip::DateTime::default())
        .unix_permissions(entry.mode);
    archive.start_file(entry.name.as_str(), options)?;
    Ok(archive.write_all(&entry.bytes)?)
}

fn sorted(entries: &[Entry]) -> Vec<&Entry> {
    let mut sorted: Vec<_> = entries.iter().collect();
    sorted.sort_by(|a, b| a.name.cmp(&b.name));
    sorted
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entries() -> [Entry; 2] {
        let program = Entry { name: "x/bin/run".into(), bytes: vec![7; 5000], mode: 0o755 };
        [Entry::text("x/README.md", "read"), program]
    }

    #[test]
    fn the_order_of_files_does_not_change_an_archive() {
        let (there, mut back) = (entries(), entries());
        back.reverse();
        assert_eq!(tarball(&there, 1_700_000_000).unwrap(), tarball(&back, 1_700_000_000).unwrap());
        assert_eq!(zip(&there).unwrap(), zip(&back).unwrap());
    }

    #[test]
    fn a_tarball_holds_the_bytes_modes_and_dates_of_its_files() {
        let bytes = tarball(&entries(), 1_700_000_000).unwrap();
        let mut archive = tar::Archive::new(flate2::read::GzDecoder::new(bytes.as_slice()));
        let found: Vec<_> = archive
            .entries()
            .unwrap()
            .map(|entry| {
                let entry = entry.unwrap();
                let header = entry.header();
                let path = entry.path().unwrap().display().to_string();
                (path, header.mode().unwrap(), header.size().unwrap(), header.mtime().unwrap())
            })
            .collect();
        let date = 1_700_000_000;
        assert_eq!(
            found,
            [("x/README.md".to_string(), 0o644, 4, date), ("x/bin/run".to_string(), 0o755, 5000, date)]
        );
    }
}
