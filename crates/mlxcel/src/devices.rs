//! `mlxcel devices`: the engines of this build, what they run on, and what that can do at most.

use std::io::{self, Write as _};
use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use mlxcel_engine::Engine as _;
use serde_json::json;

use crate::calibration::{self, Calibration};
use crate::engines::cpu::CpuArgs;
use crate::engines::{self, Listed};
use crate::report::in_words;
use crate::table::{self, Align};
use crate::{memory, say};

const EXAMPLES: &str = "\
Examples:
  mlxcel devices
  mlxcel devices --calibrate
  mlxcel devices --json";

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct Devices {
    /// Measure for some seconds how fast memory is read and how much can be computed, and keep it for `mlxcel bench`.
    #[arg(long)]
    pub calibrate: bool,
    /// Threads to calibrate [default: one for each core].
    #[arg(long, value_name = "N", requires = "calibrate")]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub threads: Option<u16>,
    /// Print one JSON object.
    #[arg(long)]
    pub json: bool,
}

pub fn run(options: &Devices) -> Result<ExitCode> {
    let threads = options.threads.map(usize::from);
    if options.calibrate {
        let engine = engines::cpu::open(&CpuArgs::default(), threads)?;
        let path = calibration::keep(&engine.caps().device, Calibration::measure(&engine)?)?;
        say(&format!("note: kept in {}", path.display()));
    }
    let listed = engines::list(threads)?;
    let memory = memory::total_bytes();
    let text = if options.json { to_json(&listed, memory) + "\n" } else { to_text(&listed, memory) };
    let mut stdout = io::stdout().lock();
    stdout.write_all(text.as_bytes())?;
    stdout.flush()?;
    Ok(ExitCode::SUCCESS)
}

fn to_text(listed: &[Listed], memory: Option<u64>) -> String {
    let header = ["engine", "device", "simd", "cores", "memory", "reads", "f32", "bf16", "description"]
        .map(str::to_string);
    let memory = memory.map_or("unknown".to_string(), |bytes| in_words(bytes, "B"));
    let line = |l: &Listed| {
        let known = calibration::of(&l.description);
        let said =
            |number: Option<f64>, unit: &str| number.map_or("-".to_string(), |n| format!("{n:.1} {unit}"));
        [
            l.engine.to_string(),
            l.device.clone(),
            l.simd.clone(),
            l.cores.to_string(),
            memory.clone(),
            said(known.map(|c| c.read_gigabytes_per_s), "GB/s"),
            said(known.map(|c| c.f32_gflop_per_s), "GFLOP/s"),
            said(known.and_then(|c| c.bf16_gflop_per_s), "GFLOP/s"),
            l.description.clone(),
        ]
    };
    let rows: Vec<_> = [header].into_iter().chain(listed.iter().map(line)).collect();
    table::format([Align::Left; 9], &rows)
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
            "calibration": calibration::of(&l.description),
        })
    };
    json!({ "devices": listed.iter().map(entry).collect::<Vec<_>>() }).to_string()
}
