//! What runs modules: small enough that PJRT and IREE both fit behind it. It knows bytes and StableHLO text, and
//! nothing of graphs, weights or steps.

use std::any::Any;
use std::sync::Arc;

use mlxcel_engine::weights::Bytes;
use mlxcel_ir::DType;

use crate::emit::EmitOptions;
use crate::error::XlaError;

/// How hard the compiler tries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Effort {
    #[default]
    Full,
    /// For tests, whose modules run a few times each.
    Little,
}

/// A device with a compiler for it.
pub trait Executor: Send + Sync {
    /// The device in words that a person recognises.
    fn device(&self) -> String;

    /// Whether the device shares the processor's memory and cores.
    fn is_cpu(&self) -> bool;

    /// Bytes that may still be taken of a memory of its own, if that is known.
    fn free_memory(&self) -> Option<u64> {
        None
    }

    /// How modules for it are written.
    fn emit_options(&self) -> EmitOptions;

    /// Compiles a module; `what` names it in messages. Text that was compiled before is not compiled again; of two
    /// threads that come with it at once, both compile it.
    fn compile(&self, what: &str, module: &str) -> Result<Arc<dyn Executable>, XlaError>;

    /// An array on the device. The bytes are not copied where the device can read them as they lie.
    fn upload(&self, dtype: DType, sizes: &[usize], bytes: Bytes) -> Result<Buffer, XlaError>;

    /// An array of zeros that shares its memory with no other.
    fn zeros(&self, dtype: DType, sizes: &[usize]) -> Result<Buffer, XlaError>;
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

    /// What the executor keeps of it.
    pub(crate) fn array<T: DeviceArray>(&self) -> &T {
        self.0.as_any().downcast_ref().expect("an executable gets the buffers of its own executor")
    }
}

/// Who uploads an array sees to it that its bytes are as many as its type and shape have.
pub(crate) fn assert_size(dtype: DType, sizes: &[usize], bytes: &Bytes) {
    let needed = dtype.storage_bytes(sizes);
    assert_eq!(needed, Some(bytes.len()), "an array has the bytes of its type and shape");
}
