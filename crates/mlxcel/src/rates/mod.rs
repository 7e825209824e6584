//! How fast an engine is on a device, measured through the seam that models use, and what that foretells of a model.
//! One file for each device, in one version, replaced in one rename; what cannot be read counts as not measured.

pub mod choose;
mod predict;
mod probe;

use std::fs;
use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use serde::{Deserialize, Serialize};

pub use predict::{decode, prefill};
pub use probe::{Sizes, measure};

/// Raised when what is measured changes.
const VERSION: u32 = 2;

/// A file larger than this was not written by us.
const FILE_BYTES_MAX: u64 = 1 << 16;

/// Units are in the names: a GFLOP is 1e9 operations, a gigabyte 1e9 bytes, a microsecond 1e-6 seconds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rates {
    version: u32,
    pub engine: String,
    pub device: String,
    /// Products of many rows.
    pub f32_gflop_per_s: f64,
    pub bf16_gflop_per_s: f64,
    /// Weights in products of one row.
    pub stream_gigabytes_per_s: f64,
    /// Elementwise, read and written.
    pub copy_gigabytes_per_s: f64,
    pub reduce_gigabytes_per_s: f64,
    /// The cache, for one token.
    pub attention_gigabytes_per_s: f64,
    /// A step of nothing, from feeding to reading.
    pub round_trip_us: f64,
    /// What an op adds to a step, however small it is.
    pub op_us: f64,
}

impl Rates {
    fn is_sound(&self) -> bool {
        let rates = [
            self.f32_gflop_per_s,
            self.bf16_gflop_per_s,
            self.stream_gigabytes_per_s,
            self.copy_gigabytes_per_s,
            self.reduce_gigabytes_per_s,
            self.attention_gigabytes_per_s,
        ];
        let times = [self.round_trip_us, self.op_us];
        self.version == VERSION
            && rates.iter().all(|r| r.is_finite() && *r > 0.0)
            && times.iter().all(|t| t.is_finite() && *t >= 0.0)
    }
}

/// What is known of an engine on a device, by the words that describe it.
pub fn of(engine: &str, device: &str) -> Option<Rates> {
    read(&folder().ok()?.join(file_name(engine, device))).filter(|r| r.engine == engine && r.device == device)
}

/// Keeps what was measured and returns where.
pub fn keep(rates: &Rates) -> Result<PathBuf> {
    let folder = folder()?;
    let path = folder.join(file_name(&rates.engine, &rates.device));
    write(&folder, &path, rates).with_context(|| {
        format!("cannot write {}; set MLXCEL_CACHE to a folder that can be written to", path.display())
    })?;
    Ok(path)
}

fn folder() -> Result<PathBuf> {
    Ok(mlxcel_hub::Settings::from_env()?.cache.join("rates"))
}

/// Devices are known by long words; a file by the engine and a number made of them (FNV-1a).
fn file_name(engine: &str, device: &str) -> String {
    let fold = |h: u64, b: u8| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3);
    let number = device.bytes().fold(0xcbf2_9ce4_8422_2325, fold);
    format!("{engine}-{number:016x}.json")
}

fn read(path: &Path) -> Option<Rates> {
    let mut text = String::new();
    fs::File::open(path).ok()?.take(FILE_BYTES_MAX).read_to_string(&mut text).ok()?;
    serde_json::from_str::<Rates>(&text).ok().filter(Rates::is_sound)
}

fn write(folder: &Path, path: &Path, rates: &Rates) -> Result<()> {
    fs::create_dir_all(folder)?;
    let mut file = tempfile::NamedTempFile::new_in(folder)?;
    writeln!(file, "{}", serde_json::to_string_pretty(rates)?)?;
    file.persist(path)?;
    Ok(())
}

#[cfg(test)]
pub(super) fn example() -> Rates {
    Rates {
        version: VERSION,
        engine: "cpu".to_string(),
        device: "one core".to_string(),
        f32_gflop_per_s: 100.0,
        bf16_gflop_per_s: 400.0,
        stream_gigabytes_per_s: 10.0,
        copy_gigabytes_per_s: 5.0,
        reduce_gigabytes_per_s: 20.0,
        attention_gigabytes_per_s: 8.0,
        round_trip_us: 5.0,
        op_us: 0.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_device_has_a_file_of_its_own() {
        let folder = tempfile::tempdir().unwrap();
        let other = Rates { device: "two cores".to_string(), ..example() };
        let path = |r: &Rates| folder.path().join(file_name(&r.engine, &r.device));
        for rates in [&example(), &other] {
            write(folder.path(), &path(rates), rates).unwrap();
        }
        assert_ne!(path(&example()), path(&other));
        assert_eq!((read(&path(&example())), read(&path(&other))), (Some(example()), Some(other)));
    }

    #[test]
    fn what_is_of_another_version_or_no_number_counts_as_not_measured() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.json");
        for bad in [
            Rates { version: VERSION + 1, ..example() },
            Rates { copy_gigabytes_per_s: 0.0, ..example() },
            Rates { round_trip_us: -1.0, ..example() },
        ] {
            write(folder.path(), &path, &bad).unwrap();
            assert_eq!(read(&path), None, "{bad:?}");
        }
        fs::write(&path, "{").unwrap();
        assert_eq!(read(&path), None);
    }
}
