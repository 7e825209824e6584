//! The installer for Windows, by wixl of msitools, with the same bytes whenever it is made of the same files.

use std::{
    fs::{self, File, FileTimes},
    io::{Read as _, Seek as _, Write as _},
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, SystemTime},
};

use anyhow::{Context as _, Result, ensure};

use super::{digest, microsoft, tools};
use crate::shell;

/// What puts the installer's folder at the end of the system's path, and takes it out again. The name says so: `=` sets it
/// when it is installed, `-` removes it when it goes, `*` is the system's, and `[~]` what was there.
const IN_PATH: [&str; 4] = [
    "CREATE TABLE `Environment` (`Environment` CHAR(72) NOT NULL, `Name` CHAR(255) NOT NULL LOCALIZABLE, `Value` CHAR(255) \
     LOCALIZABLE, `Component_` CHAR(72) NOT NULL PRIMARY KEY `Environment`)",
    "INSERT INTO `Environment` (`Environment`, `Name`, `Value`, `Component_`) VALUES ('Path', '=-*PATH', '[~];[INSTALLDIR]', \
     'Programs')",
    "INSERT INTO `InstallExecuteSequence` (`Action`, `Condition`, `Sequence`) VALUES ('RemoveEnvironmentStrings', '', 3300)",
    "INSERT INTO `InstallExecuteSequence` (`Action`, `Condition`, `Sequence`) VALUES ('WriteEnvironmentStrings', '', 5200)",
];

/// What the installer is made of.
pub(crate) struct Parts<'a> {
    pub(crate) version: &'a str,
    /// Every file by the name that `packaging/mlxcel.wxs` has for it.
    pub(crate) files: Vec<(String, PathBuf)>,
    /// The date of everything, in seconds after 1970.
    pub(crate) seconds: u64,
}

/// Writes the installer.
pub(crate) fn make(parts: &Parts<'_>, into: &Path) -> Result<()> {
    // wixl takes names of files in its folder only.
    let folder = shell::target_folder("dist-msi");
    fs::create_dir_all(&folder)?;
    let mut contents = format!("mlxcel {}\n", parts.version);
    for (name, path) in &parts.files {
        let copy = folder.join(name);
        fs::copy(path, &copy)?;
        contents += &format!("{}  {name}\n", digest::of_file(&copy)?);
        // The cabinet inside has each file's date.
        let date = SystemTime::UNIX_EPOCH + Duration::from_secs(parts.seconds);
        File::options().write(true).open(&copy)?.set_times(FileTimes::new().set_modified(date))?;
    }
    fs::copy(shell::root().join("packaging/mlxcel.wxs"), folder.join("mlxcel.wxs"))?;
    let mut wixl = Command::new("wixl");
    wixl.current_dir(&folder).args(["--arch", "x64", "-D"]).arg(format!("Version={}", parts.version));
    wixl.arg("-D").arg(format!("Product={}", guid("product", &contents)));
    if parts.files.iter().any(|(name, _)| name == microsoft::SHIM) {
        wixl.args(["-D", "Shim=yes"]);
    }
    // Dates in the cabinet are of the zone that wixl is run in.
    tools::output(wixl.arg("-o").arg(into).arg("mlxcel.wxs").env("TZ", "UTC"))?;
    let mut path = Command::new("msibuild");
    tools::output(path.arg(into).args(IN_PATH.iter().flat_map(|query| ["-q", *query])))?;
    settle(into, &guid("package", &contents), parts.seconds)
        .with_context(|| format!("the summary of {}", into.display()))
}

