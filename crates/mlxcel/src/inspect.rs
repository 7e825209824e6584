//! `mlxcel inspect`: what a model is made of and the memory it needs, its graph, or an engine's plan for it. Nothing is
//! computed.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Write as _};
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Result, anyhow};
use clap::Args;
use mlxcel_engine::Engine;
use mlxcel_ir::Op;
use mlxcel_models::ModelError;
use mlxcel_weights::Checkpoint;
use serde::Serialize;

use crate::cli::{FetchArgs, TypeArgs};
use crate::engines::EngineArgs;
use crate::fit::{self, Fit};
use crate::report::in_words;
use crate::session::Loaded;
use crate::table::{self, Align};
use crate::{engines, plan};

const EXAMPLES: &str = "\
Examples:
  mlxcel inspect smollm2
  mlxcel inspect model.gguf --ctx-size 32768
  mlxcel inspect model.gguf --plan
  mlxcel inspect ./Qwen3-0.6B --graph > qwen3.txt
  mlxcel inspect ./Qwen3-0.6B --json";

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct Inspect {
    /// A model folder, a .gguf file, an alias, or OWNER/NAME on the hub.
    #[arg(value_name = "MODEL")]
    pub model: String,
    #[command(flatten)]
    pub fetching: FetchArgs,
    /// Print the graph in its text form.
    #[arg(long, conflicts_with = "plan")]
    pub graph: bool,
    /// Print each op with the engine's choice, its bytes and flops for one token.
    #[arg(long)]
    pub plan: bool,
    /// Print the StableHLO module that the xla engine runs for one token behind a context of 256.
    #[arg(long, conflicts_with_all = ["graph", "plan", "json"])]
    pub stablehlo: bool,
    #[command(flatten)]
    pub types: TypeArgs,
    /// Tokens that memory is counted for [default: the model's context].
    #[arg(short, long, value_name = "N", conflicts_with_all = ["graph", "plan"])]
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    pub ctx_size: Option<u32>,
    /// Print one JSON object.
    #[arg(long, conflicts_with = "graph")]
    pub json: bool,
    /// Whose memory or plan is shown. Last, since its heading goes on.
    #[command(flatten)]
    pub engine: EngineArgs,
}

/// What a model is, in numbers.
#[derive(Debug, Serialize)]
struct Facts {
    model: String,
    family: &'static str,
    parameters: u64,
    /// Number of tensors by element type.
    tensors: BTreeMap<String, usize>,
    /// Bytes of all tensors.
    bytes: u64,
    context: usize,
    vocabulary: usize,
    layers: usize,
    dtype: String,
    kv_dtype: String,
    cache_bytes_per_token: u64,
    state_bytes_per_sequence: u64,
    memory: Fit,
}

pub fn run(options: &Inspect) -> Result<ExitCode> {
    let path = options.fetching.resolve(&options.model)?;
    let checkpoint = Checkpoint::open(&path)?;
    let engine = engines::open(&options.engine)?;
    let types = engines::types(options.types, &engine.caps(), &checkpoint);
    let model = mlxcel_models::load(&checkpoint, types).map_err(|error| explain(&path, error))?;
    let loaded = Loaded { checkpoint, model };
    let text = if options.graph {
        loaded.model.graph.to_string()
    } else if options.stablehlo {
        engines::xla::stablehlo(&loaded.model.graph)?
    } else if options.plan {
        // What an engine is given: without dead code, with residuals fused into norms.
        let graph = mlxcel_ir::passes::optimize(&loaded.model.graph)?;
        let plan = plan::plan(&graph, &*engine);
        if options.json {
            serde_json::to_string(&plan)?
        } else {
            let remarks = engines::remarks(&options.engine, &graph)?;
            let lines = remarks.iter().map(|remark| format!("note: {remark}\n"));
            plan.to_text() + &lines.collect::<String>()
        }
    } else {
        let facts = Facts::new(options, &loaded, &*engine)?;
        if options.json { serde_json::to_string(&facts)? } else { facts.to_text() }
    };
    let mut stdout = io::stdout().lock();
    writeln!(stdout, "{}", text.trim_end_matches('\n'))?;
    stdout.flush()?;
    Ok(ExitCode::SUCCESS)
}

/// An error about a checkpoint, with where it is and what to do.
pub fn explain(path: &Path, error: ModelError) -> anyhow::Error {
    let path = path.display();
    match error {
        ModelError::NoConfig => {
            anyhow!(
                "{path} has weights but no config.json, which says what model they are; put it beside them"
            )
        }
        error => anyhow!("{path}: {error}"),
    }
}

impl Facts {
    fn new(options: &Inspect, loaded: &Loaded, engine: &dyn Engine) -> Result<Self> {
        let Loaded { checkpoint, model: built } = loaded;
        let types = engines::types(options.types, &engine.caps(), checkpoint);
        let mut facts = Facts {
            model: options.model.clone(),
            family: built.family,
            parameters: 0,
            tensors: BTreeMap::new(),
            bytes: 0,
            context: built.built.max_context,
            vocabulary: built.built.vocab_size,
            layers: layers(loaded),
            dtype: types.activations.to_string(),
            kv_dtype: types.cache.to_string(),
            cache_bytes_per_token: loaded.bytes_per_token(),
            state_bytes_per_sequence: loaded.bytes_per_sequence(),
            memory: fit::judge(loaded, engine, options.ctx_size.map(|n| n as usize))?,
        };
        for (dtype, shape) in checkpoint.names().filter_map(|name| checkpoint.info(name)) {
            facts.parameters += shape.iter().map(|&n| n as u64).product::<u64>();
            facts.bytes += dtype.storage_bytes(shape).unwrap_or(0) as u64;
            *facts.tensors.entry(dtype.to_string()).or_default() += 1;
        }
        Ok(facts)
    }

    fn to_text(&self) -> String {
        let kinds: Vec<String> =
            self.tensors.iter().map(|(dtype, count)| format!("{count} {dtype}")).collect();
        let tensors = format!("{} ({})", self.tensors.values().sum::<usize>(), kinds.join(", "));
        let mut rows = vec![
            ["model", &self.model],
            ["family", self.family],
            ["parameters", &in_words(self.parameters, "")],
            ["tensors", &tensors],
            ["size", &in_words(self.bytes, "B")],
            ["context", &format!("{} tokens", self.context)],
            ["vocabulary", &format!("{} tokens", self.vocabulary)],
            ["layers", &self.layers.to_string()],
        ]
        .into_iter()
        .map(|row| row.map(str::to_string))
        .collect::<Vec<_>>();
        let mut state = |name: &str, bytes: u64, of: &str, dtype: &str| {
            if bytes > 0 {
                let bytes = in_words(bytes, "B");
                rows.push([name.to_string(), format!("{bytes} for each {of}, in {dtype}")]);
            }
        };
        state("KV cache", self.cache_bytes_per_token, "token", &self.kv_dtype);
        state("state", self.state_bytes_per_sequence, "sequence", &self.dtype);
        rows.extend(self.memory.rows());
        table::format([Align::Left, Align::Left], &rows)
    }
}

/// Layers are numbered: the first number in the path of a weight.
fn layers(loaded: &Loaded) -> usize {
    let weights = loaded.model.graph.weights();
    let number = |name: &str| name.split('.').find_map(|part| part.parse::<u32>().ok());
    let numbers = weights.filter_map(|(_, node)| match &node.op {
        Op::Weight { name, .. } => number(name),
        _ => None,
    });
    numbers.collect::<BTreeSet<u32>>().len()
}
