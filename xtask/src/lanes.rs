//! Running the programs that `cargo test` built, two at a time: one after the other, as cargo runs them, a core would be
//! idle whenever the last test of a program is a long one, or waits.

use std::{
    fs,
    io::{self, Write as _},
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
    sync::Mutex,
    thread,
    time::Instant,
};

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::Value;

use crate::shell;

const LANES: usize = 2;

/// The programs that take longest, which begin first: package and target.
const LONG: [(&str, &str); 8] = [
    ("mlxcel-mlx", "conformance"),
    ("mlxcel-xla", "conformance"),
    ("mlxcel-server", "soak"),
    ("mlxcel", "cli"),
    ("mlxcel-xla", "iree"),
    ("mlxcel-server", "serving"),
    ("mlxcel-cpu", "engine"),
    ("conformance", "models"),
];

/// The program that stays on one core: MLX hands every op from one thread to another, and tiny models have hardly more to
/// do. Half of the time on two cores is waking and waiting. Where the thread that is woken interrupts the one that has more
/// ops to hand over, the suite took 328 and 393 seconds on one core, and 225 where it does not.
const ON_ONE_CORE: (&str, &str) = LONG[0];

/// Programs that run once more with instructions that the machine lacks, and with which of their tests: package, target and parts of
/// names.
const EMULATED: [(&str, &str, &[&str]); 2] = [
    ("mlxcel-cpu", "mlxcel_cpu", &["kernels::attention", "kernels::linear", "kernels::packed"]),
    (
        "mlxcel-cpu",
        "engine",
        &[
            "prompts_in_tiles",
            "values_that_are_not_finite",
            "rotations_within",
            "gates_of_any_kind",
            "short_prompts_of_norms",
            "long_prompts_and_odd_widths",
            "every_packed_format_multiplies",
            "plain_weights_of_any_width",
        ],
    ),
];

/// A program with tests.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Program {
    package: String,
    target: String,
    path: PathBuf,
    /// Of the package: where it is run.
    folder: PathBuf,
    /// Parts of the names of the tests that run with instructions that the machine lacks; all of them without, if there are none.
    emulated: &'static [&'static str],
}

impl Program {
    fn is(&self, (package, target): (&str, &str)) -> bool {
        self.package == package && self.target == target
    }

    fn command(&self) -> Command {
        let core = if self.is(ON_ONE_CORE) { one_core() } else { None };
        let mut command = match core {
            Some(core) => {
                let mut command = without_interruption(&core);
                command.arg(&self.path);
                command
            }
            None => Command::new(&self.path),
        };
        command.current_dir(&self.folder).env("CARGO_MANIFEST_DIR", &self.folder);
        if !self.emulated.is_empty() {
            command.args(self.emulated).env("MLXCEL_TEST_EMULATE", "1");
        }
        command
    }
}

