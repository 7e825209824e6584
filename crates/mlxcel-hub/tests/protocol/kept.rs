//! What is listed, and what is removed and what never is.

use std::{fs, path::Path};

use crate::{
    server::{COMMIT, Repository, Server, cut},
    support::*,
};
use mlxcel_hub::{Error, Event, Hub, Place, Settings};
use mlxcel_platform::files;

fn names(hub: &Hub) -> Vec<(String, bool)> {
    hub.kept().into_iter().map(|kept| (kept.name, kept.is_whole)).collect()
}

fn remove(hub: &Hub, spec: &str) {
    for kept in hub.kept_as(spec).unwrap() {
        hub.remove(&kept).unwrap();
    }
}

#[test]
fn what_is_fetched_is_listed_and_what_is_removed_is_gone() {
    let repository = Repository::new("tiny/model", &[("m-Q4_K_M.gguf", b"four"), ("m-Q8_0.gguf", b"eight")]);
    let (machine, server) = (Machine::new(), Server::honest(repository));
    let hub = machine.hub(&server);
    let four = hub.resolve("tiny/model").unwrap();
    hub.resolve("tiny/model@v1:Q8_0").unwrap();
    let kept = hub.kept();
    assert_eq!(kept.iter().map(|kept| kept.bytes).collect::<Vec<_>>(), [4, 5]);
    assert!(kept.iter().all(|kept| kept.place == Place::Cache && kept.commit == COMMIT));
    assert_eq!(kept[0].path, four);
    assert_eq!(names(&hub), [("tiny/model:Q4_K_M".into(), true), ("tiny/model@v1:Q8_0".into(), true)]);
    for nothing in ["tiny/model@v2", "tiny/model:Q2_K", "other/model", "smollm2", "pypi:x"] {
        assert!(matches!(hub.kept_as(nothing), Err(Error::NotKept { .. })), "{nothing}");
    }
    remove(&hub, "tiny/model:q4_k_m");
    assert_eq!(names(&hub), [("tiny/model@v1:Q8_0".into(), true)]);
    assert!(!four.exists());
    remove(&hub, "tiny/model");
    assert_eq!(files(&machine.cache().join("models")), Vec::<String>::new());
    assert!(machine.staged().is_empty());
    assert_eq!(fs::read(hub.resolve("tiny/model").unwrap()).unwrap(), b"four", "and can be fetched again");
}

