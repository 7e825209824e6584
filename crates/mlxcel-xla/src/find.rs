//! Where a PJRT plugin for a device is, and IREE's compiler: the file that was named, the staged cache, Python's
//! packages. It only looks.

use std::path::{Path, PathBuf};
use std::str::FromStr;

use crate::error::XlaError;

/// Devices by the names that users give them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Device {
    #[default]
    Cpu,
    Cuda,
    Rocm,
    Tpu,
    /// Through IREE only, as is Metal.
    Vulkan,
    Metal,
}

/// What runs modules.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ExecutorName {
    #[default]
    Pjrt,
    Iree,
}

impl FromStr for Device {
    type Err = XlaError;

    fn from_str(name: &str) -> Result<Self, XlaError> {
        Ok(match name {
            "cpu" => Device::Cpu,
            "cuda" | "gpu" => Device::Cuda,
            "rocm" => Device::Rocm,
            "tpu" => Device::Tpu,
            "vulkan" => Device::Vulkan,
            "metal" => Device::Metal,
            _ => return Err(XlaError::UnknownDevice { name: name.to_string() }),
        })
    }
}

impl FromStr for ExecutorName {
    type Err = XlaError;

    fn from_str(name: &str) -> Result<Self, XlaError> {
        match name {
            "pjrt" => Ok(ExecutorName::Pjrt),
            "iree" => Ok(ExecutorName::Iree),
            _ => Err(XlaError::UnknownExecutor { name: name.to_string() }),
        }
    }
}

impl Device {
    pub fn name(self) -> &'static str {
        match self {
            Device::Cpu => "cpu",
            Device::Cuda => "cuda",
            Device::Rocm => "rocm",
            Device::Tpu => "tpu",
            Device::Vulkan => "vulkan",
            Device::Metal => "metal",
        }
    }

    /// The package that `mlxcel engine install` fetches, if there is one, and where its library lies among Python's
    /// packages.
    fn package(self) -> Option<(Option<&'static str>, &'static [&'static str])> {
        Some(match self {
            Device::Cpu => (Some("xla-cpu"), &["xla_plugins/xla_cpu_pjrt/xla_cpu_pjrt.so"]),
            Device::Cuda => (
                Some("xla-cuda13"),
                &["jax_plugins/xla_cuda13/xla_cuda_plugin.so", "jax_plugins/xla_cuda12/xla_cuda_plugin.so"],
            ),
            Device::Rocm => (None, &["jax_plugins/xla_rocm7/xla_rocm_plugin.so"]),
            Device::Tpu => (None, &["libtpu/libtpu.so"]),
            Device::Vulkan | Device::Metal => return None,
        })
    }
}

/// Where to look.
#[derive(Clone, Debug, Default)]
pub struct Search {
    /// The file that the user named.
    pub named: Option<PathBuf>,
    /// The folder that was fetched for the device.
    pub staged: Option<PathBuf>,
    /// Folders of Python's packages.
    pub python: Vec<PathBuf>,
}

/// The plugin for a device.
pub fn plugin(device: Device, search: &Search) -> Result<PathBuf, XlaError> {
    let none = || XlaError::NeedsIree { device: device.name().to_string() };
    let (package, libraries) = device.package().ok_or_else(none)?;
    if let Some(named) = &search.named {
        return Ok(named.clone());
    }
    let file = |library: &str| Path::new(library).file_name().map(PathBuf::from).unwrap_or_default();
    let staged = search.staged.iter().flat_map(|f| libraries.iter().map(move |l| f.join(file(l))));
    let python = search.python.iter().flat_map(|f| libraries.iter().map(move |l| f.join(l)));
    let none = |looked: String| XlaError::NoPlugin { device: device.name().to_string(), package, looked };
    first_of(staged.chain(python), libraries).map_err(none)
}

/// The file of IREE's compiler, and where it lies among Python's packages.
const IREE_COMPILER: &str = "libIREECompiler.so";
const IREE_FOLDER: &str = "iree/compiler/_mlir_libs";

