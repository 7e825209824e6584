//! The licences of everything that is linked, in one text: each text once, with the packages that are under it.

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, ensure};

use super::{
    linked::{Linked, Package},
    targets::Kind,
    tools::Tools,
};
use crate::shell;

/// How the names of files begin that hold a licence or what must go along with one.
const NAMES: [&str; 6] = ["license", "licence", "copying", "copyright", "notice", "unlicense"];

/// What is linked or was compiled in and is no crate.
const OTHERS: &str = "\
The Rust standard library: MIT OR Apache-2.0, copyright the Rust project's contributors.
The kernels of the CUDA engine were compiled by NVIDIA's NVRTC with headers of libcu++ (Apache-2.0 WITH LLVM-exception).
The shim of the mlx engine, where there is one, was compiled with headers of MLX (MIT, copyright Apple Inc.), for macOS also with
those of LLVM's libc++, and for Windows with those of Microsoft's STL (both Apache-2.0 WITH LLVM-exception).
";

/// Licences whose text is the same for everybody, for packages that bring none.
const STANDARD: [&str; 2] = ["BSL-1.0", "MIT"];

/// What a linker adds by itself, with the text it comes under, as the linker's own package brings it.
fn of_linker(kind: Kind, tools: &Tools) -> Vec<(&'static str, PathBuf)> {
    let of_package = |name: &str| Path::new("/usr/share/doc").join(name).join("copyright");
    match kind {
        Kind::Windows => vec![
            ("The runtime of MinGW-w64", of_package("mingw-w64-x86-64-dev")),
            ("The runtime library of GCC", of_package("gcc-mingw-w64-x86-64-posix")),
        ],
        Kind::Linux | Kind::Mac => vec![
            ("The runtime of Zig", tools.zig_licences.join("LICENSE")),
            ("LLVM's libunwind", tools.zig_licences.join("lib/libunwind/LICENSE.TXT")),
        ],
    }
}

/// The whole text.
pub(crate) fn text(linked: &Linked, kind: Kind, tools: &Tools) -> Result<String> {
    let foreign: Vec<_> = linked.packages.iter().filter(|package| package.source.is_some()).collect();
    let mut text = format!("What mlxcel is made of, and under which licences.\n\n{OTHERS}\n");
    let mut by_text: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for package in &foreign {
        let name = format!("{} {}", package.name, package.version);
        let expression = package.expression().unwrap_or_else(|| "see below".to_string());
        writeln!(text, "{name}: {expression}")?;
        let mut texts = files(package)?;
        if texts.is_empty() {
            let standard = STANDARD.iter().find(|id| expression.split(" OR ").any(|part| part == **id));
            let id =
                standard.with_context(|| format!("{name} ({expression}) brings no text of its licence"))?;
            let path = shell::root().join(format!("packaging/licences/{id}.txt"));
            texts.push(fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?);
        }
        for licence in texts {
            by_text.entry(licence).or_default().push(name.clone());
        }
    }
    for (name, path) in of_linker(kind, tools) {
        let bytes = fs::read(&path).with_context(|| format!("the licence of {name}: {}", path.display()))?;
        ensure!(!bytes.is_empty(), "{} is empty", path.display());
        by_text.entry(String::from_utf8_lossy(&bytes).into()).or_default().push(name.to_string());
    }
    for (licence, packages) in by_text {
        write!(text, "\n{}\n{}\n\n{}\n", "=".repeat(80), packages.join(", "), licence.trim_end())?;
    }
    Ok(text)
}

/// The texts that a package brings.
fn files(package: &Package) -> Result<Vec<String>> {
    let folder = package.manifest_path.parent().context("a manifest lies in a folder")?;
    let mut paths: Vec<_> = fs::read_dir(folder)
        .with_context(|| format!("cannot read {}", folder.display()))?
        .filter_map(|entry| entry.ok().map(|entry| entry.path()))
        .filter(|path| path.is_file() && is_licence(path))
        .collect();
    paths.extend(package.license_file.as_ref().map(|file| folder.join(file)).filter(|path| path.is_file()));
    paths.sort();
    paths.dedup();
    Ok(paths
        .iter()
        .filter_map(|path| fs::read(path).ok())
        .map(|b| String::from_utf8_lossy(&b).into())
        .collect())
}

fn is_licence(path: &Path) -> bool {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default().to_lowercase();
    NAMES.iter().any(|prefix| name.starts_with(prefix)) && !name.ends_with(".rs")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn licences_are_told_from_other_files() {
        for name in ["LICENSE-MIT", "Licence.md", "COPYING", "NOTICE.txt", "UNLICENSE"] {
            assert!(is_licence(Path::new(name)), "{name}");
        }
        for name in ["README.md", "license.rs", "src"] {
            assert!(!is_licence(Path::new(name)), "{name}");
        }
    }
}
