//! `cargo xtask fetch mlx-…` and `cargo xtask shim mlx`: MLX from its wheels, and the library between it and the engine,
//! compiled against their headers with the system's C++ compiler.

use std::{
    env,
    ffi::OsString,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, ensure};
use mlxcel_hub::{Hub, Machine, Settings, Stderr, mlx, mlx_for};

use crate::shell;

/// The variables by which the engine and its tests find MLX and the shim.
const HOME: &str = "MLXCEL_MLX_HOME";
const SHIM: &str = "MLXCEL_MLX_SHIM";

/// Where shims lie, for every platform.
pub(crate) const SHIMS: &str = "shim";

/// Stages a build of MLX in the cache and returns its folder.
pub(crate) fn fetch(name: &str) -> Result<PathBuf> {
    let here = Machine::HERE.with_context(|| format!("{name} is not published for this machine"))?;
    fetch_for(name, here)
}

/// The same for another kind of machine.
pub(crate) fn fetch_for(name: &str, machine: Machine) -> Result<PathBuf> {
    let folder =
        mlx_for(name, machine).with_context(|| format!("{name} is not published for {machine:?}"))?;
    let hub = Hub::new(Settings::from_env()?, Stderr::new());
    Ok(hub.fetch_folder(&folder)?)
}

/// Compiles the shim for this machine, unless it is newer than its sources, and returns its path.
pub(crate) fn shim() -> Result<PathBuf> {
    let dialect = Dialect::HERE;
    let compiler = match shell::variable("CXX") {
        Some(given) => Command::new(given),
        None => dialect.compiler()?,
    };
    compile(compiler, dialect, &shell::target_folder(SHIMS).join(dialect.library()))
}

/// Compiles it for another kind of Linux machine, with that one's compiler.
pub(crate) fn shim_by(compiler: &str) -> Result<PathBuf> {
    let made = shell::target_folder(SHIMS).join(compiler).join(Dialect::Gnu.library());
    compile(Command::new(compiler), Dialect::Gnu, &made)
}

/// Where the shim's sources are.
pub(crate) fn sources() -> PathBuf {
    shell::root().join("crates/mlxcel-mlx/shim")
}

/// The folder with MLX's headers and library: an installation has them side by side, a wheel has them below `mlx`.
pub(crate) fn base(home: &Path) -> Result<PathBuf> {
    let places = [home.join("mlx"), home.to_path_buf()];
    let found = places.into_iter().find(|base| base.join("include/mlx/mlx.h").is_file());
    found
        .with_context(|| format!("{} has no headers of MLX; set {HOME} to a folder that has", home.display()))
}

/// How a platform's compilers are spoken to.
#[derive(Clone, Copy, Debug)]
enum Dialect {
    Gnu,
    Apple,
    Microsoft,
}

/// What is compiled: MLX's folder, the source, and the library to make.
struct Parts<'a> {
    base: &'a Path,
    source: &'a Path,
    made: &'a Path,
}

impl Dialect {
    const HERE: Dialect = if cfg!(target_os = "macos") {
        Dialect::Apple
    } else if cfg!(windows) {
        Dialect::Microsoft
    } else {
        Dialect::Gnu
    };

