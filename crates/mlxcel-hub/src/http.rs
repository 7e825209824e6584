//! HTTP GET for package indexes and the hub: bounded pages, streamed files, redirects followed by hand.
//!
//! Redirects are followed here and not by the HTTP client, so that it is plain to see that a password or token goes to
//! its own host and nowhere else. TLS trusts what the operating system trusts.

use std::{
    fs::File,
    io::{self, Read, Write},
    path::Path,
    time::Duration,
};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use percent_encoding::percent_decode_str;
use ureq::{
    Agent, Body,
    http::{HeaderName, Response, Uri, header},
    tls::{RootCerts, TlsConfig},
};

use crate::{Error, Result, Token, link, progress::Meter};

/// The page of a package with many releases is a few megabytes.
const PAGE_BYTES_MAX: u64 = 64 << 20;
const REDIRECTS_MAX: usize = 5;
const CONNECT_TIMEOUT: Duration = Duration::from_secs(30);
/// How long a server may be silent; there is no limit on a download as a whole.
const SILENCE_TIMEOUT: Duration = Duration::from_secs(60);

/// A page: where it finally was, its media type and its text.
pub(crate) struct Page {
    pub(crate) uri: Uri,
    pub(crate) media_type: String,
    pub(crate) text: String,
}

/// What a server finally answered, whatever its status.
pub(crate) struct Answer {
    pub(crate) uri: Uri,
    pub(crate) response: Response<Body>,
    /// The entity tag of the file itself, which the hub sends along with a redirect to where the bytes are.
    pub(crate) linked_etag: Option<String>,
}

/// An HTTP client bound to one origin, which alone gets the credentials.
pub(crate) struct Client {
    agent: Agent,
    home: Uri,
    authorization: Option<String>,
}

impl Client {
    /// For a package index; `address` may carry `user:password@`.
    pub(crate) fn new(address: &str) -> Result<Self> {
        let bad = || Error::BadIndexUrl { url: without_user(address).to_owned() };
        let (home, user) = link::parse(address).ok_or_else(bad)?;
        Ok(Self { agent: agent(), home, authorization: user.map(|user| basic(&user)) })
    }

    /// For the hub.
    pub(crate) fn with_token(address: &str, token: Option<&Token>) -> Result<Self> {
        let bad = || Error::BadEndpoint { url: without_user(address).to_owned() };
        let (home, user) = link::parse(address).ok_or_else(bad)?;
        let bearer = token.map(|token| format!("Bearer {}", token.secret()));
        Ok(Self { agent: agent(), home, authorization: bearer.or_else(|| user.map(|user| basic(&user))) })
    }

    /// The address this client is bound to, without credentials.
    pub(crate) fn home(&self) -> &Uri {
        &self.home
    }

    pub(crate) fn has_credentials(&self) -> bool {
        self.authorization.is_some()
    }

    /// Reads a page whole.
    pub(crate) fn page(&self, uri: &Uri, accept: &str) -> Result<Page> {
        let answer = self.send(uri, &[(header::ACCEPT, accept)])?.success()?;
        let media_type = answer.response.body().mime_type().unwrap_or_default().to_owned();
        let uri = answer.uri.clone();
        Ok(Page { uri, media_type, text: answer.text()? })
    }

    /// Streams a file of at most `size` bytes into `to`.
    ///
    /// A body that goes on beyond `size` is read one byte further, so that checking the size finds it wrong.
    pub(crate) fn download(&self, uri: &Uri, to: &Path, size: u64, meter: Meter<'_>) -> Result<()> {
        let Answer { uri, response, .. } = self.send(uri, &[(header::ACCEPT, "*/*")])?.success()?;
        let mut body =
            response.into_body().into_with_config().limit(u64::MAX).reader().take(size.saturating_add(1));
        let mut file = File::create_new(to).map_err(Error::io("create", to))?;
        let mut buffer = vec![0; 128 * 1024];
        let mut received = 0;
        loop {
            match body.read(&mut buffer) {
                Ok(0) => return Ok(()),
                Ok(count) => {
                    file.write_all(&buffer[..count]).map_err(Error::write(to))?;
                    received += count as u64;
                    meter.at(received);
                }
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(source) => return Err(Error::BrokenDownload { url: shown(&uri), received, source }),
            }
        }
    }