/// IREE's compiler: its library, or the program `iree-compile` if the user names one.
pub fn iree_compiler(search: &Search) -> Result<PathBuf, XlaError> {
    if let Some(named) = &search.named {
        return Ok(named.clone());
    }
    let staged = search.staged.iter().map(|folder| folder.join(IREE_COMPILER));
    let python = search.python.iter().map(|folder| folder.join(IREE_FOLDER).join(IREE_COMPILER));
    first_of(staged.chain(python), &[IREE_COMPILER]).map_err(|looked| XlaError::NoCompiler { looked })
}

/// The first candidate that is a file, else what was looked for: the candidates, or the names where there is no folder.
fn first_of(candidates: impl Iterator<Item = PathBuf>, names: &[&str]) -> Result<PathBuf, String> {
    let mut looked = vec![];
    for path in candidates {
        if path.metadata().is_ok_and(|m| m.is_file()) {
            return Ok(path);
        }
        looked.push(path.display().to_string());
    }
    Err(if looked.is_empty() { names.join(", ") } else { looked.join(", ") })
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    #[test]
    fn the_named_file_comes_before_the_staged_one_and_that_before_pythons() {
        let folder = tempfile::tempdir().unwrap();
        let place = |below: &str| {
            let path = folder.path().join(below);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(&path, b"").unwrap();
            path
        };
        let python = place("site-packages/xla_plugins/xla_cpu_pjrt/xla_cpu_pjrt.so");
        let mut search = Search {
            named: None,
            staged: Some(folder.path().join("staged")),
            python: vec![folder.path().join("site-packages")],
        };
        assert_eq!(plugin(Device::Cpu, &search).unwrap(), python);
        let staged = place("staged/xla_cpu_pjrt.so");
        assert_eq!(plugin(Device::Cpu, &search).unwrap(), staged);
        search.named = Some("/elsewhere/plugin.so".into());
        assert_eq!(plugin(Device::Cpu, &search).unwrap(), Path::new("/elsewhere/plugin.so"));
    }

    #[test]
    fn a_missing_compiler_of_iree_is_an_error_that_says_what_to_fetch() {
        let folder = tempfile::tempdir().unwrap();
        let mut search = Search { python: vec![folder.path().to_path_buf()], ..Search::default() };
        let error = iree_compiler(&search).unwrap_err().to_string();
        assert!(
            error.contains("`mlxcel engine install iree`") && error.contains("MLXCEL_XLA_IREE_COMPILE"),
            "{error}"
        );
        let library = folder.path().join("iree/compiler/_mlir_libs/libIREECompiler.so");
        std::fs::create_dir_all(library.parent().unwrap()).unwrap();
        std::fs::write(&library, b"").unwrap();
        assert_eq!(iree_compiler(&search).unwrap(), library);
        search.named = Some("/opt/iree-compile".into());
        assert_eq!(iree_compiler(&search).unwrap(), Path::new("/opt/iree-compile"));
    }

    #[test]
    fn a_missing_plugin_is_an_error_that_says_how_to_get_one() {
        for (device, package) in [(Device::Cpu, "xla-cpu"), (Device::Cuda, "xla-cuda13")] {
            let error = plugin(device, &Search::default()).unwrap_err().to_string();
            assert!(error.contains(&format!("`mlxcel engine install {package}`")), "{error}");
        }
        for device in [Device::Rocm, Device::Tpu] {
            let error = plugin(device, &Search::default()).unwrap_err().to_string();
            assert!(!error.contains("install") && !error.contains("fetch"), "{error}");
            assert!(error.contains(". Name its file with --xla-plugin or MLXCEL_XLA_PLUGIN"), "{error}");
        }
        assert!("quantum".parse::<Device>().unwrap_err().to_string().contains("cuda"));
    }

    #[test]
    fn a_device_of_iree_alone_is_an_error_that_says_how_to_choose_iree() {
        for device in [Device::Vulkan, Device::Metal] {
            let error = plugin(device, &Search::default()).unwrap_err().to_string();
            let says = ["MLXCEL_XLA_EXECUTOR=iree", "--features iree", device.name()];
            assert!(says.iter().all(|part| error.contains(part)), "{error}");
        }
    }
}
