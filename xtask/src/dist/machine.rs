//! Running a program of a release: as it is, under qemu, or under Wine. Knows how paths and signals get there, not what
//! is asked of the program.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Result, bail};

use super::{
    targets::{Kind, Target},
    tools::{self, Lacking},
};
use crate::shell;

/// What Wine before its tenth version lacks: the random numbers that Rust's standard library asks for.
const PRIMITIVES: &str = "#include <windows.h>\n#include <ntsecapi.h>\n\
    __declspec(dllexport) BOOL WINAPI ProcessPrng(PBYTE to, SIZE_T n) { return RtlGenRandom(to, n); }\n";

/// What runs programs for a target.
pub(crate) enum Machine {
    Host,
    Qemu { program: PathBuf, root: PathBuf },
    Wine { program: PathBuf, prefix: PathBuf },
}

impl Machine {
    /// What runs them here, or why nothing does.
    pub(crate) fn find(target: &Target) -> Result<Self> {
        if target.is_host() {
            return Ok(Machine::Host);
        }
        match target.kind {
            Kind::Linux => {
                let root = PathBuf::from("/usr/aarch64-linux-gnu");
                let program = tools::need("qemu-aarch64-static")?;
                if !root.join("lib/libgcc_s.so.1").exists() {
                    let needed = "libc6-arm64-cross, libgcc-s1-arm64-cross";
                    bail!(Lacking(format!("the C library of ARM is not here (Debian's {needed})")));
                }
                Ok(Machine::Qemu { program, root })
            }
            Kind::Windows => {
                let program = tools::need("wine")?;
                let machine = Machine::Wine { program, prefix: shell::target_folder("cross/wine") };
                machine.prepare()?;
                Ok(machine)
            }
            Kind::Mac => bail!(Lacking("nothing here runs it".to_string())),
        }
    }

    pub(crate) fn name(&self) -> &'static str {
        match self {
            Machine::Host => "here",
            Machine::Qemu { .. } => "qemu",
            Machine::Wine { .. } => "Wine",
        }
    }

    pub(crate) fn command(&self, path: &Path) -> Command {
        let mut command = self.plain_command(path);
        shell::without_secrets(&mut command);
        command
    }

    fn plain_command(&self, path: &Path) -> Command {
        match self {
            Machine::Host => Command::new(path),
            Machine::Qemu { program, root } => {
                let mut command = Command::new(program);
                command.arg("-L").arg(root).arg(path);
                command
            }
            Machine::Wine { program, prefix } => {
                let mut command = Command::new(program);
                command.arg(path).env("WINEPREFIX", prefix).env("WINEDEBUG", "-all");
                // A prefix needs neither a browser nor .NET.
                command.env("WINEDLLOVERRIDES", "mscoree,mshtml=");
                command
            }
        }
    }

    /// A path of this machine as the program is told it.
    pub(crate) fn path(&self, path: &Path) -> String {
        let text = path.display().to_string();
        if matches!(self, Machine::Wine { .. }) { format!("Z:{}", text.replace('/', "\\")) } else { text }
    }

    /// The signal by which a person ends a server: Wine makes a Ctrl-C of SIGINT.
    pub(crate) fn end_signal(&self) -> &'static str {
        if matches!(self, Machine::Wine { .. }) { "-INT" } else { "-TERM" }
    }

    /// Makes Wine's folder, with what this version of it lacks and with a second drive.
    fn prepare(&self) -> Result<()> {
        let Machine::Wine { prefix, .. } = self else { return Ok(()) };
        let system = prefix.join("drive_c/windows/system32");
        if !system.join("kernel32.dll").is_file() {
            fs::create_dir_all(prefix)?;
            let mut boot = self.command(Path::new("wineboot"));
            boot.arg("--init");
            tools::output(&mut boot)?;
        }
        let library = system.join("bcryptprimitives.dll");
        if !library.is_file() {
            let source = prefix.join("primitives.c");
            fs::write(&source, PRIMITIVES)?;
            let mut compile = Command::new("x86_64-w64-mingw32-gcc-posix");
            compile.args(["-shared", "-O1", "-o"]).arg(&library).arg(&source).arg("-ladvapi32");
            tools::output(&mut compile)?;
        }
        Ok(())
    }

    /// The folder that the program sees as drive `E:`, a second drive.
    pub(crate) fn second_drive(&self) -> Result<Option<PathBuf>> {
        let Machine::Wine { prefix, .. } = self else { return Ok(None) };
        let folder = prefix.join("second-drive");
        fs::create_dir_all(&folder)?;
        let link = prefix.join("dosdevices/e:");
        if !link.exists() {
            let mut make = Command::new("ln");
            make.args(["-sfn", "../second-drive"]).arg(&link);
            tools::output(&mut make)?;
        }
        Ok(Some(folder))
    }
}
