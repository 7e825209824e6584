//! API keys. A guess is compared with every key in a time that does not depend on how much of it is right.

use axum::http::HeaderMap;
use axum::http::header::AUTHORIZATION;
use std::path::Path;
use subtle::{Choice, ConstantTimeEq as _};

use crate::error::ServerError;

/// The keys of a server; without any, everyone is let in.
pub struct Keys(Vec<String>);

/// Keys are never shown.
impl std::fmt::Debug for Keys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Keys({})", self.0.len())
    }
}

impl Keys {
    pub fn new(keys: Vec<String>) -> Result<Self, ServerError> {
        if keys.iter().any(|key| key.trim().is_empty()) {
            return Err(ServerError::EmptyKey);
        }
        Ok(Keys(keys))
    }

    /// Whether a request with these headers is let in: `Authorization: Bearer KEY` or `X-Api-Key: KEY`.
    pub fn admit(&self, headers: &HeaderMap) -> bool {
        if self.0.is_empty() {
            return true;
        }
        let bearer = headers.get(AUTHORIZATION).map(|value| value.as_bytes()).and_then(bearer_token);
        let named = headers.get("x-api-key").map(|value| value.as_bytes());
        [bearer, named].into_iter().flatten().any(|given| self.holds(given))
    }

    /// Looks at every key, so that the time tells nothing about which one was nearly right.
    fn holds(&self, given: &[u8]) -> bool {
        let equal = self.0.iter().map(|key| key.as_bytes().ct_eq(given));
        equal.fold(Choice::from(0), |any, one| any | one).into()
    }
}

/// The schemes of HTTP are spelled in any case.
fn bearer_token(value: &[u8]) -> Option<&[u8]> {
    let (scheme, token) = value.split_at_checked(b"Bearer ".len())?;
    scheme.eq_ignore_ascii_case(b"Bearer ").then(|| token.trim_ascii())
}

/// The keys in a file, one on each line; blank lines and lines that begin with # are passed over.
pub fn read_keys(path: &Path) -> Result<Vec<String>, ServerError> {
    let text = std::fs::read_to_string(path).map_err(|source| ServerError::Read {
        what: "the keys in",
        path: path.to_path_buf(),
        source,
    })?;
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    let keys: Vec<String> = lines.map(str::to_string).collect();
    if keys.is_empty() {
        return Err(ServerError::NoKeys { path: path.to_path_buf() });
    }
    Ok(keys)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(name: &'static str, value: &str) -> HeaderMap {
        HeaderMap::from_iter([(name.parse().unwrap(), value.parse().unwrap())])
    }

    #[test]
    fn any_of_the_keys_opens_by_either_header() {
        let keys = Keys::new(vec!["one".to_string(), "two".to_string()]).unwrap();
        assert!(keys.admit(&headers("authorization", "Bearer two")));
        assert!(keys.admit(&headers("authorization", "bearer one")));
        assert!(keys.admit(&headers("x-api-key", "one")));
        for wrong in ["", "Bearer", "Bearer ", "Bearer on", "Bearer onex", "Basic one", "one"] {
            assert!(!keys.admit(&headers("authorization", wrong)), "{wrong}");
        }
        assert!(!keys.admit(&HeaderMap::new()));
    }

    #[test]
    fn without_keys_everyone_is_let_in() {
        assert!(Keys::new(vec![]).unwrap().admit(&HeaderMap::new()));
        assert!(matches!(Keys::new(vec![" ".to_string()]), Err(ServerError::EmptyKey)));
    }

    #[test]
    fn keys_do_not_show_in_debugging_output() {
        assert_eq!(format!("{:?}", Keys::new(vec!["secret".to_string()]).unwrap()), "Keys(1)");
    }
}
