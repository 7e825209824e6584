//! Where a server's interface begins: scheme, host, port and the path in front of `/chat/completions`. Nothing is
//! looked up and nothing is sent here.

use std::fmt;
use std::str::FromStr;

use hyper::Uri;
use hyper::http::uri::Scheme;

/// What the clients of the interface put in front of its routes, where an address has no path of its own.
const USUAL_PATH: &str = "/v1";

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    /// A name or a number, without the brackets of IPv6.
    pub host: String,
    pub port: u16,
    pub is_tls: bool,
    /// As it goes into the `Host` header.
    pub authority: String,
    /// Without a slash at its end.
    path: String,
}

impl Address {
    /// The path of a route, which begins with a slash.
    pub fn path(&self, route: &str) -> String {
        format!("{}{route}", self.path)
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.is_tls { "https" } else { "http" };
        write!(f, "{scheme}://{}{}", self.authority, self.path)
    }
}

impl FromStr for Address {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = |what: &str| format!("{what}; expected an address such as http://127.0.0.1:8080/v1");
        let uri: Uri = text.parse().map_err(|error| wrong(&format!("{error}")))?;
        let is_tls = match uri.scheme() {
            Some(scheme) if *scheme == Scheme::HTTP => false,
            Some(scheme) if *scheme == Scheme::HTTPS => true,
            _ => return Err(wrong("it begins with neither http:// nor https://")),
        };
        let authority = uri.authority().ok_or_else(|| wrong("it has no host"))?;
        if authority.as_str().contains('@') {
            return Err(wrong("it has a user's name, which is not sent; give --api-key"));
        }
        if uri.query().is_some() {
            return Err(wrong("it has a query"));
        }
        let host = authority.host().trim_start_matches('[').trim_end_matches(']').to_string();
        let port = authority.port_u16().unwrap_or(if is_tls { 443 } else { 80 });
        let path = match uri.path().trim_end_matches('/') {
            "" => USUAL_PATH.to_string(),
            path => path.to_string(),
        };
        Ok(Address { host, port, is_tls, authority: authority.to_string(), path })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_taken_apart() {
        let address: Address = "http://127.0.0.1:8080/v1/".parse().unwrap();
        assert_eq!((address.host.as_str(), address.port, address.is_tls), ("127.0.0.1", 8080, false));
        assert_eq!(address.path("/models"), "/v1/models");
        let address: Address = "https://[::1]/api/openai".parse().unwrap();
        assert_eq!((address.host.as_str(), address.port, address.is_tls), ("::1", 443, true));
        assert_eq!(address.authority, "[::1]");
        assert_eq!(address.to_string(), "https://[::1]/api/openai");
    }

    #[test]
    fn an_address_without_a_path_gets_the_usual_one() {
        for text in ["http://example.org", "http://example.org/"] {
            let address: Address = text.parse().unwrap();
            assert_eq!((address.port, address.path("/models").as_str()), (80, "/v1/models"), "{text}");
        }
    }

    #[test]
    fn what_is_no_address_is_refused() {
        for text in [
            "",
            "localhost:8080",
            "/v1",
            "ftp://example.org",
            "http://me:secret@example.org",
            "http://a/?b=c",
        ] {
            let said = text.parse::<Address>().unwrap_err();
            assert!(said.contains("expected an address such as http://"), "{text}: {said}");
        }
    }
}
