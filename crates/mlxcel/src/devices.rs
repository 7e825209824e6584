//! `mlxcel devices`: the engines of this build, what they run on, and what that can do at most.

use std::io::{self, Write as _};
use std::process::ExitCode;

use anyhow::{Result, ensure};
use clap::Args;
use mlxcel_engine::Engine as _;
use serde_json::json;

use crate::calibration::{self, Calibration};
use crate::engines::cpu::CpuArgs;
use crate::engines::{self, EngineArgs, EngineName, Listed};
use crate::rates::{self, choose};
use crate::report::in_words;
use crate::table::{self, Align};
use crate::{memory, say};

const EXAMPLES: &str = "\
Examples:
  mlxcel devices
  mlxcel devices --calibrate
  mlxcel devices --calibrate --engine cpu
  mlxcel devices --json";

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct Devices {
    /// Measure for some seconds how fast memory is read and how much can be computed, and how fast each engine is, and
    /// keep it for `mlxcel bench`, --engine auto and --device auto.
    #[arg(long)]
    pub calibrate: bool,
    /// List and measure this engine only.
    #[arg(long, value_enum)]
    pub engine: Option<EngineName>,
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
    let mut listed = engines::list(threads)?;
    if let Some(engine) = options.engine {
        ensure!(
            engine != EngineName::Auto,
            "auto is a choice among engines; give --engine one that `mlxcel devices` lists"
        );
        ensure!(
            !options.calibrate || engine != EngineName::Reference,
            "the reference engine only checks others and is not measured; give --engine another, or no --calibrate"
        );
        listed.retain(|l| engines::name(l.engine) == Some(engine));
        ensure!(!listed.is_empty(), "no device here is that engine's; `mlxcel devices` lists them all");
    }
    if options.calibrate {
        calibrate(&listed, threads)?;
    }
    let memory = memory::total_bytes();
    let text = match options.json {
        true => to_json(&listed, memory) + "\n",
        false => to_text(&listed, memory) + &rates_table(&listed)?,
    };
    let mut stdout = io::stdout().lock();
    stdout.write_all(text.as_bytes())?;
    stdout.flush()?;
    Ok(ExitCode::SUCCESS)
}

/// Measures what the processor and GPUs can do, and how fast each engine is on each of its devices.
fn calibrate(listed: &[Listed], threads: Option<usize>) -> Result<()> {
    let has = |engine| listed.iter().any(|l| l.engine == engine);
    if has("cpu") {
        let engine = engines::cpu::open(&CpuArgs::default(), threads)?;
        let path = calibration::keep(&engine.caps().device, Calibration::measure(&engine)?)?;
        say(&format!("note: kept in {}", path.display()));
    }
    if has("cuda") {
        engines::cuda::calibrate()?;
    }
    for l in listed.iter().filter(|l| l.engine != "reference") {
        let Some(engine) = engines::name(l.engine) else { continue };
        let threads = threads_of(engine, threads);
        let arguments =
            EngineArgs { engine, device: Some(l.device.clone()), threads, ..EngineArgs::default() };
        // One engine that cannot be measured is no reason not to measure the others.
        let measured = engines::open(&arguments)
            .and_then(|engine| rates::measure(&*engine, &l.description, rates::Sizes::default()));
        match measured.and_then(|rates| rates::keep(&rates)) {
            Ok(path) => say(&format!("note: {} on {} is kept in {}", l.engine, l.device, path.display())),
            Err(error) => say(&format!("note: {} on {} was not measured: {error:#}", l.engine, l.device)),
        }
    }
    Ok(())
}

/// Only the cpu engine is told how many threads it has.
fn threads_of(engine: EngineName, threads: Option<usize>) -> Option<u16> {
    threads.filter(|_| engine == EngineName::Cpu).and_then(|n| u16::try_from(n).ok())
}

/// What was measured of engines, and what it foretells of a model of a billion weights; nothing if there is nothing.
fn rates_table(listed: &[Listed]) -> Result<String> {
    let known = listed.iter().filter_map(|l| rates::of(l.engine, &l.description));
    let known: Vec<rates::Rates> = known.collect();
    if known.is_empty() {
        return Ok(String::new());
    }
    let graph = choose::yardstick()?;
    let header = [
        "engine",
        "many rows f32",
        "bf16",
        "one row",
        "copies",
        "sums",
        "cache",
        "step",
        "op",
        "1B prompt 512",
        "1B token",
    ];
    let line = |r: &rates::Rates| {
        let seconds = |s: Option<f64>| s.map_or("-".to_string(), |s| format!("{:.1} ms", s * 1e3));
        [
            r.engine.clone(),
            format!("{:.0} GFLOP/s", r.f32_gflop_per_s),
            format!("{:.0} GFLOP/s", r.bf16_gflop_per_s),
            format!("{:.1} GB/s", r.stream_gigabytes_per_s),
            format!("{:.1} GB/s", r.copy_gigabytes_per_s),
            format!("{:.1} GB/s", r.reduce_gigabytes_per_s),
            format!("{:.1} GB/s", r.attention_gigabytes_per_s),
            format!("{:.0} us", r.round_trip_us),
            format!("{:.1} us", r.op_us),
            seconds(rates::prefill(&graph, r, 512, 16)),
            seconds(rates::decode(&graph, r, 512, 16)),
        ]
    };
    let rows: Vec<_> = [header.map(str::to_string)].into_iter().chain(known.iter().map(line)).collect();
    Ok(format!("\n{}", table::format([Align::Left; 11], &rows)))
}

fn to_text(listed: &[Listed], memory: Option<u64>) -> String {
    let header =
        ["engine", "device", "simd", "cores", "memory", "reads", "f32", "bf16", "bf16 loaded", "description"]
            .map(str::to_string);
    let line = |l: &Listed| {
        let known = calibration::of(&l.description);
        let said =
            |number: Option<f64>, unit: &str| number.map_or("-".to_string(), |n| format!("{n:.1} {unit}"));
        [
            l.engine.to_string(),
            l.device.clone(),
            l.simd.clone(),
            l.cores.to_string(),
            l.memory.or(memory).map_or("unknown".to_string(), |bytes| in_words(bytes, "B")),
            said(known.map(|c| c.read_gigabytes_per_s), "GB/s"),
            said(known.and_then(|c| c.f32_gflop_per_s), "GFLOP/s"),
            said(known.and_then(|c| c.bf16_gflop_per_s), "GFLOP/s"),
            said(known.and_then(|c| c.loaded_bf16_gflop_per_s), "GFLOP/s"),
            l.description.clone(),
        ]
    };
    let rows: Vec<_> = [header].into_iter().chain(listed.iter().map(line)).collect();
    table::format([Align::Left; 10], &rows)
}

fn to_json(listed: &[Listed], memory: Option<u64>) -> String {
    let entry = |l: &Listed| {
        json!({
            "engine": l.engine,
            "device": l.device,
            "description": l.description,
            "simd": l.simd,
            "cores": l.cores,
            "memory_bytes": l.memory.or(memory),
            "calibration": calibration::of(&l.description),
            "rates": rates::of(l.engine, &l.description),
        })
    };
    json!({ "devices": listed.iter().map(entry).collect::<Vec<_>>() }).to_string()
}
