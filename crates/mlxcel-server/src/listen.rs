//! Sockets: taking an address or a path, and the stream of connections that come in. What is said on a connection is
//! `connection`'s business.

use std::io;
use std::path::{Path, PathBuf};

use tokio::net::{TcpListener, TcpStream};
#[cfg(unix)]
use tokio::net::{UnixListener, UnixStream};

use crate::config::Listen;
use crate::error::ServerError;

/// Where clients come in.
pub enum Listener {
    Tcp(TcpListener),
    #[cfg(unix)]
    Unix(UnixListener, SocketFile),
}

/// A client that came in.
pub enum Stream {
    Tcp(TcpStream),
    #[cfg(unix)]
    Unix(UnixStream),
}

/// Goes away with the server.
pub struct SocketFile(PathBuf);

impl Drop for SocketFile {
    fn drop(&mut self) {
        // It may be gone already, and there is nobody left to tell.
        let _ = std::fs::remove_file(&self.0);
    }
}

impl Listener {
    pub async fn bind(listen: &Listen) -> Result<Self, ServerError> {
        match listen {
            Listen::Tcp { host, port } => bind_tcp(host, *port).await,
            Listen::Unix(path) => bind_unix(path),
        }
    }

    pub async fn accept(&self) -> io::Result<Stream> {
        match self {
            Listener::Tcp(listener) => {
                let (stream, _) = listener.accept().await?;
                // Tokens are small and should leave at once.
                stream.set_nodelay(true)?;
                Ok(Stream::Tcp(stream))
            }
            #[cfg(unix)]
            Listener::Unix(listener, _) => Ok(Stream::Unix(listener.accept().await?.0)),
        }
    }

    /// Where clients find it, in the form of an address that can be copied.
    pub fn address(&self) -> String {
        match self {
            Listener::Tcp(listener) => {
                listener.local_addr().map_or_else(|e| e.to_string(), |a| a.to_string())
            }
            #[cfg(unix)]
            Listener::Unix(_, file) => file.0.display().to_string(),
        }
    }
}

async fn bind_tcp(host: &str, port: u16) -> Result<Listener, ServerError> {
    let address = if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") };
    let bound = TcpListener::bind((host, port)).await;
    bound.map(Listener::Tcp).map_err(|source| match source.kind() {
        io::ErrorKind::AddrInUse => ServerError::AddressInUse { address },
        _ => ServerError::Listen { address, source },
    })
}

#[cfg(unix)]
fn bind_unix(path: &Path) -> Result<Listener, ServerError> {
    use std::os::unix::fs::{FileTypeExt as _, PermissionsExt as _};
    let address = path.display().to_string();
    if let Ok(metadata) = std::fs::symlink_metadata(path) {
        if !metadata.file_type().is_socket() {
            return Err(ServerError::NotASocket { path: path.to_path_buf() });
        }
        // A socket that nobody answers was left by a server that was killed.
        if std::os::unix::net::UnixStream::connect(path).is_ok() {
            return Err(ServerError::AddressInUse { address });
        }
        let removed = std::fs::remove_file(path);
        removed.map_err(|source| ServerError::Listen { address: address.clone(), source })?;
    }
    let failed = |source| ServerError::Listen { address: address.clone(), source };
    let listener = UnixListener::bind(path).map_err(failed)?;
    let file = SocketFile(path.to_path_buf());
    // Only this user, as nobody expects a new door for everyone.
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).map_err(failed)?;
    Ok(Listener::Unix(listener, file))
}

#[cfg(not(unix))]
fn bind_unix(_: &Path) -> Result<Listener, ServerError> {
    Err(ServerError::NoUnixSockets)
}
