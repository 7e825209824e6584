//! A private copy of the toolchain with the standard library of every target, compiled from Debian's `rust-src` of the
//! same version. Nothing of the installed toolchain is changed, and nothing comes from elsewhere than Debian and the
//! registry of crates.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, bail, ensure};

use super::{build, digest, targets::Target, tools::Lacking};
use crate::shell;

/// The version that compiler and sources must both have, and Debian's package of the sources.
const VERSION: &str = "1.95.0";
const PACKAGE: &str = "rust-src";
const PACKAGE_VERSION: &str = "1.95.0+dfsg1-2~bpo13+1";
const PACKAGE_SHA256: &str = "7b76db5b880a77f9e52975d2baa6209d2f76d2c9c2789515c3088cb960e2c83b";
const SUITE: &str = "trixie-backports";

/// Names a copy of the package, for machines without Debian's apt.
const GIVEN: &str = "MLXCEL_RUST_SRC_DEB";

/// A toolchain: the installed one, or the private copy.
pub(crate) struct Toolchain {
    pub(crate) root: PathBuf,
}

impl Toolchain {
    /// The installed one, which has the standard library for this machine.
    pub(crate) fn installed() -> Result<Self> {
        Ok(Toolchain { root: sysroot()? })
    }

    /// Makes it where it is not there yet.
    pub(crate) fn private() -> Result<Self> {
        let root = shell::target_folder("cross/toolchain");
        let sources = root.join("lib/rustlib/src/rust/library");
        // The sources come last, so a copy that broke off is begun again.
        if !sources.join("std/Cargo.toml").is_file() {
            check_compiler()?;
            let package = package()?;
            copy_compiler(&root)?;
            unpack(&package, &sources)?;
        }
        Ok(Toolchain { root })
    }

    pub(crate) fn program(&self, name: &str) -> PathBuf {
        self.root.join("bin").join(name)
    }

    /// A call of one of its programs. rustup tells those it starts to load the libraries of its own compiler, by which this
    /// one would take that one's folder for its own.
    pub(crate) fn command(&self, name: &str) -> Command {
        let mut command = Command::new(self.program(name));
        command.env_remove("LD_LIBRARY_PATH").env_remove("DYLD_FALLBACK_LIBRARY_PATH");
        command
    }

    /// Compiles the standard library for a target, unless it is there.
    pub(crate) fn add(&self, target: &Target) -> Result<()> {
        let library = self.root.join("lib/rustlib").join(target.triple).join("lib");
        if has_std(&library) {
            return Ok(());
        }
        // Around the toolchain: names of crates are made of their paths from the workspace on, so that they are the same
        // wherever this is.
        let project = shell::target_folder("cross");
        write_project(&project)?;
        let mut build = self.command("cargo");
        build.current_dir(&project).args(["build", "--release", "--target", target.triple]);
        build.args(["-Zbuild-std=std,panic_unwind,proc_macro,test", "--target-dir", "std"]);
        // The library's own features are unstable everywhere but in a compiler's own build, and this is one.
        build.env("RUSTC_BOOTSTRAP", "1").env("RUSTC", self.program("rustc")).env_remove("RUSTFLAGS");
        build.env("CARGO_ENCODED_RUSTFLAGS", build::encoded(&build::remaps(&self.root)?));
        shell::run(build).with_context(|| format!("the standard library for {}", target.triple))?;
        fs::create_dir_all(&library)?;
        if target.triple.ends_with("windows-gnu") {
            self.add_start_files(target, &library)?;
        }
        let made = project.join("std").join(target.triple).join("release/deps");
        for entry in fs::read_dir(&made)? {
            let path = entry?.path();
            let name = path.file_name().and_then(|n| n.to_str()).unwrap_or_default().to_string();
            let is_ours = name.starts_with("libstd_for_targets");
            if name.ends_with(".rlib") && !is_ours && !name.starts_with("libstd-") {
                fs::copy(&path, library.join(name))?;
            }
        }
        // It comes last: what has it is whole.
        copy_std(&made, &library)
    }

    /// The objects around every program of MinGW, which come with the library and are not crates.
    fn add_start_files(&self, target: &Target, library: &Path) -> Result<()> {
        for name in ["rsbegin", "rsend"] {
            let mut compile = self.command("rustc");
            compile.args(build::remaps(&self.root)?);
            compile.args(["--target", target.triple, "--emit", "obj", "--crate-type", "lib", "-o"]);
            compile.arg(library.join(format!("{name}.o")));
            compile.arg(self.root.join(format!("lib/rustlib/src/rust/library/rtstartup/{name}.rs")));
            compile.env("RUSTC_BOOTSTRAP", "1");
            shell::run(compile)?;
        }
        Ok(())
    }
}

fn has_std(library: &Path) -> bool {
    let Ok(entries) = fs::read_dir(library) else { return false };
    entries.flatten().any(|e| {
        e.file_name().to_str().is_some_and(|name| name.starts_with("libstd-") && name.ends_with(".rlib"))
    })
}

fn copy_std(made: &Path, library: &Path) -> Result<()> {
    for entry in fs::read_dir(made)? {
        let path = entry?.path();
        let name = path.file_name().and_then(|n| n.to_str()).unwrap_or_default().to_string();
        if name.starts_with("libstd-") && name.ends_with(".rlib") {
            fs::copy(&path, library.join(name))?;
        }
    }
    ensure!(has_std(library), "{} has no standard library", made.display());
    Ok(())
}

