//! What lies in an archive, and how the packages of Linux, Python and Windows hold the same files.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result};
use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use sha2::{Digest as _, Sha256};

use super::{
    archive::{self, Entry},
    installer, licences,
    linked::Linked,
    sbom,
    targets::{Kind, PROGRAMS, Processor, Target},
    tools::{self, Tools},
};
use crate::shell;

const SUMMARY: &str = "Runs language models on your own machine";
const THIRD_PARTY: &str = "THIRD-PARTY-LICENCES.txt";
const SBOM: &str = "mlxcel.cdx.json";

const DOCUMENTS: [&str; 4] = ["README.md", "LICENSE", "LICENSE-MIT", "LICENSE-APACHE"];

/// The files of a release for one target, in a folder.
pub(crate) struct Stage<'a> {
    pub(crate) target: &'a Target,
    /// Where the programs are.
    pub(crate) programs: PathBuf,
    /// The shim of the mlx engine, where it could be compiled.
    pub(crate) shim: Option<PathBuf>,
    /// Where documents that are made here are.
    pub(crate) documents: PathBuf,
    pub(crate) version: String,
    /// The date of everything, in seconds after 1970.
    pub(crate) seconds: u64,
}

impl Stage<'_> {
    /// Writes the documents that are made for the target.
    pub(crate) fn write_documents(&self, linked: &Linked, tools: &Tools) -> Result<()> {
        fs::create_dir_all(&self.documents)?;
        fs::write(self.documents.join(THIRD_PARTY), licences::text(linked, self.target.kind, tools)?)?;
        Ok(fs::write(self.documents.join(SBOM), sbom::text(linked)?)?)
    }

    /// Every document with where it is.
    fn all_documents(&self) -> Vec<(&'static str, PathBuf)> {
        let made = [THIRD_PARTY, SBOM].map(|name| (name, self.documents.join(name)));
        DOCUMENTS.map(|name| (name, shell::root().join(name))).into_iter().chain(made).collect()
    }

    /// The archive's bytes: on Windows everything in one folder, elsewhere `bin` and `lib`.
    pub(crate) fn archive(&self) -> Result<Vec<u8>> {
        let top = self.target.folder();
        let is_windows = self.target.kind == Kind::Windows;
        let (bin, lib) = if is_windows { ("", "") } else { ("bin/", "lib/mlxcel/") };
        let mut entries = Vec::new();
        for program in PROGRAMS {
            let name = self.target.program(program);
            entries.push(Entry::file(format!("{top}/{bin}{name}"), &self.programs.join(&name), 0o755)?);
        }
        for (name, path) in self.all_documents() {
            entries.push(Entry::file(format!("{top}/{name}"), &path, 0o644)?);
        }
        if let Some(shim) = &self.shim {
            entries.push(Entry::file(format!("{top}/{lib}{}", file_name(shim)), shim, 0o644)?);
        }
        if self.target.kind == Kind::Linux {
            let unit = shell::root().join("packaging/mlxcel.service");
            entries.push(Entry::file(format!("{top}/share/mlxcel.service"), &unit, 0o644)?);
        }
        if is_windows { archive::zip(&entries) } else { archive::tarball(&entries, self.seconds) }
    }

    /// A wheel that installs the two commands: <https://packaging.python.org/en/latest/specifications/binary-distribution-format/>.
    pub(crate) fn wheel(&self, out: &Path) -> Result<String> {
        let base = format!("mlxcel-{}", self.version);
        let (info, data) = (format!("{base}.dist-info"), format!("{base}.data"));
        let tag = format!("py3-none-{}", self.target.wheel_tag());
        let metadata = format!(
            "Metadata-Version: 2.4\nName: mlxcel\nVersion: {}\nSummary: {SUMMARY}\n\
             License-Expression: MIT OR Apache-2.0\nRequires-Python: >=3.8\n",
            self.version
        );
        let wheel =
            format!("Wheel-Version: 1.0\nGenerator: mlxcel-xtask\nRoot-Is-Purelib: false\nTag: {tag}\n");
        let mut entries = vec![
            Entry::text(format!("{info}/METADATA"), metadata),
            Entry::text(format!("{info}/WHEEL"), wheel),
        ];
        for program in PROGRAMS {
            let name = self.target.program(program);
            entries.push(Entry::file(format!("{data}/scripts/{name}"), &self.programs.join(&name), 0o755)?);
        }
        for (name, path) in self.all_documents() {
            entries.push(Entry::file(format!("{info}/licenses/{name}"), &path, 0o644)?);
        }
        if let Some(shim) = &self.shim {
            entries.push(Entry::file(format!("{data}/data/lib/mlxcel/{}", file_name(shim)), shim, 0o644)?);
        }
        let record = Entry::text(format!("{info}/RECORD"), record(&entries, &format!("{info}/RECORD")));
        let name = format!("{base}-{tag}.whl");
        fs::write(out.join(&name), archive::zip_with_last(&entries, &record)?)?;
        Ok(name)
    }

    /// A package for Debian or RPM, by nfpm; returns its file name.
    pub(crate) fn package(&self, packager: &str, tools: &Tools, out: &Path) -> Result<String> {
        let architecture = self.target.debian_architecture();
        let name = match packager {
            "deb" => format!("mlxcel_{}_{architecture}.deb", self.version),
            _ => {
                let processor = if self.target.processor == Processor::X86 { "x86_64" } else { "aarch64" };
                format!("mlxcel-{}-1.{processor}.rpm", self.version)
            }
        };
        let description = self.documents.join("nfpm.yaml");
        fs::write(&description, self.nfpm(architecture))?;
        let mut nfpm = Command::new(tools.python_bin.join("nfpm"));
        nfpm.arg("package").arg("--config").arg(&description).args(["--packager", packager, "--target"]);
        nfpm.arg(out.join(&name)).env("SOURCE_DATE_EPOCH", self.seconds.to_string());
        tools::output(&mut nfpm)?;
        Ok(name)
    }

    /// What nfpm is told; JSON is YAML, too.
    fn nfpm(&self, architecture: &str) -> String {
        let file = |from: &Path, to: String, mode: u32| serde_json::json!({ "src": from, "dst": to, "file_info": { "mode": mode } });
        let mut contents: Vec<_> = PROGRAMS
            .iter()
            .map(|name| file(&self.programs.join(name), format!("/usr/bin/{name}"), 0o755))
            .collect();
        for (name, path) in self.all_documents() {
            contents.push(file(&path, format!("/usr/share/doc/mlxcel/{name}"), 0o644));
        }
        if let Some(shim) = &self.shim {
            contents.push(file(shim, format!("/usr/lib/mlxcel/{}", file_name(shim)), 0o644));
        }
        let unit = shell::root().join("packaging/mlxcel.service");
        contents.push(file(&unit, "/usr/lib/systemd/system/mlxcel.service".to_string(), 0o644));
        let date = date(self.seconds);
        let described = serde_json::json!({
            "name": "mlxcel", "arch": architecture, "platform": "linux", "version": self.version,
            "maintainer": "The mlxcel authors <mlxcel@localhost>", "description": SUMMARY,
            "license": "MIT OR Apache-2.0", "mtime": date, "contents": contents,
            "deb": { "compression": "xz" },
            "overrides": {
                "deb": { "depends": ["libc6 (>= 2.28)"], "recommends": ["ca-certificates"], "suggests": ["libstdc++6"] },
                "rpm": { "depends": ["glibc >= 2.28"], "recommends": ["ca-certificates"], "suggests": ["libstdc++"] },
            },
            "rpm": { "buildhost": "mlxcel", "compression": "xz" },
        });
        format!("{described:#}\n")
    }

    /// An installer for Windows; returns its file name.
    pub(crate) fn installer(&self, out: &Path) -> Result<String> {
        let programs = PROGRAMS.map(|program| self.target.program(program));
        let mut files: Vec<_> =
            programs.into_iter().map(|name| (name.clone(), self.programs.join(name))).collect();
        files.extend(self.all_documents().into_iter().map(|(name, path)| (name.to_string(), path)));
        files.extend(self.shim.iter().map(|shim| (file_name(shim), shim.clone())));
        let parts = installer::Parts { version: &self.version, files, seconds: self.seconds };
        let name = format!("mlxcel-{}{}.msi", self.target.name, self.target.suffix);
        installer::make(&parts, &out.join(&name))?;
        Ok(name)
    }
}

