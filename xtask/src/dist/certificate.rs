//! Signing programs for Windows with a certificate, for whoever has one. Without the variable nothing is signed.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result};

use super::tools;
use crate::shell;

/// The certificate with its key, and a file with its password.
pub(crate) const PKCS12: &str = "MLXCEL_SIGN_PKCS12";
const PASSWORD_FILE: &str = "MLXCEL_SIGN_PASSWORD_FILE";
/// The service that says when it was signed, so that a signature outlives its certificate.
const TIMESTAMP: &str = "MLXCEL_SIGN_TIMESTAMP_URL";

pub(crate) fn is_given() -> bool {
    shell::variable(PKCS12).is_some()
}

/// Signs a file in place; `false` where no certificate is given.
pub(crate) fn sign(file: &Path) -> Result<bool> {
    let Some(certificate) = shell::variable(PKCS12).map(PathBuf::from) else { return Ok(false) };
    let part = file.with_extension("signed");
    let mut osslsigncode = Command::new("osslsigncode");
    osslsigncode.args(["sign", "-h", "sha256", "-n", "mlxcel", "-pkcs12"]).arg(certificate);
    if let Some(password) = shell::variable(PASSWORD_FILE) {
        osslsigncode.arg("-readpass").arg(password);
    }
    if let Some(service) = shell::variable(TIMESTAMP) {
        osslsigncode.arg("-ts").arg(service);
    }
    osslsigncode.arg("-in").arg(file).arg("-out").arg(&part);
    tools::output(&mut osslsigncode)?;
    fs::rename(&part, file).with_context(|| format!("cannot replace {}", file.display()))?;
    Ok(true)
}
