//! `mlxcel serve` as a process: what it says, what it answers, how it ends.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::ops::{Deref, DerefMut};
use std::process::{Child, Command, Stdio};

use crate::real_models::model;
use crate::support::{ModelCopy, mlxcel, run};

/// A server that ends with its test: one that outlives a test that failed keeps whoever reads its output waiting.
struct Running(Child);

impl Deref for Running {
    type Target = Child;

    fn deref(&self) -> &Child {
        &self.0
    }
}

impl DerefMut for Running {
    fn deref_mut(&mut self) -> &mut Child {
        &mut self.0
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Most have ended by now.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A server on a free port, and its address.
fn start(arguments: &[&str]) -> (Running, String) {
    listening(&mut mlxcel(&[&["serve", "--port", "0"], arguments].concat()))
}

/// What a command starts, once it listens.
fn listening(command: &mut Command) -> (Running, String) {
    let mut child = Running(command.stderr(Stdio::piped()).spawn().expect("the binary runs"));
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

#[test]
fn a_server_of_embeddings_keeps_to_its_context_and_its_steps() {
    let model = ModelCopy::with_tokenizer();
    let flags = ["-m", model.argument(), "--embeddings", "--pooling", "last"];
    let refused = run(&[&["serve"], &flags[..], &["--ctx-size", "100000000"]].concat());
    assert!(refused.stderr.contains("--ctx-size 100000000 is more than"), "{}", refused.stderr);
    let steps = ["--ctx-size", "2", "--batch-size", "1", "--parallel", "1"];
    let (mut child, address) = start(&[&flags[..], &steps].concat());
    let embed = |input: &str| ask(&address, "POST", "/v1/embeddings", &format!(r#"{{"input": {input}}}"#));
    let (answer, refused) = (embed("[[1], [2, 3], [1]]"), embed("[[1, 2, 3]]"));
    child.kill().expect("it ends");
    child.wait().expect("it ended");
    assert!(answer.starts_with("HTTP/1.1 200") && answer.contains("\"index\":2"), "{answer}");
    assert!(refused.contains("has 3 tokens, but the context has 2"), "{refused}");
}

#[cfg(unix)]
#[test]
fn smollm2_answers_over_http_and_the_process_ends_when_it_is_asked_to() {
    let Some(model) = model("MLXCEL_TEST_SMOLLM2") else { return };
    // The two likeliest first words are so near to each other that rounding to 8 bits exchanges them.
    let exact = ["--products", "exact", "--temp", "0", "--ctx-size", "1024"];
    let (mut child, address) = start(&[&["-m", &model, "--alias", "small"], &exact[..]].concat());
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

/// Sends a signal to a process.
#[cfg(unix)]
fn kill(signal: &str, child: &Child) {
    let sent = Command::new("kill").args([signal, &child.id().to_string()]).status();
    assert!(sent.expect("kill runs").success());
}

/// The exit code, within a minute.
fn ended(child: &mut Child) -> Option<i32> {
    let begun = std::time::Instant::now();
    loop {
        if let Some(status) = child.try_wait().expect("a state") {
            return status.code();
        }
        if begun.elapsed() > std::time::Duration::from_secs(60) {
            child.kill().expect("it can be killed");
            panic!("it does not end");
        }
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
}

#[cfg(unix)]
#[test]
fn a_second_signal_ends_the_process_whatever_is_in_progress() {
    let model = ModelCopy::with_chat();
    let (mut child, address) = start(&["-m", model.argument(), "--drain-seconds", "3600"]);
    let mut stalled = TcpStream::connect(&address).expect("a connection");
    let head = "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
                content-length: 100\r\n\r\n{";
    stalled.write_all(head.as_bytes()).expect("sent");
    // The request is seen by the time that another one is answered.
    assert!(ask(&address, "GET", "/metrics", "").contains("mlxcel_http_connections 2"));
    kill("-TERM", &child);
    let begun = std::time::Instant::now();
    while TcpStream::connect(&address).is_ok() {
        assert!(begun.elapsed() < std::time::Duration::from_secs(60), "it takes connections still");
    }
    assert!(child.try_wait().expect("a state").is_none(), "it lets the request in progress end");
    kill("-TERM", &child);
    assert!(ended(&mut child).is_some(), "it ends by itself and by no signal");
}

/// A load that never ends, since nobody writes to what it reads.
#[cfg(unix)]
#[test]
fn a_load_in_progress_does_not_keep_the_process() {
    let model = ModelCopy::with_chat();
    model.remove("tokenizer.json");
    let pipe = model.path().join("tokenizer.json");
    assert!(Command::new("mkfifo").arg(&pipe).status().expect("mkfifo runs").success());
    let (mut child, address) = start(&["-m", model.argument()]);
    assert!(ask(&address, "GET", "/health", "").starts_with("HTTP/1.1 200"), "it answers meanwhile");
    assert!(ask(&address, "GET", "/ready", "").starts_with("HTTP/1.1 503"), "and says that it is not ready");
    kill("-TERM", &child);
    assert_eq!(ended(&mut child), Some(0));
}

/// Fewer descriptors than connections: those that are open are answered, and the others when some are free again.
#[cfg(target_os = "linux")]
#[test]
fn a_server_without_descriptors_left_goes_on_when_there_are_some() {
    let model = ModelCopy::with_chat();
    let server = mlxcel(&["serve", "--port", "0", "-m", model.argument()]);
    let mut command = Command::new("sh");
    command.args(["-c", "ulimit -n 48; exec \"$0\" \"$@\""]);
    command.arg(server.get_program()).args(server.get_args());
    let (mut child, address) = listening(&mut command);
    let body = r#"{"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 3}"#;
    assert!(ask(&address, "POST", "/v1/chat/completions", body).starts_with("HTTP/1.1 200"));
    let descriptors =
        || std::fs::read_dir(format!("/proc/{}/fd", child.id())).expect("its descriptors").count();
    let before = descriptors();
    let idle: Vec<TcpStream> =
        (0..100).map(|_| TcpStream::connect(&address).expect("a connection")).collect();
    let begun = std::time::Instant::now();
    while descriptors() < 48 {
        assert!(begun.elapsed() < std::time::Duration::from_secs(60), "{} of 48 are taken", descriptors());
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    drop(idle);
    let answer = ask(&address, "POST", "/v1/chat/completions", body);
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    let begun = std::time::Instant::now();
    while descriptors() > before {
        assert!(begun.elapsed() < std::time::Duration::from_secs(60), "{before} became {}", descriptors());
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    kill("-TERM", &child);
    assert_eq!(ended(&mut child), Some(0));
}

/// A number of a series of `/metrics`, summed over its labels.
fn metric(address: &str, series: &str) -> f64 {
    let page = ask(address, "GET", "/metrics", "");
    let lines: Vec<&str> = page.lines().filter(|line| line.starts_with(series)).collect();
    assert!(!lines.is_empty(), "{series} in {page}");
    lines
        .iter()
        .map(|line| line.rsplit(' ').next().and_then(|n| n.parse::<f64>().ok()).expect("a number"))
        .sum()
}

/// The clock on the wall is set forwards and back by years, and before 1970, while the server works: nothing that is
/// waited for or measured goes by it.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
#[test]
fn a_clock_that_jumps_changes_no_answer_and_no_measurement() {
    let model = ModelCopy::with_chat();
    let (source, library) = (model.path().join("clock.c"), model.path().join("clock.so"));
    std::fs::write(&source, include_str!("clock.c")).expect("written");
    let made = Command::new("cc").args(["-shared", "-fPIC", "-o"]).args([&library, &source]).status();
    assert!(made.expect("a linker is there").success());
    let offset = model.path().join("offset");
    let jump = |seconds: i64| std::fs::write(&offset, seconds.to_string()).expect("written");
    jump(0);
    let bounds = ["--timeout", "600", "--sleep-idle-seconds", "600", "--log-level", "debug"];
    let mut command = mlxcel(&[&["serve", "--port", "0", "-m", model.argument()][..], &bounds].concat());
    let (mut child, address) =
        listening(command.env("LD_PRELOAD", &library).env("MLXCEL_TEST_CLOCK", &offset));
    let decade = 10 * 365 * 86_400;
    let mut expected = None;
    for (n, seconds) in [0, decade, -decade, -1_000 * decade, 0, 3_600].into_iter().enumerate() {
        let body = r#"{"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 200, "temperature": 0,
                       "stream": true, "ignore_eos": true, "stream_options": {"include_usage": true}}"#;
        let (asked, address_of) = (body.to_string(), address.clone());
        let stream = std::thread::spawn(move || ask(&address_of, "POST", "/v1/chat/completions", &asked));
        // Some time in the middle of the answer, or before or after it.
        std::thread::sleep(std::time::Duration::from_millis(3 * n as u64));
        jump(seconds);
        let answer = stream.join().expect("an answer");
        assert!(answer.starts_with("HTTP/1.1 200") && answer.contains("[DONE]"), "{answer}");
        let text: Vec<String> = answer.split("\"content\":\"").skip(1).map(|rest| rest.to_string()).collect();
        let text: String = text.iter().filter_map(|rest| rest.split('"').next()).collect();
        assert_eq!(expected.get_or_insert_with(|| text.clone()), &text, "after {seconds} s");
        assert!(ask(&address, "GET", "/ready", "").starts_with("HTTP/1.1 200"), "the model is not unloaded");
        let created = ask(&address, "POST", "/v1/chat/completions", &body.replace("200", "1"));
        assert_eq!(created.contains("\"created\":0,"), seconds < -decade, "{created}");
    }
    for series in ["mlxcel_time_to_first_token_seconds_sum", "mlxcel_inter_token_seconds_sum"] {
        let sum = metric(&address, series);
        assert!((0.0..60.0).contains(&sum), "{series} is {sum}");
    }
    kill("-TERM", &child);
    assert_eq!(ended(&mut child), Some(0));
}
