//! `mlxcel bench serve`: how a server of the OpenAI interface does under load, seen from its clients. It knows no
//! engine and no scheduler; any server will do.

mod address;
mod client;
mod exchange;
mod failure;
mod load;
mod plot;
mod preflight;
mod prompts;
mod report;
mod requests;
mod stream;
mod summary;

use std::io::{self, IsTerminal as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use clap::{Args, ValueEnum};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::Value;

use address::Address;
use client::Client;
use load::{End, Load, Measured, Run};
use prompts::{Purpose, Random};
use report::Report;
use requests::{Requests, Shape};
use summary::{Goal, Summary};

const EXAMPLES: &str = "\
Examples:
  mlxcel bench serve --clients 16 --requests 128
  mlxcel bench serve --url http://127.0.0.1:8000/v1 --clients 1,4,16,64 --duration 30 --plot clients.svg
  mlxcel bench serve --rate 1,2,4,8 --duration 60 --slo-ttft-ms 500 --slo-itl-ms 50 --output json
  mlxcel bench serve --shared-prefix 1500 --input-words 50 --cancel 0.2 --ignore-eos";

/// Requests of a run that is bounded by nothing else.
const REQUESTS: u64 = 64;

/// The variable with the key.
const KEY: &str = "MLXCEL_API_KEY";

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct Serve {
    /// Where the server's interface begins: what comes before /chat/completions.
    #[arg(long, value_name = "URL", help_heading = "Server", default_value = "http://127.0.0.1:8080/v1")]
    pub url: Address,
    /// The model that is asked [default: the first that the server lists].
    #[arg(long, value_name = "NAME", help_heading = "Server")]
    pub model: Option<String>,
    /// The server's key [default: that in MLXCEL_API_KEY, which other users of this machine cannot see].
    #[arg(long, value_name = "KEY", help_heading = "Server")]
    pub api_key: Option<String>,
    /// Seconds after which a request has failed.
    #[arg(long, value_name = "S", help_heading = "Server", default_value_t = 600.0, value_parser = seconds)]
    pub timeout: f64,
    /// Clients that each send the next request when the last one has ended; several numbers are tried in turn.
    #[arg(long, value_name = "N,…", help_heading = "Load", default_value = "16")]
    #[arg(value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=65_536))]
    pub clients: Vec<u32>,
    /// Requests that arrive in a second, by chance (Poisson) and whether or not others were answered; several rates
    /// are tried in turn.
    #[arg(long, alias = "rates", value_name = "R,…", help_heading = "Load", conflicts_with = "clients")]
    #[arg(value_delimiter = ',', value_parser = rate)]
    pub rate: Vec<f64>,
    /// Requests to send [default: 64, or what the duration allows].
    #[arg(long, value_name = "N", help_heading = "Load")]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=100_000_000))]
    pub requests: Option<u64>,
    /// Seconds in which requests are sent; those under way are waited for.
    #[arg(long, value_name = "S", help_heading = "Load", value_parser = seconds)]
    pub duration: Option<f64>,
    /// The part of the clients that leave in the middle of an answer.
    #[arg(long, value_name = "PART", help_heading = "Load", default_value_t = 0.0)]
    #[arg(value_parser = crate::values::parse_fraction, conflicts_with = "no_stream")]
    pub cancel: f32,
    /// Decides prompts, arrivals and who leaves. A server may still have the prompts of a seed in its cache.
    #[arg(long, value_name = "N", help_heading = "Load", default_value_t = 0)]
    pub seed: u64,
    /// Random words that each prompt has for itself.
    #[arg(long, value_name = "N", help_heading = "Requests", default_value_t = 128)]
    #[arg(value_parser = clap::value_parser!(u32).range(0..=1 << 20))]
    pub input_words: u32,
    /// Random words that all prompts of a run begin with.
    #[arg(long, value_name = "N", help_heading = "Requests", default_value_t = 0)]
    #[arg(value_parser = clap::value_parser!(u32).range(0..=1 << 20))]
    pub shared_prefix: u32,
    /// Tokens of an answer, at most.
    #[arg(long, value_name = "N", help_heading = "Requests", default_value_t = 64)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=1 << 24))]
    pub max_tokens: u32,
    /// Ask for answers of full length. Not every server knows the field.
    #[arg(long, help_heading = "Requests")]
    pub ignore_eos: bool,
    /// Ask for whole answers; there is no time to the first token then.
    #[arg(long, help_heading = "Requests")]
    pub no_stream: bool,
    /// Fields that every request gets besides, such as {"temperature":0}.
    #[arg(long, value_name = "JSON", help_heading = "Requests", value_parser = requests::parse_extra)]
    pub extra: Option<serde_json::Map<String, Value>>,
    /// An answer is good if its first token came within so many milliseconds.
    #[arg(long, value_name = "MS", help_heading = "Goodput", value_parser = milliseconds)]
    pub slo_ttft_ms: Option<f64>,
    /// An answer is good if its tokens came so many milliseconds apart, or fewer, on average.
    #[arg(long, value_name = "MS", help_heading = "Goodput", value_parser = milliseconds)]
    pub slo_itl_ms: Option<f64>,
    /// What is printed.
    #[arg(short, long, value_enum, default_value_t, help_heading = "Output")]
    pub output: Format,
    /// Draw the distribution of times of one load, or the times under several, as SVG.
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    pub plot: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// Tables in markdown.
    #[default]
    Md,
    /// One JSON object, with every request.
    Json,
}

fn seconds(text: &str) -> Result<f64, String> {
    within(text, 0.001, 1e6)
}

fn milliseconds(text: &str) -> Result<f64, String> {
    within(text, 0.0, 1e9)
}

fn rate(text: &str) -> Result<f64, String> {
    within(text, 0.001, 1e5)
}

fn within(text: &str, low: f64, high: f64) -> Result<f64, String> {
    let number = text.parse::<f64>().ok().filter(|number| (low..=high).contains(number));
    number.ok_or_else(|| format!("expected a number from {low} to {high}"))
}

pub fn run(options: &Serve) -> Result<ExitCode> {
    ensure!(
        options.input_words + options.shared_prefix > 0,
        "prompts would be empty; give --input-words or --shared-prefix a number above 0"
    );
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.context("cannot start the clients' runtime")?;
    if let Some(path) = &options.plot {
        check_folder(path)?;
    }
    let (shape, runs) = runtime.block_on(measure(options))?;
    let failed_all = failed_all(&runs);
    let text = finish(options, &shape, runs)?;
    let mut stdout = io::stdout().lock();
    stdout.write_all(text.as_bytes())?;
    stdout.flush()?;
    ensure!(!failed_all, "no request was answered; see the errors above and the server's log");
    Ok(ExitCode::SUCCESS)
}

fn failed_all(runs: &[(Measured, Summary)]) -> bool {
    runs.iter().all(|(_, run)| run.failed == run.requests)
}

/// Writes the picture, and gives what is printed.
fn finish(options: &Serve, shape: &Shape, runs: Vec<(Measured, Summary)>) -> Result<String> {
    if let Some(path) = &options.plot {
        let picture = plot::svg(&format!("{} at {}", failure::said(&shape.model), options.url), &runs);
        std::fs::write(path, picture).map_err(|error| {
            anyhow::anyhow!("cannot write {}: {error}; give --plot another file", path.display())
        })?;
    }
    let report = Report {
        url: options.url.to_string(),
        model: &shape.model,
        seed: options.seed,
        input_words: shape.input_words,
        shared_words: shape.shared_words,
        max_tokens: shape.max_tokens,
        is_streamed: shape.is_streamed,
        runs: runs.into_iter().map(|(_, summary)| summary).collect(),
    };
    Ok(match options.output {
        Format::Md => report.to_markdown(),
        Format::Json => serde_json::to_string(&report)? + "\n",
    })
}

/// A picture that cannot be written is known before an hour was measured.
fn check_folder(path: &Path) -> Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let is_there = folder.is_none_or(Path::is_dir);
    ensure!(
        is_there && !path.is_dir(),
        "cannot write {}; give --plot a file in a folder that exists",
        path.display()
    );
    Ok(())
}

