//! What `devices --calibrate` measured, kept in the cache folder by the words that describe the device, so that another
//! machine, another number of threads or other instructions have numbers of their own. A file that cannot be read
//! counts as none: it can always be measured again.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use mlxcel_cpu::CpuEngine;
use mlxcel_cuda::CudaEngine;
use mlxcel_engine::Engine as _;
use serde::{Deserialize, Serialize};

use crate::memory;

/// A file larger than this was not written by us.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// Much more than the caches of a processor hold, and the share of free memory that is taken at most.
const BUFFER_BYTES: u64 = 1 << 30;
const MEMORY_SHARE: u64 = 4;

/// What all threads of an engine do together on a device.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Calibration {
    pub threads: usize,
    pub read_gigabytes_per_s: f64,
    pub f32_gflop_per_s: Option<f64>,
    /// In tiles, where the processor has them.
    pub bf16_gflop_per_s: Option<f64>,
    /// The same where tiles are loaded from a cache before they are multiplied.
    #[serde(default)]
    pub loaded_bf16_gflop_per_s: Option<f64>,
}

type Kept = BTreeMap<String, Calibration>;

impl Calibration {
    /// Measures an engine, for some seconds.
    pub fn measure(engine: &CpuEngine) -> Result<Self> {
        let share = memory::available_bytes().map_or(BUFFER_BYTES, |bytes| bytes / MEMORY_SHARE);
        let bytes = usize::try_from(share.min(BUFFER_BYTES)).unwrap_or(usize::MAX);
        let measured = engine.calibrate(bytes)?;
        Ok(Calibration {
            threads: engine.caps().threads,
            read_gigabytes_per_s: measured.read_bytes_per_s / 1e9,
            f32_gflop_per_s: Some(measured.f32_flop_per_s / 1e9),
            bf16_gflop_per_s: measured.bf16_flop_per_s.map(|flops| flops / 1e9),
            loaded_bf16_gflop_per_s: measured.loaded_bf16_flop_per_s.map(|flops| flops / 1e9),
        })
    }

    /// Measures a GPU, for about a second. Of f32 it is not known what it does at most.
    pub fn measure_gpu(engine: &CudaEngine) -> Result<Self> {
        let measured = engine.calibrate()?;
        Ok(Calibration {
            threads: engine.caps().threads,
            read_gigabytes_per_s: measured.bytes_per_s / 1e9,
            f32_gflop_per_s: None,
            bf16_gflop_per_s: Some(measured.flop_per_s / 1e9),
            loaded_bf16_gflop_per_s: None,
        })
    }

    /// The fastest arithmetic there is.
    pub fn peak_gflop_per_s(&self) -> f64 {
        self.bf16_gflop_per_s.unwrap_or(0.0).max(self.f32_gflop_per_s.unwrap_or(0.0))
    }
}

/// What is known of a device.
pub fn of(device: &str) -> Option<Calibration> {
    read(&path().ok()?).remove(device)
}

/// Keeps what was measured of a device, beside what is known of others; returns where.
pub fn keep(device: &str, calibration: Calibration) -> Result<PathBuf> {
    let path = path()?;
    write(&path, device, calibration).with_context(|| {
        format!("cannot write {}; set MLXCEL_CACHE to a folder that can be written to", path.display())
    })?;
    Ok(path)
}

fn path() -> Result<PathBuf> {
    Ok(mlxcel_hub::Settings::from_env()?.cache.join("calibration.json"))
}

fn read(path: &Path) -> Kept {
    let mut text = String::new();
    let is_read =
        File::open(path).and_then(|file| file.take(FILE_BYTES_MAX).read_to_string(&mut text)).is_ok();
    let mut kept: Kept = if is_read { serde_json::from_str(&text).unwrap_or_default() } else { Kept::new() };
    kept.retain(|_, c| {
        let tiles = [c.bf16_gflop_per_s, c.loaded_bf16_gflop_per_s];
        let numbers = [Some(c.read_gigabytes_per_s), c.f32_gflop_per_s];
        numbers.into_iter().chain(tiles).flatten().all(|n| n.is_finite() && n > 0.0)
    });
    kept
}

/// In one rename, so that no reader sees half a file.
fn write(path: &Path, device: &str, calibration: Calibration) -> Result<()> {
    let mut kept = read(path);
    kept.insert(device.to_string(), calibration);
    let folder = path.parent().unwrap_or(Path::new("."));
    fs::create_dir_all(folder)?;
    let mut file = tempfile::NamedTempFile::new_in(folder)?;
    writeln!(file, "{}", serde_json::to_string_pretty(&kept)?)?;
    file.persist(path)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: Calibration = Calibration {
        threads: 2,
        read_gigabytes_per_s: 29.0,
        f32_gflop_per_s: Some(140.5),
        bf16_gflop_per_s: None,
        loaded_bf16_gflop_per_s: None,
    };

    #[test]
    fn devices_are_kept_beside_each_other() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("below/calibration.json");
        let other = Calibration { bf16_gflop_per_s: Some(4000.0), ..ONE };
        write(&path, "a, 2 threads", ONE).unwrap();
        write(&path, "b, 2 threads", other).unwrap();
        write(&path, "a, 2 threads", Calibration { threads: 3, ..ONE }).unwrap();
        let kept = read(&path);
        assert_eq!(kept.len(), 2);
        assert_eq!((kept["a, 2 threads"].threads, kept["b, 2 threads"]), (3, other));
        assert_eq!((ONE.peak_gflop_per_s(), other.peak_gflop_per_s()), (140.5, 4000.0));
    }

    #[test]
    fn a_file_that_is_none_of_ours_counts_as_nothing_known() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("calibration.json");
        assert!(read(&path).is_empty() && read(folder.path()).is_empty());
        let zero = r#"{"a": {"threads": 1, "read_gigabytes_per_s": 0, "f32_gflop_per_s": 1}}"#;
        let huge = format!("{{\"a\": \"{}\"}}", "x".repeat(2 << 20));
        for text in ["", "{", "[]", r#"{"a": 1}"#, zero, &huge, "\0\u{1}"] {
            fs::write(&path, text).unwrap();
            assert!(read(&path).is_empty());
            write(&path, "b", ONE).unwrap();
            assert_eq!(read(&path)["b"], ONE, "what is no calibration is replaced");
        }
    }
}
