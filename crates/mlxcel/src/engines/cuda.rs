//! The engine that runs on NVIDIA GPUs, and its arguments.

use std::io::{self, IsTerminal as _};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context as _, Result, bail};
use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use mlxcel_cuda::{CudaEngine, CudaError, CudaOptions};

use mlxcel_engine::Engine as _;

use super::Listed;
use super::cpu::ProductsName;
use crate::calibration::{self, Calibration};
use crate::values::parse_size;

#[derive(Clone, Debug, Default, Args)]
pub struct CudaArgs {
    /// Memory of the GPU that the cuda engine may take, such as 20GB or 12GiB [default: what is free, less headroom].
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub gpu_memory: Option<u64>,
}

/// `cuda`, `cuda:0`, `cuda:1`, …
fn index(device: Option<&str>) -> Result<usize> {
    let Some(device) = device else { return Ok(0) };
    match device.strip_prefix("cuda") {
        Some("") => Ok(0),
        Some(rest) => {
            let number = rest.strip_prefix(':').and_then(|n| n.parse().ok());
            number.with_context(|| format!("there is no device '{device}'; give --device cuda or cuda:N"))
        }
        None => bail!("the cuda engine has no device '{device}'; give --device cuda or cuda:N"),
    }
}

pub fn open(arguments: &CudaArgs, products: ProductsName, device: Option<&str>) -> Result<CudaEngine> {
    let exact = products == ProductsName::Exact;
    let options = CudaOptions { device: index(device)?, memory: arguments.gpu_memory, exact };
    let engine = CudaEngine::new(options)?;
    Ok(if io::stderr().is_terminal() { engine.with_progress(upload_bar()) } else { engine })
}

/// A bar that goes away once all weights are on the device.
fn upload_bar() -> mlxcel_cuda::Progress {
    let style = ProgressStyle::with_template("to the GPU [{bar:30}] {bytes}/{total_bytes} {bytes_per_sec}");
    let style = style.expect("the template is a constant that indicatif accepts");
    let bar = Mutex::new(None::<ProgressBar>);
    Arc::new(move |sent, all| {
        let mut bar = bar.lock().unwrap_or_else(PoisonError::into_inner);
        let shown = bar.get_or_insert_with(|| ProgressBar::new(all).with_style(style.clone()));
        shown.set_position(sent);
        if sent >= all
            && let Some(shown) = bar.take()
        {
            shown.finish_and_clear();
        }
    })
}

/// Measures every GPU of this machine, and keeps what was measured.
pub fn calibrate() -> Result<()> {
    for device in 0..mlxcel_cuda::devices().map_or(0, |devices| devices.len()) {
        let engine = CudaEngine::new(CudaOptions { device, ..CudaOptions::default() })?;
        calibration::keep(&engine.caps().device, Calibration::measure_gpu(&engine)?)?;
    }
    Ok(())
}

/// The GPUs of this machine; none without a driver.
pub fn list() -> Vec<Listed> {
    match mlxcel_cuda::devices() {
        Ok(devices) => {
            let listed = devices.into_iter().enumerate().map(|(i, d)| Listed {
                engine: "cuda",
                device: format!("cuda:{i}"),
                description: d.words(),
                simd: format!("CUDA {}.{}", d.driver_version / 1000, d.driver_version % 1000 / 10),
                cores: d.multiprocessors as usize,
                memory: Some(d.memory),
            });
            listed.collect()
        }
        Err(CudaError::NoDriver { .. } | CudaError::NoDevice) => vec![],
        Err(error) => {
            crate::say(&format!("note: {error}"));
            vec![]
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_numbered() {
        assert_eq!(index(None).unwrap(), 0);
        assert_eq!(index(Some("cuda")).unwrap(), 0);
        assert_eq!(index(Some("cuda:3")).unwrap(), 3);
        assert!(index(Some("cuda:x")).is_err());
        assert!(index(Some("cpu")).is_err());
    }
}
