//! A machine that does not play along: output that is closed or full, folders that cannot be used, settings that make
//! no sense, signals. A command ends with its message and exit code, and never with a panic.

use std::fs::File;
use std::process::Stdio;

use crate::support::{ModelCopy, finished, fixture_argument, mlxcel, run};

/// Commands of every kind that work without a network.
fn commands(model: &str) -> Vec<Vec<&str>> {
    let line = |line: &'static str| line.split(' ').collect::<Vec<&str>>();
    let mut all: Vec<Vec<&str>> = [
        "--help",
        "--version",
        "devices",
        "devices --json",
        "completions bash",
        "manual",
        "manual --format markdown",
    ]
    .map(line)
    .into();
    all.push(vec!["inspect", model]);
    all.push(vec!["inspect", model, "--graph"]);
    all.push(vec!["inspect", model, "--plan"]);
    all.push(vec!["inspect", model, "--json"]);
    all.push(vec!["embed", "-m", model, "--pooling", "mean", "Hi"]);
    all.push(vec!["embed", "-m", model, "--pooling", "mean", "Hi", "--json"]);
    all.push(vec!["embed", "-m", model, "--pooling", "mean", "Hi", "--jsonl"]);
    all.push(vec!["generate", "-m", model, "-p", "Hi", "-n", "3", "--ignore-eos"]);
    all.push(vec!["generate", "-m", model, "-p", "Hi", "-n", "3", "--ignore-eos", "--json"]);
    all
}

#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_is_an_error_and_not_a_panic() {
    let model = ModelCopy::with_tokenizer();
    for arguments in commands(model.argument()) {
        let full = File::options().write(true).open("/dev/full").expect("Linux has it");
        let child = mlxcel(&arguments).stdout(full).stderr(Stdio::piped()).spawn().expect("runs");
        let done = finished(child.wait_with_output().expect("ends"));
        assert!(!done.stderr.contains("panicked"), "{arguments:?}: {}", done.stderr);
        // What the parser prints by itself, it prints if it can.
        if !arguments[0].starts_with("--") {
            assert_eq!(done.code, Some(1), "{arguments:?}: {}", done.stderr);
            assert!(done.stderr.contains("error: cannot write the output"), "{arguments:?}: {}", done.stderr);
        }
    }
}

#[cfg(unix)]
#[test]
fn closed_output_ends_every_command_quietly() {
    let model = ModelCopy::with_tokenizer();
    for arguments in commands(model.argument()) {
        let (reader, writer) = std::io::pipe().expect("a pipe");
        drop(reader);
        let child = mlxcel(&arguments).stdout(writer).stderr(Stdio::piped()).spawn().expect("runs");
        let done = finished(child.wait_with_output().expect("ends"));
        assert_eq!(done.code, Some(0), "{arguments:?}: {}", done.stderr);
        assert!(
            !done.stderr.contains("error") && !done.stderr.contains("panicked"),
            "{arguments:?}: {}",
            done.stderr
        );
    }
}

/// As `mlxcel … >&- 2>&-` does it: there is no file behind the numbers at all.
#[cfg(unix)]
#[test]
fn streams_that_were_never_opened_are_no_reason_to_panic() {
    let model = ModelCopy::with_tokenizer();
    for arguments in commands(model.argument()) {
        let mut shell = std::process::Command::new("sh");
        let script = "\"$@\" <&- >&- 2>&-; echo $? >&3";
        shell
            .args(["-c", &format!("exec 3>&1; {script}"), "sh", env!("CARGO_BIN_EXE_mlxcel")])
            .args(&arguments);
        let done = finished(shell.output().expect("sh is there"));
        let code: i32 = done.stdout.trim().parse().expect("an exit code");
        assert!([0, 1].contains(&code), "{arguments:?} ended with {code}");
    }
}

#[cfg(unix)]
#[test]
fn a_cache_that_cannot_be_used_is_named_with_the_variable_to_set() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("file");
    std::fs::write(&file, "").expect("written");
    for cache in [file.join("below"), file, "/proc/no/such/place".into()] {
        let done = finished(
            mlxcel(&["inspect", "smollm2"])
                .env("MLXCEL_CACHE", &cache)
                .env("MLXCEL_INDEX_URL", "http://127.0.0.1:9/simple")
                .env("PATH", "")
                .output()
                .expect("runs"),
        );
        assert_eq!((done.code, done.stdout.as_str()), (Some(1), ""), "{cache:?}");
        assert!(done.stderr.contains(cache.to_str().expect("UTF-8")), "{cache:?}: {}", done.stderr);
        assert!(!done.stderr.contains("panicked"), "{}", done.stderr);
    }
}

#[test]
fn settings_that_make_no_sense_are_refused_with_their_name_or_ignored() {
    let no_home = ["MLXCEL_CACHE", "XDG_CACHE_HOME", "HOME", "LOCALAPPDATA"];
    let mut command = mlxcel(&["inspect", "smollm2"]);
    for name in no_home {
        command.env_remove(name);
    }
    let done = finished(command.output().expect("runs"));
    assert_eq!(done.code, Some(1));
    assert!(done.stderr.contains("MLXCEL_CACHE"), "{}", done.stderr);

    let folder = tempfile::tempdir().expect("a temporary folder");
    for index in ["not an address", "http://127.0.0.1:9/simple", "ftp://x", "http://"] {
        let mut command = mlxcel(&["inspect", "smollm2"]);
        command.env("MLXCEL_CACHE", folder.path()).env("MLXCEL_INDEX_URL", index).env("PATH", "");
        let done = finished(command.output().expect("runs"));
        assert_eq!((done.code, done.stdout.as_str()), (Some(1), ""), "{index}: {}", done.stderr);
        assert!(
            done.stderr.contains("error: ") && !done.stderr.contains("panicked"),
            "{index}: {}",
            done.stderr
        );
    }
    for (name, value) in
        [("COLUMNS", "-1"), ("COLUMNS", "x"), ("TERM", ""), ("CLICOLOR", "?"), ("NO_COLOR", "")]
    {
        let done = finished(mlxcel(&["--help"]).env(name, value).output().expect("runs"));
        assert_eq!((done.code, done.stderr.as_str()), (Some(0), ""), "{name}={value}");
    }
}

#[cfg(unix)]
#[test]
fn being_told_to_end_has_the_exit_code_that_is_documented() {
    use std::io::Read as _;
    use std::os::unix::process::ExitStatusExt as _;
    let mamba = fixture_argument("golden/mamba/f32");
    let mut command = mlxcel(&["generate", "-m", &mamba, "--prompt-tokens", "1", "-n", "-1", "--ignore-eos"]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("runs");
    child.stdout.as_mut().expect("piped").read_exact(&mut [0; 4]).expect("tokens come");
    let killed =
        std::process::Command::new("sh").args(["-c", &format!("kill -TERM {}", child.id())]).status();
    assert!(killed.expect("sh is there").success());
    let mut rest = Vec::new();
    child.stdout.take().expect("piped").read_to_end(&mut rest).expect("it ends");
    let status = child.wait().expect("ends");
    // A shell reports a signal as 128 and its number.
    assert_eq!(status.code().or(status.signal().map(|signal| 128 + signal)), Some(143));
    assert_eq!(run(&["inspect", "no/such/model"]).code, Some(1));
}
