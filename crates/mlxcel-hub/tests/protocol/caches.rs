//! What is used because it is already here: our own snapshots, whole or not, and Hugging Face's.

use std::{
    fs,
    path::PathBuf,
    sync::{Arc, Mutex},
};

use crate::{
    server::{COMMIT, Repository, Server, page},
    support::*,
};

const NEEDED: [&str; 3] = ["config.json", "model.safetensors", "tokenizer.json"];

#[test]
fn a_snapshot_that_lost_a_file_is_completed_with_that_file() {
    let (machine, server) = (Machine::new(), Server::honest(Repository::safetensors()));
    let path = machine.hub(&server).resolve("tiny/model").unwrap();
    for damage in [None, Some(b"cut".as_slice())] {
        let before = server.downloads().len();
        fs::remove_file(path.join("tokenizer.json")).unwrap();
        if let Some(bytes) = damage {
            fs::write(path.join("tokenizer.json"), bytes).unwrap();
        }
        assert!(machine.offline().resolve("tiny/model").is_err(), "half a model is none");
        assert_eq!(machine.hub(&server).resolve("tiny/model").unwrap(), path);
        assert_same(&path, &Repository::safetensors(), &NEEDED);
        assert_eq!(server.downloads().len(), before + 1);
    }
}

#[test]
fn download_follows_a_branch_that_moved_and_resolve_stays() {
    let commit = Arc::new(Mutex::new(COMMIT.to_owned()));
    let at_server = Arc::clone(&commit);
    let server = Server::start(Repository::safetensors(), move |request, repository| {
        let commit = at_server.lock().unwrap().clone();
        if request.path.contains("/revision/") {
            return Some(page(&serde_json::json!({ "sha": commit }).to_string(), "").into());
        }
        // Only the first commit is one the server knows by itself.
        let known = crate::server::Request { path: request.path.replace(&commit, COMMIT), ..request.clone() };
        Some(repository.answer(&known).into())
    });
    let machine = Machine::new();
    let hub = machine.hub(&server);
    let old = hub.resolve("tiny/model").unwrap();
    *commit.lock().unwrap() = "f".repeat(40);
    assert_eq!(hub.resolve("tiny/model").unwrap(), old);
    let new = download(&hub, "tiny/model").unwrap();
    assert_ne!(new, old);
    assert_eq!(hub.resolve("tiny/model").unwrap(), new);
    assert_eq!(hub.resolve(&format!("tiny/model@{COMMIT}")).unwrap(), old, "a commit is what it was");
    let asked = server.downloads().len();
    assert_eq!(download(&hub, "tiny/model").unwrap(), new);
    assert_eq!(server.downloads().len(), asked, "nothing new, nothing fetched");
}

/// Puts files where Hugging Face's tools do: blobs, and links to them.
fn fill_hf_cache(machine: &Machine, files: &[(&str, &[u8])]) -> PathBuf {
    let model = machine.at("hf/models--tiny--model");
    let snapshot = model.join("snapshots").join(COMMIT);
    for folder in [model.join("refs"), model.join("blobs"), snapshot.clone()] {
        fs::create_dir_all(folder).unwrap();
    }
    fs::write(model.join("refs/main"), COMMIT).unwrap();
    for (number, (path, bytes)) in files.iter().enumerate() {
        let blob = model.join("blobs").join(number.to_string());
        fs::write(&blob, bytes).unwrap();
        #[cfg(unix)]
        std::os::unix::fs::symlink(format!("../../blobs/{number}"), snapshot.join(path)).unwrap();
        #[cfg(not(unix))]
        fs::copy(&blob, snapshot.join(path)).unwrap();
    }
    snapshot
}

#[test]
fn a_whole_model_in_hugging_faces_cache_is_used_as_it_is() {
    let (machine, repository) = (Machine::new(), Repository::safetensors());
    let files: Vec<(&str, &[u8])> = NEEDED.iter().map(|path| (*path, repository.bytes(path))).collect();
    let snapshot = fill_hf_cache(&machine, &files);
    assert_eq!(machine.offline().resolve("tiny/model").unwrap(), snapshot);
    assert_eq!(machine.offline().resolve(&format!("tiny/model@{COMMIT}")).unwrap(), snapshot);
    assert!(machine.offline().resolve("tiny/model@other").is_err());
    let server = Server::honest(repository);
    assert_eq!(download(&machine.hub(&server), "tiny/model").unwrap(), snapshot);
    assert!(server.downloads().is_empty() && machine.published().is_empty());
}

#[test]
fn what_is_not_whole_in_hugging_faces_cache_is_fetched() {
    let repository = Repository::safetensors();
    let weights = repository.bytes("model.safetensors");
    let index = br#"{"weight_map":{"a":"model.safetensors","b":"other.safetensors"}}"#;
    let incomplete: [&[(&str, &[u8])]; 4] = [
        &[("config.json", b"{}"), ("tokenizer.json", b"{}")],
        &[("config.json", b"{}"), ("model.safetensors", weights)],
        &[("config.json", b"{}"), ("tokenizer.json", b"{}"), ("model-00001-of-00002.safetensors", b"w")],
        &[
            ("config.json", b"{}"),
            ("tokenizer.json", b"{}"),
            ("model.safetensors", weights),
            ("model.safetensors.index.json", index),
        ],
    ];
    for files in incomplete {
        let machine = Machine::new();
        fill_hf_cache(&machine, files);
        assert!(machine.offline().resolve("tiny/model").is_err());
        let path = machine.hub(&Server::honest(repository.clone())).resolve("tiny/model").unwrap();
        assert!(path.starts_with(machine.cache()), "{}", path.display());
    }
}

#[cfg(unix)]
#[test]
fn a_link_to_a_blob_that_is_gone_is_no_file() {
    let (machine, repository) = (Machine::new(), Repository::safetensors());
    let files: Vec<(&str, &[u8])> = NEEDED.iter().map(|path| (*path, repository.bytes(path))).collect();
    fill_hf_cache(&machine, &files);
    fs::remove_file(machine.at("hf/models--tiny--model/blobs/1")).unwrap();
    assert!(machine.offline().resolve("tiny/model").is_err());
}
