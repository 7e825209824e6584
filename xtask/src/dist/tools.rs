//! The programs that make a release: which come from registries, pinned, and which the machine must have.

use std::{
    env, fmt,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context as _, Result};

use crate::{python, shell};

/// Embeds the list of dependencies in programs.
const AUDITABLE_VERSION: &str = "0.7.7";

/// What this machine lacks. Where that is all that is wrong, the rest of a release is still made.
#[derive(Debug)]
pub(crate) struct Lacking(pub(crate) String);

impl fmt::Display for Lacking {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Lacking {}

/// Whether something went wrong only because the machine lacks something.
pub(crate) fn is_lack(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| cause.is::<Lacking>())
}

/// Where a program is that this machine must have.
pub(crate) fn need(program: &str) -> Result<PathBuf> {
    find(program).ok_or_else(|| {
        let package = NEEDED.iter().find(|(_, name, _)| *name == program).map(|(package, ..)| *package);
        let package = package.map_or(String::new(), |package| format!(" (Debian's {package})"));
        Lacking(format!("{program} is not here{package}")).into()
    })
}

/// What Debian calls the programs that a machine may lack, with the program to look for and what it is for.
pub(crate) const NEEDED: [(&str, &str, &str); 9] = [
    ("gcc-mingw-w64-x86-64-posix", "x86_64-w64-mingw32-gcc-posix", "links for Windows"),
    ("wine", "wine", "runs what is for Windows"),
    ("qemu-user-static", "qemu-aarch64-static", "runs what is for ARM"),
    ("libc6-arm64-cross", "/usr/aarch64-linux-gnu/lib/libc.so.6", "the C library of ARM, for qemu"),
    ("wixl", "wixl", "makes the installer for Windows"),
    ("msitools", "msibuild", "puts it in the path"),
    ("debootstrap", "debootstrap", "makes a clean root to install into"),
    ("g++", "c++", "compiles the shim of the mlx engine"),
    ("g++-aarch64-linux-gnu", "aarch64-linux-gnu-g++", "compiles it for ARM"),
];

pub(crate) struct Tools {
    /// The folder with cargo-auditable.
    pub(crate) cargo_bin: PathBuf,
    /// The folder with zig, cargo-zigbuild and nfpm.
    pub(crate) python_bin: PathBuf,
    /// The licences of what zig links.
    pub(crate) zig_licences: PathBuf,
}

impl Tools {
    /// Fetches those that come from registries.
    pub(crate) fn fetch() -> Result<Self> {
        let python = python::environment("dist-venv", &shell::root().join("xtask/dist/requirements.txt"))?;
        let python_bin = python.parent().context("a program lies in a folder")?.to_path_buf();
        let root = shell::target_folder(&format!("tools/cargo-auditable-{AUDITABLE_VERSION}"));
        let cargo_bin = root.join("bin");
        if !cargo_bin.join("cargo-auditable").is_file() {
            let mut install = shell::cargo(&["install", "--locked", "--quiet", "cargo-auditable"]);
            install.args(["--version", AUDITABLE_VERSION, "--root"]).arg(root);
            install.env("CARGO_PROFILE_RELEASE_OPT_LEVEL", "0");
            shell::run(install)?;
        }
        let mut lint = Command::new(python_bin.join("hadolint"));
        output(lint.arg(shell::root().join("packaging/Containerfile")))?;
        let mut ask = Command::new(&python);
        ask.args(["-c", "import importlib.metadata as m; print(m.distribution('ziglang')._path)"]);
        let zig_licences = Path::new(output(&mut ask)?.trim()).join("licenses/ziglang");
        Ok(Tools { cargo_bin, python_bin, zig_licences })
    }

    /// A call of one of Zig's programs.
    pub(crate) fn zig(&self, program: &str) -> Command {
        let mut zig = Command::new(self.python_bin.join("python"));
        zig.args(["-m", "ziglang", program]).env_remove("SDKROOT");
        zig
    }

    /// The folder with the headers that come with Zig.
    pub(crate) fn zig_library(&self) -> Result<PathBuf> {
        let mut ask = Command::new(self.python_bin.join("python"));
        ask.args(["-c", "import ziglang; print(ziglang.__path__[0])"]);
        Ok(Path::new(output(&mut ask)?.trim()).join("lib"))
    }
}

/// Where a program is, if the machine has it.
pub(crate) fn find(program: &str) -> Option<PathBuf> {
    let path = Path::new(program);
    if path.is_absolute() {
        return path.exists().then(|| path.to_path_buf());
    }
    let folders = env::var_os("PATH")?;
    env::split_paths(&folders).map(|folder| folder.join(program)).find(|path| path.is_file())
}

/// Says what is missing, and how Debian would bring it.
pub(crate) fn say_what_is_missing() {
    let missing: Vec<_> = NEEDED.iter().filter(|(_, program, _)| find(program).is_none()).collect();
    for (package, program, purpose) in &missing {
        eprintln!("xtask: {program} is not here ({purpose}; Debian's {package})");
    }
    if !missing.is_empty() {
        let names: Vec<_> = missing.iter().map(|(package, ..)| *package).collect();
        eprintln!("xtask: apt-get install --no-install-recommends {}", names.join(" "));
    }
}

/// Runs a program without showing what it says, and returns that.
pub(crate) fn output(command: &mut Command) -> Result<String> {
    let line = shell::words(command);
    let output = shell::without_secrets(command)
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("cannot run `{line}`"))?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    anyhow::ensure!(output.status.success(), "`{line}` failed ({}): {said}{errors}", output.status);
    Ok(said)
}
