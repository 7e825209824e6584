//! `mlxcel serve`, and the program `mlxcel-server`: models behind HTTP. What is said there is `mlxcel-server`'s
//! business; here are arguments, engines and files.

mod arguments;
mod llama;
mod models;
mod shelf;

use std::io::IsTerminal as _;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Result, bail};
use tracing_subscriber::filter::LevelFilter;

pub use arguments::Serve;

use crate::engines::{EngineArgs, EngineName};
use crate::say;
use arguments::{LogFormat, LogLevel};
use shelf::Shelf;

pub fn run(options: &Serve) -> Result<ExitCode> {
    start_log(options.log_format, options.log_level);
    if options.api_key.is_empty() && options.api_key_file.is_none() && !options.is_local() {
        say("note: everyone who reaches this machine can use the server; --api-key KEY asks for a key");
    }
    let config = options.config()?;
    let shelf = Shelf::open(options)?;
    mlxcel_server::serve(config, Arc::new(shelf), |address| {
        say(&format!("listening on {address}"));
    })?;
    Ok(ExitCode::SUCCESS)
}

/// The same by the flags and variables of llama-server.
pub fn run_as_llama_server() -> Result<ExitCode> {
    run(&llama::parse())
}

fn start_log(format: LogFormat, level: LogLevel) {
    let level = match level {
        LogLevel::Error => LevelFilter::ERROR,
        LogLevel::Warn => LevelFilter::WARN,
        LogLevel::Info => LevelFilter::INFO,
        LogLevel::Debug => LevelFilter::DEBUG,
    };
    // A log that cannot be written is no reason to stop, nor to complain where nobody reads.
    let builder = tracing_subscriber::fmt()
        .with_max_level(level)
        .with_target(false)
        .with_writer(std::io::stderr)
        .log_internal_errors(false);
    match format {
        LogFormat::Text => builder.with_ansi(std::io::stderr().is_terminal()).init(),
        LogFormat::Json => builder.json().flatten_event(true).init(),
    }
}

/// Refuses what llama-server could do and this build cannot: one engine computes the whole model.
fn check_gpu_layers(asked: &str, engine: &EngineArgs) -> Result<()> {
    let on_processor = match engine.engine {
        EngineName::Auto => return Ok(()),
        EngineName::Cuda => false,
        EngineName::Cpu | EngineName::Reference => true,
        EngineName::Mlx | EngineName::Xla => engine.device.as_deref().is_none_or(|device| device == "cpu"),
    };
    match (asked, on_processor) {
        ("auto", _) | ("0", true) => Ok(()),
        ("0", false) => bail!("all layers are on the GPU; leave out --n-gpu-layers, or give --engine cpu"),
        (_, false) => Ok(()),
        (_, true) => bail!(
            "all layers are on the processor; leave out --n-gpu-layers or give 0, or choose a GPU by --engine cuda"
        ),
    }
}