fn file_name(path: &Path) -> String {
    path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
}

/// What a wheel holds, with digests; the record itself has none.
fn record(entries: &[Entry], own: &str) -> String {
    let line = |entry: &Entry| {
        let digest = URL_SAFE_NO_PAD.encode(Sha256::digest(&entry.bytes));
        format!("{},sha256={digest},{}\n", entry.name, entry.bytes.len())
    };
    let lines: String = entries.iter().map(line).collect();
    format!("{lines}{own},,\n")
}

/// A date as RFC 3339 writes it, by the algorithm for days of <https://howardhinnant.github.io/date_algorithms.html>.
fn date(seconds: u64) -> String {
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    let shifted = days + 719_468;
    let (era, of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}Z", second / 3600, second / 60 % 60, second % 60)
}

/// The date of the commit, so that everybody who builds it writes the same one.
pub(crate) fn commit_seconds() -> Result<u64> {
    let mut git = Command::new("git");
    git.current_dir(shell::root()).args(["log", "-1", "--format=%ct"]);
    tools::output(&mut git)?.trim().parse().context("git gives the date of a commit in seconds")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_those_that_date_gives() {
        // `date -u -d @N +%FT%TZ` of coreutils.
        for (seconds, written) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (1_700_000_000, "2023-11-14T22:13:20Z"),
            (4_107_542_399, "2100-02-28T23:59:59Z"),
        ] {
            assert_eq!(date(seconds), written);
        }
    }

    #[test]
    fn a_record_has_every_file_and_itself() {
        let entries = [Entry::text("a/b", "")];
        // The digest of nothing, by `openssl dgst -sha256 -binary | basenc --base64url`.
        let digest = "47DEQpj8HBSa-_TImW-5JCeuQeRkm5NMpJWZG3hSuFU";
        assert_eq!(record(&entries, "a/RECORD"), format!("a/b,sha256={digest},0\na/RECORD,,\n"));
    }
}
