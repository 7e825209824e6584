//! `mlxcel engine`: fetching, listing and removing what engines load at run time.

use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, Result, bail};
use clap::{Args, Subcommand, builder::PossibleValuesParser};
use mlxcel_hub::{
    CUDA13_LIBRARIES, CUDA13_LIBRARIES_FIT, Event, Folder, Hub, IREE, Settings, Stderr, XLA_CPU, XLA_CUDA13,
    XLA_CUDA13_NEEDS,
};

use crate::{say, table};

/// What can be installed. Which wheel each is, if there is one, depends on the machine.
const NAMES: [&str; 6] = ["iree", "mlx-cpu", "mlx-cuda13", "mlx-metal", "xla-cpu", "xla-cuda13"];

const EXAMPLES: &str = "\
Examples:
  mlxcel engine install mlx-cpu
  mlxcel engine list
  mlxcel engine remove mlx-cpu";

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct Engine {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Fetch the runtime of an engine, checked against its digest, and print where it is.
    #[command(after_help = "Examples:\n  mlxcel engine install mlx-cpu")]
    Install {
        #[arg(value_parser = PossibleValuesParser::new(NAMES))]
        name: String,
    },
    /// List what can be installed, and where what is installed lies.
    #[command(after_help = "Examples:\n  mlxcel engine list")]
    List,
    /// Remove a runtime from the cache.
    #[command(after_help = "Examples:\n  mlxcel engine remove mlx-cpu")]
    Remove {
        #[arg(value_parser = PossibleValuesParser::new(NAMES))]
        name: String,
    },
}

pub fn run(options: &Engine) -> Result<ExitCode> {
    match &options.action {
        Action::Install { name } => install(name)?,
        Action::List => list()?,
        Action::Remove { name } => remove(name)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn print(text: &str) -> Result<()> {
    let mut stdout = io::stdout().lock();
    writeln!(stdout, "{text}")?;
    Ok(stdout.flush()?)
}

/// The package of a runtime, where one is published for this machine.
fn package(name: &str) -> Option<Folder<'static>> {
    match name {
        "iree" => IREE,
        "xla-cpu" => XLA_CPU,
        "xla-cuda13" => XLA_CUDA13,
        _ => mlxcel_hub::mlx(name),
    }
}

/// The folder of a runtime that is installed; nothing is fetched.
fn installed(name: &str) -> Option<PathBuf> {
    let settings = Settings { offline: true, ..Settings::from_env().ok()? };
    let folder = Hub::new(settings, |_: Event<'_>| {}).fetch_folder(&package(name)?).ok()?;
    // An installation that broke off may lack what it needs.
    (needs(name).is_empty() || place_of_needs(name, &folder).is_dir()).then_some(folder)
}

fn install(name: &str) -> Result<()> {
    let folder = package(name).with_context(|| format!("{name} is not published for this machine"))?;
    let hub = Hub::new(Settings::from_env()?, Stderr::new());
    let path = hub.fetch_folder(&folder)?;
    let needs = needs(name).iter().map(|wheel| hub.fetch_folder(wheel)).collect::<Result<Vec<_>, _>>()?;
    if !needs.is_empty() {
        gather(&needs, &place_of_needs(name, &path))?;
    }
    if name == "iree" && !cfg!(feature = "iree") {
        say("note: this build of mlxcel does not run modules through IREE; build one with --features iree");
    }
    print(&path.display().to_string())
}

/// NVIDIA's libraries that a runtime loads, which are fetched with it: 2 GB. On Windows they come with NVIDIA's toolkit.
fn needs(name: &str) -> Vec<Folder<'static>> {
    match name {
        _ if !CUDA13_LIBRARIES_FIT => vec![],
        "mlx-cuda13" => CUDA13_LIBRARIES.to_vec(),
        "xla-cuda13" => CUDA13_LIBRARIES.into_iter().chain(XLA_CUDA13_NEEDS).collect(),
        _ => vec![],
    }
}

/// Where a runtime looks for them: MLX's wheel is a folder in its folder, and XLA's plugin lies in its folder itself.
fn place_of_needs(name: &str, folder: &Path) -> PathBuf {
    let beside = if name == "xla-cuda13" { folder.parent().unwrap_or(folder) } else { folder };
    beside.join("nvidia")
}

/// Puts links to the files of several folders into one, as Python's packages have it. The folder appears whole or not at all.
fn gather(folders: &[PathBuf], to: &Path) -> Result<()> {
    let parent = to.parent().unwrap_or(Path::new("."));
    let staging = tempfile::Builder::new().prefix("nvidia").tempdir_in(parent)?;
    for folder in folders {
        link_files(folder, staging.path())?;
    }
    if to.exists() {
        std::fs::remove_dir_all(to)?;
    }
    std::fs::rename(staging.keep(), to)?;
    Ok(())
}

fn link_files(from: &Path, to: &Path) -> Result<()> {
    std::fs::create_dir_all(to)?;
    for entry in std::fs::read_dir(from)? {
        let entry = entry?;
        let place = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            link_files(&entry.path(), &place)?;
        } else if !place.exists() && std::fs::hard_link(entry.path(), &place).is_err() {
            std::fs::copy(entry.path(), &place)?;
        }
    }
    Ok(())
}

