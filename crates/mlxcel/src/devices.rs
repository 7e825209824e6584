//! `mlxcel devices`: the engines of this build and what they run on.

use std::io::{self, Write as _};
use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use serde_json::json;

use crate::engines::{self, Listed};
use crate::memory;
use crate::report::in_words;
use crate::table::{self, Align};

const EXAMPLES: &str = "\
Examples:
  mlxcel devices
  mlxcel devices --json";

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct Devices {
    /// Print one JSON object.
    #[arg(long)]
    pub json: bool,
}

pub fn run(options: &Devices) -> Result<ExitCode> {
    let listed = engines::list()?;
    let memory = memory::total_bytes();
    let text = if options.json { to_json(&listed, memory) + "\n" } else { to_text(&listed, memory) };
    let mut stdout = io::stdout().lock();
    stdout.write_all(text.as_bytes())?;
    stdout.flush()?;
    Ok(ExitCode::SUCCESS)
}

fn to_text(listed: &[Listed], memory: Option<u64>) -> String {
    let header = ["engine", "device", "simd", "cores", "memory", "description"].map(str::to_string);
    let memory = memory.map_or("unknown".to_string(), |bytes| in_words(bytes, "B"));
    let line = |l: &Listed| {
        let (simd, description) = (l.simd.clone(), l.description.clone());
        [l.engine.to_string(), l.device.to_string(), simd, l.cores.to_string(), memory.clone(), description]
    };
    let rows: Vec<_> = [header].into_iter().chain(listed.iter().map(line)).collect();
    table::format([Align::Left; 6], &rows)
}

fn to_json(listed: &[Listed], memory: Option<u64>) -> String {
    let entry = |l: &Listed| {
        json!({
            "engine": l.engine,
            "device": l.device,
            "description": l.description,
            "simd": l.simd,
            "cores": l.cores,
            "memory_bytes": memory,
        })
    };
    json!({ "devices": listed.iter().map(entry).collect::<Vec<_>>() }).to_string()
}
