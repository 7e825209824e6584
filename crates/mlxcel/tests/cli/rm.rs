//! `rm`: asks, says what is freed, and keeps its hands off what is not ours.

use std::fs;

use mlxcel_platform::files;

use crate::download::Machine;
use crate::server::{COMMIT, Repository, Server};
use crate::support::finished;

fn quantisations() -> Server {
    let files: [(&str, &[u8]); 2] = [("m-Q4_K_M.gguf", &[4; 4000]), ("m-Q8_0.gguf", &[8; 8000])];
    Server::honest(Repository::new("tiny/model", &files))
}

#[test]
fn without_a_terminal_it_wants_to_be_told_yes() {
    let (machine, server) = (Machine::new(), quantisations());
    machine.run(&server.address, &["download", "tiny/model"]);
    let done = machine.run(&server.address, &["rm", "tiny/model"]);
    assert_eq!((done.code, done.stdout.as_str()), (Some(1), ""));
    assert_eq!(
        done.stderr,
        "error: tiny/model:Q4_K_M would be removed, and there is no terminal to ask at; give --yes\n"
    );
    assert_eq!(machine.run(&server.address, &["download", "tiny/model", "--offline"]).code, Some(0));
}

#[test]
fn what_is_removed_is_said_with_what_it_frees() {
    let (machine, server) = (Machine::new(), quantisations());
    machine.run(&server.address, &["download", "tiny/model"]);
    machine.run(&server.address, &["download", "tiny/model:Q8_0"]);
    let done = machine.run(&server.address, &["rm", "--yes", "tiny/model", "tiny/model:Q8_0"]);
    let expected =
        "removed tiny/model:Q4_K_M (4.0 kB)\nremoved tiny/model:Q8_0 (8.0 kB)\nfreed 12.0 kB in all\n";
    assert_eq!((done.code, done.stdout.as_str(), done.stderr.as_str()), (Some(0), expected, ""));
    let done = machine.run(&server.address, &["rm", "--yes", "tiny/model"]);
    assert_eq!(done.stderr, "error: tiny/model is not in the cache; `mlxcel list` shows what is\n");
}

#[test]
fn what_was_packed_of_a_model_is_listed_and_removed_with_it() {
    let (machine, server) = (Machine::new(), quantisations());
    let run = |arguments: &[&str]| {
        let mut command = machine.mlxcel(&server.address, arguments);
        command.env_remove("MLXCEL_PACKED_CACHE");
        finished(command.output().expect("the binary runs"))
    };
    let fetch = |model: &str| {
        let path = run(&["download", model]).stdout;
        fs::canonicalize(path.trim_end()).expect("it is there")
    };
    let [four, eight] = ["tiny/model:Q4_K_M", "tiny/model:Q8_0"].map(fetch).map(|path| {
        let folder = machine.at("cache/packed").join(files::key(&path));
        fs::create_dir_all(&folder).expect("a folder");
        fs::write(folder.join("x.panels"), [0; 5000]).expect("a file");
        folder
    });
    let listed = run(&["list"]).stdout;
    assert!(listed.contains("9.0 kB") && listed.contains("13.0 kB"), "{listed}");
    let done = run(&["rm", "--yes", "tiny/model:Q4_K_M"]);
    assert_eq!((done.code, done.stdout.as_str()), (Some(0), "removed tiny/model:Q4_K_M (9.0 kB)\n"));
    assert!(!four.exists() && eight.exists());
}

#[test]
fn a_model_of_hugging_faces_cache_and_a_folder_are_refused_with_their_paths() {
    let machine = Machine::new();
    let snapshot = machine.at("hf/hub/models--other--model/snapshots").join(COMMIT);
    fs::create_dir_all(&snapshot).expect("a folder");
    let file = snapshot.join("m.gguf");
    fs::write(&file, b"theirs").expect("a file");
    let folder = machine.at("mine");
    fs::create_dir(&folder).expect("a folder");
    for (model, path) in [("other/model", &file), (folder.to_str().expect("UTF-8"), &folder)] {
        let done = machine.run("http://127.0.0.1:9", &["rm", "--yes", model]);
        assert_eq!(done.code, Some(1));
        assert!(done.stderr.contains(path.to_str().expect("UTF-8")), "{}", done.stderr);
        assert!(done.stderr.contains("does not manage") && path.exists(), "{}", done.stderr);
    }
}