#[test]
fn what_was_packed_of_a_model_is_counted_and_goes_with_it() {
    let (machine, server) = (Machine::new(), Server::honest(Repository::safetensors()));
    let hub = machine.hub(&server);
    let folder = hub.resolve("tiny/model").unwrap();
    let bytes = hub.kept()[0].bytes;
    let packed = |path: &Path| machine.cache().join("packed").join(files::key(&path.canonicalize().unwrap()));
    let (ours, other) = (packed(&folder.join("model.safetensors")), packed(machine.root.path()));
    for folder in [&ours, &other] {
        fs::create_dir_all(folder).unwrap();
        fs::write(folder.join("x.panels"), [0; 1000]).unwrap();
    }
    assert_eq!(hub.kept()[0].bytes, bytes + 1000);
    remove(&hub, "tiny/model");
    assert!(!ours.exists() && other.exists());
    let settings = Settings { packed: Some(machine.at("elsewhere")), ..machine.settings(&server.address) };
    let hub = Hub::new(settings, |_: Event<'_>| {});
    hub.resolve("tiny/model").unwrap();
    fs::rename(machine.cache().join("packed"), machine.at("elsewhere")).unwrap();
    fs::rename(machine.at("elsewhere").join(other.file_name().unwrap()), {
        machine.at("elsewhere").join(ours.file_name().unwrap())
    })
    .unwrap();
    assert_eq!(hub.kept()[0].bytes, bytes + 1000, "where the settings say");
}

#[cfg(unix)]
#[test]
fn links_of_hugging_faces_cache_lead_to_what_was_packed() {
    let machine = Machine::new();
    let model = machine.at("hf/models--tiny--model");
    let (snapshot, blobs) = (model.join("snapshots").join(COMMIT), model.join("blobs"));
    fs::create_dir_all(&snapshot).unwrap();
    fs::create_dir_all(&blobs).unwrap();
    fs::write(blobs.join("0123"), b"theirs").unwrap();
    std::os::unix::fs::symlink("../../blobs/0123", snapshot.join("m.gguf")).unwrap();
    let before = machine.offline().kept()[0].bytes;
    let folder = machine.cache().join("packed").join(files::key(&blobs.join("0123").canonicalize().unwrap()));
    fs::create_dir_all(&folder).unwrap();
    fs::write(folder.join("x.panels"), [0; 1000]).unwrap();
    assert_eq!(machine.offline().kept()[0].bytes, before + 1000);
}

#[test]
fn a_part_of_a_model_is_listed_as_one_and_can_be_removed() {
    let machine = Machine::new();
    let server = Server::start(Repository::safetensors(), |request, repository| {
        let is_first = request.path.ends_with("model.safetensors") && request.header("range").is_none();
        let broken = || cut(repository.answer(request), 70_000).into();
        if request.header("range").is_some() {
            return Some(crate::server::status(500, "").into());
        }
        is_first.then(broken)
    });
    let hub = machine.hub(&server);
    hub.resolve("tiny/model").unwrap_err();
    assert_eq!(names(&hub), [("tiny/model".into(), false)]);
    assert!(hub.kept()[0].bytes >= 70_000);
    remove(&hub, "tiny/model");
    assert!(hub.kept().is_empty() && machine.staged().is_empty());
}

#[test]
fn what_is_hugging_faces_is_listed_and_never_removed() {
    let machine = Machine::new();
    let snapshot = machine.at("hf/models--tiny--model/snapshots").join(COMMIT);
    fs::create_dir_all(&snapshot).unwrap();
    fs::write(snapshot.join("m.gguf"), b"theirs").unwrap();
    let hub = machine.offline();
    let kept = hub.kept();
    assert_eq!((kept.len(), kept[0].place, kept[0].bytes), (1, Place::HuggingFace, 6));
    let error = hub.kept_as("tiny/model").unwrap_err();
    assert!(matches!(&error, Error::NotOurs { path, .. } if path.starts_with(&snapshot)), "{error}");
    assert!(matches!(hub.remove(&kept[0]), Err(Error::NotOurs { .. })));
    assert!(snapshot.join("m.gguf").is_file());
}

#[test]
fn a_path_is_never_removed() {
    let machine = Machine::new();
    let folder = machine.at("mine");
    fs::create_dir(&folder).unwrap();
    let error = machine.offline().kept_as(folder.to_str().unwrap()).unwrap_err();
    assert!(matches!(error, Error::NotOurs { .. }) && folder.is_dir(), "{error}");
}

#[cfg(unix)]
#[test]
fn a_link_out_of_the_cache_is_never_followed_when_removing() {
    let (machine, server) = (Machine::new(), Server::honest(Repository::safetensors()));
    let hub = machine.hub(&server);
    hub.resolve("tiny/model").unwrap();
    let kept = hub.kept();
    let (model, outside) = (machine.cache().join("models/tiny--model"), machine.at("outside"));
    fs::rename(&model, &outside).unwrap();
    std::os::unix::fs::symlink(&outside, &model).unwrap();
    assert!(hub.kept().is_empty(), "a link is not ours");
    assert!(matches!(hub.remove(&kept[0]), Err(Error::NotOurs { .. })));
    assert!(files(&outside).iter().any(|path| path.ends_with("model.safetensors")));
}

#[test]
fn damaged_records_are_passed_over() {
    let (machine, server) = (Machine::new(), Server::honest(Repository::safetensors()));
    let hub = machine.hub(&server);
    let path = hub.resolve("tiny/model").unwrap();
    let record = path.with_added_extension("json");
    let good = fs::read_to_string(&record).unwrap();
    for bad in ["", "{}", "\0\0", &good.replace("\"model\":\"\"", "\"model\":\"../../../../../etc/passwd\"")]
    {
        fs::write(&record, bad).unwrap();
        assert!(hub.kept().is_empty(), "{bad}");
    }
}
