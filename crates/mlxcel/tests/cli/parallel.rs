//! A model shared by two processes of this machine over MLX's ring: the same tokens as one process, and what is said when a
//! member is gone or a model cannot be shared. `cargo xtask test` says where MLX is.
#![cfg(target_os = "linux")]

use std::io::{BufRead as _, BufReader};
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use crate::support::{Finished, finished, fixture_argument, ids, mlxcel};

fn with_mlx(arguments: &[&str]) -> Command {
    let mut command = mlxcel(arguments);
    for name in ["MLXCEL_MLX_HOME", "MLXCEL_MLX_SHIM"] {
        let given = std::env::var_os(name);
        command.env(
            name,
            given.unwrap_or_else(|| panic!("{name} is not set: run `cargo xtask test -p mlxcel`")),
        );
    }
    command
}

/// A file of members on this machine, and the folder it is in.
struct Hosts {
    _folder: tempfile::TempDir,
    file: PathBuf,
    addresses: Vec<String>,
}

impl Hosts {
    /// Ports that are free now, each with the one after it.
    fn new(members: usize) -> Hosts {
        let mut held: Vec<TcpListener> = vec![];
        let mut addresses = vec![];
        while addresses.len() < members {
            let first = TcpListener::bind("127.0.0.1:0").expect("a free port");
            let port = first.local_addr().expect("it has an address").port();
            if let Ok(second) = TcpListener::bind(("127.0.0.1", port.saturating_add(1))) {
                held.extend([first, second]);
                addresses.push(format!("127.0.0.1:{port}"));
            }
        }
        Hosts::of(addresses)
    }

    fn of(addresses: Vec<String>) -> Hosts {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("hosts");
        std::fs::write(&file, addresses.join("\n")).expect("it can be written");
        Hosts { _folder: folder, file, addresses }
    }

    fn argument(&self) -> &str {
        self.file.to_str().expect("the path is UTF-8")
    }
}

const PROMPT: &str = "5,9,17,33,2,70,101,44";

fn generate(model: &str, more: &[&str]) -> Command {
    let fixed = ["generate", "-m", model, "--engine", "mlx", "--prompt-tokens", PROMPT, "--temp", "0"];
    with_mlx(&[&fixed[..], &["--ignore-eos", "--json"], more].concat())
}

fn worker_command(model: &str, hosts: &Hosts, more: &[&str]) -> Command {
    let fixed = ["worker", "-m", model, "--engine", "mlx", "--tp", "2", "--hosts", hosts.argument()];
    with_mlx(&[&fixed[..], &["--rank", "1"], more].concat())
}

