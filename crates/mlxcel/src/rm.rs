//! `mlxcel rm`: removes models from the cache, after asking.

use std::io::{self, IsTerminal as _, Write as _};
use std::process::ExitCode;

use anyhow::{Result, bail};
use clap::Args;
use mlxcel_hub::{Hub, Kept, Settings, Stderr};

use crate::report::in_words;

const EXAMPLES: &str = "\
Examples:
  mlxcel rm mlx-community/Qwen3-0.6B-4bit
  mlxcel rm Qwen/Qwen3-0.6B-GGUF:Q8_0 smollm2 --yes";

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct Rm {
    /// Models as `mlxcel list` names them; without a revision or pattern, all that there are.
    #[arg(value_name = "MODEL", required = true)]
    models: Vec<String>,
    /// Do not ask.
    #[arg(short, long)]
    yes: bool,
}

pub fn run(options: &Rm) -> Result<ExitCode> {
    let hub = Hub::new(Settings::from_env()?, Stderr::new());
    let mut chosen: Vec<Kept> = Vec::new();
    for model in &options.models {
        for kept in hub.kept_as(model)? {
            if chosen.iter().all(|other| other.path != kept.path) {
                chosen.push(kept);
            }
        }
    }
    if !options.yes && !is_confirmed(&chosen)? {
        crate::say("nothing was removed");
        return Ok(ExitCode::SUCCESS);
    }
    let mut stdout = io::stdout().lock();
    for kept in &chosen {
        hub.remove(kept)?;
        writeln!(stdout, "removed {} ({})", kept.name, in_words(kept.bytes, "B"))?;
    }
    if chosen.len() > 1 {
        writeln!(stdout, "freed {} in all", in_words(total(&chosen), "B"))?;
    }
    stdout.flush()?;
    Ok(ExitCode::SUCCESS)
}

fn total(chosen: &[Kept]) -> u64 {
    chosen.iter().map(|kept| kept.bytes).fold(0, u64::saturating_add)
}

/// Shows what would go, and reads the answer from the terminal.
fn is_confirmed(chosen: &[Kept]) -> Result<bool> {
    if !io::stdin().is_terminal() {
        let names: Vec<&str> = chosen.iter().map(|kept| kept.name.as_str()).collect();
        bail!("{} would be removed, and there is no terminal to ask at; give --yes", names.join(", "));
    }
    for kept in chosen {
        crate::say(&format!("{}  {}  {}", kept.name, in_words(kept.bytes, "B"), kept.path.display()));
    }
    let mut stderr = io::stderr().lock();
    write!(stderr, "remove {}? [y/N] ", in_words(total(chosen), "B"))?;
    stderr.flush()?;
    let mut answer = String::new();
    io::stdin().read_line(&mut answer)?;
    Ok(matches!(answer.trim().to_ascii_lowercase().as_str(), "y" | "yes"))
}
