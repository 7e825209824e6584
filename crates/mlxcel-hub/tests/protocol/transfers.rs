//! What may happen to bytes on their way.

use std::{
    fs,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
};

use crate::{
    server::{COMMIT, Door, Repository, Request, Server, cut, file_answer, page, status, weights},
    support::*,
};
use mlxcel_hub::Error;

const NEEDED: [&str; 3] = ["config.json", "model.safetensors", "tokenizer.json"];
const WEIGHTS: &str = "model.safetensors";

fn is_weights(request: &Request) -> bool {
    request.path.ends_with(WEIGHTS)
}

/// How often the bytes of a file were asked for.
fn count(server: &Server, file: &str) -> usize {
    server.downloads().iter().filter(|request| request.path.ends_with(file)).count()
}

fn redirect(to: &str) -> Vec<u8> {
    status(302, &format!("Location: {to}\r\n"))
}

#[test]
fn a_model_is_fetched_by_its_commit_and_then_used_without_asking() {
    let (machine, server) = (Machine::new(), Server::honest(Repository::safetensors()));
    let path = machine.hub(&server).resolve("tiny/model").unwrap();
    assert_same(&path, &Repository::safetensors(), &NEEDED);
    assert_eq!(server.downloads().len(), 3, "nothing that is not needed is fetched");
    assert!(server.downloads().iter().all(|request| request.path.contains(COMMIT)), "by commit");
    assert_eq!(machine.staged(), Vec::<String>::new());
    let asked = server.requests().len();
    assert_eq!(machine.hub(&server).resolve("tiny/model@main").unwrap(), path);
    assert_eq!(machine.offline().resolve(&format!("tiny/model@{COMMIT}")).unwrap(), path);
    assert_eq!(server.requests().len(), asked);
}

#[test]
fn a_download_cut_at_99_percent_goes_on_where_it_stopped() {
    let tries = AtomicUsize::new(0);
    let repository = Repository::safetensors();
    let server = Server::start(repository.clone(), move |request, repository| {
        let is_first = is_weights(request) && tries.fetch_add(1, Ordering::Relaxed) == 0;
        is_first.then(|| cut(repository.answer(request), 297_000).into())
    });
    let machine = Machine::new();
    let (hub, heard) = machine.hub_heard(&server);
    assert_same(&hub.resolve("tiny/model").unwrap(), &repository, &NEEDED);
    let weights: Vec<_> = server.downloads().into_iter().filter(is_weights).collect();
    assert_eq!(weights.len(), 2);
    assert_eq!(weights[0].header("range"), None);
    assert_eq!(weights[1].header("range"), Some("bytes=297000-"));
    assert!(weights[1].header("if-range").is_some(), "only if it is still the same file");
    assert!(heard.lock().unwrap().iter().any(|event| event.starts_with("Retrying")));
}

#[test]
fn a_server_that_does_not_resume_sends_everything_again() {
    let repository = Repository::safetensors();
    let tries = AtomicUsize::new(0);
    let server = Server::start(repository.clone(), move |request, repository| {
        let plain = cut(file_answer(request, repository.bytes(WEIGHTS)), 100_000);
        match tries.fetch_add(usize::from(is_weights(request)), Ordering::Relaxed) {
            0 if is_weights(request) => Some(plain.into()),
            1 if is_weights(request) => {
                let whole = repository.bytes(WEIGHTS);
                let head = format!(
                    "HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
                    whole.len()
                );
                Some([head.as_bytes(), whole].concat().into())
            }
            _ => None,
        }
    });
    assert_same(&Machine::new().hub(&server).resolve("tiny/model").unwrap(), &repository, &NEEDED);
    assert_eq!(count(&server, WEIGHTS), 2);
}

#[test]
fn wrong_bytes_are_refused_and_not_kept() {
    for (file, size) in [(WEIGHTS, 300_000), ("config.json", 41)] {
        let server = Server::start(Repository::safetensors(), move |request, _| {
            request.path.ends_with(file).then(|| file_answer(request, &vec![b'x'; size]).into())
        });
        let machine = Machine::new();
        let error = machine.hub(&server).resolve("tiny/model").unwrap_err();
        assert!(matches!(&error, Error::WrongDigest { what, .. } if what == file), "{error}");
        assert_eq!(machine.published(), Vec::<String>::new());
        assert_eq!(count(&server, file), 1, "wrong bytes are no reason to try again");
        assert!(!machine.staged().iter().any(|path| path.ends_with(file)), "{:?}", machine.staged());
    }
}

