//! The shim of the mlx engine in a release. It must speak C++ as MLX's own build for the platform does: Debian's compilers
//! do for Linux, Zig's with the system's C++ library for macOS and with Microsoft's for Windows.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result};
use mlxcel_hub::Machine;

use super::{
    build, macho, microsoft,
    targets::{Kind, Processor, Target},
    tools::{self, Tools},
};
use crate::{mlx, shell};

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
        Kind::Windows => match shell::variable(microsoft::LIBRARY) {
            Some(library) => {
                let shim = microsoft::shim(Path::new(&library), tools)?;
                (Some(shim), "MLX shim, all names it wants of MLX are in mlx-cpu".to_string())
            }
            None => (None, format!("MLX shim not in this archive: {} is not set", microsoft::LIBRARY)),
        },
        Kind::Linux => (None, "MLX shim not in this archive".to_string()),
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
    let mut compile = tools.zig("c++");
    compile.args([
        "-target",
        MAC,
        "-std=c++20",
        "-O2",
        "-g0",
        "-fPIC",
        "-fvisibility=hidden",
        "-Wno-braced-scalar-init",
    ]);
    compile.arg(format!("-ffile-prefix-map={}=/mlx", base.display()));
    compile.arg(format!("-ffile-prefix-map={}=/mlxcel", shell::root().display()));
    compile.arg("-isystem").arg(base.join("include")).arg("-c").arg(mlx::sources().join("shim.cpp"));
    shell::run(with_output(compile, &object))?;
    // As C, since for C++ Zig would link its own standard library: exceptions and strings go to MLX and back, so there must
    // be one, the system's. Names of MLX are looked up in what is loaded, which the engine does first, from any folder.
    let mut link = tools.zig("cc");
    link.args(["-target", MAC, "-shared", "-s", "-Wl,-undefined,dynamic_lookup"]);
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

fn with_output(mut command: Command, made: &Path) -> Command {
    command.arg("-o").arg(made);
    command
}
