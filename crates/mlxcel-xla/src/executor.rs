//! What runs modules: small enough that PJRT and IREE both fit behind it. It knows bytes and StableHLO text, and
//! nothing of graphs, weights or steps.

use std::any::Any;
use std::sync::Arc;

use mlxcel_engine::weights::Bytes;
use mlxcel_ir::DType;

use crate::error::XlaError;

/// A device with a compiler for it.
pub trait Executor: Send + Sync {
    /// The device in words that a person recognises.
    fn device(&self) -> String;

    /// Whether the device shares the processor's memory and cores.
    fn is_cpu(&self) -> bool;

    /// Compiles a module; `what` names it in messages. The same text is compiled once.
    fn compile(&self, what: &str, module: &str) -> Result<Arc<dyn Executable>, XlaError>;

    /// An array on the device. The bytes are not copied where the device can read them as they lie.
    fn upload(&self, dtype: DType, sizes: &[usize], bytes: Bytes) -> Result<Buffer, XlaError>;
}

/// A compiled module.
pub trait Executable: Send + Sync {
    /// Starts the module and returns its results, which may still be under way. Arguments that the module aliases
    /// with results are used up.
    fn run(&self, arguments: &[&Buffer]) -> Result<Vec<Buffer>, XlaError>;
}

/// An array on the device.
pub struct Buffer(pub(crate) Box<dyn DeviceArray>);

/// What an executor keeps of an array.
pub trait DeviceArray: Send + Any {
    /// Waits for the array and copies it out, row by row.
    fn read(&self, to: &mut [u8]) -> Result<(), XlaError>;

    fn as_any(&self) -> &dyn Any;
}

impl Buffer {
    pub fn read(&self, to: &mut [u8]) -> Result<(), XlaError> {
        self.0.read(to)
    }
}
