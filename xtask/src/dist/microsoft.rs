//! The shim of the mlx engine for Windows. `mlx.dll` speaks C++ as Microsoft's compiler and library do; Clang does, too, with
//! the headers of Microsoft's library, which are open (Apache-2.0 with LLVM's exception) but in no known registry. So whoever makes a
//! release names a copy of their repository. What else Microsoft has is replaced: the C library's headers by MinGW's, which
//! come with Zig, the compiler's own and its start-up code by `xtask/dist/windows`, and import libraries by lists of names.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, ensure};
use mlxcel_hub::Machine;

use super::{build, digest, tools::Tools};
use crate::{mlx, shell};

/// Names a copy of Microsoft's repository of its C++ library, and what must lie in it.
pub(crate) const LIBRARY: &str = "MLXCEL_DIST_STL";
const TAG: &str = "vs-2022-17.14";
const HEADERS: &str = "stl/inc";
const HEADERS_SHA256: &str = "2f3bb9ae752799518b6d7efdc488a74b73246b2f3dd03fdca69e81cdfaa506da";

/// The file name of what is made.
pub(crate) const SHIM: &str = "mlxcel_mlx.dll";

/// The DLLs that the shim imports from, beside MLX's; `xtask/dist/windows` has the names.
const IMPORTS: [&str; 4] = ["msvcp140", "vcruntime140", "ucrtbase", "kernel32"];

/// As Microsoft's compiler of that tag. MinGW's headers ask for GCC's words, and the library's algorithms for its own
/// processor's instructions are in none of its DLLs.
const FLAGS: [&str; 18] = [
    "--target=x86_64-pc-windows-msvc",
    "-fms-compatibility-version=19.44",
    "-fms-extensions",
    "-fgnuc-version=13.2.0",
    "-std=c++20",
    "-O2",
    "-fexceptions",
    "-fcxx-exceptions",
    "-D_MT",
    "-D_DLL",
    "-D_UCRT",
    "-D_USE_STD_VECTOR_ALGORITHMS=0",
    "-DNOMINMAX",
    "-DNDEBUG",
    "-nostdinc",
    "-nostdlibinc",
    "-w",
    "-c",
];

/// Where everything lies that the shim is made of.
struct Places {
    /// MLX's folder.
    base: PathBuf,
    /// The headers of Microsoft's library.
    headers: PathBuf,
    /// Zig's own.
    zig: PathBuf,
    /// What replaces the rest of Microsoft's.
    ours: PathBuf,
    /// Where to make it.
    folder: PathBuf,
}

/// Compiles and links the shim against the headers and the import library of MLX's wheel.
pub(crate) fn shim(library: &Path, tools: &Tools) -> Result<PathBuf> {
    let headers = library.join(HEADERS);
    let found = digest::of_folder(&headers)?;
    ensure!(
        found == HEADERS_SHA256,
        "{} is not what Microsoft's STL has at {TAG}: its SHA-256 is {found}, not {HEADERS_SHA256}",
        headers.display()
    );
    let places = Places {
        base: mlx::base(&mlx::fetch_for("mlx-cpu", Machine::WindowsX86)?)?,
        headers,
        zig: tools.zig_library()?,
        ours: shell::root().join("xtask/dist/windows"),
        folder: shell::target_folder("shim/windows"),
    };
    fs::create_dir_all(&places.folder).with_context(|| format!("cannot make {}", places.folder.display()))?;
    let made = places.folder.join(SHIM);
    let mut link = tools.zig("lld-link");
    link.args(["/dll", "/entry:_DllMainCRTStartup", "/nodefaultlib", "/brepro"]);
    link.arg(places.object(&mlx::sources().join("shim.cpp"), tools)?);
    link.arg(places.object(&places.ours.join("startup.cpp"), tools)?);
    for name in IMPORTS {
        link.arg(places.import_library(name, tools)?);
    }
    link.arg(places.base.join("lib/mlx.lib")).arg(format!("/out:{}", made.display()));
    shell::run(link)?;
    build::check_paths(&fs::read(&made)?)?;
    Ok(made)
}

impl Places {
    fn object(&self, source: &Path, tools: &Tools) -> Result<PathBuf> {
        let Places { base, headers, zig, ours, folder } = self;
        let name = source.file_name().context("a source has a name")?;
        let object = folder.join(name).with_extension("obj");
        let mut compile = tools.zig("clang");
        compile.args(FLAGS);
        for (from, to) in [(base, "/mlx"), (headers, "/stl"), (zig, "/zig"), (&shell::root(), "/mlxcel")] {
            compile.arg(format!("-ffile-prefix-map={}={to}", from.display()));
        }
        // In this order: those that replace others come first.
        let c_library = zig.join("libc/include/any-windows-any");
        let folders =
            [ours.join("include"), headers.clone(), zig.join("include"), c_library, base.join("include")];
        compile.args(folders.into_iter().flat_map(|folder| ["-isystem".into(), folder.into_os_string()]));
        compile.arg(source).arg("-o").arg(&object);
        shell::run(compile)?;
        Ok(object)
    }

    fn import_library(&self, name: &str, tools: &Tools) -> Result<PathBuf> {
        let made = self.folder.join(format!("{name}.lib"));
        let mut make = tools.zig("dlltool");
        make.args(["-m", "i386:x86-64", "-d"]).arg(self.ours.join(format!("{name}.def")));
        make.arg("-l").arg(&made);
        shell::run(make)?;
        Ok(made)
    }
}
