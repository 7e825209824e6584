//! `cargo xtask fetch mlx-…` and `cargo xtask shim mlx`: MLX from its wheels, and the library between it and the engine,
//! compiled against their headers with the system's C++ compiler.

use std::{
    env,
    ffi::OsString,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, bail, ensure};
use mlxcel_hub::{Hub, Settings, Stderr, mlx};

use crate::shell;

/// The variables by which the engine and its tests find MLX and the shim.
const HOME: &str = "MLXCEL_MLX_HOME";
const SHIM: &str = "MLXCEL_MLX_SHIM";

/// Stages a build of MLX in the cache and returns its folder.
pub(crate) fn fetch(name: &str) -> Result<PathBuf> {
    let folder = mlx(name).with_context(|| format!("{name} is not published for this machine"))?;
    let hub = Hub::new(Settings::from_env()?, Stderr::new());
    Ok(hub.fetch_folder(&folder)?)
}

/// Compiles the shim for this machine, unless it is newer than its sources, and returns its path.
pub(crate) fn shim() -> Result<PathBuf> {
    let name = if cfg!(target_os = "macos") { "libmlxcel_mlx.dylib" } else { "libmlxcel_mlx.so" };
    compile(env::var_os("CXX").unwrap_or_else(|| "c++".into()), &shell::target_folder("shim").join(name))
}

/// Compiles it for another kind of Linux machine, with that one's compiler.
pub(crate) fn shim_by(compiler: &str) -> Result<PathBuf> {
    compile(compiler.into(), &shell::target_folder("shim").join(compiler).join("libmlxcel_mlx.so"))
}

fn compile(compiler: OsString, made: &Path) -> Result<PathBuf> {
    let home = match env::var_os(HOME) {
        Some(home) => PathBuf::from(home),
        None => fetch("mlx-cpu")?,
    };
    let sources = shell::root().join("crates/mlxcel-mlx/shim");
    let folder = made.parent().context("a library lies in a folder")?;
    if is_newer(made, &sources)? {
        return Ok(made.to_path_buf());
    }
    fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    // An installation has its headers and library side by side, a wheel has them below `mlx`.
    let base =
        [home.join("mlx"), home.clone()].into_iter().find(|base| base.join("include/mlx/mlx.h").is_file());
    let Some(base) = base else {
        bail!("{} has no headers of MLX; set {HOME} to a folder that has", home.display())
    };
    // Elsewhere than on macOS a library need not know where its symbols come from: MLX is loaded before it.
    // Under another name until it is whole.
    let part = folder.join("part");
    let mut compile = Command::new(compiler);
    compile.args(["-std=c++20", "-O2", "-fPIC", "-shared", "-fvisibility=hidden"]);
    compile.arg("-isystem").arg(base.join("include")).arg(sources.join("shim.cpp"));
    compile.arg("-o").arg(&part);
    if cfg!(target_os = "macos") {
        compile.arg("-L").arg(base.join("lib")).arg("-lmlx");
    }
    shell::run(compile)
        .context("the shim needs a compiler for C++20, such as g++ 12 or clang 16 (set CXX)")?;
    fs::rename(&part, made).with_context(|| format!("cannot make {}", made.display()))?;
    Ok(made.to_path_buf())
}

/// Whether a file is there and no source is younger.
fn is_newer(made: &Path, sources: &Path) -> Result<bool> {
    let Ok(made) = fs::metadata(made).and_then(|m| m.modified()) else { return Ok(false) };
    let entries = fs::read_dir(sources).with_context(|| format!("cannot read {}", sources.display()))?;
    for entry in entries {
        if entry?.metadata()?.modified()? > made {
            return Ok(false);
        }
    }
    Ok(true)
}

/// What the tests of the engine find in their environment; nothing on machines for which no processor build is pinned.
pub(crate) fn found() -> Result<Vec<(&'static str, PathBuf)>> {
    if !cfg!(target_os = "linux") && env::var_os(HOME).is_none() {
        eprintln!(
            "xtask: the mlx engine is not tested: its processor build is pinned for Linux; set {HOME} to another"
        );
        return Ok(vec![]);
    }
    let given = |variable: &str| env::var_os(variable).map(PathBuf::from);
    let home = given(HOME).map_or_else(|| fetch("mlx-cpu"), Ok)?;
    let shim = given(SHIM).map_or_else(shim, Ok)?;
    ensure!(shim.is_file(), "{} is not there", shim.display());
    Ok(vec![(HOME, home), (SHIM, shim)])
}
