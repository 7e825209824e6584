//! Arrays and compiled modules of a client: owned handles that free what they hold.
#![allow(unsafe_code)]

use std::any::Any;
use std::ffi::c_char;
use std::sync::Arc;

use mlxcel_engine::weights::Bytes;
use mlxcel_ir::DType;

use super::plugin::Plugin;
use super::{Client, sys};
use crate::error::XlaError;
use crate::executor::{Buffer, DeviceArray, Executable, assert_size};

/// Arrays up to this many bytes are copied aside by the plugin, so that nobody waits for them.
const SMALL: usize = 1 << 16;

/// A compiled module.
pub(super) struct Loaded {
    client: Arc<Client>,
    executable: *mut sys::LoadedExecutable,
    results: usize,
}

// SAFETY: executables may be run from any thread.
unsafe impl Send for Loaded {}
// SAFETY: as above.
unsafe impl Sync for Loaded {}

impl Loaded {
    pub(super) fn compile(client: &Arc<Client>, module: &str, options: &[u8]) -> Result<Self, XlaError> {
        let mut program = sys::Program::new();
        (program.code, program.code_size) = (module.as_ptr().cast_mut().cast::<c_char>(), module.len());
        (program.format, program.format_size) = (c"mlir".as_ptr(), 4);
        let mut compile = sys::Compile::new();
        (compile.client, compile.program) = (client.client, &program);
        (compile.compile_options, compile.compile_options_size) = (options.as_ptr().cast(), options.len());
        client.plugin.call("compiling", sys::CLIENT_COMPILE, &mut compile)?;
        Self::new(client, compile.executable)
    }

    pub(super) fn deserialize(client: &Arc<Client>, bytes: &[u8]) -> Result<Self, XlaError> {
        let mut load = sys::Deserialize::new();
        load.client = client.client;
        (load.bytes, load.bytes_size) = (bytes.as_ptr().cast(), bytes.len());
        client.plugin.call("loading a compiled module", sys::DESERIALIZE_AND_LOAD, &mut load)?;
        Self::new(client, load.executable)
    }

    fn new(client: &Arc<Client>, executable: *mut sys::LoadedExecutable) -> Result<Self, XlaError> {
        let mut loaded = Loaded { client: client.clone(), executable, results: 0 };
        loaded.results = loaded.with_executable(|plugin, executable| {
            let mut count = sys::NumOutputs::new();
            count.executable = executable;
            plugin.call("counting results", sys::EXECUTABLE_NUM_OUTPUTS, &mut count)?;
            Ok(count.num_outputs)
        })?;
        Ok(loaded)
    }

    fn with_executable<T>(
        &self,
        f: impl FnOnce(&Plugin, *mut sys::Executable) -> Result<T, XlaError>,
    ) -> Result<T, XlaError> {
        let plugin = &self.client.plugin;
        let mut get = sys::GetExecutable::new();
        get.loaded = self.executable;
        plugin.call("reading a compiled module", sys::LOADED_GET_EXECUTABLE, &mut get)?;
        let result = f(plugin, get.executable);
        let mut destroy = sys::ExecutableCall::new();
        destroy.executable = get.executable;
        plugin.call("reading a compiled module", sys::EXECUTABLE_DESTROY, &mut destroy)?;
        result
    }

    pub(super) fn serialize(&self) -> Result<Vec<u8>, XlaError> {
        self.with_executable(|plugin, executable| {
            let mut serialize = sys::Serialize::new();
            serialize.executable = executable;
            plugin.call("storing a compiled module", sys::EXECUTABLE_SERIALIZE, &mut serialize)?;
            // SAFETY: the plugin says that so many bytes lie there until the deleter is called.
            let bytes = unsafe {
                std::slice::from_raw_parts(serialize.bytes.cast::<u8>(), serialize.bytes_size).to_vec()
            };
            if let Some(delete) = serialize.deleter {
                // SAFETY: the bytes were copied, and nothing else refers to them.
                unsafe { delete(serialize.serialized) };
            }
            Ok(bytes)
        })
    }
}

impl Drop for Loaded {
    fn drop(&mut self) {
        let mut destroy = sys::LoadedCall::new();
        destroy.executable = self.executable;
        let _ = self.client.plugin.call("freeing a module", sys::LOADED_DESTROY, &mut destroy);
    }
}

