//! The engine that runs through XLA, its arguments, and where its plugins are looked for.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Result;
use clap::Args;
use mlxcel_hub::{Hub, Settings, Stderr, XLA_CPU, XLA_CUDA13};
use mlxcel_ir::{Bindings, Graph};
#[cfg(not(feature = "iree"))]
use mlxcel_xla::XlaError;
use mlxcel_xla::pjrt::{PjrtExecutor, PjrtOptions};
use mlxcel_xla::{
    Complain, Device, EmitOptions, Executor, ExecutorName, Search, StepKind, XlaEngine, XlaOptions,
};

use super::Listed;
use crate::say;

/// Device and executor, where the command line does not name them.
const DEVICE_VARIABLE: &str = "MLXCEL_XLA_DEVICE";
const EXECUTOR_VARIABLE: &str = "MLXCEL_XLA_EXECUTOR";
const PLUGIN_VARIABLE: &str = "MLXCEL_XLA_PLUGIN";

/// The share of an accelerator's memory that a PJRT client may take.
const MEMORY_VARIABLE: &str = "MLXCEL_XLA_MEMORY";

/// A folder in which nothing can be kept costs time, not the answer.
const COMPLAIN: Complain = |error| say(&format!("note: {error}"));

#[derive(Clone, Debug, Default, Args)]
pub struct XlaArgs {
    /// The PJRT plugin of the xla engine [default: the one that was fetched, or Python's].
    #[arg(long, value_name = "FILE", env = PLUGIN_VARIABLE, hide_env = true)]
    pub xla_plugin: Option<PathBuf>,
}

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

pub fn open(arguments: &XlaArgs, device: Option<&str>) -> Result<XlaEngine> {
    let executor: ExecutorName = variable(EXECUTOR_VARIABLE).map_or(Ok(ExecutorName::Pjrt), |n| n.parse())?;
    let named = device.map(str::to_string).or_else(|| variable(DEVICE_VARIABLE));
    let device: Device = named.map_or(Ok(Device::Cpu), |name| name.parse())?;
    let settings = Settings::from_env()?;
    let executor = match executor {
        ExecutorName::Pjrt => pjrt(arguments, device, settings)?,
        ExecutorName::Iree => iree(device, settings)?,
    };
    Ok(XlaEngine::new(executor, XlaOptions::default()))
}

fn pjrt(arguments: &XlaArgs, device: Device, settings: Settings) -> Result<Arc<dyn Executor>> {
    let cache = settings.cache.join("xla");
    let plugin = mlxcel_xla::plugin(device, &search(arguments, device, settings))?;
    let memory_fraction =
        variable(MEMORY_VARIABLE).map(|text| PjrtOptions::parse_memory(&text)).transpose()?;
    let device = device.name().to_string();
    let (cache, complain) = (Some(cache), Some(COMPLAIN));
    let options = PjrtOptions { device, memory_fraction, cache, complain, ..PjrtOptions::default() };
    Ok(Arc::new(PjrtExecutor::open(&plugin, &options)?))
}

#[cfg(feature = "iree")]
fn iree(device: Device, settings: Settings) -> Result<Arc<dyn Executor>> {
    use mlxcel_xla::iree::{Compiler, IreeExecutor, IreeOptions};
    let cache = Some(settings.cache.join("xla"));
    let named = variable("MLXCEL_XLA_IREE_COMPILE").map(PathBuf::from);
    let staged = mlxcel_hub::IREE.and_then(|folder| Hub::new(settings, Stderr::new()).kept_folder(&folder));
    let search = Search { named, staged, python: python_packages() };
    let compiler = Compiler::open(&mlxcel_xla::iree_compiler(&search)?)?;
    let options = IreeOptions { device, cache, complain: Some(COMPLAIN), ..IreeOptions::default() };
    Ok(Arc::new(IreeExecutor::open(compiler, &options)?))
}

#[cfg(not(feature = "iree"))]
fn iree(_: Device, _: Settings) -> Result<Arc<dyn Executor>> {
    Err(XlaError::NoIree.into())
}

fn search(arguments: &XlaArgs, device: Device, settings: Settings) -> Search {
    let package = match device {
        Device::Cpu => XLA_CPU,
        Device::Cuda => XLA_CUDA13,
        _ => None,
    };
    let hub = Hub::new(settings, Stderr::new());
    let staged = package.and_then(|folder| hub.kept_folder(&folder));
    Search { named: arguments.xla_plugin.clone(), staged, python: python_packages() }
}

/// Folders of Python's packages: of the environment in use, of the user, of the system.
fn python_packages() -> Vec<PathBuf> {
    let below = |folder: PathBuf| -> Vec<PathBuf> {
        let entries = std::fs::read_dir(folder.join("lib")).into_iter().flatten().flatten();
        let python =
            |path: &Path| path.file_name().is_some_and(|n| n.to_string_lossy().starts_with("python3"));
        let versions = entries.map(|entry| entry.path()).filter(|path| python(path));
        versions.flat_map(|v| [v.join("site-packages"), v.join("dist-packages")]).collect()
    };
    let environment = std::env::var_os("VIRTUAL_ENV").map(PathBuf::from);
    let user = std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".local"));
    let system = ["/usr/local", "/usr"].map(PathBuf::from);
    environment.into_iter().chain(user).chain(system).flat_map(below).collect()
}

/// The module that a decode of one token runs, behind the least context that steps are compiled for.
pub fn stablehlo(graph: &Graph) -> Result<String> {
    let graph = mlxcel_ir::passes::optimize(graph)?;
    let sizes = [
        ("tokens", 1),
        ("sequences", 1),
        ("rows", 1),
        ("pages", 16),
        ("block", 16),
        ("blocks", 64),
        ("slots", 8),
    ];
    let sizes: Bindings = sizes.into_iter().map(|(name, n)| (name.to_string(), n)).collect();
    let outputs: Vec<&str> = graph.outputs().iter().map(|(name, _)| name.as_str()).collect();
    let kind = StepKind { is_split: true, is_greedy: true, ..StepKind::default() };
    Ok(mlxcel_xla::module(&graph, &sizes, &outputs, kind, EmitOptions::default())?.text)
}

/// The devices whose plugins are on this machine. Nothing is loaded to tell; without a cache there is none.
pub fn list() -> Vec<Listed> {
    let Ok(settings) = Settings::from_env() else { return vec![] };
    let mut found = vec![];
    // A plugin that is named is one for the device that is.
    let chosen = variable(DEVICE_VARIABLE).map_or(Ok(Device::Cpu), |name| name.parse());
    for device in [Device::Cpu, Device::Cuda] {
        let named = variable(PLUGIN_VARIABLE).filter(|_| chosen.as_ref().is_ok_and(|c| *c == device));
        let arguments = XlaArgs { xla_plugin: named.map(PathBuf::from) };
        if let Ok(plugin) = mlxcel_xla::plugin(device, &search(&arguments, device, settings.clone())) {
            found.push(Listed {
                engine: mlxcel_xla::NAME,
                device: device.name().to_string(),
                description: format!("PJRT plugin {}", plugin.display()),
                simd: "its own".to_string(),
                cores: std::thread::available_parallelism().map_or(1, std::num::NonZero::get),
                memory: None,
            });
        }
    }
    found
}
