//! Where a PJRT plugin for a device is: the file that was named, the staged cache, Python's packages. It only looks.

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

    /// The package that `cargo xtask fetch` stages, and where its library lies among Python's packages.
    fn package(self) -> Option<(&'static str, &'static [&'static str])> {
        Some(match self {
            Device::Cpu => ("xla-cpu", &["xla_plugins/xla_cpu_pjrt/xla_cpu_pjrt.so"]),
            Device::Cuda => (
                "xla-cuda13",
                &["jax_plugins/xla_cuda13/xla_cuda_plugin.so", "jax_plugins/xla_cuda12/xla_cuda_plugin.so"],
            ),
            Device::Rocm => ("xla-rocm", &["jax_plugins/xla_rocm7/xla_rocm_plugin.so"]),
            Device::Tpu => ("xla-tpu", &["libtpu/libtpu.so"]),
            Device::Vulkan | Device::Metal => return None,
        })
    }
}

/// Where to look.
#[derive(Clone, Debug, Default)]
pub struct Search {
    /// The file that the user named.
    pub named: Option<PathBuf>,
    /// The folder that `cargo xtask fetch` staged for the device.
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
    let candidates: Vec<PathBuf> = staged.chain(python).collect();
    let found = candidates.iter().find(|path| is_file(path)).cloned();
    found.ok_or_else(|| {
        let looked = candidates.iter().map(|p| p.display().to_string()).collect::<Vec<_>>();
        let looked = if looked.is_empty() { libraries.join(", ") } else { looked.join(", ") };
        XlaError::NoPlugin { device: device.name().to_string(), package, looked }
    })
}

fn is_file(path: &Path) -> bool {
    path.metadata().is_ok_and(|m| m.is_file())
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
    fn a_missing_plugin_is_an_error_that_says_what_to_fetch() {
        let error = plugin(Device::Cuda, &Search::default()).unwrap_err().to_string();
        assert!(error.contains("cargo xtask fetch xla-cuda13"), "{error}");
        let error = plugin(Device::Vulkan, &Search::default()).unwrap_err().to_string();
        assert!(error.contains("IREE"), "{error}");
        assert!("quantum".parse::<Device>().unwrap_err().to_string().contains("cuda"));
    }
}
