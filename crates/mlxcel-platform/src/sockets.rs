//! Sockets that are files. What is said on them is the caller's business.

use std::io;
use std::path::Path;

pub use system::{LocalListener, LocalStream};

/// Why a path cannot be listened on.
#[derive(Debug)]
pub enum BindError {
    /// This system has no such sockets, or tokio does not reach them.
    NotHere,
    /// Something else lies there.
    NotASocket,
    /// Another server listens there.
    InUse,
    Io(io::Error),
}

impl From<io::Error> for BindError {
    fn from(error: io::Error) -> Self {
        BindError::Io(error)
    }
}

#[cfg(unix)]
mod system {
    use std::path::PathBuf;

    use tokio::net::UnixListener;

    use super::{BindError, Path, io};

    pub use tokio::net::UnixStream as LocalStream;

    /// Listens on a path; the file goes away with it.
    pub struct LocalListener {
        listener: UnixListener,
        path: PathBuf,
    }

    impl LocalListener {
        /// Takes the path, from a server that was killed if need be. Only this user may come in, as nobody expects a new
        /// door for everyone.
        pub fn bind(path: &Path) -> Result<Self, BindError> {
            use std::os::unix::fs::{FileTypeExt as _, PermissionsExt as _};
            if let Ok(metadata) = std::fs::symlink_metadata(path) {
                if !metadata.file_type().is_socket() {
                    return Err(BindError::NotASocket);
                }
                // A socket that nobody answers was left by a server that was killed.
                if std::os::unix::net::UnixStream::connect(path).is_ok() {
                    return Err(BindError::InUse);
                }
                std::fs::remove_file(path)?;
            }
            let listener = LocalListener { listener: UnixListener::bind(path)?, path: path.to_path_buf() };
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
            Ok(listener)
        }

        pub async fn accept(&self) -> io::Result<LocalStream> {
            Ok(self.listener.accept().await?.0)
        }

        pub fn path(&self) -> &Path {
            &self.path
        }
    }

    impl Drop for LocalListener {
        fn drop(&mut self) {
            // It may be gone already, and there is nobody left to tell.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

#[cfg(not(unix))]
mod system {
    use std::pin::Pin;
    use std::task::{Context, Poll};

    use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

    use super::{BindError, Path, io};

    /// There is none on this system.
    pub enum LocalListener {}

    /// There is none on this system.
    pub enum LocalStream {}

    impl LocalListener {
        pub fn bind(_path: &Path) -> Result<Self, BindError> {
            Err(BindError::NotHere)
        }

        pub async fn accept(&self) -> io::Result<LocalStream> {
            match *self {}
        }

        pub fn path(&self) -> &Path {
            match *self {}
        }
    }

    impl AsyncRead for LocalStream {
        fn poll_read(
            self: Pin<&mut Self>,
            _context: &mut Context<'_>,
            _buffer: &mut ReadBuf<'_>,
        ) -> Poll<io::Result<()>> {
            match *self {}
        }
    }

    impl AsyncWrite for LocalStream {
        fn poll_write(
            self: Pin<&mut Self>,
            _context: &mut Context<'_>,
            _bytes: &[u8],
        ) -> Poll<io::Result<usize>> {
            match *self {}
        }

        fn poll_flush(self: Pin<&mut Self>, _context: &mut Context<'_>) -> Poll<io::Result<()>> {
            match *self {}
        }

        fn poll_shutdown(self: Pin<&mut Self>, _context: &mut Context<'_>) -> Poll<io::Result<()>> {
            match *self {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(unix)]
    #[tokio::test]
    async fn a_path_is_taken_from_the_dead_only() {
        let folder = tempfile::tempdir().unwrap();
        let (socket, other) = (folder.path().join("socket"), folder.path().join("notes"));
        std::fs::write(&other, "mine").unwrap();
        assert!(matches!(LocalListener::bind(&other), Err(BindError::NotASocket)));
        // The standard library's listener leaves its file, as a killed server does.
        drop(std::os::unix::net::UnixListener::bind(&socket).unwrap());
        let first = LocalListener::bind(&socket).unwrap();
        assert!(matches!(LocalListener::bind(&socket), Err(BindError::InUse)));
        drop(first);
        assert!(!socket.exists());
    }

    #[cfg(windows)]
    #[test]
    fn a_system_without_such_sockets_says_so() {
        assert!(matches!(LocalListener::bind(Path::new("socket")), Err(BindError::NotHere)));
    }
}
