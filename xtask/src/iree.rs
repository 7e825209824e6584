//! What building and testing with IREE needs: its compiler from its wheel, and cmake, ninja and libclang, with which its
//! runtime is built, from theirs.

use std::{
    env,
    ffi::OsString,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result};
use mlxcel_hub::{Hub, IREE};

use crate::{python, shell};

/// The feature of the engine, and the variable by which its tests find the compiler.
pub(crate) const FEATURE: &str = "mlxcel-xla/iree";
const COMPILER: &str = "MLXCEL_TEST_IREE";

/// The variables of a build with IREE; nothing on machines for which no compiler is pinned.
pub(crate) fn found(hub: &Hub) -> Result<Vec<(&'static str, OsString)>> {
    let compiler = match (env::var_os(COMPILER), IREE) {
        (Some(path), _) => path,
        (None, Some(folder)) => {
            let folder = hub.fetch_folder(&folder).context("set MLXCEL_TEST_IREE to IREE's compiler, or")?;
            folder.join("libIREECompiler.so").into()
        }
        (None, None) => {
            eprintln!("xtask: IREE is not tested: its compiler is pinned for Linux on x86-64 and ARM only");
            return Ok(vec![]);
        }
    };
    Ok(tools()?.into_iter().chain([(COMPILER, compiler)]).collect())
}

/// Where the build of the runtime finds its tools.
fn tools() -> Result<Vec<(&'static str, OsString)>> {
    let requirements = shell::root().join("xtask/iree/requirements.txt");
    let python = python::environment("iree-venv", &requirements)?;
    let programs = python.parent().context("a Python has a folder")?;
    let ask = |program: &Path, arguments: &[&str]| -> Result<String> {
        let output = Command::new(program).args(arguments).output();
        let output = output.with_context(|| format!("cannot run {}", program.display()))?;
        Ok(String::from_utf8_lossy(&output.stdout).trim().to_string())
    };
    let clang = ask(&python, &["-c", "import clang, os; print(os.path.dirname(clang.__file__))"])?;
    // libclang comes without the headers that belong to a compiler; those of the system's serve.
    let cc = env::var_os("CC").unwrap_or_else(|| "cc".into());
    let headers = ask(Path::new(&cc), &["-print-file-name=include"])?;
    let path = env::var_os("PATH").unwrap_or_default();
    let path = env::join_paths([programs.to_path_buf()].into_iter().chain(env::split_paths(&path)))?;
    Ok(vec![
        ("PATH", path),
        ("LIBCLANG_PATH", PathBuf::from(clang).join("native").into()),
        ("CMAKE_GENERATOR", "Ninja".into()),
        ("BINDGEN_EXTRA_CLANG_ARGS", format!("-I{headers}").into()),
    ])
}
