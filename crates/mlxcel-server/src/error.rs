//! Why a server could not start or had to end. What goes wrong within a request is `refusal`'s business.

use std::path::PathBuf;

/// An error of the server as a whole.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    #[error("{address} is already in use; end the other process, or give another --port")]
    AddressInUse { address: String },
    #[error("cannot listen on {address}: {source}")]
    Listen { address: String, source: std::io::Error },
    #[error("{} exists and is no socket that a server has left; remove it, or give another --host", path.display())]
    NotASocket { path: PathBuf },
    #[error("Unix sockets do not exist on this system; give --host an address")]
    NoUnixSockets,
    #[error("cannot read {what} {}: {source}", path.display())]
    Read { what: &'static str, path: PathBuf, source: std::io::Error },
    #[error("{} holds no certificate in PEM form; give --ssl-cert-file one", path.display())]
    NoCertificate { path: PathBuf },
    #[error("{} holds no private key in PEM form; give --ssl-key-file one", path.display())]
    NoPrivateKey { path: PathBuf },
    #[error("the certificate in {} cannot be used with the key in {}: {reason}", cert.display(), key.display())]
    Certificate { cert: PathBuf, key: PathBuf, reason: String },
    #[error("{} holds no API key; write one on each line", path.display())]
    NoKeys { path: PathBuf },
    #[error("an API key is empty; give --api-key some text")]
    EmptyKey,
    #[error("the threads of the server cannot be started: {source}")]
    Threads { source: std::io::Error },
    #[error("signals cannot be handled: {source}")]
    Signals { source: std::io::Error },
    #[error("'{endpoint}' is no address of a collector; give --otlp-endpoint one like http://localhost:4318")]
    OtlpEndpoint { endpoint: String },
    #[error("{reason}")]
    Load { reason: String },
    #[error(
        "the origin '{origin}' cannot stand in a header; give --cors-origin one like https://example.org"
    )]
    Origin { origin: String },
}