fn list() -> Result<()> {
    let line = |name: &str| {
        let version = package(name).map_or("-", |folder| folder.package.version);
        let path = installed(name).map_or("-".to_string(), |path| path.display().to_string());
        [name.to_string(), version.to_string(), path]
    };
    let header = ["engine", "version", "folder"].map(str::to_string);
    let rows: Vec<_> = [header].into_iter().chain(NAMES.iter().map(|name| line(name))).collect();
    print(table::format([table::Align::Left; 3], &rows).trim_end_matches('\n'))
}

fn remove(name: &str) -> Result<()> {
    let Some(path) = installed(name) else {
        bail!("{name} is not installed; `mlxcel engine list` shows what is")
    };
    let hub = Hub::new(Settings::from_env()?, Stderr::new());
    let needs = needs(name);
    let mut folders: Vec<_> = needs.iter().filter_map(|wheel| hub.kept_folder(wheel)).collect();
    folders.extend(Some(place_of_needs(name, &path)).filter(|place| place.exists()));
    folders.push(path);
    for folder in folders {
        std::fs::remove_dir_all(&folder)?;
        say(&format!("removed {}", folder.display()));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_lie_where_those_who_load_them_look() {
        // /p/mlx/mlx/lib/libmlx.so has `$ORIGIN/../../nvidia/cu13/lib` in its path, and /p/xla-cuda13/xla_cuda_plugin.so
        // `$ORIGIN/../nvidia/cu13/lib`.
        let (mlx, xla) = (Path::new("/p/mlx"), Path::new("/p/xla-cuda13"));
        assert_eq!(place_of_needs("mlx-cuda13", mlx), Path::new("/p/mlx/nvidia"));
        assert_eq!(place_of_needs("xla-cuda13", xla), Path::new("/p/nvidia"));
        assert_eq!(needs("xla-cpu").len() + needs("mlx-cpu").len(), 0);
    }

    #[test]
    fn the_libraries_of_all_packages_lie_in_one_folder() {
        let root = tempfile::tempdir().unwrap();
        let file = |path: &str| {
            let path = root.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(&path, path.file_name().unwrap().as_encoded_bytes()).unwrap();
        };
        ["a/cu13/lib/x.so", "b/cu13/lib/y.so", "b/cudnn/lib/z.so", "mlx/nvidia/old"]
            .iter()
            .for_each(|f| file(f));
        let to = root.path().join("mlx/nvidia");
        gather(&[root.path().join("a"), root.path().join("b")], &to).unwrap();
        for (path, content) in
            [("cu13/lib/x.so", "x.so"), ("cu13/lib/y.so", "y.so"), ("cudnn/lib/z.so", "z.so")]
        {
            assert_eq!(std::fs::read_to_string(to.join(path)).unwrap(), content);
        }
        assert!(!to.join("old").exists(), "what an earlier version left is gone");
        assert_eq!(
            std::fs::read_dir(root.path().join("mlx")).unwrap().count(),
            1,
            "nothing is left half made"
        );
    }
}
