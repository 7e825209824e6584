//! The commands by name, and the groups of arguments that several of them share. Each command declares its own
//! arguments in its own file; which numbers are possible is decided by `values`, so that a command never sees a NaN.

use std::collections::BTreeSet;
use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use mlxcel_engine::sampling::SamplingParams;
use mlxcel_models::Model;
use mlxcel_text::Tokenizer;
use serde::Serialize;

use crate::bench::Bench;
use crate::completions::Completions;
use crate::convert::Convert;
use crate::devices::Devices;
use crate::download::Download;
use crate::embed::Embed;
use crate::engine::Engine;
use crate::engines::EngineArgs;
use crate::generate::Generate;
use crate::inspect::Inspect;
use crate::list::List;
use crate::manual::Manual;
use crate::parallel::Worker;
use crate::perplexity::Perplexity;
use crate::rm::Rm;
use crate::run::Run;
use crate::serve::Serve;
use crate::tokenize::Tokenize;
use crate::values::{parse_fraction, parse_penalty, parse_temperature};
use crate::{colour, environment, exit};

const EXAMPLES: &str = "\
Examples:
  mlxcel run
  mlxcel generate -p \"Explain what a compiler does, in two sentences.\"
  mlxcel generate -m ./Qwen3-0.6B --prompt-file question.txt
  mlxcel embed \"A cat sits on the mat.\" --json
  mlxcel serve --port 8080
  mlxcel inspect model.gguf
  mlxcel devices";

/// Runs language models.
#[derive(Debug, Parser)]
#[command(name = "mlxcel", version, disable_help_subcommand = true)]
#[command(after_help = EXAMPLES, after_long_help = more_help())]
pub struct Cli {
    /// When there is colour.
    #[arg(
        long,
        global = true,
        value_name = "WHEN",
        value_enum,
        default_value_t,
        hide_possible_values = true
    )]
    #[arg(help = "When there is colour: auto, always or never", help_heading = "Everywhere")]
    pub color: colour::When,
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Chat with a model.
    ///
    /// With a prompt, or with standard input that is no terminal, it answers once and ends. In the chat /? lists the
    /// commands, """ begins and ends a text of several lines, a line that ends with \ goes on in the next one, Ctrl-C
    /// stops an answer and Ctrl-D leaves. Only what is new in a conversation is computed. One that no longer fits the
    /// context is refused, never cut. What was typed is kept in the file that MLXCEL_HISTORY names, else in
    /// mlxcel/history in the user's state folder.
    Run(Box<Run>),
    /// Answer a prompt.
    Generate(Box<Generate>),
    /// Turn texts into vectors.
    Embed(Box<Embed>),
    /// Show what a model is made of, what memory it needs, its graph, or what an engine does with it.
    Inspect(Inspect),
    /// Turn text into token ids, or token ids into text.
    Tokenize(Tokenize),
    /// Fetch a model, or bring it up to date, and print where it is.
    Download(Download),
    /// List the models on this machine.
    List(List),
    /// Remove models from the cache.
    Rm(Rm),
    /// Write a model in another format or type, or one of random weights.
    Convert(Box<Convert>),
    /// Measure how fast a model is on this machine.
    ///
    /// pp is processing a prompt, tg making tokens one after the other, @ d what is already in the cache and x the
    /// sequences side by side; tok/s counts the tokens of all of them: mean ± standard deviation, and the median. GB/s
    /// are the weights and the cache that the steps read, GFLOP/s the arithmetic of the graph, both of the
    /// median; in brackets what part that is of what `mlxcel devices --calibrate` measured.
    Bench(Box<Bench>),
    /// Answer over HTTP, by the interfaces of OpenAI, Anthropic and llama-server.
    ///
    /// Requests are computed together, and what prompts have in common once. The chat page is at /, the description of
    /// the interface at /openapi.json, counters for Prometheus at /metrics. The first SIGTERM or Ctrl-C lets requests in
    /// progress end, the second one does not wait. The program mlxcel-server is the same with the variables of
    /// llama-server.
    Serve(Box<Serve>),
    /// Measure how well a model foretells a text.
    Perplexity(Box<Perplexity>),
    /// Compute a part of a model that several machines share.
    ///
    /// Every machine but the first runs a worker; the first runs the command, with the same --tp and --hosts. Each keeps
    /// its share of every layer. Members trust each other, and nobody else should reach their ports. When one is gone the
    /// others end within seconds and say which it was.
    Worker(Box<Worker>),
    /// List engines and the devices they run on.
    Devices(Devices),
    /// Fetch, list or remove what engines load when they run.
    Engine(Engine),
    /// Print what a shell needs to complete commands and flags.
    Completions(Completions),
    /// Write this help as man pages or as markdown.
    Manual(Manual),
}

