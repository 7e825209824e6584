//! Output: the summary line, closed pipes, and Ctrl-C.

use std::io::{PipeReader, PipeWriter, Read as _, Write as _};
use std::process::{Child, Command, Stdio};

use crate::support::{Finished, ModelCopy, finished, fixture_argument, mlxcel, run};

/// Checks the line that follows every answer, and returns the numbers of tokens it tells.
fn read_summary(line: &str) -> (usize, usize) {
    let parts: Vec<&str> = line.split(" | ").collect();
    let [prompt, answer, memory, engine] = parts[..] else { panic!("not four parts: {line}") };
    let tokens = |part: &str, what: &str| -> usize {
        let rest = part.strip_prefix(what).and_then(|rest| rest.strip_prefix(' ')).expect(line);
        let (count, speed) = rest.split_once(" tokens, ").expect(line);
        let speed = speed.strip_suffix(" tok/s").expect(line);
        assert!(speed == "-" || speed.parse::<f64>().is_ok_and(|s| s > 0.0), "{line}");
        count.parse().expect(line)
    };
    let memory = memory.strip_prefix("peak memory ").expect(line);
    assert!(memory == "unknown" || memory.ends_with("MB") || memory.ends_with("GB"), "{line}");
    assert!(engine.starts_with("cpu engine on ") && engine.contains("thread"), "{line}");
    (tokens(prompt, "prompt"), tokens(answer, "answer"))
}

#[test]
fn one_line_on_stderr_tells_how_it_went() {
    let llama = fixture_argument("golden/llama/f32");
    for json in [&[][..], &["--json"]] {
        let flags = ["generate", "-m", &llama, "--prompt-tokens", "1,2,3", "-n", "5", "--ignore-eos"];
        let done = run(&[&flags, json].concat());
        assert_eq!(done.code, Some(0), "{}", done.stderr);
        assert_eq!(done.stderr.lines().count(), 1, "{}", done.stderr);
        assert_eq!(read_summary(done.stderr.trim_end()), (3, 5));
        assert!(done.stdout.ends_with('\n'));
    }
}

#[test]
fn threads_are_as_many_as_asked_for() {
    let llama = fixture_argument("golden/llama/f32");
    for threads in ["1", "3"] {
        let flags = ["generate", "-m", &llama, "--prompt-tokens", "1", "-n", "1", "--threads", threads];
        let device = crate::support::run_json(&flags)["device"].to_string();
        assert!(device.contains(&format!("{threads} thread")), "{device}");
    }
}

#[test]
fn no_new_tokens_print_nothing() {
    let model = ModelCopy::with_chat();
    let done = run(&["generate", "-m", model.argument(), "-p", "Hi", "-n", "0"]);
    assert_eq!((done.code, done.stdout.as_str()), (Some(0), ""));
    let (_, answer) = read_summary(done.stderr.trim_end());
    assert_eq!(answer, 0);
    let got = crate::support::run_json(&["generate", "-m", model.argument(), "-p", "Hi", "-n", "0"]);
    assert_eq!(got["tokens"], serde_json::json!([]));
    assert_eq!(got["text"], "");
    assert_eq!(got["finish_reason"], "length");
    assert_eq!(got["timings"]["first_token_s"], serde_json::Value::Null);
}

#[test]
fn timings_are_numbers_in_the_order_of_events() {
    let llama = fixture_argument("golden/llama/f32");
    let got = crate::support::run_json(&[
        "generate",
        "-m",
        &llama,
        "--prompt-tokens",
        "1",
        "-n",
        "5",
        "--ignore-eos",
    ]);
    let seconds = |name: &str| got["timings"][name].as_f64().expect(name);
    assert!(seconds("load_s") + seconds("prompt_s") <= seconds("first_token_s"));
    for name in ["prompt_tok_per_s", "decode_s", "decode_tok_per_s", "peak_memory_bytes"] {
        assert!(seconds(name) > 0.0, "{name}");
    }
}

