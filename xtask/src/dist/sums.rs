//! `SHA256SUMS` and its signature: made for a folder of artifacts, and checked by `cargo xtask verify`. Signatures are
//! minisign's (<https://jedisct1.github.io/minisign/>), which anybody can check with that program, too.

use std::{
    collections::BTreeMap,
    fs,
    io::Cursor,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, bail, ensure};
use minisign::{PublicKeyBox, SecretKey, SecretKeyBox, SignatureBox};

use super::digest;
use crate::shell;

const SUMS: &str = "SHA256SUMS";
const SIGNATURE: &str = "SHA256SUMS.minisig";

/// More than any list of sums has.
const SUMS_BYTES_MAX: u64 = 1 << 20;

/// Where the release's key is: a file, and its password where it has one. Neither is ever part of the project.
pub(crate) const KEY_FILE: &str = "MLXCEL_MINISIGN_KEY_FILE";
const KEY_PASSWORD: &str = "MLXCEL_MINISIGN_PASSWORD";

/// Writes the sums of the named files, in the form that `sha256sum --check` reads.
pub(crate) fn write(folder: &Path, names: &[String]) -> Result<()> {
    let mut lines = Vec::new();
    for name in names {
        lines.push(format!("{}  {name}\n", digest::of_file(&folder.join(name))?));
    }
    lines.sort_by(|a, b| a[64..].cmp(&b[64..]));
    let path = folder.join(SUMS);
    fs::write(&path, lines.concat()).with_context(|| format!("cannot write {}", path.display()))?;
    // A signature of other sums would only confuse.
    match fs::remove_file(folder.join(SIGNATURE)) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).context("cannot remove the old signature")
        }
        _ => Ok(()),
    }
}

/// The key that the environment names, if it names one; opened before anything is made, since that may take an hour.
pub(crate) fn key_of_environment() -> Result<Option<SecretKey>> {
    let Some(file) = shell::variable(KEY_FILE).map(PathBuf::from) else { return Ok(None) };
    let text = fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))?;
    let password = shell::variable(KEY_PASSWORD).and_then(|password| password.into_string().ok());
    open(&text, password).map(Some)
}

/// Without a password the key is taken as one that has none.
fn open(key: &str, password: Option<String>) -> Result<SecretKey> {
    let held = SecretKeyBox::from_string(key).context("this is no secret key of minisign")?;
    let opened = match password {
        Some(_) => held.into_secret_key(password),
        None => held.into_unencrypted_secret_key(),
    };
    // Keys that minisign writes with `-W` have no password and no checksum, and pass for damaged ones.
    opened.with_context(|| {
        format!("the key cannot be opened; is {KEY_PASSWORD} right? A key of `minisign -G -W` cannot be used: give it one")
    })
}

/// Signs the sums. Which release they are of is signed too: names of archives do not say it.
pub(crate) fn sign(folder: &Path, key: &SecretKey) -> Result<()> {
    let sums = fs::read(folder.join(SUMS)).context("there are no sums to sign")?;
    let comment = format!("mlxcel {} file:{SUMS}", env!("CARGO_PKG_VERSION"));
    let signature = minisign::sign(None, key, Cursor::new(sums), Some(&comment), Some("mlxcel"))?;
    Ok(fs::write(folder.join(SIGNATURE), signature.into_string())?)
}

/// Checks the signature, then every file in the list and that no archive is beside it unlisted. Returns how many files
/// were checked, and what the signature says they are.
pub(crate) fn verify(folder: &Path, public_key: &str) -> Result<(usize, String)> {
    let sums = read_sums(folder)?;
    let signature = plain(folder, SIGNATURE).and_then(|path| Ok(fs::read_to_string(path)?));
    let signature =
        signature.with_context(|| format!("{SUMS} is not signed: {SIGNATURE} is not beside it"))?;
    let key = PublicKeyBox::from_string(public_key)
        .and_then(PublicKeyBox::into_public_key)
        .context("this is no public key of minisign")?;
    let signature = SignatureBox::from_string(&signature).context("this is no signature of minisign")?;
    minisign::verify(&key, &signature, Cursor::new(&sums), true, false, false)
        .with_context(|| format!("the signature of {SUMS} is not this key's"))?;
    let listed = parse(&sums)?;
    for (name, wanted) in &listed {
        let found = digest::of_file(&plain(folder, name)?)?;
        ensure!(found == *wanted, "{name} was changed: its SHA-256 is {found}, not {wanted}");
    }
    for entry in fs::read_dir(folder)? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        ensure!(
            name == SUMS || name == SIGNATURE || listed.contains_key(&name),
            "{name} is not in {SUMS}: it is no part of this release"
        );
    }
    Ok((listed.len(), signature.trusted_comment()?))
}

/// A file of the folder. What a link leads to could be another file the next time.
fn plain(folder: &Path, name: &str) -> Result<PathBuf> {
    let path = folder.join(name);
    let found = fs::symlink_metadata(&path).with_context(|| format!("cannot read {}", path.display()))?;
    ensure!(found.is_file(), "{name} is no plain file");
    Ok(path)
}

