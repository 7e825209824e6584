//! `cargo xtask bench instructions`: how many instructions the CPU engine takes for a token, counted under callgrind. A
//! count is the same on a quiet and on a busy machine, so it shows what a measured time hides. What the counter cannot
//! run (AVX-512, AMX) is not counted.

use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};

use crate::shell;

/// The levels that callgrind runs.
const LEVELS: [&str; 2] = ["baseline", "avx2"];

/// A test of `mlxcel bench` and a longer one; the difference is free of everything but tokens.
struct Pair {
    name: &'static str,
    flag: &'static str,
    sizes: [u64; 2],
}

const PAIRS: [Pair; 2] = [
    Pair { name: "token of a prompt", flag: "-p", sizes: [8, 24] },
    Pair { name: "token of an answer", flag: "-n", sizes: [1, 3] },
];

/// Counts and prints a table.
pub(super) fn run(ours: &Path) -> Result<()> {
    println!("| SmolLM2-135M Q4_1, one thread | {} |", LEVELS.join(" | "));
    println!("|---|{}", "---|".repeat(LEVELS.len()));
    for pair in PAIRS {
        let mut line = format!("| instructions for a {} |", pair.name);
        for level in LEVELS {
            let [few, many] = [count(ours, level, &pair, 0)?, count(ours, level, &pair, 1)?];
            let each = many.saturating_sub(few) / (pair.sizes[1] - pair.sizes[0]);
            line += &format!(" {:.1} M |", each as f64 / 1e6);
        }
        println!("{line}");
    }
    Ok(())
}

fn count(ours: &Path, level: &str, pair: &Pair, size: usize) -> Result<u64> {
    let other = if pair.flag == "-p" { "-n" } else { "-p" };
    let number = pair.sizes[size].to_string();
    eprintln!("xtask: counting {} {number} on {level}", pair.flag);
    let mut command = Command::new("valgrind");
    command.args(["--tool=callgrind", "--callgrind-out-file=/dev/null"]).arg(ours);
    // What one count packed would be there for the next.
    command.args(["bench", "--packed-cache", "off", "--threads", "1", "-r", "1", "--simd", level]);
    command.args([pair.flag, &number, other, "0"]);
    let output = command
        .current_dir(shell::root())
        .output()
        .context("cannot start valgrind; install it with the system's package manager")?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "valgrind ended with {}:\n{said}", output.status);
    let total = said.lines().find_map(|line| line.split_once("Collected :")).map(|(_, n)| n.trim());
    total.and_then(|n| n.parse().ok()).with_context(|| format!("valgrind named no count:\n{said}"))
}
