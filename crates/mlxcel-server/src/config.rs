//! What a server is told before it starts. Which flags and variables say it is the command line's business.

use std::path::PathBuf;
use std::time::Duration;

pub use crate::model::Keeping;
use crate::order::Defaults;

/// Where the server is reached, who may reach it, and what it bears.
#[derive(Clone, Debug, Default)]
pub struct Config {
    pub listen: Listen,
    pub tls: Option<TlsFiles>,
    /// Without a key everyone is let in.
    pub api_keys: Vec<String>,
    /// Origins whose pages may use the server; `*` for all. None unless asked.
    pub cors_origins: Vec<String>,
    /// Names that a `Host` header may have beside addresses and `localhost`. Empty: any, unless only this machine is
    /// listened to.
    pub hosts: Vec<String>,
    pub limits: Limits,
    /// How tokens are drawn where a client says nothing.
    pub sampling: Defaults,
    /// Models that are in memory at once, and how long.
    pub keeping: Keeping,
    /// Where traces are sent, if they are wanted.
    pub otlp: Option<Otlp>,
}

/// A collector of traces that speaks OTLP over HTTP.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Otlp {
    /// The address without `/v1/traces`.
    pub endpoint: String,
    /// The name under which traces are kept.
    pub service: String,
}

/// Where the server listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Listen {
    /// Port 0 takes any that is free.
    Tcp {
        host: String,
        port: u16,
    },
    Unix(PathBuf),
}

impl Default for Listen {
    fn default() -> Self {
        Listen::Tcp { host: "127.0.0.1".to_string(), port: 8080 }
    }
}

/// A certificate chain and its key, both in PEM form.
#[derive(Clone, Debug)]
pub struct TlsFiles {
    pub cert: PathBuf,
    pub key: PathBuf,
}

/// What one client, and all of them together, may cost.
#[derive(Clone, Debug)]
pub struct Limits {
    pub body_bytes: usize,
    /// Request line and headers together.
    pub header_bytes: usize,
    pub headers: usize,
    /// Connections at once. Further ones are told to come back.
    pub connections: usize,
    /// From the opening of a connection, or the end of an answer, to the end of the next request's headers.
    pub header_time: Duration,
    /// From the end of the headers to the end of the body.
    pub body_time: Duration,
    /// How long a client may take none of what is sent.
    pub send_time: Duration,
    /// From the end of the body to the end of the answer; `None` is as long as it takes.
    pub request_time: Option<Duration>,
    /// How long requests in progress may take after the server was asked to end.
    pub drain_time: Duration,
    /// Choices of one request.
    pub choices: usize,
    /// Tokenised texts of one request.
    pub inputs: usize,
    /// Stored responses; the oldest go first.
    pub stored: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            body_bytes: 32 << 20,
            header_bytes: 64 << 10,
            headers: 100,
            // Below the 1024 descriptors that most systems give to a process.
            connections: 768,
            header_time: Duration::from_secs(30),
            body_time: Duration::from_secs(60),
            send_time: Duration::from_secs(60),
            request_time: None,
            drain_time: Duration::from_secs(30),
            choices: 128,
            inputs: 2048,
            stored: 1000,
        }
    }
}
