//! `download`, and models of the hub in the commands that take one: the real binary against a hub on this machine.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use tempfile::TempDir;

use crate::server::{Door, Reply, Repository, Server, cut, status};
use crate::support::{Finished, finished, fixture, mlxcel};

/// A machine with nothing on it, and a hub.
pub struct Machine {
    pub root: TempDir,
}

impl Machine {
    pub fn new() -> Self {
        Machine { root: TempDir::new().expect("a temporary folder can be made") }
    }

    pub fn at(&self, path: &str) -> PathBuf {
        self.root.path().join(path)
    }

    /// The binary with this machine's folders, the hub at `endpoint`, and no settings of the real machine's.
    pub fn mlxcel(&self, endpoint: &str, arguments: &[&str]) -> Command {
        let mut command = mlxcel(arguments);
        for variable in
            ["HF_HUB_CACHE", "HF_TOKEN_PATH", "HF_HUB_OFFLINE", "MLXCEL_OFFLINE", "MLXCEL_INDEX_URL"]
        {
            command.env_remove(variable);
        }
        for variable in ["PIP_INDEX_URL", "UV_DEFAULT_INDEX", "UV_INDEX_URL", "XDG_CACHE_HOME"] {
            command.env_remove(variable);
        }
        let places = [("MLXCEL_CACHE", self.at("cache")), ("HF_HOME", self.at("hf"))];
        command
            .envs(places)
            .env("HF_ENDPOINT", endpoint)
            .env("HF_TOKEN", "hf_secret")
            .env("NO_PROXY", "127.0.0.1");
        command
    }

    pub fn run(&self, endpoint: &str, arguments: &[&str]) -> Finished {
        finished(self.mlxcel(endpoint, arguments).output().expect("the binary runs"))
    }

    /// The bytes of the weights that have arrived so far.
    fn part_bytes(&self) -> u64 {
        let mut largest = 0;
        for staging in fs::read_dir(self.at("cache/staging")).into_iter().flatten().flatten() {
            for part in fs::read_dir(staging.path().join("parts")).into_iter().flatten().flatten() {
                largest = largest.max(part.metadata().map_or(0, |data| data.len()));
            }
        }
        largest
    }
}

fn is_weights(request: &crate::server::Request) -> bool {
    request.path.ends_with("model.safetensors")
}

#[test]
fn download_prints_where_the_model_is() {
    let (machine, server) = (Machine::new(), Server::honest(Repository::safetensors()));
    let done = machine.run(&server.address, &["download", "tiny/model"]);
    assert_eq!(done.code, Some(0), "{}", done.stderr);
    let path = PathBuf::from(done.stdout.trim_end());
    assert!(path.starts_with(machine.at("cache")) && path.join("model.safetensors").is_file());
    for said in [
        "fetching tiny/model from the hub (3 files, ",
        "fetched model.safetensors\n",
        "fetched tiny/model into",
    ] {
        assert!(done.stderr.contains(said), "'{said}' is not in: {}", done.stderr);
    }
    let again = machine.run(&server.address, &["download", "tiny/model", "--json", "--offline"]);
    let object: serde_json::Value = serde_json::from_str(&again.stdout).expect("JSON");
    assert_eq!((object["model"].as_str(), object["path"].as_str()), (Some("tiny/model"), path.to_str()));
    assert_eq!(again.stderr, "");
}

#[test]
fn a_model_of_the_hub_answers_as_its_folder_does() {
    let folder = fixture("golden/llama/f32");
    let read = |name: &str| fs::read(folder.join(name)).expect("fixtures are readable");
    let files = [("config.json", read("config.json")), ("model.safetensors", read("model.safetensors"))];
    let files: Vec<(&str, &[u8])> = files.iter().map(|(name, bytes)| (*name, bytes.as_slice())).collect();
    let server = Server::honest(Repository::new("tiny/llama", &files));
    let machine = Machine::new();
    let flags = ["--prompt-tokens", "1,2,3", "--temp", "0", "-n", "8", "--ignore-eos"];
    let answer = |model: &str, more: &[&str]| {
        let done = machine.run(&server.address, &[&["generate", "-m", model], &flags[..], more].concat());
        assert_eq!(done.code, Some(0), "{}", done.stderr);
        done.stdout
    };
    let expected = answer(folder.to_str().expect("UTF-8"), &[]);
    assert_eq!(answer("tiny/llama", &[]), expected);
    let asked = server.requests().len();
    assert_eq!(answer("tiny/llama", &["--offline"]), expected);
    let inspected = machine.run(&server.address, &["inspect", "tiny/llama", "--offline"]);
    assert!(inspected.stdout.contains("llama"), "{inspected:?}");
    assert_eq!(server.requests().len(), asked);
}