/// A crate of nothing, whose dependencies are all of the standard library.
fn write_project(folder: &Path) -> Result<()> {
    fs::create_dir_all(folder.join("src"))?;
    let manifest = "[package]\nname = \"std-for-targets\"\nversion = \"0.0.0\"\nedition = \"2024\"\n[lib]\n\
        [workspace]\n[profile.release]\ncodegen-units = 1\n";
    fs::write(folder.join("Cargo.toml"), manifest)?;
    Ok(fs::write(folder.join("src/lib.rs"), "#![no_std]\n")?)
}

fn sysroot() -> Result<PathBuf> {
    let output = Command::new("rustc").args(["--print", "sysroot"]).output().context("cannot run rustc")?;
    ensure!(output.status.success(), "rustc does not say where it is");
    Ok(fs::canonicalize(String::from_utf8(output.stdout)?.trim())?)
}

fn check_compiler() -> Result<()> {
    let output = Command::new("rustc").arg("--version").output().context("cannot run rustc")?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    if !said.starts_with(&format!("rustc {VERSION} ")) {
        let said = said.trim();
        bail!(Lacking(format!("the standard library is compiled for rustc {VERSION}, and this is {said}")));
    }
    Ok(())
}

/// Debian's package of the sources, checked.
fn package() -> Result<PathBuf> {
    let path = match shell::variable(GIVEN) {
        Some(given) => PathBuf::from(given),
        None => download().map_err(|error| {
            let other = format!("or set {GIVEN} to that package of Debian's {SUITE}");
            Lacking(format!("{PACKAGE} {PACKAGE_VERSION} cannot be had by apt-get: {error:#}; {other}"))
        })?,
    };
    let found = digest::of_file(&path)?;
    ensure!(
        found == PACKAGE_SHA256,
        "{} is not {PACKAGE} {PACKAGE_VERSION}: its SHA-256 is {found}, not {PACKAGE_SHA256}",
        path.display()
    );
    Ok(path)
}

/// Downloads the package by apt, from the mirror that this machine uses, with lists of its own.
fn download() -> Result<PathBuf> {
    let folder = shell::target_folder("cross/apt");
    let file = folder.join(format!("{PACKAGE}_{PACKAGE_VERSION}_all.deb"));
    if file.is_file() {
        return Ok(file);
    }
    let mirror = mirror()?;
    fs::create_dir_all(folder.join("lists/partial"))?;
    let keys = "/usr/share/keyrings/debian-archive-keyring.gpg";
    fs::write(folder.join("list"), format!("deb [signed-by={keys}] {mirror} {SUITE} main\n"))?;
    let options = [
        format!("Dir::Etc::sourcelist={}", folder.join("list").display()),
        "Dir::Etc::sourceparts=-".to_string(),
        format!("Dir::State::lists={}", folder.join("lists").display()),
        format!("Dir::Cache={}", folder.join("cache").display()),
    ];
    for words in [vec!["update".to_string()], vec!["download".into(), format!("{PACKAGE}={PACKAGE_VERSION}")]]
    {
        let mut apt = Command::new("apt-get");
        apt.current_dir(&folder).arg("-qq").args(words);
        apt.args(options.iter().flat_map(|option| ["-o", option]));
        shell::run(apt)?;
    }
    ensure!(file.is_file(), "apt has not brought {}", file.display());
    Ok(file)
}

/// The mirror of Debian that apt is configured with.
pub(super) fn mirror() -> Result<String> {
    let mut ask = Command::new("apt-get");
    ask.args(["indextargets", "--format", "$(SITE)"]);
    let output = ask.output().context("cannot run apt-get")?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let found = said.lines().find(|site| site.ends_with("/debian") || site.ends_with("/debian/"));
    let Some(found) = found else { bail!(Lacking("apt-get names no mirror of Debian".to_string())) };
    Ok(found.to_string())
}

/// Copies compiler and host libraries; as links where the file system can.
fn copy_compiler(root: &Path) -> Result<()> {
    let from = sysroot()?;
    if from == Path::new("/usr") {
        let reason = format!("this rustc is the system's own and cannot be copied; use rustup's {VERSION}");
        bail!(Lacking(reason));
    }
    if root.exists() {
        fs::remove_dir_all(root).with_context(|| format!("cannot remove {}", root.display()))?;
    }
    for part in ["bin", "lib", "libexec"] {
        if from.join(part).is_dir() {
            copy_folder(&from.join(part), &root.join(part))?;
        }
    }
    Ok(())
}

fn copy_folder(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to).with_context(|| format!("cannot make {}", to.display()))?;
    for entry in fs::read_dir(from).with_context(|| format!("cannot read {}", from.display()))? {
        let entry = entry?;
        let (source, copy) = (entry.path(), to.join(entry.file_name()));
        if source.is_dir() {
            copy_folder(&source, &copy)?;
        } else if fs::hard_link(&source, &copy).is_err() {
            fs::copy(&source, &copy).with_context(|| format!("cannot write {}", copy.display()))?;
        }
    }
    Ok(())
}

fn unpack(package: &Path, sources: &Path) -> Result<()> {
    let folder = shell::target_folder("cross/rust-src");
    let mut dpkg = Command::new("dpkg-deb");
    dpkg.arg("-x").arg(package).arg(&folder);
    shell::run(dpkg)?;
    let parent = sources.parent().context("the sources lie in a folder")?;
    fs::create_dir_all(parent)?;
    let unpacked = folder.join(format!("usr/src/rustc-{VERSION}/library"));
    fs::rename(&unpacked, sources).with_context(|| format!("cannot move {}", unpacked.display()))?;
    Ok(fs::remove_dir_all(&folder)?)
}
