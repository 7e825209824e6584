//! HTTP GET for package indexes: bounded pages, streamed files, redirects followed by hand.
//!
//! Redirects are followed here and not by the HTTP client, so that it is plain to see that the index's password goes
//! to the index and nowhere else. TLS trusts what the operating system trusts.

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
    http::{Response, Uri, header},
    tls::{RootCerts, TlsConfig},
};

use crate::{Error, Event, Progress, Result, link};

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

/// An HTTP client bound to one index.
pub(crate) struct Client {
    agent: Agent,
    index: Uri,
    authorization: Option<String>,
}

impl Client {
    /// `address` may carry `user:password@`.
    pub(crate) fn new(address: &str) -> Result<Self> {
        let (index, user) = link::parse(address)
            .ok_or_else(|| Error::BadIndexUrl { url: without_user(address).to_owned() })?;
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
        Ok(Self { agent: config.into(), index, authorization: user.map(|user| basic(&user)) })
    }

    pub(crate) fn index(&self) -> &Uri {
        &self.index
    }

    /// Reads a page whole.
    pub(crate) fn page(&self, uri: &Uri, accept: &str) -> Result<Page> {
        let (uri, mut response) = self.get(uri, accept)?;
        let media_type = response.body().mime_type().unwrap_or_default().to_owned();
        let body = response.body_mut().with_config().limit(PAGE_BYTES_MAX).lossy_utf8(true);
        let text = body.read_to_string().map_err(http_error(&uri))?;
        Ok(Page { uri, media_type, text })
    }

    /// Streams a file of at most `size` bytes into `to`.
    ///
    /// A body that goes on beyond `size` is read one byte further, so that checking the size finds it wrong.
    pub(crate) fn download(&self, uri: &Uri, to: &Path, size: u64, progress: &dyn Progress) -> Result<()> {
        let (uri, response) = self.get(uri, "*/*")?;
        let mut body =
            response.into_body().into_with_config().limit(u64::MAX).reader().take(size.saturating_add(1));
        let mut file = File::create_new(to).map_err(Error::io("create", to))?;
        let mut buffer = vec![0; 128 * 1024];
        let mut received = 0;
        loop {
            match body.read(&mut buffer) {
                Ok(0) => return Ok(()),
                Ok(count) => {
                    file.write_all(&buffer[..count]).map_err(Error::io("write", to))?;
                    received += count as u64;
                    progress.on(Event::Advanced { bytes: received });
                }
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(source) => return Err(Error::BrokenDownload { url: uri.to_string(), received, source }),
            }
        }
    }

    /// Follows redirects to a successful answer.
    fn get(&self, uri: &Uri, accept: &str) -> Result<(Uri, Response<Body>)> {
        let mut at = uri.clone();
        for _ in 0..=REDIRECTS_MAX {
            let mut request = self.agent.get(&at).header(header::ACCEPT, accept);
            if let Some(authorization) = &self.authorization
                && link::same_origin(&self.index, &at)
            {
                request = request.header(header::AUTHORIZATION, authorization);
            }
            let response = request.call().map_err(http_error(&at))?;
            let status = response.status();
            if status.is_success() {
                return Ok((at, response));
            }
            let location = response.headers().get(header::LOCATION).filter(|_| status.is_redirection());
            let Some(location) = location.and_then(|value| value.to_str().ok()) else {
                return Err(Error::Status { url: at.to_string(), status: status.as_u16() });
            };
            at = link::join(&at, location).ok_or_else(|| Error::Redirect {
                url: at.to_string(),
                problem: "to what is not an http address",
            })?;
        }
        Err(Error::Redirect { url: uri.to_string(), problem: "too many times" })
    }
}

fn http_error(uri: &Uri) -> impl FnOnce(ureq::Error) -> Error {
    let url = uri.to_string();
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