fn read_sums(folder: &Path) -> Result<String> {
    let path = plain(folder, SUMS)?;
    let size = fs::metadata(&path).with_context(|| format!("cannot read {}", path.display()))?.len();
    ensure!(size <= SUMS_BYTES_MAX, "{} has {size} bytes, which no list of sums has", path.display());
    fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))
}

/// Names with their sums. A name is a plain file's, so that a list cannot reach out of its folder.
fn parse(sums: &str) -> Result<BTreeMap<String, String>> {
    let mut listed = BTreeMap::new();
    for line in sums.lines() {
        let Some((sum, name)) = line.split_once("  ") else { bail!("'{line}' is not a sum and a name") };
        let is_sum = sum.len() == 64 && sum.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
        let is_plain = !name.is_empty() && !name.starts_with('.') && !name.contains(['/', '\\', ':', '\0']);
        ensure!(is_sum && is_plain, "'{line}' is not a sum and a name");
        ensure!(listed.insert(name.to_string(), sum.to_string()).is_none(), "{name} is listed twice");
    }
    ensure!(!listed.is_empty(), "{SUMS} lists nothing");
    Ok(listed)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A folder with one archive, its sums and their signature, and the public key.
    fn release() -> (tempfile::TempDir, String) {
        let pair = minisign::KeyPair::generate_unencrypted_keypair().unwrap();
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("mlxcel.tar.gz"), "archive").unwrap();
        write(folder.path(), &["mlxcel.tar.gz".to_string()]).unwrap();
        let secret = pair.sk.to_box(None).unwrap().to_string();
        sign(folder.path(), &open(&secret, None).unwrap()).unwrap();
        (folder, pair.pk.to_box().unwrap().to_string())
    }

    fn refusal(folder: &Path, key: &str) -> String {
        format!("{:#}", verify(folder, key).unwrap_err())
    }

    #[test]
    fn a_release_as_it_was_made_is_accepted() {
        let (folder, key) = release();
        let said = concat!("mlxcel ", env!("CARGO_PKG_VERSION"), " file:SHA256SUMS").to_string();
        assert_eq!(verify(folder.path(), &key).unwrap(), (1, said));
        // By the sum that coreutils gives for these bytes.
        let sums = fs::read_to_string(folder.path().join(SUMS)).unwrap();
        let wanted = "0eb3e36bfb24dcd9bb1d1bece1531216b59539a8fde17ee80224af0653c92aa3  mlxcel.tar.gz\n";
        assert_eq!(sums, wanted);
    }

    #[test]
    fn a_tampered_archive_is_refused() {
        let (folder, key) = release();
        fs::write(folder.path().join("mlxcel.tar.gz"), "Archive").unwrap();
        assert!(refusal(folder.path(), &key).starts_with("mlxcel.tar.gz was changed"));
    }

    #[test]
    fn a_wrong_sum_is_refused_even_if_it_fits_the_archive() {
        let (folder, key) = release();
        fs::write(folder.path().join("mlxcel.tar.gz"), "Archive").unwrap();
        let sum = digest::of_bytes(b"Archive");
        fs::write(folder.path().join(SUMS), format!("{sum}  mlxcel.tar.gz\n")).unwrap();
        assert!(refusal(folder.path(), &key).contains("is not this key's"));
    }

    #[test]
    fn unsigned_sums_are_refused() {
        let (folder, key) = release();
        fs::remove_file(folder.path().join(SIGNATURE)).unwrap();
        assert!(refusal(folder.path(), &key).contains("is not signed"));
    }

    #[test]
    fn another_ones_signature_is_refused() {
        let ((folder, _), (_, other)) = (release(), release());
        assert!(refusal(folder.path(), &other).contains("is not this key's"));
    }

    #[test]
    fn a_file_that_nobody_listed_is_refused() {
        let (folder, key) = release();
        fs::write(folder.path().join("mlxcel-extra.zip"), "more").unwrap();
        assert!(refusal(folder.path(), &key).contains("mlxcel-extra.zip is not in"));
    }

    #[test]
    #[cfg(unix)]
    fn a_link_is_refused_though_it_leads_to_the_right_bytes() {
        let (folder, key) = release();
        let archive = folder.path().join("mlxcel.tar.gz");
        let elsewhere = tempfile::tempdir().unwrap();
        fs::rename(&archive, elsewhere.path().join("archive")).unwrap();
        std::os::unix::fs::symlink(elsewhere.path().join("archive"), &archive).unwrap();
        assert_eq!(refusal(folder.path(), &key), "mlxcel.tar.gz is no plain file");
    }

    #[test]
    fn a_name_is_listed_once() {
        let sum = "0".repeat(64);
        let error = parse(&format!("{sum}  a\n{sum}  a\n")).unwrap_err().to_string();
        assert_eq!(error, "a is listed twice");
    }

    #[test]
    fn a_list_cannot_name_files_elsewhere() {
        let sum = "0".repeat(64);
        for name in ["../a", "/etc/passwd", "a\\b", "c:a", ".hidden", ""] {
            assert!(parse(&format!("{sum}  {name}\n")).is_err(), "{name}");
        }
        for line in ["", "abc  a", &format!("{sum} a"), &format!("{}  a", sum.replace('0', "G"))] {
            assert!(parse(&format!("{line}\n")).is_err(), "{line}");
        }
        assert!(parse("").is_err());
    }
}
