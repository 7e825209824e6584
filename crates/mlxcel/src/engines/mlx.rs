//! The engine that runs on MLX, its arguments, and where MLX is found: where the environment says, else among the builds
//! that `mlxcel engine install` keeps.

use std::env;
use std::path::{Path, PathBuf};

use anyhow::{Result, anyhow, bail};
use clap::{Args, ValueEnum};
use mlxcel_engine::Engine as _;
use mlxcel_hub::{Event, Hub, Settings};
use mlxcel_mlx::{Device, Home, MlxEngine, Mode, Options};

use super::Listed;
use crate::say;

/// The variables that say where MLX, the shim and a faster BLAS are, and what runs where.
const HOME: &str = "MLXCEL_MLX_HOME";
const SHIM: &str = "MLXCEL_MLX_SHIM";
const BLAS: &str = "MLXCEL_MLX_BLAS";
const DEVICE: &str = "MLXCEL_MLX_DEVICE";

/// Builds that may be installed, the one with a GPU first.
const BUILDS: [&str; 3] = ["mlx-metal", "mlx-cuda13", "mlx-cpu"];

#[derive(Clone, Debug, Default, Args)]
pub struct MlxArgs {
    /// How the mlx engine runs a step.
    #[arg(long, value_enum, value_name = "MODE", env = "MLXCEL_MLX_MODE", hide_env_values = true)]
    #[arg(default_value = "lazy")]
    pub mlx_mode: ModeName,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum ModeName {
    /// Built whole and evaluated once, in the background.
    #[default]
    Lazy,
    /// Evaluated after every op; a failure names its node.
    Eager,
    /// Traced once for each bucket of sizes and replayed.
    Compiled,
}

pub fn open(arguments: &MlxArgs, device: Option<&str>) -> Result<MlxEngine> {
    let device = device.map(str::to_string).or_else(|| env::var(DEVICE).ok());
    let device: Option<Device> = device.map(|d| d.parse()).transpose()?;
    let mode = match arguments.mlx_mode {
        ModeName::Lazy => Mode::Lazy,
        ModeName::Eager => Mode::Eager,
        ModeName::Compiled => Mode::Compiled,
    };
    let found = find(device)?;
    let engine = MlxEngine::open(Options { home: found.home, device, mode })?;
    if found.has_gpu && device.is_none() && engine.device() == Device::Cpu {
        say("note: MLX finds no GPU that it can use, and runs on the processor");
    }
    Ok(engine)
}

/// An MLX on this machine.
struct Found {
    home: Home,
    /// Whether it was built for a GPU.
    has_gpu: bool,
}

fn find(device: Option<Device>) -> Result<Found> {
    let shim = shim()?;
    if let Some(home) = env::var_os(HOME) {
        let needs = blas().into_iter().collect();
        return Ok(Found { home: Home { needs, ..Home::new(home, shim) }, has_gpu: false });
    }
    let wanted = BUILDS.into_iter().filter(|b| *b == "mlx-cpu" || device != Some(Device::Cpu));
    let installed = wanted.into_iter().find_map(|build| Some((build, installed(build)?)));
    let Some((build, folder)) = installed else {
        bail!(
            "MLX is not on this machine: run `mlxcel engine install mlx-cpu` (or mlx-cuda13 for an NVIDIA GPU), or set \
             {HOME} to the folder of another MLX"
        )
    };
    let has_gpu = build != "mlx-cpu";
    let needs = if has_gpu { vec![] } else { blas().into_iter().collect() };
    Ok(Found { home: Home { needs, ..Home::new(folder, shim) }, has_gpu })
}

/// The folder of a build that is installed; nothing is fetched.
fn installed(build: &str) -> Option<PathBuf> {
    let settings = Settings { offline: true, ..Settings::from_env().ok()? };
    Hub::new(settings, |_: Event<'_>| {}).fetch_folder(&mlxcel_hub::mlx(build)?).ok()
}

/// The shim beside this program, where a release has it, or where `cargo xtask shim mlx` puts it.
fn shim() -> Result<PathBuf> {
    if let Some(given) = env::var_os(SHIM) {
        return Ok(given.into());
    }
    let here = env::current_exe()?;
    let folder = here.parent().unwrap_or(Path::new("."));
    let places = [folder.to_path_buf(), folder.join("../lib/mlxcel"), folder.join("../shim")];
    let found = places.iter().map(|p| p.join(Home::shim_name())).find(|p| p.is_file());
    found.ok_or_else(|| {
        anyhow!(
            "{} is not beside {}: run `cargo xtask shim mlx`, or set {SHIM} to where it is",
            Home::shim_name(),
            here.display()
        )
    })
}

/// An OpenBLAS, whose products MLX then uses instead of the plain ones that come with it. Only where it is asked for: with
/// it the last bits of a row depend on how many rows are beside it, and so may a token on who else is served.
fn blas() -> Option<PathBuf> {
    let given = env::var_os(BLAS).filter(|given| !given.is_empty())?;
    if given != "auto" {
        return Some(given.into());
    }
    const PLACES: [&str; 4] = [
        "/usr/lib/x86_64-linux-gnu/libopenblas.so.0",
        "/usr/lib/aarch64-linux-gnu/libopenblas.so.0",
        "/usr/lib64/libopenblas.so.0",
        "/usr/lib/libopenblas.so.0",
    ];
    PLACES.into_iter().map(PathBuf::from).find(|path| path.is_file())
}

/// What is there, said without failing: an engine that is not installed is not listed.
pub fn list() -> Vec<Listed> {
    let Ok(engine) = open(&MlxArgs::default(), None) else { return vec![] };
    let caps = engine.caps();
    vec![Listed {
        engine: caps.name,
        device: engine.device().to_string(),
        description: format!("{} from {}", caps.device, engine.home().mlx.display()),
        simd: "-".to_string(),
        cores: caps.threads,
        memory: engine.device_info().memory.filter(|_| engine.device() == Device::Gpu),
    }]
}
