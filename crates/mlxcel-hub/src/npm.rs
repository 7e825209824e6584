//! Fetching a tarball through the machine's `npm`.

use std::{
    ffi::OsString,
    path::{Path, PathBuf},
};

use crate::{Error, Package, Result, progress::Meter, tool::Tool};

const NPM: &str = if cfg!(windows) { "npm.cmd" } else { "npm" };

/// Finds npm on `path`, or on this process's search path.
pub(crate) fn find(path: Option<&OsString>) -> Option<Tool> {
    Some(Tool::new(&[NPM], path)).filter(Tool::is_present)
}

/// Downloads the package's tarball into `folder`.
///
/// npm writes into its working directory; its own cache goes there too, so that nothing else is left behind.
pub(crate) fn fetch(npm: Tool, package: &Package<'_>, folder: &Path, meter: Meter<'_>) -> Result<PathBuf> {
    let what = format!("{}@{}", package.name, package.version);
    let npm = npm.with(["pack", "--silent", "--ignore-scripts", "--cache", "npm-cache"]).with([what]);
    npm.run(folder, meter)?;
    let file = folder.join(package.file);
    if file.is_file() {
        return Ok(file);
    }
    Err(Error::NotDelivered { command: npm.line(), file: package.file.to_owned() })
}
