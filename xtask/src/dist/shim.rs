//! The shim of the mlx engine in a release. It must speak C++ as MLX's own build for the platform does: Debian's compilers
//! do for Linux, Zig's with the system's C++ library for macOS, and for Windows only one with Microsoft's headers, so that
//! one is given ready.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, ensure};
use mlxcel_hub::Machine;

use super::{
    build, macho, portable,
    targets::{Kind, Processor, Target},
    tools::{self, Tools},
};
use crate::{mlx, shell};

/// Names a shim for Windows that was compiled elsewhere.
const GIVEN: &str = "MLXCEL_DIST_SHIM_WINDOWS";

/// Debian's compiler for Linux on ARM.
const ARM_COMPILER: &str = "aarch64-linux-gnu-g++";

/// The oldest macOS that MLX's wheel is for.
const MAC: &str = "aarch64-macos.14.0";

/// The shim for a target, and a note of what is known of it; none where nothing here compiles it.
pub(crate) fn make(target: &Target, tools: &Tools, notes: &mut Vec<String>) -> Result<Option<PathBuf>> {
    let (shim, note) = match target.kind {
        Kind::Linux if target.is_host() && tools::find("c++").is_some() => {
            let shim = mlx::shim()?;
            let (major, minor) = build::glibc_wanted(&shim)?;
            (Some(shim), format!("MLX shim for glibc {major}.{minor}"))
        }
        Kind::Linux if target.processor == Processor::Arm && tools::find(ARM_COMPILER).is_some() => {
            (Some(mlx::shim_by(ARM_COMPILER)?), "MLX shim compiled, not run".to_string())
        }
        Kind::Mac => {
            let (shim, count) = for_mac(tools)?;
            let note =
                format!("MLX shim for macOS 14, all {count} names it wants of MLX are in mlx-metal; not run");
            (Some(shim), note)
        }
        Kind::Windows if shell::variable(GIVEN).is_some() => {
            (Some(given()?), "MLX shim as it was given".to_string())
        }
        _ => (None, "MLX shim not in this archive".to_string()),
    };
    notes.push(note);
    Ok(shim)
}

/// Compiles it with Zig; returns how many names of MLX it looks up, too.
fn for_mac(tools: &Tools) -> Result<(PathBuf, usize)> {
    let base = mlx::base(&mlx::fetch_for("mlx-metal", Machine::MacArm)?)?;
    let folder = shell::target_folder("shim/macos");
    fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let made = folder.join("libmlxcel_mlx.dylib");
    let object = folder.join("shim.o");
    let mut compile = zig(tools, "c++");
    compile.args(["-std=c++20", "-O2", "-g0", "-fPIC", "-fvisibility=hidden", "-Wno-braced-scalar-init"]);
    compile.arg(format!("-ffile-prefix-map={}=/mlx", base.display()));
    compile.arg(format!("-ffile-prefix-map={}=/mlxcel", shell::root().display()));
    compile.arg("-isystem").arg(base.join("include")).arg("-c").arg(mlx::sources().join("shim.cpp"));
    shell::run(with_output(compile, &object))?;
    // As C, since for C++ Zig would link its own standard library: exceptions and strings go to MLX and back, so there must
    // be one, the system's. Names of MLX are looked up in what is loaded, which the engine does first, from any folder.
    let mut link = zig(tools, "cc");
    link.args(["-shared", "-s", "-Wl,-undefined,dynamic_lookup"]);
    link.arg("-Wl,-install_name,@rpath/libmlxcel_mlx.dylib").arg(&object);
    link.arg(shell::root().join("xtask/dist/macos/usr/lib/libc++.tbd"));
    shell::run(with_output(link, &made))?;
    let bytes = fs::read(&made)?;
    build::check_paths(&bytes)?;
    macho::check(&bytes)?;
    let library = fs::read(base.join("lib/libmlx.dylib")).context("the wheel has no libmlx.dylib")?;
    let count = macho::check_looked_up(&bytes, &library)?;
    Ok((made, count))
}

fn zig(tools: &Tools, language: &str) -> Command {
    let mut zig = Command::new(tools.python_bin.join("python"));
    zig.args(["-m", "ziglang", language, "-target", MAC]).env_remove("SDKROOT");
    zig
}

fn with_output(mut command: Command, made: &Path) -> Command {
    command.arg("-o").arg(made);
    command
}

/// A shim for Windows that `cargo xtask shim mlx` compiled there.
fn given() -> Result<PathBuf> {
    let path = PathBuf::from(env::var_os(GIVEN).unwrap_or_default());
    let bytes =
        fs::read(&path).with_context(|| format!("cannot read {}, which {GIVEN} names", path.display()))?;
    portable::check_shim(&bytes).with_context(|| path.display().to_string())?;
    let copy = shell::target_folder("shim/windows").join("mlxcel_mlx.dll");
    ensure!(path != copy, "{GIVEN} names the copy itself");
    fs::create_dir_all(copy.parent().context("a file lies in a folder")?)?;
    fs::copy(&path, &copy)?;
    Ok(copy)
}
