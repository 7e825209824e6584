//! One connection: HTTP/1.1 with bounds on headers and time, private where a certificate was given. It does not know
//! what is asked.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _, ReadBuf};
use tokio::time::{Instant, Sleep};
use tokio_rustls::TlsAcceptor;

use crate::config::Limits;
use crate::lifecycle::Watcher;
use crate::listen::Stream;

/// How a connection is treated.
#[derive(Clone)]
pub struct Terms {
    pub router: Router,
    pub tls: Option<TlsAcceptor>,
    pub limits: Limits,
    pub watcher: Watcher,
}

/// Answers the requests of one client until it goes, or the server ends.
pub async fn serve(stream: Stream, terms: Terms) {
    match stream {
        Stream::Tcp(stream) => secure(stream, terms).await,
        Stream::Unix(stream) => secure(stream, terms).await,
    }
}

async fn secure<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(stream: S, terms: Terms) {
    let Some(tls) = &terms.tls else { return talk(stream, terms).await };
    match tokio::time::timeout(terms.limits.header_time, tls.accept(stream)).await {
        Ok(Ok(stream)) => talk(stream, terms).await,
        Ok(Err(error)) => tracing::debug!(%error, "a TLS handshake failed"),
        Err(_) => tracing::debug!("a TLS handshake took too long"),
    }
}

async fn talk<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(stream: S, mut terms: Terms) {
    let limits = &terms.limits;
    let stream = Patient::new(stream, limits.send_time);
    let service = TowerToHyperService::new(terms.router);
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.header_time)
        .max_headers(limits.headers)
        // The least that hyper takes.
        .max_buf_size(limits.header_bytes.max(8192))
        .serve_connection(TokioIo::new(stream), service);
    let mut connection = std::pin::pin!(connection);
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = terms.watcher.draining() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "a connection broke");
    }
}

/// Tells a client to come back, where there is no room for one more.
pub async fn turn_away(stream: Stream) {
    const ANSWER: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\nretry-after: 1\r\nconnection: close\r\n\
        content-length: 0\r\n\r\n";
    // Who does not take it has to do without.
    let _ = match stream {
        Stream::Tcp(stream) => stream.try_write(ANSWER).map(drop),
        Stream::Unix(mut stream) => stream.write_all(ANSWER).await,
    };
}

/// A stream that breaks when the other side takes nothing for too long.
struct Patient<S> {
    inner: S,
    patience: Duration,
    /// Runs while a write waits.
    waiting: Option<Pin<Box<Sleep>>>,
}

impl<S> Patient<S> {
    fn new(inner: S, patience: Duration) -> Self {
        Patient { inner, patience, waiting: None }
    }

    /// Lets a write wait only so long.
    fn bound<T>(&mut self, context: &mut Context<'_>, poll: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if poll.is_ready() {
            self.waiting = None;
            return poll;
        }
        let patience = self.patience;
        let sleep =
            self.waiting.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(Instant::now() + patience)));
        match sleep.as_mut().poll(context) {
            Poll::Ready(()) => Poll::Ready(Err(io::ErrorKind::TimedOut.into())),
            Poll::Pending => Poll::Pending,
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Patient<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Patient<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let poll = Pin::new(&mut self.inner).poll_write(context, bytes);
        self.bound(context, poll)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let poll = Pin::new(&mut self.inner).poll_write_vectored(context, slices);
        self.bound(context, poll)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let poll = Pin::new(&mut self.inner).poll_flush(context);
        self.bound(context, poll)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let poll = Pin::new(&mut self.inner).poll_shutdown(context);
        self.bound(context, poll)
    }
}