fn worker(model: &str, hosts: &Hosts, more: &[&str]) -> Child {
    let mut command = worker_command(model, hosts, more);
    command.stderr(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("the binary runs")
}

fn tokens(done: &Finished) -> Vec<u32> {
    assert_eq!(done.code, Some(0), "{}", done.stderr);
    let report: serde_json::Value = serde_json::from_str(&done.stdout).expect("one object of JSON");
    ids(&report["tokens"])
}

#[test]
fn two_processes_write_what_one_does() {
    for (family, mode) in [("llama", "lazy"), ("qwen3", "compiled"), ("mixtral", "lazy")] {
        let model = fixture_argument(&format!("golden/{family}/f32"));
        let alone =
            finished(generate(&model, &["-n", "12", "--mlx-mode", mode]).output().expect("the binary runs"));
        let hosts = Hosts::new(2);
        let other = worker(&model, &hosts, &["--mlx-mode", mode]);
        let shared = ["-n", "12", "--tp", "2", "--hosts", hosts.argument(), "--mlx-mode", mode];
        let together = finished(generate(&model, &shared).output().expect("the binary runs"));
        assert_eq!(tokens(&together), tokens(&alone), "{family}");
        assert!(together.stdout.contains("shared by 2"), "{}", together.stdout);
        let other = finished(other.wait_with_output().expect("it ends"));
        assert_eq!(other.code, Some(0), "{family}: {}", other.stderr);
    }
}

#[test]
fn a_member_that_is_gone_is_named() {
    let model = fixture_argument("golden/llama/f32");
    let hosts = Hosts::new(2);
    let shared = ["--tp", "2", "--hosts", hosts.argument(), "-n", "400"];
    let mut first = generate(&model, &shared);
    let first = first.stderr(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("the binary runs");
    let mut other = worker(&model, &hosts, &[]);
    let mut lines = BufReader::new(other.stderr.take().expect("it was asked for")).lines();
    let is_ready = lines.any(|line| line.is_ok_and(|line| line.contains("is ready")));
    assert!(is_ready, "the worker met the group");
    other.kill().expect("it runs");
    let first = finished(first.wait_with_output().expect("it ends"));
    assert_ne!(first.code, Some(0));
    let name = format!("member 1 ({})", hosts.addresses[1]);
    assert!(first.stderr.contains(&name), "{}", first.stderr);
    other.wait().expect("it was killed");
}

#[test]
fn workers_end_when_the_first_member_is_gone() {
    let model = fixture_argument("golden/llama/f32");
    let hosts = Hosts::new(2);
    let shared = ["--tp", "2", "--hosts", hosts.argument(), "-n", "400"];
    let mut first = generate(&model, &shared);
    let mut first = first.stderr(Stdio::null()).stdout(Stdio::null()).spawn().expect("the binary runs");
    let mut other = worker(&model, &hosts, &[]);
    let mut reader = BufReader::new(other.stderr.take().expect("it was asked for"));
    let mut said = String::new();
    while !said.contains("is ready") && reader.read_line(&mut said).expect("it says something") > 0 {}
    first.kill().expect("it runs");
    first.wait().expect("it was killed");
    // It was killed before it had a program, or in the midst of one; both end the worker, and one is an error.
    let end = other.wait().expect("it ends");
    let mut rest = String::new();
    while reader.read_line(&mut rest).expect("it can be read") > 0 {}
    let named = rest.contains(&format!("member 0 ({})", hosts.addresses[0]));
    assert!(end.success() || end.code().is_some() && named, "{end}: {rest}");
}

#[test]
fn another_model_is_turned_away() {
    let hosts = Hosts::new(2);
    let (llama, qwen) = (fixture_argument("golden/llama/f32"), fixture_argument("golden/qwen3/f32"));
    let other = worker(&qwen, &hosts, &[]);
    let shared = ["--tp", "2", "--hosts", hosts.argument()];
    let mut first = generate(&llama, &shared);
    let mut first = first.stderr(Stdio::null()).stdout(Stdio::null()).spawn().expect("the binary runs");
    let other = finished(other.wait_with_output().expect("it ends"));
    assert!(other.code != Some(0) && other.stderr.contains("another model"), "{}", other.stderr);
    first.kill().expect("it still waits");
    first.wait().expect("it was killed");
}

#[test]
fn what_cannot_be_shared_is_refused_before_anybody_is_waited_for() {
    let model = fixture_argument("golden/llama/f32");
    let hosts = Hosts::new(3);
    let refused = |more: &[&str]| {
        let got = finished(generate(&model, more).output().expect("the binary runs"));
        assert_ne!(got.code, Some(0));
        got.stderr
    };
    let error = refused(&["--tp", "3", "--hosts", hosts.argument()]);
    assert!(error.contains("k_cache.0") && error.contains("3 members"), "{error}");
    let error = refused(&["--tp", "2", "--hosts", hosts.argument()]);
    assert!(error.contains("lists 3 hosts, but --tp is 2"), "{error}");
    let error = refused(&["--tp", "2"]);
    assert!(error.contains("--hosts"), "{error}");
    let alone = ["generate", "-m", &model, "--prompt-tokens", "1", "--tp", "3", "--hosts", hosts.argument()];
    let error = finished(with_mlx(&alone).output().expect("the binary runs")).stderr;
    assert!(error.contains("--engine mlx"), "{error}");
}

/// Two machines as far as the network goes: namespaces with a cable between them, which go when this does.
struct Apart {
    names: [String; 2],
}

impl Apart {
    const ADDRESSES: [&str; 2] = ["10.213.77.1", "10.213.77.2"];

    /// `None` where this user may not make any, or has nothing to make them with.
    fn new() -> Option<Apart> {
        let names = ["a", "b"].map(|end| format!("mlxcel{}{end}", std::process::id()));
        let ip = |line: String| {
            let done = Command::new("ip").args(line.split(' ')).output();
            done.is_ok_and(|done| done.status.success()).then_some(())
        };
        let [a, b] = &names;
        ip(format!("netns add {a}"))?;
        let apart = Apart { names: names.clone() };
        ip(format!("netns add {b}"))?;
        ip(format!("link add cable netns {a} type veth peer name cable netns {b}"))?;
        for (name, address) in names.iter().zip(Self::ADDRESSES) {
            ip(format!("-n {name} addr add {address}/24 dev cable"))?;
            ip(format!("-n {name} link set cable up"))?;
            ip(format!("-n {name} link set lo up"))?;
        }
        Some(apart)
    }

    /// The command in one of them.
    fn within(&self, member: usize, command: &Command) -> Command {
        let mut inside = Command::new("ip");
        inside
            .args(["netns", "exec", &self.names[member]])
            .arg(command.get_program())
            .args(command.get_args());
        inside.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
        inside
    }
}

impl Drop for Apart {
    fn drop(&mut self) {
        for name in &self.names {
            // What was never made need not go.
            let _ = Command::new("ip").args(["netns", "del", name]).output();
        }
    }
}

#[test]
fn two_network_namespaces_write_what_one_process_does() {
    let Some(apart) = Apart::new() else {
        eprintln!("not run: no network namespace can be made here (that takes root and iproute2)");
        return;
    };
    let model = fixture_argument("golden/llama/f32");
    let alone = finished(generate(&model, &["-n", "12"]).output().expect("the binary runs"));
    let hosts = Hosts::of(Apart::ADDRESSES.map(|address| format!("{address}:4700")).to_vec());
    let mut other = apart.within(1, &worker_command(&model, &hosts, &[]));
    let other = other.stderr(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("ip runs");
    let shared = ["-n", "12", "--tp", "2", "--hosts", hosts.argument()];
    let together = finished(apart.within(0, &generate(&model, &shared)).output().expect("ip runs"));
    assert_eq!(tokens(&together), tokens(&alone));
    let other = finished(other.wait_with_output().expect("it ends"));
    assert_eq!(other.code, Some(0), "{}", other.stderr);
}