/// Builds with `build`, a `cargo test` without arguments of its own, and runs every program in the environment of that.
pub(crate) fn run(mut build: Command) -> Result<()> {
    build.args(["--no-run", "--message-format", "json-render-diagnostics"]);
    let line = shell::words(&build);
    eprintln!("xtask: {line}");
    let built = shell::without_secrets(&mut build).stdout(Stdio::piped()).stderr(Stdio::inherit()).output();
    let built = built.with_context(|| format!("cannot run `{line}`"))?;
    ensure!(built.status.success(), "`{line}` failed ({})", built.status);
    let mut waiting = programs(&String::from_utf8(built.stdout).context("cargo writes text")?)?;
    if lacks_instructions() {
        waiting.extend(emulated(&waiting));
    }
    // The last is taken first.
    waiting.sort_by_key(|program| {
        LONG.iter().rposition(|long| program.is(*long)).map_or(0, |at| LONG.len() - at)
    });
    let count = waiting.len();
    let (waiting, failed) = (Mutex::new(waiting), Mutex::new(vec![]));
    thread::scope(|scope| {
        for _ in 0..LANES {
            scope.spawn(|| {
                // Taken before the loop's body, in which others may take theirs.
                let next = || lock(&waiting).pop();
                while let Some(program) = next() {
                    let with = if program.emulated.is_empty() { "" } else { " with what the machine lacks" };
                    let name = format!("{} {}{with}", program.package, program.target);
                    let mut command = program.command();
                    command.envs(build.get_envs().filter_map(|(name, value)| Some((name, value?))));
                    if let Err(error) = report(&name, command) {
                        lock(&failed).push(format!("{name}: {error:#}"));
                    }
                }
            });
        }
    });
    let failed = failed.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    if !failed.is_empty() {
        bail!("of {count} programs with tests {} failed:\n  {}", failed.len(), failed.join("\n  "));
    }
    eprintln!("xtask: all tests of {count} programs passed");
    Ok(())
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Runs a program and writes what it wrote, in one piece.
fn report(name: &str, mut command: Command) -> Result<()> {
    eprintln!("xtask: {name} begins");
    let begun = Instant::now();
    let Output { status, stdout, stderr } =
        shell::without_secrets(&mut command).stdin(Stdio::null()).output().context("cannot be run")?;
    let mut to = io::stdout().lock();
    writeln!(to, "xtask: {name} took {:.1} s", begun.elapsed().as_secs_f64())?;
    to.write_all(&stdout)?;
    to.write_all(&stderr)?;
    ensure!(status.success(), "{status}");
    Ok(())
}

/// The programs that cargo's messages name.
fn programs(messages: &str) -> Result<Vec<Program>> {
    let mut programs = vec![];
    for line in messages.lines().filter(|line| line.starts_with('{')) {
        let message: Value = serde_json::from_str(line).context("cargo's messages are JSON")?;
        let (Some(path), true) = (message["executable"].as_str(), message["profile"]["test"] == true) else {
            continue;
        };
        let manifest = Path::new(message["manifest_path"].as_str().context("a package has a manifest")?);
        let folder = manifest.parent().context("a manifest lies in a folder")?;
        let target = message["target"]["name"].as_str().context("a target has a name")?;
        programs.push(Program {
            package: folder.file_name().unwrap_or_default().to_string_lossy().into_owned(),
            target: target.to_string(),
            path: path.into(),
            folder: folder.to_path_buf(),
            emulated: &[],
        });
    }
    ensure!(!programs.is_empty(), "cargo built no tests");
    Ok(programs)
}

/// Those that run once more with instructions that the machine lacks.
fn emulated(programs: &[Program]) -> Vec<Program> {
    let find = |&(package, target, tests): &(&str, &str, &'static [&'static str])| {
        let program = programs.iter().find(|program| program.is((package, target)))?;
        Some(Program { emulated: tests, ..program.clone() })
    };
    EMULATED.iter().filter_map(find).collect()
}

/// Whether this machine has AVX-512, without which nothing is emulated, but not all that the kernels use.
fn lacks_instructions() -> bool {
    let features = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let has = |name: &str| features.split_ascii_whitespace().any(|feature| feature == name);
    has("avx512bw") && !(has("avx512_vnni") && has("avx512_bf16") && has("avx_vnni") && has("amx_bf16"))
}

/// Runs a program, whose path is to follow, on a core where its threads do not interrupt each other.
fn without_interruption(core: &str) -> Command {
    let mut command = Command::new("chrt");
    command.args(["--batch", "0", "taskset", "--cpu-list", core]);
    command
}

/// A core that this process may use, where there is a way to keep a program on it.
fn one_core() -> Option<String> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let core = first_core(&status)?;
    let works = without_interruption(&core).arg("true").stderr(Stdio::null()).status();
    works.is_ok_and(|status| status.success()).then_some(core)
}

/// The first core that Linux says a process may use.
fn first_core(status: &str) -> Option<String> {
    let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?.trim();
    let first: String = list.chars().take_while(char::is_ascii_digit).collect();
    (!first.is_empty()).then_some(first)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_the_tests_among_what_cargo_built() {
        let messages = r#"
{"reason":"compiler-artifact","manifest_path":"/w/crates/a/Cargo.toml","target":{"name":"a"},"profile":{"test":false},"executable":null}
{"reason":"compiler-artifact","manifest_path":"/w/crates/a/Cargo.toml","target":{"name":"a"},"profile":{"test":false},"executable":"/w/target/a"}
{"reason":"compiler-artifact","manifest_path":"/w/crates/a/Cargo.toml","target":{"name":"cli"},"profile":{"test":true},"executable":"/w/target/cli-1"}
{"reason":"build-finished","success":true}"#;
        let program = |target: &str| Program {
            package: "a".to_string(),
            target: target.to_string(),
            path: "/w/target/cli-1".into(),
            folder: "/w/crates/a".into(),
            emulated: &[],
        };
        assert_eq!(programs(messages).unwrap(), [program("cli")]);
        assert!(program("cli").is(("a", "cli")) && !program("cli").is(("b", "cli")));
        assert!(programs("{\"reason\":\"build-finished\"}").is_err(), "a suite of nothing does not pass");
    }

    #[test]
    fn a_core_is_one_of_those_that_are_allowed() {
        assert_eq!(first_core("Name:\tx\nCpus_allowed_list:\t4-7,9\n").as_deref(), Some("4"));
        assert_eq!(first_core("Name:\tx\n"), None);
    }
}
