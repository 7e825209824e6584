//! `mlxcel engine`: fetching, listing and removing what engines load at run time.

use std::io::{self, Write as _};
use std::process::ExitCode;

use anyhow::{Result, bail};
use clap::{Args, Subcommand, builder::PossibleValuesParser};
use mlxcel_hub::{Hub, MLX_BUILDS, Settings, Stderr};

use crate::engines::mlx;
use crate::{say, table};

const EXAMPLES: &str = "\
Examples:
  mlxcel engine install mlx-cpu
  mlxcel engine list
  mlxcel engine remove mlx-cpu";

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct Engine {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Fetch a build of MLX, checked against its digest, and print where it is.
    #[command(after_help = "Examples:\n  mlxcel engine install mlx-cpu")]
    Install {
        #[arg(value_parser = PossibleValuesParser::new(MLX_BUILDS))]
        name: String,
    },
    /// List what can be installed, and where what is installed lies.
    #[command(after_help = "Examples:\n  mlxcel engine list")]
    List,
    /// Remove a build from the cache.
    #[command(after_help = "Examples:\n  mlxcel engine remove mlx-cpu")]
    Remove {
        #[arg(value_parser = PossibleValuesParser::new(MLX_BUILDS))]
        name: String,
    },
}

pub fn run(options: &Engine) -> Result<ExitCode> {
    match &options.action {
        Action::Install { name } => install(name)?,
        Action::List => list()?,
        Action::Remove { name } => remove(name)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn print(text: &str) -> Result<()> {
    let mut stdout = io::stdout().lock();
    writeln!(stdout, "{text}")?;
    Ok(stdout.flush()?)
}

fn install(name: &str) -> Result<()> {
    let Some(folder) = mlxcel_hub::mlx(name) else { bail!("there is no build '{name}'") };
    let path = Hub::new(Settings::from_env()?, Stderr::new()).fetch_folder(&folder)?;
    print(&path.display().to_string())?;
    if name == "mlx-cuda13" {
        say(
            "note: MLX for CUDA also loads cuBLASLt, cuFFT, cuSOLVER, NVRTC, cuDNN 9 and NCCL of CUDA 13, which must be \
             where the system finds libraries",
        );
    }
    Ok(())
}

fn list() -> Result<()> {
    let line = |name: &str| {
        let path = mlx::installed(name).map_or("-".to_string(), |path| path.display().to_string());
        [name.to_string(), mlxcel_hub::MLX_VERSION.to_string(), path]
    };
    let header = ["engine", "version", "folder"].map(str::to_string);
    let rows: Vec<_> = [header].into_iter().chain(MLX_BUILDS.iter().map(|name| line(name))).collect();
    print(table::format([table::Align::Left; 3], &rows).trim_end_matches('\n'))
}

fn remove(name: &str) -> Result<()> {
    let Some(path) = mlx::installed(name) else {
        bail!("{name} is not installed; `mlxcel engine list` shows what is")
    };
    std::fs::remove_dir_all(&path)?;
    say(&format!("removed {}", path.display()));
    Ok(())
}
