//! `mlxcel bench`: how fast a model is on this machine. Prompts and answers are random token ids from a fixed seed, so
//! that neither a tokenizer nor a text has a say. It measures through the engine seam and knows no engine. `serve`
//! measures a server instead.

mod case;
mod report;
mod runner;
mod serve;
mod speed;
mod work;

use std::io::{self, IsTerminal as _, Write as _};
use std::process::ExitCode;

use anyhow::{Result, anyhow, ensure};
use clap::{Args, Subcommand, ValueEnum};
use indicatif::{ProgressBar, ProgressStyle};
use mlxcel_engine::{Engine, EngineError};
use mlxcel_models::ModelKind;

use crate::budget::StepSize;
use crate::capacity::{self, Room};
use crate::cli::ModelArgs;
use crate::session::Loaded;
use crate::{budget, engines, loading};
use case::Case;
use report::{Measured, Report};
use runner::Runner;
use speed::Speed;
use work::Work;

const EXAMPLES: &str = "\
Examples:
  mlxcel bench
  mlxcel bench -m model.gguf -p 512 -n 128 -d 0,4096
  mlxcel bench -m ./Qwen3-0.6B -p 0 -b 1,4,16 --threads 2
  mlxcel bench -m model.gguf -o csv > speeds.csv
  mlxcel bench serve --url http://127.0.0.1:8080/v1 --clients 16";

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES, args_conflicts_with_subcommands = true, disable_help_subcommand = true)]
pub struct Bench {
    #[command(subcommand)]
    pub other: Option<Other>,
    #[command(flatten)]
    pub model: ModelArgs,
    /// Tokens of a prompt; 0 measures none.
    #[arg(short, long, value_name = "N,…", help_heading = "Measurements", default_value = "512")]
    #[arg(value_delimiter = ',', value_parser = tokens())]
    pub prompt_tokens: Vec<u32>,
    /// Tokens that are made one after the other; 0 measures none.
    #[arg(short, long, value_name = "N,…", help_heading = "Measurements", default_value = "128")]
    #[arg(value_delimiter = ',', value_parser = tokens())]
    pub new_tokens: Vec<u32>,
    /// Tokens that are already in the cache.
    #[arg(short, long, value_name = "N,…", help_heading = "Measurements", default_value = "0")]
    #[arg(value_delimiter = ',', value_parser = tokens())]
    pub depth: Vec<u32>,
    /// Sequences that get new tokens side by side, in one step.
    #[arg(short = 'b', long, value_name = "N,…", help_heading = "Measurements", default_value = "1")]
    #[arg(value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub sequences: Vec<u32>,
    /// How often each is measured, after one run that is not counted.
    #[arg(short, long, value_name = "N", help_heading = "Measurements", default_value_t = 5)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub repetitions: u32,
    /// What is printed.
    #[arg(short, long, value_enum, default_value_t, help_heading = "Output")]
    pub output: Format,
}

/// What is measured instead of a model.
#[derive(Debug, Subcommand)]
pub enum Other {
    /// Measure how a server does under load.
    ///
    /// Any server of the OpenAI interface will do. Prompts are random words. One request is sent before the clock runs.
    /// "first token" is the time from a request to the first output, "between tokens" that from one piece of an answer to
    /// the next, "per token" its mean for each answer; the times are those of requests that were answered whole. Output
    /// tokens are what the server counts, else pieces. "good" is the part of the answers, failed ones included, that kept
    /// within the --slo limits.
    Serve(Box<serve::Serve>),
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// A table in markdown.
    #[default]
    Md,
    /// One JSON object, with every repetition.
    Json,
    /// One line for each measurement.
    Csv,
}

fn tokens() -> clap::builder::RangedI64ValueParser<u32> {
    clap::value_parser!(u32).range(0..=1 << 24)
}

pub fn run(options: &Bench) -> Result<ExitCode> {
    if let Some(Other::Serve(options)) = &options.other {
        return serve::run(options);
    }
    let cases = case::list(options);
    ensure!(!cases.is_empty(), "there is nothing to measure; give -p or -n a number above 0");
    let engine = engines::open(&options.model.engine)?;
    let path = options.model.fetching.resolve(&options.model.model)?;
    let loaded = loading::load_without_text(&path, options.model.types, &engine.caps())?;
    check(&loaded, &cases, &*engine)?;
    let measured = measure(options, &loaded, &*engine, &cases)?;
    let caps = engine.caps();
    let report = Report::new(options, &loaded, &caps, measured);
    let text = match options.output {
        Format::Md => report.to_markdown(),
        Format::Json => serde_json::to_string(&report)? + "\n",
        Format::Csv => report.to_csv(),
    };
    let mut stdout = io::stdout().lock();
    stdout.write_all(text.as_bytes())?;
    stdout.flush()?;
    Ok(ExitCode::SUCCESS)
}

/// Refuses what cannot be measured before any weight is read.
fn check(loaded: &Loaded, cases: &[Case], engine: &dyn Engine) -> Result<()> {
    let block_size = engine.caps().block_size;
    let built = loaded.model.built;
    ensure!(
        built.kind == ModelKind::Generate,
        "{} models make embeddings and cannot generate; give -m a decoder",
        loaded.model.family
    );
    for case in cases {
        ensure!(
            case.end() <= built.max_context,
            "{case} needs {} tokens, but the model's context has {}; give a smaller --depth, -p or -n",
            case.end(),
            built.max_context
        );
    }
    let rooms = case::rooms(cases);
    let room = Room {
        sequences: rooms.len(),
        tokens: rooms.iter().map(|tokens| tokens.next_multiple_of(block_size)).sum(),
        bytes_per_token: loaded.bytes_per_token(),
        bytes_per_sequence: loaded.bytes_per_sequence(),
    };
    let step = StepSize { tokens: rooms.len().max(engine.caps().step_tokens), sequences: rooms.len() };
    capacity::check_sequences(&room, budget::cache_bytes(engine, loaded, step)?)
}

/// Every case with its speed.
fn measure(options: &Bench, loaded: &Loaded, engine: &dyn Engine, cases: &[Case]) -> Result<Vec<Measured>> {
    let caps = engine.caps();
    let graph = mlxcel_ir::passes::optimize(&loaded.model.graph)?;
    let mut runner = Runner::new(loaded, engine, &case::rooms(cases)).map_err(explain)?;
    let progress = progress(cases.len() * (1 + options.repetitions as usize));
    let mut measured = Vec::new();
    for case in cases {
        progress.set_message(case.to_string());
        runner.fill(case).map_err(explain)?;
        runner.warm_up(case)?;
        progress.inc(1);
        let mut samples = Vec::new();
        for _ in 0..options.repetitions {
            let time = runner.run(case)?;
            samples.push(case.all_tokens() as f64 / time.as_secs_f64().max(f64::MIN_POSITIVE));
            progress.inc(1);
        }
        let work = Work::of(case, &graph, loaded, &caps);
        measured.push(Measured::new(case, Speed::new(samples), work));
    }
    progress.finish_and_clear();
    Ok(measured)
}

fn explain(error: EngineError) -> anyhow::Error {
    match error {
        EngineError::OutOfMemory { .. } => {
            anyhow!("{error}; give a smaller --depth, fewer --sequences or a smaller model")
        }
        error => error.into(),
    }
}

/// How far it is, on a terminal only.
fn progress(steps: usize) -> ProgressBar {
    if !io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template("{spinner} {pos}/{len} {msg}");
    let bar = ProgressBar::new(steps as u64);
    bar.set_style(style.expect("the template is a constant that indicatif accepts"));
    bar
}
