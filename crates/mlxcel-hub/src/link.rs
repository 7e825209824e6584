//! Addresses: resolving a reference found on a page, and keeping passwords out of what is shown and sent.
//!
//! Covers the http and https references that package indexes and redirects contain, not all of RFC 3986.

use ureq::http::Uri;

/// Resolves `reference` against the address of the page it was found on. `None` if it is not an http address.
pub(crate) fn join(base: &Uri, reference: &str) -> Option<Uri> {
    let reference = reference.trim().split('#').next()?;
    let (scheme, authority) = (base.scheme_str()?, base.authority()?);
    let absolute = if has_scheme(reference) {
        reference.to_owned()
    } else if reference.starts_with("//") {
        format!("{scheme}:{reference}")
    } else {
        format!("{scheme}://{authority}{}", join_path(base.path(), reference))
    };
    parse(&absolute).map(|(uri, _)| uri)
}

/// Parses an absolute http address into one without user information, and that information.
pub(crate) fn parse(address: &str) -> Option<(Uri, Option<String>)> {
    let (scheme, rest) = address.split_once("://")?;
    if !scheme.eq_ignore_ascii_case("http") && !scheme.eq_ignore_ascii_case("https") {
        return None;
    }
    let (authority, path) = rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len()));
    let (user, host) = match authority.rsplit_once('@') {
        Some((user, host)) => (Some(user.to_owned()), host),
        None => (None, authority),
    };
    let uri = format!("{}://{host}{path}", scheme.to_ascii_lowercase()).parse::<Uri>().ok()?;
    uri.host().is_some_and(|host| !host.is_empty()).then_some((uri, user))
}

/// Whether two addresses have the same scheme, host and port.
pub(crate) fn same_origin(a: &Uri, b: &Uri) -> bool {
    let origin = |uri: &Uri| {
        let default = if uri.scheme_str() == Some("https") { 443 } else { 80 };
        (
            uri.scheme_str().map(str::to_owned),
            uri.host().map(str::to_ascii_lowercase),
            uri.port_u16().unwrap_or(default),
        )
    };
    origin(a) == origin(b)
}

fn has_scheme(reference: &str) -> bool {
    let Some((scheme, _)) = reference.split_once(':') else { return false };
    !scheme.is_empty() && scheme.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'+' | b'-' | b'.'))
}

/// Resolves a path reference against the path of its page, removing dot segments.
fn join_path(base: &str, reference: &str) -> String {
    let (path, query) = reference.split_at(reference.find('?').unwrap_or(reference.len()));
    let folder = &base[..base.rfind('/').map_or(0, |slash| slash + 1)];
    let joined = match path {
        "" => base.to_owned(),
        path if path.starts_with('/') => path.to_owned(),
        path => format!("{folder}{path}"),
    };
    let mut segments = Vec::new();
    for segment in joined.trim_start_matches('/').split('/') {
        match segment {
            ".." => drop(segments.pop()),
            "." => {}
            segment => segments.push(segment),
        }
    }
    format!("/{}{query}", segments.join("/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn joined(reference: &str) -> Option<String> {
        let base = "https://host.test:8443/simple/a-b/".parse().unwrap();
        join(&base, reference).map(|uri| uri.to_string())
    }

    /// The cases are those of RFC 3986, section 5.4, that can occur on an index page.
    #[test]
    fn references_resolve_against_their_page() {
        assert_eq!(joined("x.whl#sha256=00").as_deref(), Some("https://host.test:8443/simple/a-b/x.whl"));
        assert_eq!(joined("../../p/x.whl").as_deref(), Some("https://host.test:8443/p/x.whl"));
        assert_eq!(joined("../../../../x").as_deref(), Some("https://host.test:8443/x"));
        assert_eq!(joined("./x?t=1").as_deref(), Some("https://host.test:8443/simple/a-b/x?t=1"));
        assert_eq!(joined("/p/x.whl").as_deref(), Some("https://host.test:8443/p/x.whl"));
        assert_eq!(joined("//cdn.test/x").as_deref(), Some("https://cdn.test/x"));
        assert_eq!(joined("http://cdn.test/x").as_deref(), Some("http://cdn.test/x"));
    }

    #[test]
    fn references_that_are_not_http_are_refused() {
        for reference in
            ["file:///etc/passwd", "ftp://host.test/x", "javascript:alert(1)", "https:///x", "http://"]
        {
            assert_eq!(joined(reference), None, "{reference}");
        }
    }

    #[test]
    fn user_information_is_taken_out_of_an_address() {
        let (uri, user) = parse("HTTPS://me:se%40cret@host.test/simple").unwrap();
        assert_eq!(
            (uri.to_string().as_str(), user.as_deref()),
            ("https://host.test/simple", Some("me:se%40cret"))
        );
        assert_eq!(parse("http://host.test/a@b").unwrap().1, None);
    }

    #[test]
    fn an_origin_is_scheme_host_and_port() {
        let same = |a: &str, b: &str| same_origin(&a.parse().unwrap(), &b.parse().unwrap());
        assert!(same("https://host.test/a", "https://HOST.test:443/b"));
        assert!(!same("https://host.test/", "http://host.test/"));
        assert!(!same("http://host.test:1/", "http://host.test:2/"));
        assert!(!same("http://host.test/", "http://other.test/"));
    }
}
