//! `mlxcel completions`: what a shell needs to complete commands and flags, from the same definition as `--help`.

use std::io::{self, Write as _};
use std::process::ExitCode;

use anyhow::Result;
use clap::{Args, CommandFactory as _};
use clap_complete::Shell;

use crate::cli::Cli;

const EXAMPLES: &str = "\
Examples:
  mlxcel completions bash > ~/.local/share/bash-completion/completions/mlxcel
  mlxcel completions zsh > \"${fpath[1]}/_mlxcel\"
  mlxcel completions fish > ~/.config/fish/completions/mlxcel.fish
  mlxcel completions powershell >> $PROFILE";

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct Completions {
    /// The shell that reads them.
    #[arg(value_enum)]
    pub shell: Shell,
}

pub fn run(options: &Completions) -> Result<ExitCode> {
    let mut script = Vec::new();
    clap_complete::generate(options.shell, &mut Cli::command(), "mlxcel", &mut script);
    let mut stdout = io::stdout().lock();
    stdout.write_all(&script)?;
    stdout.flush()?;
    Ok(ExitCode::SUCCESS)
}
