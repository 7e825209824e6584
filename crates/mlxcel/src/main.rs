//! The command line: parses arguments, runs one command, and turns what went wrong into one sentence and an exit
//! code. It is the only crate that names concrete engines.

mod answer;
mod capacity;
mod cli;
mod devices;
mod engines;
mod generate;
mod inspect;
mod interrupt;
mod memory;
mod plan;
mod prompt;
mod report;
mod session;
mod table;
mod values;
mod vocabulary;

use std::io::{self, Write as _};
use std::process::ExitCode;
use std::time::Instant;

use clap::Parser as _;

use cli::{Cli, Command};

fn main() -> ExitCode {
    let started = Instant::now();
    mlxcel_weights::install_truncation_guard();
    let result = match Cli::parse().command {
        Command::Generate(options) => generate::run(&options, started),
        Command::Inspect(options) => inspect::run(&options),
        Command::Devices(options) => devices::run(&options),
    };
    result.unwrap_or_else(|error| {
        // Who closes our output has read enough.
        if is_closed_pipe(&error) {
            return ExitCode::SUCCESS;
        }
        say(&format!("error: {error}"));
        ExitCode::FAILURE
    })
}

/// One line on stderr. A stderr that cannot be written to is no reason to fail.
fn say(line: &str) {
    let _ = writeln!(io::stderr(), "{line}");
}

fn is_closed_pipe(error: &anyhow::Error) -> bool {
    error.downcast_ref::<io::Error>().is_some_and(|e| e.kind() == io::ErrorKind::BrokenPipe)
}
