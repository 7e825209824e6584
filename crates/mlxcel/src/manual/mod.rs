//! `mlxcel manual`: the reference of all commands, as man pages or as one markdown page, from the same definition as
//! `--help`. Exit codes and environment variables come from their tables.

mod markdown;
mod pages;

use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Result, anyhow, ensure};
use clap::{Args, Command, CommandFactory as _, ValueEnum};

use crate::cli::Cli;

const EXAMPLES: &str = "\
Examples:
  mlxcel manual | man -l -
  mlxcel manual --out ~/.local/share/man/man1
  mlxcel manual --format markdown --out docs/cli.md";

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct Manual {
    /// What is written.
    #[arg(long, value_enum, default_value_t)]
    pub format: Format,
    /// Where it is written: a folder for man pages, one for each command; a file for markdown [default: standard
    /// output, with the first man page only].
    #[arg(long, value_name = "PATH")]
    pub out: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Format {
    #[default]
    Man,
    Markdown,
}

pub fn run(options: &Manual) -> Result<ExitCode> {
    let root = complete();
    match (options.format, &options.out) {
        (Format::Man, None) => print(&pages::page(&root)?)?,
        (Format::Man, Some(folder)) => write_pages(&root, folder)?,
        (Format::Markdown, None) => print(markdown::document(&root).as_bytes())?,
        (Format::Markdown, Some(file)) => write(file, markdown::document(&root).as_bytes())?,
    }
    Ok(ExitCode::SUCCESS)
}

/// The definition with everything that clap adds on its own, as `mlxcel generate` and not `generate`.
fn complete() -> Command {
    let mut root = Cli::command().disable_help_subcommand(true);
    root.build();
    root
}

/// The commands that have documentation, each followed by its own.
fn visible(command: &Command) -> Vec<&Command> {
    let below = command.get_subcommands().filter(|c| !c.is_hide_set());
    std::iter::once(command).chain(below.flat_map(visible)).collect()
}

/// A command's name as it is typed.
fn full_name(command: &Command) -> &str {
    command.get_bin_name().unwrap_or_else(|| command.get_name())
}

fn print(bytes: &[u8]) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    stdout.write_all(bytes)?;
    stdout.flush()
}

fn write_pages(root: &Command, folder: &Path) -> Result<()> {
    ensure!(
        !folder.is_file(),
        "--out '{}' is a file, but there is a man page for each command; give a folder",
        folder.display()
    );
    fs::create_dir_all(folder).map_err(|e| cannot_write(folder, &e))?;
    for command in visible(root) {
        write(&folder.join(pages::file_name(command)), &pages::page(command)?)?;
    }
    Ok(())
}

fn write(path: &Path, bytes: &[u8]) -> Result<()> {
    fs::write(path, bytes).map_err(|e| cannot_write(path, &e))
}

fn cannot_write(path: &Path, error: &io::Error) -> anyhow::Error {
    anyhow!("cannot write '{}': {error}; give --out another place", path.display())
}