#[test]
fn the_token_goes_to_the_hub_and_not_to_where_it_redirects() {
    let repository = Repository::safetensors();
    let elsewhere = Arc::new(Server::honest(repository.clone()));
    let address = elsewhere.address.clone();
    let server = Server::start(repository.clone(), move |request, _| {
        is_weights(request).then(|| redirect(&format!("{address}/cdn/{WEIGHTS}?signature=s")).into())
    });
    let machine = Machine::new();
    let path = machine.hub(&server).resolve("tiny/model").unwrap();
    assert_same(&path, &repository, &NEEDED);
    let bearer = format!("Bearer {TOKEN}");
    assert!(server.requests().iter().all(|request| request.header("authorization") == Some(bearer.as_str())));
    let there = elsewhere.requests();
    assert_eq!(there.len(), 1);
    assert_eq!(there[0].header("authorization"), None);
}

#[test]
fn a_circle_of_redirects_ends_in_an_error() {
    let server = Server::start(Repository::safetensors(), |request, _| {
        is_weights(request).then(|| redirect(&request.path).into())
    });
    let error = Machine::new().hub(&server).resolve("tiny/model").unwrap_err();
    assert!(matches!(error, Error::Redirect { .. }), "{error}");
}

#[test]
fn a_busy_server_is_waited_for_as_long_as_it_asks() {
    let tries = AtomicUsize::new(0);
    let server = Server::start(Repository::safetensors(), move |request, _| {
        let is_first = |path: &str| request.path.contains(path) && tries.fetch_add(1, Ordering::Relaxed) == 0;
        is_first("/revision/").then(|| status(429, "Retry-After: 1\r\n").into())
    });
    let machine = Machine::new();
    let (hub, heard) = machine.hub_heard(&server);
    hub.resolve("tiny/model").unwrap();
    let heard = heard.lock().unwrap();
    let retrying: Vec<_> = heard.iter().filter(|event| event.starts_with("Retrying")).collect();
    assert!(retrying.len() == 1 && retrying[0].contains("wait: 1s"), "{retrying:?}");
}

#[test]
fn a_server_that_asks_for_an_hour_or_stays_busy_is_an_error() {
    let busy = |retry_after: &'static str| {
        Server::start(Repository::safetensors(), move |request, _| {
            is_weights(request).then(|| status(503, retry_after).into())
        })
    };
    let server = busy("Retry-After: 3600\r\n");
    let error = Machine::new().hub(&server).resolve("tiny/model").unwrap_err().to_string();
    assert!(error.contains("503") && error.contains("3600 s") && count(&server, WEIGHTS) == 1, "{error}");
    let server = busy("");
    let error = Machine::new().hub(&server).resolve("tiny/model").unwrap_err().to_string();
    assert!(error.contains("503") && count(&server, WEIGHTS) == 3, "{error}");
}

#[test]
fn a_size_that_cannot_be_is_refused_before_anything_is_fetched() {
    let server = Server::start(Repository::safetensors(), |request, repository| {
        let mut tree = repository.tree();
        tree[3]["lfs"]["size"] = (1u64 << 62).into();
        request.path.contains("/tree/").then(|| page(&serde_json::Value::from(tree).to_string(), "").into())
    });
    let error = Machine::new().hub(&server).resolve("tiny/model").unwrap_err();
    assert!(matches!(error, Error::NoSpace { needed, .. } if needed > 1 << 61), "{error}");
    assert!(server.downloads().is_empty());
}

#[test]
fn a_body_that_is_longer_or_shorter_than_listed_is_refused() {
    for size in [299_999, 300_001] {
        let server = Server::start(Repository::safetensors(), move |request, _| {
            let body = weights(size);
            // Without a length, only reading finds out.
            let head = b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n".to_vec();
            is_weights(request).then(|| [head, body].concat().into())
        });
        let machine = Machine::new();
        let error = machine.hub(&server).resolve("tiny/model").unwrap_err();
        let is_right = matches!(error, Error::WrongSize { .. } | Error::BrokenDownload { .. });
        assert!(is_right && machine.published().is_empty(), "{error}");
    }
}

