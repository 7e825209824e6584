//! Connections to one server: HTTP/1.1, with TLS for https. A connection whose answer was read to its end is used
//! again; one whose answer is dropped before is closed at once, which is how a server learns that a client has left.

use std::sync::{Arc, Mutex};

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1::{self, SendRequest};
use hyper::{Method, Request, Response, header};
use hyper_util::rt::TokioIo;
use rustls_platform_verifier::BuilderVerifierExt as _;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::rustls::{self, ClientConfig, crypto};

use super::address::Address;
use super::failure::Failure;
use super::stream;

/// Bytes of an answer that is read as a whole.
const BODY_BYTES_MAX: usize = 16 << 20;

pub struct Client {
    address: Address,
    /// The value of the `Authorization` header.
    authorization: Option<header::HeaderValue>,
    tls: Option<TlsConnector>,
    idle: Mutex<Vec<Connection>>,
}

/// Ends with its value.
struct Connection {
    sender: SendRequest<Full<Bytes>>,
    task: JoinHandle<()>,
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// An answer with status 200, as it arrives.
pub struct Answer<'a> {
    body: Incoming,
    connection: Connection,
    client: &'a Client,
}

impl Client {
    /// Connects to nothing yet. A key has to be fit for a header.
    pub fn new(address: Address, key: Option<&str>) -> anyhow::Result<Self> {
        let value = |key| header::HeaderValue::try_from(format!("Bearer {key}"));
        let mut authorization = key.map(value).transpose().map_err(|_| {
            anyhow::anyhow!("the API key has characters that no HTTP header can have; give another one")
        })?;
        authorization.iter_mut().for_each(|value| value.set_sensitive(true));
        let tls = if address.is_tls { Some(connector()?) } else { None };
        Ok(Client { address, authorization, tls, idle: Mutex::default() })
    }

    pub fn address(&self) -> &Address {
        &self.address
    }

    pub async fn get(&self, route: &str) -> Result<Answer<'_>, Failure> {
        self.send(Method::GET, route, Bytes::new()).await
    }

    pub async fn post(&self, route: &str, body: Bytes) -> Result<Answer<'_>, Failure> {
        self.send(Method::POST, route, body).await
    }

    async fn send(&self, method: Method, route: &str, body: Bytes) -> Result<Answer<'_>, Failure> {
        let mut request = self.request(method, route, body)?;
        while let Some(mut connection) = self.take_idle() {
            if connection.sender.ready().await.is_err() {
                continue;
            }
            match connection.sender.try_send_request(request).await {
                Ok(response) => return self.judge(connection, response).await,
                // A server may close a connection that waits; the request then comes back unsent.
                Err(mut error) => match error.take_message() {
                    Some(unsent) => request = unsent,
                    None => return Err(Failure::Cut(causes(error.error()))),
                },
            }
        }
        let mut connection = self.connect().await?;
        let response = connection.sender.send_request(request).await;
        self.judge(connection, response.map_err(|error| Failure::Cut(causes(&error)))?).await
    }

    fn request(&self, method: Method, route: &str, body: Bytes) -> Result<Request<Full<Bytes>>, Failure> {
        let mut builder = Request::builder()
            .method(method)
            .uri(self.address.path(route))
            .header(header::HOST, &self.address.authority)
            .header(header::USER_AGENT, concat!("mlxcel/", env!("CARGO_PKG_VERSION")))
            .header(header::CONTENT_TYPE, "application/json")
            .header(header::ACCEPT, "application/json, text/event-stream");
        if let Some(value) = &self.authorization {
            builder = builder.header(header::AUTHORIZATION, value);
        }
        builder.body(Full::new(body)).map_err(|error| Failure::Connect(error.to_string()))
    }

    /// What is not a success becomes a failure with the server's message.
    async fn judge(
        &self,
        connection: Connection,
        response: Response<Incoming>,
    ) -> Result<Answer<'_>, Failure> {
        let (head, body) = response.into_parts();
        let answer = Answer { body, connection, client: self };
        if head.status.is_success() {
            return Ok(answer);
        }
        let message = answer.whole().await.map(|body| stream::message(&body)).unwrap_or_default();
        let reason = head.status.canonical_reason().unwrap_or("no reason given");
        let message = if message.is_empty() { reason.to_string() } else { message };
        Err(Failure::Status { status: head.status.as_u16(), message })
    }

    fn take_idle(&self) -> Option<Connection> {
        self.idle.lock().expect("nothing panics while it is locked").pop()
    }

    async fn connect(&self) -> Result<Connection, Failure> {
        let failed = |error: &dyn std::error::Error| Failure::Connect(causes(error));
        let Address { host, port, .. } = &self.address;
        let tcp = TcpStream::connect((host.as_str(), *port)).await.map_err(|error| failed(&error))?;
        tcp.set_nodelay(true).map_err(|error| failed(&error))?;
        let Some(tls) = &self.tls else { return shake_hands(tcp).await };
        let name = ServerName::try_from(host.clone()).map_err(|error| failed(&error))?;
        shake_hands(tls.connect(name, tcp).await.map_err(|error| failed(&error))?).await
    }
}

impl Answer<'_> {
    /// The next bytes; `None` at the end.
    pub async fn next(&mut self) -> Result<Option<Bytes>, Failure> {
        while let Some(frame) = self.body.frame().await {
            let frame = frame.map_err(|error| Failure::Cut(causes(&error)))?;
            if let Ok(data) = frame.into_data() {
                return Ok(Some(data));
            }
        }
        Ok(None)
    }

    /// All of the body; the connection may be used again.
    pub async fn whole(mut self) -> Result<Vec<u8>, Failure> {
        let mut body = Vec::new();
        while let Some(part) = self.next().await? {
            if body.len() + part.len() > BODY_BYTES_MAX {
                return Err(Failure::Malformed(format!("it is longer than {BODY_BYTES_MAX} bytes")));
            }
            body.extend_from_slice(&part);
        }
        self.keep_connection();
        Ok(body)
    }

    /// For an answer that was read to its end: another request may have the connection.
    pub fn keep_connection(self) {
        self.client.idle.lock().expect("nothing panics while it is locked").push(self.connection);
    }
}

async fn shake_hands(
    stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
) -> Result<Connection, Failure> {
    let (sender, connection) =
        http1::handshake(TokioIo::new(stream)).await.map_err(|error| Failure::Connect(causes(&error)))?;
    // What goes wrong on the connection is told to who waits for an answer.
    let task = tokio::spawn(async move { drop(connection.await) });
    Ok(Connection { sender, task })
}

fn connector() -> Result<TlsConnector, rustls::Error> {
    let provider = Arc::new(crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_platform_verifier()?
        .with_no_client_auth();
    Ok(TlsConnector::from(Arc::new(config)))
}

/// An error and what led to it; the outermost one alone often says nothing.
fn causes(error: &dyn std::error::Error) -> String {
    let chain = std::iter::successors(Some(error), |error| error.source());
    chain.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}
