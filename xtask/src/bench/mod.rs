//! `cargo xtask bench cpu`: ours and llama.cpp on the same files, threads and machine, turn by turn in one run. It
//! prints a table of ratios and draws it. What is measured and how is `mlxcel bench`'s and `llama.py`'s business.
//! `cargo xtask bench instructions` counts instead of measuring, and `cargo xtask bench cuda` packs what measures a GPU.

mod contest;
mod gpu;
mod instructions;
mod models;
mod plot;
mod table;

use std::fs;
use std::path::PathBuf;

use anyhow::{Context as _, Result};
use clap::{Args, Subcommand};

use crate::{python, shell};
use contest::Contest;
use models::Files;

/// What is compared.
#[derive(Debug, Subcommand)]
pub(crate) enum Bench {
    /// The CPU engine with llama.cpp (needs Python).
    Cpu(Cpu),
    /// The CUDA engine with compiled transformers and MLX, by a folder that is taken to a GPU host.
    Cuda,
    /// Instructions that the CPU engine takes for a token (needs valgrind).
    Instructions,
}

#[derive(Debug, Args)]
pub(crate) struct Cpu {
    /// One round and short answers, to see that all works.
    #[arg(long)]
    pub(crate) quick: bool,
    /// How often each side has its turn.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) rounds: u16,
    /// Threads of both [default: one for each core].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) threads: Option<u16>,
    /// Only the rows whose name contains this.
    #[arg(long, value_name = "TEXT")]
    pub(crate) only: Option<String>,
    /// Where the plot is written [default: bench/cpu.svg below the target folder].
    #[arg(long, value_name = "FILE.svg")]
    pub(crate) plot: Option<PathBuf>,
}

pub(crate) fn run(bench: &Bench) -> Result<()> {
    shell::run(shell::cargo(&["build", "--release", "--package", "mlxcel"]))?;
    let ours = shell::target_folder("release").join(format!("mlxcel{}", std::env::consts::EXE_SUFFIX));
    match bench {
        Bench::Cpu(options) => against_llama_cpp(options, ours),
        Bench::Cuda => gpu::run(&ours),
        Bench::Instructions => instructions::run(&ours),
    }
}

fn against_llama_cpp(options: &Cpu, ours: PathBuf) -> Result<()> {
    let scripts = shell::root().join("xtask/bench");
    let python = python::environment("bench-venv", &scripts.join("requirements.txt"))?;
    let only = options.only.as_deref().unwrap_or_default();
    let rows: Vec<_> = models::ROWS.iter().filter(|row| row.name.contains(only)).collect();
    anyhow::ensure!(!rows.is_empty(), "no row has '{only}' in its name");
    let files = Files::make(&ours, &rows)?;
    let plot = plot_file(options)?;
    let contest = Contest { ours, python, script: scripts.join("llama.py"), options };
    let results = contest.hold(&rows, &files)?;
    fs::write(&plot, plot::svg(&results)).with_context(|| format!("cannot write {}", plot.display()))?;
    eprintln!("xtask: the plot is {}", plot.display());
    print!("{}", table::markdown(&results));
    Ok(())
}

/// Where the plot goes; found out before anything is measured, since that takes long.
fn plot_file(options: &Cpu) -> Result<PathBuf> {
    let path = match &options.plot {
        Some(path) => shell::root().join(path),
        None => shell::target_folder("bench").join("cpu.svg"),
    };
    fs::write(&path, "").with_context(|| format!("cannot write {}", path.display()))?;
    Ok(path)
}
