//! `mlxcel serve` as a process: what it says, what it answers, how it ends.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};

use crate::real_models::model;
use crate::support::{ModelCopy, mlxcel, run};

/// A server on a free port, and its address.
fn start(arguments: &[&str]) -> (Child, String) {
    listening(&mut mlxcel(&[&["serve", "--port", "0"], arguments].concat()))
}

/// What a command starts, once it listens.
fn listening(command: &mut Command) -> (Child, String) {
    let mut child = command.stderr(Stdio::piped()).spawn().expect("the binary runs");
    let mut lines = BufReader::new(child.stderr.take().expect("piped")).lines();
    let address = loop {
        let line = lines.next().expect("it says where it listens").expect("text");
        if let Some(address) = line.strip_prefix("listening on http://") {
            break address.to_string();
        }
    };
    // What else it says must go somewhere.
    std::thread::spawn(move || lines.for_each(drop));
    (child, address)
}

fn ask(address: &str, method: &str, path: &str, body: &str) -> String {
    let mut stream = TcpStream::connect(address).expect("a connection");
    let request = format!(
        "{method} {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-type: application/json\r\n\
         content-length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(request.as_bytes()).expect("sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("answered");
    answer
}

#[test]
fn what_cannot_be_started_is_told_in_one_line() {
    let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = taken.local_addr().expect("an address").port().to_string();
    let folder = tempfile::tempdir().expect("a folder");
    let empty = folder.path().to_str().expect("UTF-8");
    std::fs::write(folder.path().join("keys"), "\n").expect("written");
    let keys = folder.path().join("keys");
    std::fs::create_dir(folder.path().join("m")).expect("made");
    let model = folder.path().join("m");
    std::fs::write(model.join("config.json"), "{}").expect("written");
    for (arguments, said) in [
        (&["--models-dir", empty, "--port", &port][..], "is already in use"),
        (&["--models-dir", model.to_str().expect("UTF-8")], "holds no models"),
        (&["--models-dir", empty, "--api-key-file", keys.to_str().expect("UTF-8")], "holds no API key"),
        (&["-m", "./no/such/model"], "no/such/model"),
    ] {
        let done = run(&[&["serve"], arguments].concat());
        assert_eq!(done.code, Some(1), "{arguments:?}: {}", done.stderr);
        let last = done.stderr.lines().last().unwrap_or_default();
        assert!(last.starts_with("error: ") && last.contains(said), "{arguments:?}: {}", done.stderr);
    }
}

#[cfg(unix)]
#[test]
fn smollm2_answers_over_http_and_the_process_ends_when_it_is_asked_to() {
    let Some(model) = model("MLXCEL_TEST_SMOLLM2") else { return };
    let (mut child, address) =
        start(&["-m", &model, "--temp", "0", "--ctx-size", "1024", "--alias", "small"]);
    let body =
        r#"{"messages": [{"role": "user", "content": "What is the capital of France?"}], "max_tokens": 20}"#;
    let answer = ask(&address, "POST", "/v1/chat/completions", body);
    assert!(answer.contains("Paris") && answer.contains("\"model\":\"small\""), "{answer}");
    assert!(ask(&address, "GET", "/ready", "").starts_with("HTTP/1.1 200"));
    let pid = child.id().to_string();
    let killed = Command::new("kill").args(["-TERM", &pid]).status().expect("kill runs");
    assert!(killed.success());
    assert_eq!(child.wait().expect("it ends").code(), Some(0));
}

/// The log goes to a disk that is full, and whoever read the output is gone.
#[cfg(target_os = "linux")]
#[test]
fn a_log_that_cannot_be_written_stops_nothing() {
    let model = ModelCopy::with_chat();
    let free = TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("an address");
    let port = free.port().to_string();
    let full = || std::fs::File::options().write(true).open("/dev/full").expect("Linux has it");
    let (reader, writer) = std::io::pipe().expect("a pipe");
    drop(reader);
    for (stdout, stderr) in [(Stdio::from(full()), Stdio::from(full())), (Stdio::null(), Stdio::from(writer))]
    {
        let mut command = mlxcel(&["serve", "--port", &port, "-m", model.argument(), "--log-level", "debug"]);
        let mut child = command.stdout(stdout).stderr(stderr).spawn().expect("the binary runs");
        let begun = std::time::Instant::now();
        while TcpStream::connect(free).is_err() {
            assert!(child.try_wait().expect("a state").is_none(), "it goes on");
            assert!(begun.elapsed() < std::time::Duration::from_secs(60), "it listens");
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        let body = r#"{"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 3}"#;
        for _ in 0..3 {
            let answer = ask(&free.to_string(), "POST", "/v1/chat/completions", body);
            assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        }
        let pid = child.id().to_string();
        Command::new("kill").args(["-TERM", &pid]).status().expect("kill runs");
        assert_eq!(child.wait().expect("it ends").code(), Some(0));
    }
}

/// As in a container: the first process of a namespace gets only the signals that it handles.
#[cfg(target_os = "linux")]
#[test]
fn the_first_process_of_a_container_ends_when_it_is_asked_to() {
    let alone = ["--user", "--map-root-user", "--pid", "--fork", "--kill-child"];
    if !Command::new("unshare").args(alone).arg("true").status().is_ok_and(|status| status.success()) {
        eprintln!("not run: this system lets no process have a namespace of its own");
        return;
    }
    let model = ModelCopy::with_chat();
    let server = mlxcel(&["serve", "--port", "0", "-m", model.argument()]);
    let mut command = Command::new("unshare");
    command.args(alone).arg(server.get_program()).args(server.get_args());
    for (name, value) in server.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    let (mut child, address) = listening(&mut command);
    assert!(ask(&address, "GET", "/health", "").starts_with("HTTP/1.1 200"));
    let children = format!("/proc/{0}/task/{0}/children", child.id());
    let first = std::fs::read_to_string(children).expect("it has a child").trim().to_string();
    assert!(Command::new("kill").args(["-TERM", &first]).status().expect("kill runs").success());
    assert_eq!(child.wait().expect("it ends").code(), Some(0));
}

/// Three gigabytes of cache do not fit into nine tenths of one.
#[cfg(target_os = "linux")]
#[test]
fn memory_that_the_process_may_not_have_is_told_in_one_line() {
    let Some(model) = model("MLXCEL_TEST_SMOLLM2") else { return };
    let server = mlxcel(&["serve", "--port", "0", "-m", &model, "--ctx-size", "8192", "--parallel", "16"]);
    let mut command = Command::new("sh");
    command.args(["-c", "ulimit -v 900000; exec \"$0\" \"$@\""]);
    command.arg(server.get_program()).args(server.get_args());
    let output = command.output().expect("a shell runs");
    let said = String::from_utf8_lossy(&output.stderr);
    let last = said.lines().last().unwrap_or_default();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(last.starts_with("error: ") && last.contains("could not be allocated"), "{said}");
    assert!(last.contains("--ctx-size"), "it says what may help: {last}");
}