/// An identifier of what is installed: Windows wants another one for other files. It has the form of RFC 9562's version 8.
fn guid(of: &str, contents: &str) -> String {
    let mut bytes = digest::of(format!("{of}\n{contents}").as_bytes());
    bytes[6] = bytes[6] & 0x0f | 0x80;
    bytes[8] = bytes[8] & 0x3f | 0x80;
    let hex = digest::hex(&bytes[..16]).to_uppercase();
    format!("{{{}-{}-{}-{}-{}}}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..])
}

/// Puts a code and a date in the place of wixl's random code and of now.
fn settle(installer: &Path, package: &str, seconds: u64) -> Result<()> {
    let mut file = cfb::open_rw(installer)?;
    let mut stream = file.open_stream("\u{5}SummaryInformation")?;
    let mut summary = Vec::new();
    stream.read_to_end(&mut summary)?;
    rewrite(&mut summary, package, seconds)?;
    stream.rewind()?;
    stream.write_all(&summary)?;
    stream.flush()?;
    drop(stream);
    Ok(file.flush()?)
}

/// The properties of a summary that two builds would not agree on, by their numbers in
/// <https://learn.microsoft.com/en-us/windows/win32/msi/summary-property-descriptions>.
const PACKAGE: u32 = 9;
const CREATED: u32 = 12;
const SAVED: u32 = 13;

/// Rewrites a property set of one section, as <https://learn.microsoft.com/en-us/openspecs/windows_protocols/ms-oleps> has it.
fn rewrite(summary: &mut [u8], package: &str, seconds: u64) -> Result<()> {
    const TEXT: u32 = 0x1e;
    const DATE: u32 = 0x40;
    // Tenths of microseconds after 1601.
    let date = (seconds + 11_644_473_600) * 10_000_000;
    let section = word(summary, 44)?;
    let mut found = 0;
    for index in 0..word(summary, section + 4)? {
        let entry = section + 8 + index * 8;
        let (property, at) = (word(summary, entry)? as u32, section + word(summary, entry + 4)?);
        let (wanted, value) = match property {
            PACKAGE => (TEXT, [package.as_bytes(), &[0]].concat()),
            CREATED | SAVED => (DATE, date.to_le_bytes().to_vec()),
            _ => continue,
        };
        let start = if wanted == TEXT {
            ensure!(word(summary, at + 4)? == value.len(), "its code has another length");
            at + 8
        } else {
            at + 4
        };
        ensure!(word(summary, at)? as u32 == wanted, "property {property} is of another type");
        summary.get_mut(start..start + value.len()).context("it ends early")?.copy_from_slice(&value);
        found += 1;
    }
    ensure!(found == 3, "it has {found} of the three properties");
    Ok(())
}

fn word(bytes: &[u8], at: usize) -> Result<usize> {
    let word = bytes.get(at..at + 4).context("it ends early")?;
    Ok(u32::from_le_bytes([word[0], word[1], word[2], word[3]]) as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_of_the_contents() {
        let code = guid("product", "a");
        assert_eq!(code.len(), 38);
        assert_eq!(code.as_bytes()[15], b'8', "{code}");
        assert!("89AB".contains(char::from(code.as_bytes()[20])), "{code}");
        assert_eq!(code, guid("product", "a"));
        assert_ne!(code, guid("product", "b"));
        assert_ne!(code, guid("package", "a"));
    }

    /// A summary with the three properties, their values as given.
    fn summary(code: &str, date: u64) -> Vec<u8> {
        let text = code.len() as u32 + 1;
        let mut values = Vec::new();
        let mut offsets = Vec::new();
        for property in [PACKAGE, CREATED, SAVED] {
            offsets.extend([property, 8 + 3 * 8 + values.len() as u32]);
            if property == PACKAGE {
                values.extend([0x1e, text].iter().flat_map(|word: &u32| word.to_le_bytes()));
                values.extend(code.bytes().chain([0]));
            } else {
                values.extend(0x40_u32.to_le_bytes());
                values.extend(date.to_le_bytes());
            }
        }
        let section = [8 + 3 * 8 + values.len() as u32, 3].into_iter().chain(offsets);
        let mut bytes = vec![0; 44];
        bytes.extend(48_u32.to_le_bytes());
        bytes.extend(section.flat_map(u32::to_le_bytes));
        bytes.extend(values);
        bytes
    }

    #[test]
    fn a_summary_has_the_code_and_date_of_the_commit() {
        let code = guid("package", "a");
        let mut bytes = summary(&guid("package", "b"), 7);
        rewrite(&mut bytes, &code, 1).expect("it is a summary");
        assert_eq!(bytes, summary(&code, 116_444_736_010_000_000));
    }

    #[test]
    fn what_is_no_such_summary_is_refused() {
        let code = guid("package", "a");
        let whole = summary(&code, 7);
        for (bytes, wanted) in [
            (whole[..whole.len() - 1].to_vec(), "it ends early"),
            (summary("{short}", 7), "its code has another length"),
            (vec![0; 64], "it has 0 of the three properties"),
        ] {
            let error = rewrite(&mut bytes.clone(), &code, 1).expect_err("it is no summary");
            assert_eq!(error.to_string(), wanted);
        }
    }
}
