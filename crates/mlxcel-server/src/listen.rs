//! Sockets: taking an address or a path, and the stream of connections that come in. What is said on a connection is
//! `connection`'s business.

use std::io;
use std::path::Path;

use mlxcel_platform::sockets::{BindError, LocalListener, LocalStream};
use tokio::net::{TcpListener, TcpStream};

use crate::config::Listen;
use crate::error::ServerError;

/// Where clients come in.
pub enum Listener {
    Tcp(TcpListener),
    Unix(LocalListener),
}

/// A client that came in.
pub enum Stream {
    Tcp(TcpStream),
    Unix(LocalStream),
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
            Listener::Unix(listener) => Ok(Stream::Unix(listener.accept().await?)),
        }
    }

    /// Where clients find it, in the form of an address that can be copied.
    pub fn address(&self) -> String {
        match self {
            Listener::Tcp(listener) => {
                listener.local_addr().map_or_else(|e| e.to_string(), |a| a.to_string())
            }
            Listener::Unix(listener) => listener.path().display().to_string(),
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

fn bind_unix(path: &Path) -> Result<Listener, ServerError> {
    let address = || path.display().to_string();
    LocalListener::bind(path).map(Listener::Unix).map_err(|error| match error {
        BindError::NotHere => ServerError::NoUnixSockets,
        BindError::NotASocket => ServerError::NotASocket { path: path.to_path_buf() },
        BindError::InUse => ServerError::AddressInUse { address: address() },
        BindError::Io(source) => ServerError::Listen { address: address(), source },
    })
}
