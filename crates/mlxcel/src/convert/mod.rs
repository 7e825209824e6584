//! `mlxcel convert`: a model in another file format or element type, or a model of random weights. Tensors are made,
//! encoded and written one after the other, so that a model larger than the memory can be converted.

mod folder;
mod gguf;
mod kind;
mod output;
mod placeholder;
mod settings;
mod source;
mod vocabulary;

use std::io::{self, Write as _};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Result, bail};
use clap::Args;
use mlxcel_weights::write::NewTensor;
use serde::Serialize;

use crate::exit;
use crate::report::in_words;
use crate::say;
use crate::table::{self, Align};
use crate::values::parse_size;
use kind::WeightType;
use output::Interrupted;
use source::Source;

const EXAMPLES: &str = "\
Examples:
  mlxcel convert -m MODEL_FOLDER -o model-q4_k.gguf --type q4_k
  mlxcel convert -m MODEL_FOLDER -o model-4bit --type affine4 --group-size 64
  mlxcel convert --random config.json -o random.gguf --type q8_0";

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct Convert {
    /// A model folder, a .gguf file, or an alias.
    #[arg(short, long, value_name = "MODEL", required_unless_present = "random", conflicts_with = "random")]
    pub model: Option<String>,
    /// Make random weights for this configuration instead, to measure speed with.
    #[arg(long, value_name = "CONFIG.json")]
    pub random: Option<PathBuf>,
    /// What to write: a .gguf file, or else a folder with safetensors files.
    #[arg(short, long, value_name = "OUT")]
    pub output: PathBuf,
    /// The type of the matrices; affine types are for folders, q types for GGUF [default: as the model has them,
    /// bf16 where OUT cannot hold that].
    #[arg(long = "type", value_name = "TYPE", value_enum)]
    pub weight_type: Option<WeightType>,
    /// Elements that share a scale in affine types.
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = parse_group)]
    pub group_size: u16,
    /// Begin another file of a folder when one would grow larger.
    #[arg(long, value_name = "SIZE", default_value = "5GB", value_parser = parse_size)]
    pub shard_size: u64,
    /// Which random weights.
    #[arg(long, value_name = "N", default_value_t = 0, requires = "random")]
    pub seed: u64,
    /// Take the tokenizer of this model for the random one [default: none; a GGUF file gets placeholder tokens].
    #[arg(long, value_name = "MODEL", requires = "random")]
    pub tokenizer: Option<String>,
    /// Replace what is already there.
    #[arg(long)]
    pub force: bool,
    /// Print one JSON object.
    #[arg(long)]
    pub json: bool,
}

fn parse_group(text: &str) -> Result<u16, String> {
    match text {
        "32" | "64" | "128" => text.parse().map_err(|_| "a number".to_string()),
        _ => Err("expected 32, 64 or 128".to_string()),
    }
}

/// What was written.
#[derive(Debug, Serialize)]
struct Written {
    output: String,
    /// Number of tensors by element type.
    tensors: std::collections::BTreeMap<String, usize>,
    bytes: u64,
    notes: Vec<String>,
}

pub fn run(options: &Convert) -> Result<ExitCode> {
    let is_gguf = options.output.extension().is_some_and(|e| e.eq_ignore_ascii_case("gguf"));
    if let Some(wanted) = options.weight_type {
        wanted.check(is_gguf)?;
    }
    let source = Source::open(options)?;
    output::check_free(options, source.path())?;
    let result = if is_gguf { gguf::convert(options, &source) } else { folder::convert(options, &source) };
    let written = match result {
        Err(error) if error.is::<Interrupted>() => {
            say(&error.to_string());
            return Ok(ExitCode::from(exit::INTERRUPTED));
        }
        result => result?,
    };
    for note in &written.notes {
        say(&format!("note: {note}"));
    }
    let text = if options.json { serde_json::to_string(&written)? } else { written.to_text() };
    let mut stdout = io::stdout().lock();
    writeln!(stdout, "{}", text.trim_end_matches('\n'))?;
    stdout.flush()?;
    Ok(ExitCode::SUCCESS)
}

impl Written {
    fn new(options: &Convert, tensors: &[NewTensor], notes: Vec<String>) -> Result<Self> {
        let mut written = Written {
            output: options.output.display().to_string(),
            tensors: Default::default(),
            bytes: 0,
            notes,
        };
        for tensor in tensors {
            written.bytes += tensor.bytes()?;
            *written.tensors.entry(tensor.dtype.to_string()).or_default() += 1;
        }
        if tensors.is_empty() {
            bail!("there are no tensors to write");
        }
        Ok(written)
    }

    fn to_text(&self) -> String {
        let kinds: Vec<String> =
            self.tensors.iter().map(|(dtype, count)| format!("{count} {dtype}")).collect();
        let rows = [
            ["output".to_string(), self.output.clone()],
            [
                "tensors".to_string(),
                format!("{} ({})", self.tensors.values().sum::<usize>(), kinds.join(", ")),
            ],
            ["size".to_string(), in_words(self.bytes, "B")],
        ];
        table::format([Align::Left, Align::Left], &rows)
    }
}
