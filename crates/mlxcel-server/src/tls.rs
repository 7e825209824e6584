//! A certificate and its key, from files to what accepts connections.

use std::path::Path;
use std::sync::Arc;

use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::{self, PemObject as _};
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};

use crate::config::TlsFiles;
use crate::error::ServerError;

/// What makes plain connections private ones.
pub fn acceptor(files: &TlsFiles) -> Result<TlsAcceptor, ServerError> {
    let chain = certificates(&files.cert)?;
    let key = private_key(&files.key)?;
    let unusable = |error: tokio_rustls::rustls::Error| ServerError::Certificate {
        cert: files.cert.clone(),
        key: files.key.clone(),
        reason: error.to_string(),
    };
    let provider = Arc::new(ring::default_provider());
    let builder = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let mut config =
        builder.and_then(|b| b.with_no_client_auth().with_single_cert(chain, key)).map_err(unusable)?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, ServerError> {
    let missing = || ServerError::NoCertificate { path: path.to_path_buf() };
    let read = CertificateDer::pem_file_iter(path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    let chain = read.map_err(|error| unreadable("the certificate", path, error).unwrap_or_else(missing))?;
    if chain.is_empty() { Err(missing()) } else { Ok(chain) }
}

fn private_key(path: &Path) -> Result<PrivateKeyDer<'static>, ServerError> {
    let missing = || ServerError::NoPrivateKey { path: path.to_path_buf() };
    PrivateKeyDer::from_pem_file(path)
        .map_err(|error| unreadable("the private key", path, error).unwrap_or_else(missing))
}

/// `None` if the file could be read and holds something else.
fn unreadable(what: &'static str, path: &Path, error: pem::Error) -> Option<ServerError> {
    match error {
        pem::Error::Io(source) => Some(ServerError::Read { what, path: path.to_path_buf(), source }),
        _ => None,
    }
}