    fn library(self) -> &'static str {
        match self {
            Dialect::Gnu => "libmlxcel_mlx.so",
            Dialect::Apple => "libmlxcel_mlx.dylib",
            Dialect::Microsoft => "mlxcel_mlx.dll",
        }
    }

    fn compiler(self) -> Result<Command> {
        match self {
            Dialect::Gnu | Dialect::Apple => Ok(Command::new("c++")),
            Dialect::Microsoft => {
                let found = find_msvc_tools::find_tool("x86_64-pc-windows-msvc", "cl.exe");
                let found = found.map(|tool| tool.to_command());
                found.context(
                    "cl.exe is not here: install the Build Tools of Visual Studio 2022 with C++, or set CXX to clang-cl",
                )
            }
        }
    }

    fn arguments(self, parts: &Parts<'_>) -> Vec<OsString> {
        let Parts { base, source, made } = *parts;
        let include = base.join("include");
        let words = |words: &[&str]| words.iter().map(OsString::from).collect::<Vec<_>>();
        let mut all = match self {
            // A library need not know where its symbols come from: MLX is loaded before it.
            Dialect::Gnu | Dialect::Apple => {
                words(&["-std=c++20", "-O2", "-fPIC", "-shared", "-fvisibility=hidden"])
            }
            Dialect::Microsoft => words(&["/nologo", "/std:c++20", "/O2", "/EHsc", "/MD", "/LD", "/bigobj"]),
        };
        match self {
            Dialect::Gnu => {}
            Dialect::Apple => all.extend(words(&["-undefined", "dynamic_lookup"])),
            Dialect::Microsoft => {
                all.extend(words(&["/external:W0", "/external:I"]));
                all.extend([include.into(), source.into(), base.join("lib/mlx.lib").into()]);
                all.extend([joined("/Fe:", made), joined("/Fo:", &made.with_extension("obj"))]);
                all.extend(words(&["/link", "/Brepro"]));
                all.push(joined("/IMPLIB:", &made.with_extension("lib")));
                return all;
            }
        }
        all.extend(["-isystem".into(), include.into(), source.into(), "-o".into(), made.into()]);
        all
    }
}

/// A path behind an option, in one word.
fn joined(option: &str, path: &Path) -> OsString {
    let mut word = OsString::from(option);
    word.push(path);
    word
}

fn compile(mut compiler: Command, dialect: Dialect, made: &Path) -> Result<PathBuf> {
    let home = match env::var_os(HOME) {
        Some(home) => PathBuf::from(home),
        None => fetch(if cfg!(target_os = "macos") { "mlx-metal" } else { "mlx-cpu" })?,
    };
    let (sources, base) = (sources(), base(&home)?);
    if is_newer(made, &sources)? {
        return Ok(made.to_path_buf());
    }
    // Apart until it is whole. The name stays, since libraries for Windows hold their own.
    let folder = made.parent().context("a library lies in a folder")?.join("unfinished");
    fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let part = folder.join(dialect.library());
    compiler.args(dialect.arguments(&Parts { base: &base, source: &sources.join("shim.cpp"), made: &part }));
    shell::run(compiler).context(
        "the shim needs a compiler for C++20, such as g++ 12, clang 16 or Visual Studio 2022 (set CXX)",
    )?;
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

/// What the tests of the engine find in their environment; nothing on machines for which no processor build is published.
pub(crate) fn found() -> Result<Vec<(&'static str, PathBuf)>> {
    if mlx("mlx-cpu").is_none() && env::var_os(HOME).is_none() {
        eprintln!(
            "xtask: the mlx engine is not tested: no processor build is published for this machine; set {HOME} to another"
        );
        return Ok(vec![]);
    }
    let given = |variable: &str| env::var_os(variable).map(PathBuf::from);
    let home = given(HOME).map_or_else(|| fetch("mlx-cpu"), Ok)?;
    let shim = given(SHIM).map_or_else(shim, Ok)?;
    ensure!(shim.is_file(), "{} is not there", shim.display());
    Ok(vec![(HOME, home), (SHIM, shim)])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn microsofts_compiler_is_told_its_own_words() {
        let parts = Parts {
            base: Path::new("wheel/mlx"),
            source: Path::new("shim.cpp"),
            made: Path::new("out/mlxcel_mlx.dll"),
        };
        let words = Dialect::Microsoft.arguments(&parts);
        let words: Vec<_> = words.iter().map(|word| word.to_string_lossy().replace('\\', "/")).collect();
        // By Microsoft's reference of cl: exceptions of C++ only, the shared runtime that mlx.dll has, a DLL; what follows
        // /link is the linker's.
        let wanted = "/nologo /std:c++20 /O2 /EHsc /MD /LD /bigobj /external:W0 /external:I wheel/mlx/include shim.cpp \
                      wheel/mlx/lib/mlx.lib /Fe:out/mlxcel_mlx.dll /Fo:out/mlxcel_mlx.obj /link /Brepro \
                      /IMPLIB:out/mlxcel_mlx.lib";
        assert_eq!(words.join(" "), wanted);
    }
}
