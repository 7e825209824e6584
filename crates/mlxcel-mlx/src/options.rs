//! What a caller chooses: where MLX lies, the device, and how steps are run.

use std::fmt;
use std::str::FromStr;

use crate::error::MlxError;
use crate::library::Home;

/// How a step is run. A mode never becomes another.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Mode {
    /// Builds the step's graph and evaluates it once, in the background.
    #[default]
    Lazy,
    /// Evaluates after every op; a failure names its node.
    Eager,
    /// Traced once for each bucket of sizes and replayed.
    Compiled,
}

/// What MLX computes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Device {
    Cpu,
    Gpu,
}

/// How an engine is opened.
#[derive(Clone, Debug)]
pub struct Options {
    pub home: Home,
    /// The GPU if MLX has one, if `None`.
    pub device: Option<Device>,
    pub mode: Mode,
}

impl Mode {
    /// The number by which the shim knows it.
    pub(crate) fn code(self) -> i32 {
        match self {
            Mode::Lazy => 0,
            Mode::Eager => 1,
            Mode::Compiled => 2,
        }
    }
}

impl Device {
    pub(crate) fn code(self) -> i32 {
        match self {
            Device::Cpu => 0,
            Device::Gpu => 1,
        }
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Mode::Lazy => "lazy",
            Mode::Eager => "eager",
            Mode::Compiled => "compiled",
        })
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Device::Cpu => "cpu",
            Device::Gpu => "gpu",
        })
    }
}

impl FromStr for Mode {
    type Err = MlxError;

    fn from_str(text: &str) -> Result<Self, MlxError> {
        let all = [Mode::Lazy, Mode::Eager, Mode::Compiled];
        all.into_iter().find(|m| m.to_string() == text).ok_or_else(|| MlxError::Unknown {
            text: text.to_string(),
            what: "a mode of MLX",
            choices: "lazy, eager or compiled",
        })
    }
}

impl FromStr for Device {
    type Err = MlxError;

    fn from_str(text: &str) -> Result<Self, MlxError> {
        [Device::Cpu, Device::Gpu].into_iter().find(|d| d.to_string() == text).ok_or_else(|| {
            MlxError::Unknown { text: text.to_string(), what: "a device of MLX", choices: "cpu or gpu" }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_and_devices_are_read_by_their_names() {
        for mode in [Mode::Lazy, Mode::Eager, Mode::Compiled] {
            assert_eq!(mode.to_string().parse::<Mode>().unwrap(), mode);
        }
        assert_eq!("gpu".parse::<Device>().unwrap(), Device::Gpu);
        let refused = "fast".parse::<Mode>().unwrap_err().to_string();
        assert!(refused.contains("'fast'") && refused.contains("compiled"), "{refused}");
    }
}