#[test]
fn a_download_that_was_killed_goes_on_where_it_was() {
    let machine = Machine::new();
    let door = Arc::new(Door::default());
    let at_server = Arc::clone(&door);
    let repository = Repository::safetensors();
    let server = Server::start(repository.clone(), move |request, repository| {
        let is_first = is_weights(request) && request.header("range").is_none();
        let part =
            || Reply { bytes: cut(repository.answer(request), 200_000), then: Some(Arc::clone(&at_server)) };
        is_first.then(part)
    });
    let mut command = machine.mlxcel(&server.address, &["download", "tiny/model"]);
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("the binary runs");
    while machine.part_bytes() < 200_000 {
        assert!(child.try_wait().expect("a child").is_none(), "it ended before it was killed");
        thread::sleep(Duration::from_millis(10));
    }
    child.kill().expect("it can be killed");
    child.wait().expect("it ended");
    door.open();
    assert!(!machine.at("cache/models/tiny--model/snapshots").exists(), "nothing half is published");
    let done = machine.run(&server.address, &["download", "tiny/model"]);
    assert_eq!(done.code, Some(0), "{}", done.stderr);
    let weights = PathBuf::from(done.stdout.trim_end()).join("model.safetensors");
    assert!(fs::read(weights).expect("readable") == repository.bytes("model.safetensors"));
    let ranges: Vec<_> = server.downloads().into_iter().filter(is_weights).collect();
    assert_eq!(ranges.len(), 2);
    assert_eq!(ranges[1].header("range"), Some("bytes=200000-"));
}

#[test]
fn of_two_processes_one_waits_for_the_other() {
    let machine = Machine::new();
    let door = Arc::new(Door::default());
    let at_server = Arc::clone(&door);
    let server = Server::start(Repository::safetensors(), move |request, _| {
        if is_weights(request) {
            at_server.pass();
        }
        None
    });
    let start = || {
        let mut command = machine.mlxcel(&server.address, &["download", "tiny/model"]);
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the binary runs")
    };
    let mut children = [start(), start()];
    // Whoever waits says so; then the bytes may flow.
    thread::scope(|scope| {
        for child in &mut children {
            let stderr = BufReader::new(child.stderr.take().expect("piped"));
            scope.spawn(|| {
                for line in stderr.lines().map_while(Result::ok) {
                    if line.contains("waiting for another process") {
                        door.open();
                    }
                }
            });
        }
    });
    let paths = children.map(|child| {
        let done = child.wait_with_output().expect("it ended");
        assert!(done.status.success());
        done.stdout
    });
    assert_eq!(paths[0], paths[1]);
    assert_eq!(server.downloads().len(), 3, "each file once");
}

#[cfg(unix)]
#[test]
fn a_full_disk_is_said_and_the_download_goes_on_when_there_is_room() {
    let (machine, server) = (Machine::new(), Server::honest(Repository::safetensors()));
    let limited = machine.mlxcel(&server.address, &["download", "tiny/model"]);
    let mut command = Command::new("sh");
    // A limit on the size of files fails as a full disk does, without a disk to fill.
    command.arg("-c").arg("trap '' XFSZ; ulimit -f 100; exec \"$@\"").arg("sh").arg(limited.get_program());
    command.args(limited.get_args());
    for (name, value) in limited.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    let done = finished(command.output().expect("sh runs"));
    assert_eq!((done.code, done.stdout.as_str()), (Some(1), ""), "{}", done.stderr);
    assert!(done.stderr.contains("free some space and run this again"), "{}", done.stderr);
    let there = machine.part_bytes();
    assert!(there > 0 && there < 300_000);
    let done = machine.run(&server.address, &["download", "tiny/model"]);
    assert_eq!(done.code, Some(0), "{}", done.stderr);
    let last = server.downloads().into_iter().rfind(is_weights).expect("it was asked for");
    assert_eq!(last.header("range"), Some(format!("bytes={there}-").as_str()));
}

#[test]
fn what_cannot_be_had_is_one_line_and_exit_code_one() {
    let machine = Machine::new();
    let server = Server::start(Repository::safetensors(), |request, _| {
        request.path.contains("/gated/").then(|| status(403, "X-Error-Code: GatedRepo\r\n").into())
    });
    for (arguments, parts) in [
        (&["download", "gated/model"][..], &["gated/model is gated", "accept its licence", "HF_TOKEN"][..]),
        (&["download", "no/model"], &["no model no/model", "check the name"]),
        (&["download", "tiny/model:Q4_0"], &["'Q4_0'", "model.safetensors"]),
        (&["download", "tiny/model", "--offline"], &["tiny/model", "offline", "mlxcel download tiny/model"]),
        (
            &["generate", "-m", "other/model", "--offline", "--prompt-tokens", "1"],
            &["other/model", "--offline"],
        ),
        (&["download", "smollm2", "--revision", "x"], &["smollm2", "models on the hub"]),
    ] {
        let done = machine.run(&server.address, arguments);
        assert_eq!((done.code, done.stdout.as_str()), (Some(1), ""), "{arguments:?}: {}", done.stderr);
        assert_eq!(done.stderr.lines().count(), 1, "{arguments:?}: {}", done.stderr);
        for part in parts {
            assert!(done.stderr.contains(part), "'{part}' is not in: {}", done.stderr);
        }
        assert!(!done.stderr.contains("hf_secret"));
    }
}

#[test]
fn hostile_names_touch_neither_disk_nor_network() {
    let (machine, server) = (Machine::new(), Server::honest(Repository::safetensors()));
    let long = format!("a/{}", "x".repeat(200));
    for name in
        ["a/..", "..b/c", "a/b@../x", "a/b:../x", "a/nul", "a\\b", "a b/c", "a/b\n", "pypi:../x", &long]
    {
        for command in [&["download"][..], &["inspect"], &["rm", "--yes"]] {
            let done = machine.run(&server.address, &[command, &[name]].concat());
            assert_eq!(done.code, Some(1), "{command:?} {name:?}: {}", done.stderr);
            assert_eq!(done.stderr.lines().count(), 1, "{name:?}: {}", done.stderr);
        }
    }
    assert!(server.requests().is_empty() && !machine.at("cache").exists());
}
