//! The suite that every engine passes, on the CUDA engine, one check after the other on one device. A machine without an
//! NVIDIA driver cannot run it, and it says so. Arguments choose the checks whose names contain one of them; `--part=2/8`
//! takes every eighth of those from the second on, so that several processes share them, and `--glance` takes short answers and
//! leaves out prompts in chunks, for tools that make every step much slower.
#![allow(clippy::print_stdout, reason = "this is a program that reports")]

#[cfg(not(windows))]
#[path = "checks/group.rs"]
mod group;
#[path = "checks/wide.rs"]
mod wide;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;

use conformance::models::{Depth, check_bf16, check_gguf, check_variant, fixtures, variants};
use conformance::ops::{self, Group};
use conformance::{embeddings, scheduled};
use mlxcel_cuda::{CudaEngine, CudaError, CudaOptions};
use mlxcel_ir::DType;

type Check<'a> = (String, Box<dyn Fn() + 'a>);

fn main() -> ExitCode {
    let engine = match CudaEngine::new(CudaOptions::default()) {
        Ok(engine) => engine,
        Err(error @ (CudaError::NoDriver { .. } | CudaError::NoDevice)) => {
            println!("the conformance suite did not run: {error}");
            return ExitCode::SUCCESS;
        }
        Err(error) => {
            println!("the engine does not open: {error}");
            return ExitCode::FAILURE;
        }
    };
    let (flags, wanted): (Vec<_>, Vec<_>) = std::env::args().skip(1).partition(|a| a.starts_with('-'));
    let Some((part, parts)) = part(&flags) else {
        println!("a part is written as --part=2/8");
        return ExitCode::FAILURE;
    };
    let chosen = |name: &str| wanted.is_empty() || wanted.iter().any(|w| name.contains(w.as_str()));
    let (mut passed, mut failed) = (0, vec![]);
    let depth = if flags.iter().any(|f| f == "--glance") { Depth::Glance } else { Depth::Full };
    let all = checks(&engine, depth);
    for (name, check) in all.iter().filter(|(name, _)| chosen(name)).skip(part - 1).step_by(parts) {
        if catch_unwind(AssertUnwindSafe(check)).is_ok() {
            passed += 1;
            println!("ok      {name}");
        } else {
            println!("FAILED  {name}");
            failed.push(name.clone());
        }
    }
    println!("{:?}: {passed} checks passed, {} failed: {failed:?}", engine.device().name, failed.len());
    if failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Which of how many parts is asked for: the only one, unless a flag says otherwise.
fn part(flags: &[String]) -> Option<(usize, usize)> {
    let Some(written) = flags.iter().find_map(|f| f.strip_prefix("--part=")) else { return Some((1, 1)) };
    let (part, parts) = written.split_once('/')?;
    let (part, parts) = (part.parse().ok()?, parts.parse().ok()?);
    (1..=parts).contains(&part).then_some((part, parts))
}

/// An engine whose sums have one order.
fn exact() -> CudaEngine {
    CudaEngine::new(CudaOptions { exact: true, ..CudaOptions::default() }).expect("the engine opens")
}

/// Every check by its name.
fn checks(engine: &CudaEngine, depth: Depth) -> Vec<Check<'_>> {
    let mut all: Vec<Check<'_>> = vec![];
    for group in Group::ALL {
        let check = move || ops::against_reference(engine, group).assert_clean();
        all.push((format!("ops agree with the reference on {group:?}"), Box::new(check)));
    }
    all.push(("ops agree with torch".into(), Box::new(|| ops::against_torch(engine).assert_clean())));
    all.push(("the rules of the seam are kept".into(), Box::new(|| ops::seam(engine).assert_clean())));
    for family in families() {
        for folder in variants(&family) {
            let variant = folder.file_name().unwrap_or_default().display();
            let name = format!("the family {family}, {variant}, answers as transformers does");
            all.push((name, Box::new(move || check_variant(engine, &folder, depth))));
        }
    }
    for family in ["llama", "qwen3"] {
        let name = format!("activations in bf16 of {family}");
        all.push((name, Box::new(move || check_bf16(engine, family))));
    }
    all.push(("wide products of 16-bit numbers".into(), Box::new(|| wide::check_products(engine, 8))));
    all.push(("exact products of 16-bit numbers".into(), Box::new(|| wide::check_products(&exact(), 300))));
    for kind in scheduled::EXACT {
        let check = move || scheduled::check_bits(&exact(), DType::BF16, kind, depth);
        all.push((format!("exact bits of {kind} in bf16"), Box::new(check)));
    }
    all.push(("wide products with experts".into(), Box::new(|| wide::check_experts(engine))));
    all.push(("wide attention of 16-bit numbers".into(), Box::new(|| wide::check_attention(engine))));
    for file in files() {
        let name = format!("the file {file}.gguf equals its safetensors");
        all.push((name, Box::new(move || check_gguf(engine, &file, depth))));
    }
    all.push(("embeddings of bert".into(), Box::new(|| embeddings::check_bert(engine))));
    all.push(("embeddings of decoders".into(), Box::new(|| embeddings::check_decoders(engine))));
    for kind in scheduled::KINDS {
        let check = move || scheduled::check_kind(engine, kind, depth);
        all.push((format!("scheduled {kind}"), Box::new(check)));
        let check = move || scheduled::check_preempted(engine, kind, depth);
        all.push((format!("scheduled {kind}, preempted"), Box::new(check)));
    }
    for kind in scheduled::SEEDED {
        let check = move || scheduled::check_seeds(engine, kind, depth);
        all.push((format!("scheduled seeds of {kind}"), Box::new(check)));
    }
    all.push(("scheduled guesses".into(), Box::new(move || scheduled::check_guesses(engine, depth))));
    #[cfg(not(windows))]
    all.push(("a group of one by NCCL".into(), Box::new(group::check_alone)));
    all
}

/// The decoders among the fixtures.
fn families() -> Vec<String> {
    let folders = std::fs::read_dir(fixtures("golden")).expect("fixtures are there");
    let folders = folders.map(|f| f.expect("a readable entry").path()).filter(|p| p.join("f32").is_dir());
    let mut names: Vec<String> =
        folders.filter_map(|p| p.file_name().map(|n| n.to_string_lossy().into_owned())).collect();
    names.retain(|n| n != "bert");
    names.sort();
    names
}

/// The GGUF files that have what transformers computed beside them.
fn files() -> Vec<String> {
    let entries = std::fs::read_dir(fixtures("gguf")).expect("fixtures are there");
    let paths = entries.map(|f| f.expect("a readable entry").path());
    let stems =
        paths.filter(|p| p.extension().is_some_and(|e| e == "gguf") && p.with_extension("json").exists());
    let mut names: Vec<String> =
        stems.filter_map(|p| p.file_stem().map(|n| n.to_string_lossy().into_owned())).collect();
    names.sort();
    names
}
