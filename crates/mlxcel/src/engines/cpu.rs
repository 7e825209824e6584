//! The engine that runs on the processor, and its arguments.

use std::path::PathBuf;

use anyhow::Result;
use clap::{Args, ValueEnum};
use mlxcel_cpu::{Complain, CpuEngine, CpuOptions, Products, SimdLevel};
use mlxcel_engine::Engine as _;
use mlxcel_hub::{PACKED_OFF, Settings};

use super::Listed;
use crate::say;

/// What is not kept costs time at the next start, not the answer.
const COMPLAIN: Complain = |error| say(&format!("note: {error}"));

#[derive(Clone, Debug, Default, Args)]
pub struct CpuArgs {
    /// How the cpu and cuda engines multiply with numbers of 16 bits and fewer.
    #[arg(long, value_enum, default_value_t)]
    pub products: ProductsName,
    /// The instructions that the cpu engine uses, of those this machine has [default: the fastest].
    #[arg(long, value_name = "LEVEL", value_parser = simd_level)]
    pub simd: Option<SimdLevel>,
    /// The folder where the cpu engine keeps packed weights, which take as much room as the model, so that it starts sooner the
    /// next time; off keeps none [default: packed in the cache].
    #[arg(long, value_name = "DIR")]
    pub packed_cache: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum ProductsName {
    /// With cpu a prompt in bf16 (tiles, pairs) or in 8 bits, the token from which the next is drawn in 16 bits.
    #[default]
    Fast,
    /// As exact as f32; with cuda, in the type of the activations, the same to the last bit in any company.
    Exact,
}

fn simd_level(text: &str) -> Result<SimdLevel, String> {
    let there_are = SimdLevel::available();
    there_are.iter().copied().find(|level| level.to_string() == text).ok_or_else(|| {
        let names: Vec<String> = there_are.iter().map(SimdLevel::to_string).collect();
        format!("this machine has: {}", names.join(", "))
    })
}

pub fn open(arguments: &CpuArgs, threads: Option<usize>) -> Result<CpuEngine> {
    let products = match arguments.products {
        ProductsName::Fast => Products::Fast,
        ProductsName::Exact => Products::Exact,
    };
    let (level, packed) = (arguments.simd, packed_folder(arguments));
    let complain = Some(COMPLAIN);
    Ok(CpuEngine::new(CpuOptions { threads, level, products, packed, complain })?)
}

/// What the arguments say, else the environment; a machine without a cache keeps nothing.
fn packed_folder(arguments: &CpuArgs) -> Option<PathBuf> {
    match &arguments.packed_cache {
        Some(folder) => Some(folder.clone()).filter(|folder| folder.as_os_str() != PACKED_OFF),
        None => Settings::from_env().ok()?.packed,
    }
}

pub fn list(threads: Option<usize>) -> Result<Vec<Listed>> {
    let caps = open(&CpuArgs::default(), threads)?.caps();
    let simd = SimdLevel::best().to_string();
    Ok(vec![Listed {
        engine: caps.name,
        device: "cpu".to_string(),
        description: caps.device,
        simd,
        cores: caps.threads,
        memory: None,
    }])
}
