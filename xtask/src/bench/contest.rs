//! Who runs when: each round goes through the rows, and in each column of a row first ours, then llama.cpp with as many
//! threads, so that whatever else the machine does meets both.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use crate::shell;

use super::Cpu;
use super::models::{Files, Row};

/// Runs of a test in one turn.
const REPETITIONS: usize = 2;

/// The columns of the table.
pub(crate) const COLUMNS: [&str; 4] = ["prefill 512", "decode, depth 0", "decode, depth 4k", "16 sequences"];

/// One column as both sides are asked for it.
#[derive(Clone, Copy, Debug)]
struct Test {
    kind: &'static str,
    tokens: usize,
    depth: usize,
    sequences: usize,
}

pub(crate) struct Contest<'a> {
    pub(crate) ours: PathBuf,
    pub(crate) python: PathBuf,
    pub(crate) script: PathBuf,
    pub(crate) options: &'a Cpu,
}

/// All that came of it.
#[derive(Debug, Default)]
pub(crate) struct Results {
    pub(crate) device: String,
    pub(crate) rounds: usize,
    pub(crate) rows: Vec<Compared>,
}

/// One row: the speeds of every run, in tokens for each second, column by column.
#[derive(Debug, Default)]
pub(crate) struct Compared {
    pub(crate) name: &'static str,
    pub(crate) ours: [Vec<f64>; COLUMNS.len()],
    pub(crate) theirs: [Vec<f64>; COLUMNS.len()],
    /// What ours read in a second when decoding at depth 0, in GB.
    pub(crate) gigabytes_per_s: Vec<f64>,
    /// What ours computed in a second of the prompt.
    pub(crate) gflop_per_s: Vec<f64>,
    /// What part of the machine's reading and arithmetic that was, as measured just before and just after.
    pub(crate) read_share: Vec<f64>,
    pub(crate) peak_share: Vec<f64>,
    /// And what part of arithmetic whose operands are loaded from a cache.
    pub(crate) loaded_share: Vec<f64>,
}

/// Columns of which shares of what the machine can do are told: the prompt's of arithmetic, and decoding's of reading.
const SHARED: usize = 2;

impl Contest<'_> {
    pub(crate) fn hold(&self, rows: &[&Row], files: &Files) -> Result<Results> {
        let rounds = if self.options.quick { 1 } else { usize::from(self.options.rounds) };
        let compared = rows.iter().map(|row| Compared { name: row.name, ..Compared::default() });
        let mut results = Results { device: String::new(), rounds, rows: compared.collect() };
        for round in 0..rounds {
            for (index, row) in rows.iter().enumerate() {
                eprintln!("xtask: round {} of {rounds}: {}", round + 1, row.name);
                for (column, test) in self.tests().into_iter().enumerate() {
                    let threads = self.run_ours(files.path(row.ours), (index, column, test), &mut results)?;
                    let theirs = self.run_theirs(files.path(row.theirs), test, threads)?;
                    results.rows[index].theirs[column].extend(theirs);
                    if let Some((ours, theirs)) = results.rows[index].speeds(column) {
                        eprintln!("xtask: {}: {ours:.1} and {theirs:.1} tokens a second", COLUMNS[column]);
                    }
                }
            }
        }
        Ok(results)
    }

    fn tests(&self) -> [Test; COLUMNS.len()] {
        let made = if self.options.quick { 8 } else { 32 };
        let test = |kind, tokens, depth, sequences| Test { kind, tokens, depth, sequences };
        [test("pp", 512, 0, 1), test("tg", made, 0, 1), test("tg", made, 4096, 1), test("tg", made, 0, 16)]
    }

    /// Measures what the machine can do in this minute.
    fn calibrate(&self) -> Result<Machine> {
        let mut command = Command::new(&self.ours);
        command.args(["devices", "--calibrate", "--engine", "cpu", "--json"]);
        if let Some(threads) = self.options.threads {
            command.arg("--threads").arg(threads.to_string());
        }
        Machine::of(&output_of(command)?["devices"][0]["calibration"])
    }

    /// Runs ours for one cell and returns how many threads it had.
    fn run_ours(
        &self,
        model: &Path,
        (row, column, test): (usize, usize, Test),
        results: &mut Results,
    ) -> Result<usize> {
        let before = if column < SHARED { Some(self.calibrate()?) } else { None };
        let report = output_of(self.command_of_ours(model, test))?;
        results.device = report["device"].as_str().unwrap_or_default().to_owned();
        let measured = &report["tests"][0];
        let compared = &mut results.rows[row];
        compared.ours[column].extend(numbers(&measured["tok_per_s_samples"])?);
        if let Some(before) = before {
            let machine = before.mean(self.calibrate()?);
            let rate = |name: &str| measured[name].as_f64().with_context(|| format!("no {name}"));
            if column == 0 {
                compared.add_prompt(rate("gflop_per_s")?, machine);
            } else {
                compared.add_decoding(rate("gigabytes_per_s")?, machine);
            }
        }
        Ok(report["threads"].as_u64().context("mlxcel bench reports threads")? as usize)
    }

    fn command_of_ours(&self, model: &Path, test: Test) -> Command {
        let Test { kind, tokens, depth, sequences } = test;
        let (prompt, made) = if kind == "pp" { (tokens, 0) } else { (0, tokens) };
        let numbers = [("-p", prompt), ("-n", made), ("-d", depth), ("-b", sequences), ("-r", REPETITIONS)];
        let mut command = Command::new(&self.ours);
        // What is kept changes no speed, and the user's cache has other things to keep.
        command.args(["bench", "-o", "json", "--packed-cache", "off", "-m"]).arg(model);
        for (flag, number) in numbers {
            command.arg(flag).arg(number.to_string());
        }
        if let Some(threads) = self.options.threads {
            command.arg("--threads").arg(threads.to_string());
        }
        command
    }

    fn run_theirs(&self, model: &Path, test: Test, threads: usize) -> Result<Vec<f64>> {
        let named = format!("{}:{}:{}:{}", test.kind, test.tokens, test.depth, test.sequences);
        let mut command = Command::new(&self.python);
        command.arg(&self.script).arg(model).arg("--threads").arg(threads.to_string());
        command.arg("--repetitions").arg(REPETITIONS.to_string()).arg(&named);
        numbers(&output_of(command)?[&named])
    }
}