/// A pipe that nobody reads any more.
pub fn closed_pipe() -> PipeWriter {
    let (reader, writer): (PipeReader, PipeWriter) = std::io::pipe().expect("a pipe");
    drop(reader);
    writer
}

#[test]
fn a_closed_pipe_ends_every_command_quietly() {
    let llama = fixture_argument("golden/llama/f32");
    let generate = ["generate", "-m", &llama, "--prompt-tokens", "1", "-n", "-1", "--ignore-eos"];
    let json = [&generate[..], &["--json"]].concat();
    for arguments in
        [&generate[..], &json, &["inspect", &llama], &["inspect", &llama, "--graph"], &["devices"]]
    {
        let output = mlxcel(arguments).stdout(closed_pipe()).stderr(Stdio::piped()).spawn();
        let done = finished(output.expect("runs").wait_with_output().expect("ends"));
        assert_eq!((done.code, done.stderr.as_str()), (Some(0), ""), "{arguments:?}");
    }
}

#[test]
fn a_closed_stderr_is_no_reason_to_fail() {
    let llama = fixture_argument("golden/llama/f32");
    let flags = ["generate", "-m", &llama, "--prompt-tokens", "1", "-n", "2", "--ignore-eos"];
    let child = mlxcel(&flags).stdout(Stdio::piped()).stderr(closed_pipe()).spawn().expect("runs");
    let done = finished(child.wait_with_output().expect("ends"));
    assert_eq!(done.code, Some(0));
    assert_eq!(done.stdout.split_whitespace().count(), 2);
}

/// A generation that goes on for ever, as far as a test is concerned.
fn endless() -> Command {
    let mamba = fixture_argument("golden/mamba/f32");
    let mut command = mlxcel(&["generate", "-m", &mamba, "--prompt-tokens", "1", "-n", "-1", "--ignore-eos"]);
    command.stderr(Stdio::piped());
    command
}

#[cfg(unix)]
pub fn interrupt(child: &Child) {
    let status = Command::new("sh").args(["-c", &format!("kill -INT {}", child.id())]).status();
    assert!(status.expect("sh is there").success());
}

#[cfg(unix)]
#[test]
fn an_interrupt_ends_the_answer_after_a_token_and_sums_up() {
    let mut child = endless().stdout(Stdio::piped()).spawn().expect("runs");
    let mut stdout = child.stdout.take().expect("piped");
    let mut first = [0; 16];
    stdout.read_exact(&mut first).expect("tokens come");
    interrupt(&child);
    let mut rest = String::new();
    stdout.read_to_string(&mut rest).expect("ids are ASCII");
    let Finished { code, stderr, .. } = finished(child.wait_with_output().expect("ends"));
    assert_eq!(code, Some(130), "{stderr}");
    let shown = String::from_utf8_lossy(&first) + rest.as_str();
    assert!(shown.ends_with('\n'));
    assert_eq!(stderr.lines().count(), 1, "{stderr}");
    assert_eq!(read_summary(stderr.trim_end()), (1, shown.split_whitespace().count()));
}

#[cfg(unix)]
#[test]
fn a_second_interrupt_ends_a_process_that_is_stuck() {
    let (mut reader, writer) = std::io::pipe().expect("a pipe");
    let mut filler = writer.try_clone().expect("a pipe can be shared");
    let mut child = endless().stdout(writer).spawn().expect("runs");
    reader.read_exact(&mut [0; 4]).expect("tokens come");
    // Fills the pipe until it blocks, so that the process cannot write either and never comes to its next token.
    std::thread::spawn(move || while filler.write_all(&[b'x'; 4096]).is_ok() {});
    std::thread::sleep(std::time::Duration::from_millis(200));
    for _ in 0..200 {
        interrupt(&child);
        std::thread::sleep(std::time::Duration::from_millis(50));
        if let Some(status) = child.try_wait().expect("the child is ours") {
            assert_eq!(status.code(), Some(130));
            return;
        }
    }
    child.kill().expect("the child is ours");
    panic!("the process did not end");
}
