//! The command line: parses arguments, runs one command, and turns what went wrong into one sentence and an exit
//! code. It is the only crate that names concrete engines. A library only because two programs share it.

mod answer;
mod bench;
mod budget;
mod calibration;
mod capacity;
mod cli;
mod colour;
mod completions;
mod convert;
mod devices;
mod download;
mod embed;
mod embedder;
mod engine;
mod engines;
mod environment;
mod exit;
mod fit;
mod generate;
mod inspect;
mod interrupt;
mod list;
mod loading;
mod manual;
mod memory;
mod parallel;
mod perplexity;
mod plan;
mod prompt;
mod rates;
mod report;
mod rm;
mod run;
mod serve;
mod session;
mod table;
mod terminal;
mod texts;
mod tokenize;
mod values;
mod vocabulary;

use std::io::{self, Write as _};
use std::process::ExitCode;
use std::time::Instant;

use clap::Parser as _;

use cli::{Cli, Command};

/// How the word `error` looks where there is colour: as the parser has it.
const ERROR: anstyle::Style = anstyle::AnsiColor::Red.on_default().bold();

/// The program `mlxcel`.
pub fn run_command_line() -> ExitCode {
    let started = Instant::now();
    colour::choose(std::env::args_os().skip(1));
    mlxcel_weights::install_truncation_guard();
    let result = match Cli::parse().command {
        Command::Run(options) => run::run(&options),
        Command::Generate(options) => generate::run(&options, started),
        Command::Embed(options) => embed::run(&options),
        Command::Inspect(options) => inspect::run(&options),
        Command::Tokenize(options) => tokenize::run(&options),
        Command::Download(options) => download::run(&options),
        Command::List(options) => list::run(&options),
        Command::Rm(options) => rm::run(&options),
        Command::Convert(options) => convert::run(&options),
        Command::Bench(options) => bench::run(&options),
        Command::Perplexity(options) => perplexity::run(&options),
        Command::Serve(options) => serve::run(&options),
        Command::Worker(options) => parallel::run(&options),
        Command::Devices(options) => devices::run(&options),
        Command::Engine(options) => engine::run(&options),
        Command::Completions(options) => completions::run(&options),
        Command::Manual(options) => manual::run(&options),
    };
    conclude(result)
}

/// The program `mlxcel-server`.
pub fn run_server() -> ExitCode {
    mlxcel_weights::install_truncation_guard();
    conclude(serve::run_as_llama_server())
}

/// Turns what went wrong into one sentence and an exit code.
fn conclude(result: anyhow::Result<ExitCode>) -> ExitCode {
    result.unwrap_or_else(|error| {
        // Who closes our output has read enough.
        if has_kind(&error, io::ErrorKind::BrokenPipe) {
            return ExitCode::SUCCESS;
        }
        let message = if has_kind(&error, io::ErrorKind::StorageFull) {
            format!("cannot write the output: {error}; make room, or write it elsewhere")
        } else {
            error.to_string()
        };
        say(&format!("{ERROR}error:{ERROR:#} {message}"));
        ExitCode::FAILURE
    })
}

/// One line on stderr. A stderr that cannot be written to is no reason to fail.
fn say(line: &str) {
    let _ = writeln!(anstream::stderr(), "{line}");
}

/// Whether it is an error of a stream, of this kind. Errors about files have become messages where they happened.
fn has_kind(error: &anyhow::Error, kind: io::ErrorKind) -> bool {
    error.downcast_ref::<io::Error>().is_some_and(|e| e.kind() == kind)
}