    /// Follows redirects to an answer. Credentials go to this client's own origin and nowhere else.
    pub(crate) fn send(&self, uri: &Uri, headers: &[(HeaderName, &str)]) -> Result<Answer> {
        let mut at = uri.clone();
        let mut linked_etag = None;
        for _ in 0..=REDIRECTS_MAX {
            let mut request = self.agent.get(&at);
            for (name, value) in headers {
                request = request.header(name, *value);
            }
            if let Some(authorization) = &self.authorization
                && link::same_origin(&self.home, &at)
            {
                request = request.header(header::AUTHORIZATION, authorization);
            }
            let response = request.call().map_err(http_error(&at))?;
            let text = |name: &str| response.headers().get(name).and_then(|value| value.to_str().ok());
            if link::same_origin(&self.home, &at) {
                linked_etag =
                    linked_etag.or_else(|| text("x-linked-etag").or(text("etag")).map(str::to_owned));
            }
            let is_redirect = matches!(response.status().as_u16(), 301 | 302 | 303 | 307 | 308);
            let Some(location) = text("location").filter(|_| is_redirect) else {
                return Ok(Answer { uri: at, response, linked_etag });
            };
            at = link::join(&at, location).ok_or_else(|| Error::Redirect {
                url: shown(&at),
                problem: "to what is not an http address",
            })?;
        }
        Err(Error::Redirect { url: shown(uri), problem: "too many times" })
    }
}

impl Answer {
    /// The value of a header, if it is there and is text.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.response.headers().get(name)?.to_str().ok()
    }

    pub(crate) fn status(&self) -> u16 {
        self.response.status().as_u16()
    }

    /// This answer if it is a good one, else its status as an error.
    pub(crate) fn success(self) -> Result<Self> {
        if self.response.status().is_success() {
            return Ok(self);
        }
        let retry_after = self.header("retry-after").and_then(|text| text.trim().parse().ok());
        Err(Error::Status { url: shown(&self.uri), status: self.status(), retry_after })
    }

    /// The body, which may not be longer than a page.
    pub(crate) fn text(mut self) -> Result<String> {
        let body = self.response.body_mut().with_config().limit(PAGE_BYTES_MAX).lossy_utf8(true);
        body.read_to_string().map_err(http_error(&self.uri))
    }
}

/// An address without its query, which may hold a signature.
pub(crate) fn shown(uri: &Uri) -> String {
    let text = uri.to_string();
    text.split('?').next().unwrap_or_default().to_owned()
}

fn agent() -> Agent {
    let tls = TlsConfig::builder().root_certs(RootCerts::PlatformVerifier).build();
    let config = Agent::config_builder()
        .tls_config(tls)
        .max_redirects(0)
        .max_redirects_will_error(false)
        .http_status_as_error(false)
        .timeout_connect(Some(CONNECT_TIMEOUT))
        .timeout_per_read(Some(SILENCE_TIMEOUT))
        .user_agent(concat!("mlxcel/", env!("CARGO_PKG_VERSION")))
        .build();
    config.into()
}

fn http_error(uri: &Uri) -> impl FnOnce(ureq::Error) -> Error {
    let url = shown(uri);
    move |source| Error::Http { url, source: Box::new(source) }
}

/// The `Authorization` header for the user information of an address, which is percent-encoded.
fn basic(user: &str) -> String {
    let decoded: Vec<u8> = match user.split_once(':') {
        Some((name, password)) => {
            percent_decode_str(name).chain([b':']).chain(percent_decode_str(password)).collect()
        }
        None => percent_decode_str(user).chain([b':']).collect(),
    };
    format!("Basic {}", BASE64_STANDARD.encode(decoded))
}

/// The part of an address that may be shown even when it does not parse.
fn without_user(address: &str) -> &str {
    address.rsplit_once('@').map_or(address, |(_, rest)| rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example of RFC 7617, section 2.
    #[test]
    fn credentials_are_decoded_and_sent_as_basic() {
        assert_eq!(basic("Aladdin:open%20sesame"), "Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ==");
        assert_eq!(basic("token"), "Basic dG9rZW46");
    }

    #[test]
    fn an_address_that_does_not_parse_is_shown_without_its_password() {
        let error = Client::new("ftp://me:secret@host.test/simple").err().unwrap().to_string();
        assert!(error.contains("host.test") && !error.contains("secret"), "{error}");
    }
}