/// What follows the long help: examples, exit codes, environment.
fn more_help() -> String {
    let codes = exit::CODES.iter().map(|c| format!("  {:<4} {}", c.code, c.meaning));
    let width = environment::VARIABLES.iter().map(|v| v.name.len()).max().unwrap_or(0);
    let variables = environment::VARIABLES.iter().map(|v| format!("  {:width$}  {}", v.name, v.meaning));
    let lines = |lines: Vec<String>| lines.join("\n");
    format!(
        "{EXAMPLES}\n\nExit codes:\n{}\n\nEnvironment:\n{}",
        lines(codes.collect()),
        lines(variables.collect())
    )
}

/// Which model runs, on what.
#[derive(Debug, Args)]
#[command(next_help_heading = "Model")]
pub struct ModelArgs {
    /// A model folder, a .gguf file, an alias, or OWNER/NAME on the hub; fetched on first use.
    #[arg(short, long, value_name = "MODEL", default_value = mlxcel_hub::DEFAULT_MODEL)]
    pub model: String,
    #[command(flatten)]
    pub fetching: FetchArgs,
    #[command(flatten)]
    pub types: TypeArgs,
    #[command(flatten)]
    pub engine: EngineArgs,
}

/// In what a model computes and remembers.
#[derive(Clone, Copy, Debug, Args)]
pub struct TypeArgs {
    /// The type of activations; weights stay as they are stored. auto is f32 on processors, and on
    /// GPUs the type that the model is stored in.
    #[arg(long, value_enum, default_value_t, help_heading = "Model")]
    pub dtype: Precision,
    /// The type of the KV cache. auto is --dtype where that is given, else on GPUs the type that the model is
    /// stored in, and on processors f16 for a model stored in 16 bits or fewer and f32 for one in f32. int8 is half of f16: codes of 8 bits and a step for every head of a token.
    #[arg(long, value_enum, default_value_t, help_heading = "Model")]
    pub kv_dtype: CachePrecision,
}

/// Whether a model may be fetched.
#[derive(Clone, Copy, Debug, Args)]
pub struct FetchArgs {
    /// Use what is on this machine and fetch nothing.
    #[arg(long, help_heading = "Model")]
    pub offline: bool,
}

impl FetchArgs {
    /// The path of the model that `spec` names.
    pub fn resolve(self, spec: &str) -> mlxcel_hub::Result<PathBuf> {
        mlxcel_hub::resolve_with(spec, mlxcel_hub::Options { offline: self.offline })
    }
}

/// What ends an answer.
#[derive(Debug, Args)]
#[command(next_help_heading = "Answer")]
pub struct EndArgs {
    /// End the answer before this text; may be given several times.
    #[arg(long, value_name = "TEXT")]
    pub stop: Vec<String>,
    /// Go on after tokens that end an answer.
    #[arg(long)]
    pub ignore_eos: bool,
}

impl EndArgs {
    /// The tokens that end an answer.
    pub fn ids(&self, model: &Model, tokenizer: Option<&Tokenizer>) -> BTreeSet<u32> {
        if self.ignore_eos {
            return BTreeSet::new();
        }
        let mut ids = model.eos_token_ids.clone();
        ids.extend(tokenizer.map(|t| t.end_ids()).unwrap_or_default());
        ids
    }
}

/// The defaults are those of llama.cpp, which suit small models; with --temp 0 none of the filters matters.
#[derive(Clone, Debug, Args, Serialize)]
#[command(next_help_heading = "Sampling")]
pub struct SamplingArgs {
    /// Randomness: 0 always takes the likeliest token.
    #[arg(long, value_name = "T", default_value_t = 0.8, value_parser = parse_temperature)]
    pub temp: f32,
    /// Draw from the K likeliest tokens; 0 keeps all.
    #[arg(long, value_name = "K", default_value_t = 40)]
    #[arg(value_parser = clap::value_parser!(u32).range(0..=i64::from(i32::MAX)))]
    pub top_k: u32,
    /// Draw from the likeliest tokens that together have this probability; 1 keeps all.
    #[arg(long, value_name = "P", default_value_t = 0.95, value_parser = parse_fraction)]
    pub top_p: f32,
    /// Draw from tokens with at least this part of the likeliest one's probability; 0 keeps all.
    #[arg(long, value_name = "P", default_value_t = 0.05, value_parser = parse_fraction)]
    pub min_p: f32,
    /// Makes draws reproducible [default: another one each time].
    #[arg(long)]
    pub seed: Option<u32>,
    /// Above 1, makes tokens less likely that occurred before.
    #[arg(long, value_name = "R", default_value_t = 1.0, value_parser = parse_penalty)]
    pub repetition_penalty: f32,
}

impl SamplingArgs {
    /// What is drawn with; a seed that was not given is another one each time.
    pub fn params(&self) -> SamplingParams {
        let SamplingArgs { temp: temperature, top_k, top_p, min_p, seed, .. } = *self;
        // Every state of the standard hasher is another one.
        let seed = seed.unwrap_or_else(|| RandomState::new().build_hasher().finish() as u32);
        SamplingParams { temperature, top_k, top_p, min_p, seed }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum CachePrecision {
    #[default]
    Auto,
    F32,
    Bf16,
    F16,
    Int8,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Precision {
    #[default]
    Auto,
    F32,
    Bf16,
    F16,
}