/// Every load in turn.
async fn measure(options: &Serve) -> Result<(Shape, Vec<(Measured, Summary)>)> {
    let key = options.api_key.clone().or_else(|| std::env::var(KEY).ok()).filter(|key| !key.is_empty());
    let client = Arc::new(Client::new(options.url.clone(), key.as_deref())?);
    let listed = preflight::models(&client).await?;
    let model = preflight::choose(&client, options.model.as_deref(), listed.as_deref())?;
    let shape = shape(options, model);
    preflight::try_out(&client, &Requests::trial(&shape), &shape.model, listed.as_deref()).await?;
    let goal = Goal { first_token_ms: options.slo_ttft_ms, per_token_ms: options.slo_itl_ms };
    let end = end(options);
    let mut runs = Vec::new();
    for (index, load) in (0..).zip(loads(options)) {
        // Each run has prompts of its own, which no cache has seen.
        let seed = Random::new(options.seed, Purpose::Run, index).next();
        let progress = progress(load, end.requests);
        let source = Arc::new(Requests::new(shape.clone(), seed, progress.clone()));
        let measured = Run { client: client.clone(), source, end, seed }.under(load).await;
        progress.finish_and_clear();
        let summary = Summary::new(&measured, goal);
        runs.push((measured, summary));
    }
    Ok((shape, runs))
}

fn loads(options: &Serve) -> Vec<Load> {
    match options.rate.as_slice() {
        [] => options.clients.iter().copied().map(Load::Clients).collect(),
        rates => rates.iter().copied().map(Load::Rate).collect(),
    }
}

fn end(options: &Serve) -> End {
    let requests = options.requests.or(options.duration.is_none().then_some(REQUESTS));
    End { requests, duration: options.duration.map(Duration::from_secs_f64) }
}

fn shape(options: &Serve, model: String) -> Shape {
    let mut extra = options.extra.clone().unwrap_or_default();
    if options.ignore_eos {
        extra.insert("ignore_eos".to_string(), Value::Bool(true));
    }
    Shape {
        model,
        input_words: options.input_words as usize,
        shared_words: options.shared_prefix as usize,
        max_tokens: options.max_tokens,
        is_streamed: !options.no_stream,
        cancel: f64::from(options.cancel),
        extra,
        timeout: Duration::from_secs_f64(options.timeout),
    }
}

/// How far it is, on a terminal only.
fn progress(load: Load, requests: Option<u64>) -> ProgressBar {
    if !io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let bar = requests.map_or_else(ProgressBar::new_spinner, ProgressBar::new);
    let style = ProgressStyle::with_template(match requests {
        Some(_) => "{spinner} {pos}/{len} {msg}",
        None => "{spinner} {pos} {msg}",
    });
    bar.set_style(style.expect("the templates are constants that indicatif accepts"));
    bar.with_message(load.to_string())
}

#[cfg(test)]
mod tests;