impl Executable for Loaded {
    fn run(&self, arguments: &[&Buffer]) -> Result<Vec<Buffer>, XlaError> {
        let raw: Vec<*mut sys::Buffer> = arguments.iter().map(|b| b.array::<Array>().buffer).collect();
        let mut results = vec![std::ptr::null_mut::<sys::Buffer>(); self.results];
        let (inputs, outputs) = ([raw.as_ptr()], [results.as_mut_ptr()]);
        let mut options = sys::ExecuteOptions::new();
        let mut execute = sys::Execute::new();
        (execute.executable, execute.options) = (self.executable, &mut options);
        (execute.argument_lists, execute.num_devices, execute.num_args) = (inputs.as_ptr(), 1, raw.len());
        execute.output_lists = outputs.as_ptr();
        self.client.plugin.call("running a module", sys::LOADED_EXECUTE, &mut execute)?;
        let array = |buffer| Buffer(Box::new(Array { client: self.client.clone(), buffer, kept: None }));
        Ok(results.into_iter().map(array).collect())
    }
}

/// An array on the device.
pub(super) struct Array {
    client: Arc<Client>,
    buffer: *mut sys::Buffer,
    /// What the device reads in place, with the event that says when it no longer does.
    kept: Option<(Bytes, *mut sys::Event)>,
}

// SAFETY: buffers may be used from any thread.
unsafe impl Send for Array {}

impl Array {
    pub(super) fn upload(
        client: &Arc<Client>,
        dtype: DType,
        sizes: &[usize],
        bytes: Bytes,
    ) -> Result<Self, XlaError> {
        assert_size(dtype, sizes, &bytes);
        let dims: Vec<i64> = sizes.iter().map(|&n| n as i64).collect();
        let mut from = sys::BufferFromHost::new();
        from.client = client.client;
        from.data = bytes.as_ptr().cast();
        from.kind = buffer_type(dtype)?;
        (from.dims, from.num_dims) = (dims.as_ptr(), dims.len());
        let in_place = client.is_cpu();
        from.semantics = match bytes.len() {
            _ if in_place => sys::IMMUTABLE_ZERO_COPY,
            ..=SMALL => sys::IMMUTABLE_ONLY_DURING_CALL,
            _ => sys::IMMUTABLE_UNTIL_TRANSFER_COMPLETES,
        };
        from.device = client.device;
        client.plugin.call("copying to the device", sys::CLIENT_BUFFER_FROM_HOST, &mut from)?;
        let event = from.done_with_host_buffer;
        let mut array = Array { client: client.clone(), buffer: from.buffer, kept: None };
        if bytes.len() <= SMALL || in_place {
            array.kept = Some((bytes, event));
        } else {
            client.plugin.wait("copying to the device", event)?;
        }
        Ok(array)
    }
}

impl DeviceArray for Array {
    fn read(&self, to: &mut [u8]) -> Result<(), XlaError> {
        let mut copy = sys::BufferToHost::new();
        copy.buffer = self.buffer;
        (copy.to, copy.to_size) = (to.as_mut_ptr().cast(), to.len());
        self.client.plugin.call("copying from the device", sys::BUFFER_TO_HOST, &mut copy)?;
        self.client.plugin.wait("copying from the device", copy.event)
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl Drop for Array {
    fn drop(&mut self) {
        let mut destroy = sys::BufferCall::new();
        destroy.buffer = self.buffer;
        let _ = self.client.plugin.call("freeing an array", sys::BUFFER_DESTROY, &mut destroy);
        if let Some((_, event)) = self.kept.take() {
            // The bytes go only when nothing reads them any more.
            let _ = self.client.plugin.wait("freeing an array", event);
        }
    }
}

/// PJRT's number of an element type.
fn buffer_type(dtype: DType) -> Result<i32, XlaError> {
    Ok(match dtype {
        DType::Bool => 1,
        DType::I8 => 2,
        DType::I16 => 3,
        DType::I32 => 4,
        DType::I64 => 5,
        DType::U8 => 6,
        DType::U16 => 7,
        DType::U32 => 8,
        DType::U64 => 9,
        DType::F16 => 10,
        DType::F32 => 11,
        DType::F64 => 12,
        DType::BF16 => 13,
        DType::F8E5M2 => 16,
        DType::F8E4M3 => 17,
        DType::Quant(_) => {
            return Err(XlaError::Unsupported { op: "a packed array".into(), operands: dtype.to_string() });
        }
    })
}
