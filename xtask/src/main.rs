//! The project's chores, run as `cargo xtask NAME`. Nothing here is part of what users install.

mod bench;
mod check;
mod clients;
mod dist;
mod fetch;
mod golden;
mod iree;
mod kernels;
mod lanes;
mod mlx;
mod python;
mod shell;
mod suite;
mod tidy;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// The project's chores.
#[derive(Debug, Parser)]
#[command(bin_name = "cargo xtask")]
struct Arguments {
    #[command(subcommand)]
    chore: Chore,
}

#[derive(Debug, Subcommand)]
enum Chore {
    /// Fetch what the tests need and run every test of the workspace.
    Test {
        /// Arguments for `cargo test`, such as `-p mlxcel-ir` or a part of a test's name.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// Stage a pinned package in the cache and print its folder: iree, mlx-cpu, mlx-cuda13, mlx-metal, xla-cpu,
    /// xla-cuda13.
    Fetch { name: String },
    /// Compile the library between an engine and what it loads, and print its path: mlx.
    Shim {
        #[arg(value_parser = ["mlx"])]
        engine: String,
    },
    /// Ask a server for everything, for long, and see that it holds no more than before.
    Soak {
        /// How long.
        #[arg(long, default_value_t = 60)]
        minutes: u64,
    },
    /// Compare speeds with another runtime on this machine.
    #[command(subcommand)]
    Bench(bench::Bench),
    /// Check formatting, lints, tidiness and dependencies.
    Check,
    /// Check the rules that compilers do not: layers, sizes, names, left-over markers, links.
    Tidy,
    /// Compile the kernels of the CUDA engine (needs neither a GPU nor a CUDA toolkit).
    Kernels {
        /// One target instead of all, such as `sm_90a`.
        #[arg(long)]
        only: Option<String>,
    },
    /// Make archives and packages for every platform that this machine can build for.
    Dist(dist::Dist),
    /// Check a folder of artifacts against their signed sums.
    Verify(dist::Verify),
    /// Make the golden fixtures again with Hugging Face transformers (needs Python).
    Golden {
        /// Model families, or `all`.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true, required = true)]
        families: Vec<String>,
    },
}

fn main() -> ExitCode {
    let result = match Arguments::parse().chore {
        Chore::Test { arguments } => suite::run(&arguments),
        Chore::Fetch { name } => fetch::run(&name).map(|path| println!("{}", path.display())),
        Chore::Shim { engine: _ } => mlx::shim().map(|path| println!("{}", path.display())),
        Chore::Soak { minutes } => suite::soak(minutes),
        Chore::Bench(bench) => bench::run(&bench),
        Chore::Check => check::run(),
        Chore::Tidy => tidy::run(),
        Chore::Kernels { only } => kernels::run(only.as_deref()),
        Chore::Dist(options) => dist::run(&options),
        Chore::Verify(options) => dist::verify(&options),
        Chore::Golden { families } => golden::run(&families),
    };
    if let Err(error) = result {
        eprintln!("xtask: {error:#}");
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}
