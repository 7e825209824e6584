//! Compiling the programs for a target, so that the same sources give the same bytes in any folder.

use std::{
    env,
    ffi::OsString,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, ensure};

use super::{
    targets::{Kind, PROGRAMS, Target},
    toolchain::Toolchain,
    tools::{self, Tools},
};
use crate::shell;

/// Where builds for other machines lie, apart from those of everyday work.
pub(crate) const FOLDER: &str = "cross/build";

/// The compiler and linker for Windows.
const MINGW: &str = "x86_64-w64-mingw32-gcc-posix";

/// Compiles the programs and returns the folder they are in.
pub(crate) fn run(target: &Target, tools: &Tools, into: &Path) -> Result<PathBuf> {
    if target.kind == Kind::Windows {
        tools::need(MINGW)?;
    }
    let toolchain = if target.is_host() { Toolchain::installed()? } else { Toolchain::private()? };
    if !target.is_host() {
        toolchain.add(target)?;
    }
    let mut command = toolchain.command("cargo");
    command.arg("auditable").arg(if target.kind == Kind::Windows { "build" } else { "zigbuild" });
    let triple = match target.glibc {
        Some((major, minor)) => format!("{}.{major}.{minor}", target.triple),
        None => target.triple.to_string(),
    };
    command.args(["--locked", "--profile", "dist", "--package", "mlxcel", "--bins", "--target"]);
    command.arg(triple).arg("--target-dir").arg(into).current_dir(shell::root());
    set_environment(&mut command, target, &toolchain, tools)?;
    shell::run(command).with_context(|| format!("the programs for {}", target.name))?;
    let folder = into.join(target.triple).join("dist");
    for program in PROGRAMS {
        ensure!(folder.join(target.program(program)).is_file(), "{program} was not made");
    }
    Ok(folder)
}

fn set_environment(
    command: &mut Command,
    target: &Target,
    toolchain: &Toolchain,
    tools: &Tools,
) -> Result<()> {
    for (name, _) in env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("CARGO_")) {
        if name != "CARGO_HOME" {
            command.env_remove(name);
        }
    }
    let folders = [tools.python_bin.clone(), tools.cargo_bin.clone(), toolchain.root.join("bin")];
    let old = env::var_os("PATH").unwrap_or_default();
    let path = env::join_paths(folders.into_iter().chain(env::split_paths(&old)))?;
    command
        .env("PATH", path)
        .env("CARGO", toolchain.program("cargo"))
        .env("RUSTC", toolchain.program("rustc"));
    command.env_remove("RUSTFLAGS").env("CARGO_ENCODED_RUSTFLAGS", flags(target, toolchain)?);
    if target.kind == Kind::Windows {
        command.env("CARGO_TARGET_X86_64_PC_WINDOWS_GNU_LINKER", MINGW);
        command.env("CC_x86_64_pc_windows_gnu", MINGW);
    }
    if target.kind == Kind::Mac {
        // Zig brings the C library; what else is Apple's is named there, as far as the programs ask for it. Stripping is
        // left to the linker, since it signs.
        command
            .env("SDKROOT", shell::root().join("xtask/dist/macos"))
            .env("CARGO_PROFILE_DIST_STRIP", "none");
    }
    Ok(())
}

fn cargo_home() -> Result<PathBuf> {
    let home = || env::var_os("HOME").map(|home| PathBuf::from(home).join(".cargo"));
    shell::variable("CARGO_HOME")
        .map(PathBuf::from)
        .or_else(home)
        .context("neither CARGO_HOME nor HOME is set")
}

/// Has names of folders on this machine written otherwise. The last one that fits counts.
pub(crate) fn remaps(toolchain: &Path) -> Result<Vec<String>> {
    let library = toolchain.join("lib/rustlib/src/rust");
    let moved = [(shell::root(), "/mlxcel"), (cargo_home()?, "/cargo"), (library, "/rustc/1.95.0")];
    Ok(moved.iter().map(|(from, to)| format!("--remap-path-prefix={}={to}", from.display())).collect())
}

/// Flags as cargo takes them where they may have spaces.
pub(crate) fn encoded(flags: &[String]) -> OsString {
    flags.join("\x1f").into()
}

/// Fails where a program names folders of the machine that made it: elsewhere it would have other bytes.
pub(crate) fn check_paths(program: &[u8]) -> Result<()> {
    for folder in [shell::root(), cargo_home()?] {
        let name = folder.as_os_str().as_encoded_bytes();
        ensure!(!program.windows(name.len()).any(|window| window == name), "it names {}", folder.display());
    }
    Ok(())
}

/// Names of folders are written otherwise, and nothing records when it was linked.
fn flags(target: &Target, toolchain: &Toolchain) -> Result<OsString> {
    let mut flags = remaps(&toolchain.root)?;
    if target.kind == Kind::Windows {
        flags.push("-Clink-arg=-Wl,--no-insert-timestamp".to_string());
    }
    if target.kind == Kind::Mac {
        flags.push("-Clink-arg=-s".to_string());
    }
    Ok(encoded(&flags))
}

/// The newest version of the C library that a program asks for, by the names of versions in it.
pub(crate) fn glibc_wanted(program: &Path) -> Result<(u32, u32)> {
    let bytes = fs::read(program).with_context(|| format!("cannot read {}", program.display()))?;
    Ok(newest_glibc(&bytes))
}

fn newest_glibc(bytes: &[u8]) -> (u32, u32) {
    const PREFIX: &[u8] = b"\0GLIBC_";
    let named = bytes.windows(PREFIX.len()).enumerate().filter(|(_, window)| *window == PREFIX);
    let versions = named.filter_map(|(at, _)| {
        let rest = &bytes[at + PREFIX.len()..];
        let text = std::str::from_utf8(&rest[..rest.iter().position(|byte| *byte == 0)?]).ok()?;
        let mut parts = text.split('.').map(str::parse::<u32>);
        Some((parts.next()?.ok()?, parts.next()?.ok()?))
    });
    versions.max().unwrap_or((0, 0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_version_of_the_c_library_is_found_by_its_number() {
        let bytes = b"\x7fELF\0GLIBC_2.4\0GLIBC_2.28\0GLIBC_2.9\0GLIBC_PRIVATE\0XGLIBC_2.99\0GLIBC_2.3.4\0";
        assert_eq!(newest_glibc(bytes), (2, 28));
        assert_eq!(newest_glibc(b"no versions"), (0, 0));
    }
}
