//! New files and their permissions, what tells one state of a file from another, and names made of paths.

use std::fmt::Write as _;
use std::fs::{File, Metadata, OpenOptions, Permissions};
use std::io;
use std::path::Path;

use sha2::{Digest as _, Sha256};

/// The permissions of a new file or folder with this mode, of which the user's mask takes its part. `None` where files
/// have no mode and what is new needs nothing.
#[cfg(unix)]
pub fn permissions(mode: u32) -> Option<Permissions> {
    use std::os::unix::fs::PermissionsExt as _;
    Some(Permissions::from_mode(mode))
}

#[cfg(not(unix))]
pub fn permissions(_mode: u32) -> Option<Permissions> {
    None
}

/// Makes a file to read and write, which must not be there yet and which, where files have a mode, only this user may open.
pub fn create_private(path: &Path) -> io::Result<File> {
    private().read(true).write(true).create_new(true).open(path)
}

#[cfg(unix)]
fn private() -> OpenOptions {
    use std::os::unix::fs::OpenOptionsExt as _;
    let mut options = OpenOptions::new();
    options.mode(0o600);
    options
}

#[cfg(not(unix))]
fn private() -> OpenOptions {
    OpenOptions::new()
}

/// Numbers of which one changes when a file is written to or another takes its place: its length, when it was written and,
/// where the system tells, when anything about it changed and which file it is.
#[cfg(unix)]
pub fn stamp(data: &Metadata) -> [u64; 6] {
    use std::os::unix::fs::MetadataExt as _;
    let (written, changed) = ((data.mtime(), data.mtime_nsec()), (data.ctime(), data.ctime_nsec()));
    [data.len(), written.0 as u64, written.1 as u64, changed.0 as u64, changed.1 as u64, data.ino()]
}

#[cfg(not(unix))]
pub fn stamp(data: &Metadata) -> [u64; 6] {
    let written = data.modified().ok().and_then(|time| time.duration_since(std::time::UNIX_EPOCH).ok());
    let written = written.unwrap_or_default();
    [data.len(), written.as_secs(), u64::from(written.subsec_nanos()), 0, 0, 0]
}

/// The name of the folder for what is kept of the file at a path, which should be canonical: 32 digits that are those of no
/// other path.
pub fn key(path: &Path) -> String {
    let digest = Sha256::digest(path.as_os_str().as_encoded_bytes());
    digest[..16].iter().fold(String::new(), |mut name, byte| {
        write!(name, "{byte:02x}").expect("writing to a String cannot fail");
        name
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stamp_tells_what_was_written_or_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let (file, other) = (folder.path().join("file"), folder.path().join("other"));
        let now = || stamp(&std::fs::metadata(&file).unwrap());
        std::fs::write(&file, "one").unwrap();
        let first = now();
        assert_eq!(now(), first);
        let written = File::options().write(true).open(&file).unwrap();
        written.set_modified(std::time::SystemTime::UNIX_EPOCH).unwrap();
        assert_ne!(now(), first);
        let second = now();
        std::fs::write(&other, "two").unwrap();
        std::fs::rename(&other, &file).unwrap();
        assert_ne!(now(), second);
    }

    #[test]
    fn a_private_file_is_new_and_nobody_elses() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        create_private(&path).unwrap();
        assert_eq!(create_private(&path).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt as _;
            assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        }
    }

    #[test]
    fn keys_are_plain_and_those_of_their_paths() {
        let [a, b] = ["/models/a.gguf", "/models/b.gguf"].map(|path| key(Path::new(path)));
        assert_ne!(a, b);
        assert_eq!(a, key(Path::new("/models/a.gguf")));
        assert!(a.len() == 32 && a.bytes().all(|c| c.is_ascii_hexdigit()), "{a}");
    }
}