#[test]
fn a_part_of_an_earlier_run_is_resumed_and_a_damaged_one_fetched_anew() {
    for damage in [0, 1] {
        let repository = Repository::safetensors();
        let machine = Machine::new();
        let broken = Server::start(repository.clone(), |request, repository| {
            let answer = match request.header("range") {
                Some(_) => status(503, ""),
                None => cut(repository.answer(request), 200_000),
            };
            is_weights(request).then(|| answer.into())
        });
        machine.hub(&broken).resolve("tiny/model").unwrap_err();
        let parts = machine.staged().into_iter().find(|path| path.contains("/parts/")).unwrap();
        let part = machine.cache().join("staging").join(parts);
        let mut bytes = fs::read(&part).unwrap();
        bytes.truncate(150_000);
        bytes[77] ^= damage;
        fs::write(&part, bytes).unwrap();
        let server = Server::honest(repository.clone());
        assert_same(&machine.hub(&server).resolve("tiny/model").unwrap(), &repository, &NEEDED);
        let ranges: Vec<_> = server
            .downloads()
            .iter()
            .filter(|r| is_weights(r))
            .map(|r| r.header("range").map(str::to_owned))
            .collect();
        let resumed = Some("bytes=150000-".to_string());
        assert_eq!(ranges, if damage == 0 { vec![resumed] } else { vec![resumed, None] });
        let small = server.downloads().len() - ranges.len();
        assert!(small <= 2, "what had arrived is not fetched again");
    }
}

#[test]
fn a_file_without_a_digest_is_checked_by_the_hubs_tag() {
    let without_digests = |request: &Request, repository: &Repository| {
        let mut tree = repository.tree();
        for entry in &mut tree {
            let entry = entry.as_object_mut().unwrap();
            entry.remove("oid");
            entry.remove("lfs");
        }
        request.path.contains("/tree/").then(|| page(&serde_json::Value::from(tree).to_string(), "").into())
    };
    let server = Server::start(Repository::safetensors(), without_digests);
    assert_same(
        &Machine::new().hub(&server).resolve("tiny/model").unwrap(),
        &Repository::safetensors(),
        &NEEDED,
    );
    let server = Server::start(Repository::safetensors(), move |request, repository| {
        let lie = || {
            let answer = file_answer(request, repository.bytes(WEIGHTS));
            let at = answer.len() - 10;
            [&answer[..at], b"0123456789"].concat().into()
        };
        without_digests(request, repository).or_else(|| is_weights(request).then(lie))
    });
    let error = Machine::new().hub(&server).resolve("tiny/model").unwrap_err();
    assert!(matches!(error, Error::WrongDigest { .. }), "{error}");
}

#[test]
fn two_at_once_share_one_download() {
    let machine = Machine::new();
    let door = Arc::new(Door::default());
    let at_server = Arc::clone(&door);
    let server = Server::start(Repository::safetensors(), move |request, _| {
        // Bytes flow only after the second caller is seen to wait, so both are surely at it at once.
        if is_weights(request) {
            at_server.pass();
        }
        None
    });
    let paths = thread::scope(|scope| {
        let callers = [(); 2].map(|()| {
            let door = Arc::clone(&door);
            let hear = move |event: mlxcel_hub::Event<'_>| {
                if matches!(event, mlxcel_hub::Event::Waiting { .. }) {
                    door.open();
                }
            };
            let hub = mlxcel_hub::Hub::new(machine.settings(&server.address), hear);
            scope.spawn(move || hub.resolve("tiny/model").unwrap())
        });
        callers.map(|caller| caller.join().unwrap())
    });
    assert_eq!(paths[0], paths[1]);
    assert_eq!(server.downloads().len(), 3, "each file once");
}

#[cfg(unix)]
#[test]
fn links_in_the_cache_are_replaced_and_not_followed() {
    use std::os::unix::fs::symlink;
    let repository = Repository::new(
        "tiny/model",
        &[("config.json", b"{}"), ("model.safetensors", b"weights"), ("1_Pooling/config.json", b"pool")],
    );
    let (machine, server) = (Machine::new(), Server::honest(repository.clone()));
    let path = machine.hub(&server).resolve("tiny/model").unwrap();
    let victim = machine.at("victim");
    fs::create_dir(&victim).unwrap();
    fs::write(victim.join("config.json"), b"mine").unwrap();
    fs::remove_file(path.join("config.json")).unwrap();
    symlink(victim.join("config.json"), path.join("config.json")).unwrap();
    fs::remove_dir_all(path.join("1_Pooling")).unwrap();
    symlink(&victim, path.join("1_Pooling")).unwrap();
    assert_eq!(machine.hub(&server).resolve("tiny/model").unwrap(), path);
    assert_eq!(fs::read(victim.join("config.json")).unwrap(), b"mine", "what the links led to is as it was");
    assert!(!path.join("1_Pooling").is_symlink() && !path.join("config.json").is_symlink());
    assert_same(&path, &repository, &["1_Pooling/config.json", "config.json", "model.safetensors"]);
}
