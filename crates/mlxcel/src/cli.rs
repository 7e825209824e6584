//! The arguments, as data. What they mean is for the commands; which numbers are possible is decided here, so that a
//! command never sees a NaN.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::values::{parse_fraction, parse_penalty, parse_temperature, parse_token_ids};

const EXAMPLES: &str = "\
Examples:
  mlxcel generate -p \"Explain what a compiler does, in two sentences.\"
  mlxcel generate -m MODEL_FOLDER --prompt-file question.txt --temp 0 -n -1
  mlxcel generate -m model.gguf --prompt-tokens 1,2,3 --temp 0 --json
  mlxcel inspect smollm2 --plan
  mlxcel devices";

/// Runs language models.
#[derive(Debug, Parser)]
#[command(name = "mlxcel", version, after_help = EXAMPLES, disable_help_subcommand = true)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Answer a prompt.
    Generate(Box<Generate>),
    /// Show what a model is made of, its graph, or what an engine does with it.
    Inspect(Inspect),
    /// List engines and the devices they run on.
    Devices(Devices),
}

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct Generate {
    #[command(flatten)]
    pub model: ModelArgs,
    #[command(flatten)]
    pub prompt: PromptArgs,
    #[command(flatten)]
    pub sampling: SamplingArgs,
    /// New tokens at most; -1 goes on to the end of the answer or of the context.
    #[arg(short = 'n', long, value_name = "N", default_value_t = 256, allow_negative_numbers = true)]
    #[arg(value_parser = clap::value_parser!(i64).range(-1..=i64::from(i32::MAX)))]
    pub max_tokens: i64,
    /// End the answer before this text; may be given several times.
    #[arg(long, value_name = "TEXT")]
    pub stop: Vec<String>,
    /// Go on after tokens that end an answer.
    #[arg(long)]
    pub ignore_eos: bool,
    /// Report the probability of each token and of the K likeliest in its place.
    #[arg(long, value_name = "K", requires = "json")]
    pub top_logprobs: Option<usize>,
    /// Print one JSON object instead of the answer.
    #[arg(long)]
    pub json: bool,
}

/// Which model runs, on what.
#[derive(Debug, Args)]
pub struct ModelArgs {
    /// A model folder, a .gguf file, or an alias; an alias is fetched on first use.
    #[arg(short, long, value_name = "MODEL", default_value = mlxcel_hub::DEFAULT_MODEL)]
    pub model: String,
    /// The type of activations and cache; weights stay as they are stored. auto is f32, in which the engines compute.
    #[arg(long, value_enum, default_value_t)]
    pub dtype: Precision,
    #[command(flatten)]
    pub engine: EngineArgs,
}

#[derive(Debug, Args)]
pub struct EngineArgs {
    /// What computes; `reference` is for checking the others on tiny models.
    #[arg(long, value_enum, default_value_t)]
    pub engine: EngineName,
    /// Where it computes: see `mlxcel devices`.
    #[arg(long, default_value = "cpu")]
    pub device: String,
    /// Threads of the cpu engine [default: one for each core].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub threads: Option<u16>,
}

#[derive(Debug, Args)]
#[group(skip)]
pub struct PromptArgs {
    /// The prompt.
    #[arg(short, long, value_name = "TEXT")]
    #[arg(required_unless_present_any = ["prompt_file", "prompt_tokens"])]
    pub prompt: Option<String>,
    /// Read the prompt from a file, - for standard input; one line break at its end is left out.
    #[arg(long, value_name = "FILE", conflicts_with = "prompt")]
    pub prompt_file: Option<PathBuf>,
    /// The prompt as token ids, fed as they are: 1,2,3.
    #[arg(long, value_name = "IDS", value_parser = parse_token_ids, conflicts_with_all = ["prompt", "prompt_file"])]
    pub prompt_tokens: Option<TokenIds>,
    /// A system message for the chat template.
    #[arg(long, value_name = "TEXT", conflicts_with_all = ["prompt_tokens", "no_chat_template"])]
    pub system: Option<String>,
    /// Feed the prompt as it is, without the model's chat template.
    #[arg(long)]
    pub no_chat_template: bool,
}

/// Token ids in one argument. A name of its own keeps the parser from taking it for a repeated argument.
pub type TokenIds = std::sync::Arc<[u32]>;

/// The defaults are those of llama.cpp, which suit small models; with --temp 0 none of the filters matters.
#[derive(Debug, Args)]
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

#[derive(Debug, Args)]
pub struct Inspect {
    /// A model folder, a .gguf file, or an alias.
    #[arg(value_name = "MODEL")]
    pub model: String,
    /// Print the graph in its text form.
    #[arg(long, conflicts_with = "plan")]
    pub graph: bool,
    /// Print each op with the engine's choice, its bytes and flops for one token.
    #[arg(long)]
    pub plan: bool,
    /// The type of activations and cache.
    #[arg(long, value_enum, default_value_t)]
    pub dtype: Precision,
    /// The engine whose plan is shown.
    #[arg(long, value_enum, default_value_t, requires = "plan")]
    pub engine: EngineName,
    /// Print one JSON object.
    #[arg(long, conflicts_with = "graph")]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct Devices {
    /// Print one JSON object.
    #[arg(long)]
    pub json: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Precision {
    #[default]
    Auto,
    F32,
    Bf16,
    F16,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum EngineName {
    #[default]
    Cpu,
    Reference,
}