/// What the machine can do, in billions a second: bytes that it reads, operations in tiles or, without them, in vectors,
/// and in tiles that are loaded from a cache.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Machine {
    read: f64,
    bare: f64,
    loaded: Option<f64>,
}

impl Machine {
    fn of(calibration: &Value) -> Result<Self> {
        let number = |name: &str| calibration[name].as_f64();
        let bare = number("bf16_gflop_per_s").or(number("f32_gflop_per_s"));
        Ok(Machine {
            read: number("read_gigabytes_per_s").context("a calibration reads memory")?,
            bare: bare.context("a calibration computes")?,
            loaded: number("loaded_bf16_gflop_per_s"),
        })
    }

    fn mean(self, other: Self) -> Self {
        let mean = |a: f64, b: f64| (a + b) / 2.0;
        let loaded = self.loaded.zip(other.loaded).map(|(a, b)| mean(a, b));
        Machine { read: mean(self.read, other.read), bare: mean(self.bare, other.bare), loaded }
    }
}

/// The JSON object that a command prints.
fn output_of(mut command: Command) -> Result<Value> {
    let line = shell::words(&command);
    let output = command.stderr(Stdio::inherit()).output().with_context(|| format!("cannot run `{line}`"))?;
    ensure!(output.status.success(), "`{line}` failed ({})", output.status);
    serde_json::from_slice(&output.stdout).with_context(|| format!("`{line}` printed no JSON"))
}

fn numbers(value: &Value) -> Result<Vec<f64>> {
    let list = value.as_array().context("a list of speeds is missing")?;
    list.iter().map(|n| n.as_f64().context("a speed is no number")).collect()
}

/// The middle of the numbers, or the mean of the two in the middle; `None` of none.
pub(crate) fn median(numbers: &[f64]) -> Option<f64> {
    let mut sorted = numbers.to_vec();
    sorted.sort_by(f64::total_cmp);
    let upper = *sorted.get(sorted.len() / 2)?;
    let lower = sorted[(sorted.len() - 1) / 2];
    Some((lower + upper) / 2.0)
}

impl Compared {
    fn add_prompt(&mut self, gflop_per_s: f64, machine: Machine) {
        self.gflop_per_s.push(gflop_per_s);
        self.peak_share.push(gflop_per_s / machine.bare);
        self.loaded_share.extend(machine.loaded.map(|loaded| gflop_per_s / loaded));
    }

    fn add_decoding(&mut self, gigabytes_per_s: f64, machine: Machine) {
        self.gigabytes_per_s.push(gigabytes_per_s);
        self.read_share.push(gigabytes_per_s / machine.read);
    }

    /// Medians of a column: ours, and llama.cpp's.
    pub(crate) fn speeds(&self, column: usize) -> Option<(f64, f64)> {
        median(&self.ours[column]).zip(median(&self.theirs[column]))
    }

    /// How many times as fast ours is.
    pub(crate) fn ratio(&self, column: usize) -> Option<f64> {
        self.speeds(column).map(|(ours, theirs)| ours / theirs)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_median_is_in_the_middle() {
        assert_eq!(median(&[]), None);
        assert_eq!(median(&[3.0]), Some(3.0));
        assert_eq!(median(&[9.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[4.0, 1.0, 100.0, 2.0]), Some(3.0));
    }

    #[test]
    fn shares_are_of_what_the_machine_gave_on_average() {
        let calibration = |read: f64, tiles: Value, loaded: Value| {
            Machine::of(&json!({
                "read_gigabytes_per_s": read,
                "f32_gflop_per_s": 300.0,
                "bf16_gflop_per_s": tiles,
                "loaded_bf16_gflop_per_s": loaded,
            }))
        };
        let before = calibration(30.0, json!(2000.0), json!(1000.0)).unwrap();
        let machine = before.mean(calibration(20.0, json!(4000.0), json!(3000.0)).unwrap());
        assert_eq!(machine, Machine { read: 25.0, bare: 3000.0, loaded: Some(2000.0) });
        let mut compared = Compared::default();
        compared.add_prompt(1500.0, machine);
        compared.add_decoding(20.0, machine);
        assert_eq!((&*compared.peak_share, &*compared.loaded_share), ([0.5].as_slice(), [0.75].as_slice()));
        assert_eq!((&*compared.gflop_per_s, &*compared.read_share), ([1500.0].as_slice(), [0.8].as_slice()));
        // Without tiles.
        let plain = calibration(30.0, Value::Null, Value::Null).unwrap();
        assert_eq!(plain, Machine { read: 30.0, bare: 300.0, loaded: None });
        assert!(Machine::of(&json!({})).is_err());
    }
}
