//! What the shim owns, as owned values: an array, a context, a program and its code are freed when they are dropped.
//! Every failure is the shim's reason as text. Which thread may use what is the business of [`crate::owner`].
#![allow(unsafe_code)]

use std::ffi::c_void;
use std::sync::{Arc, Mutex, PoisonError};

use mlxcel_ir::DType;

use crate::library::{Api, Raw};

/// Why a call failed, in MLX's words.
pub(crate) type Failed = String;

/// The number of an element type in the shim.
pub(crate) fn dtype_code(dtype: DType) -> i64 {
    let place = DType::PLAIN.iter().position(|d| *d == dtype);
    place.expect("packed types are taken apart before they reach the shim") as i64
}

fn axes(shape: &[usize]) -> Vec<i64> {
    shape.iter().map(|&d| i64::try_from(d).unwrap_or(i64::MAX)).collect()
}

macro_rules! owned {
    ($(#[$doc:meta])* $name:ident, $free:ident) => {
        $(#[$doc])*
        #[derive(Debug)]
        pub(crate) struct $name {
            raw: Raw,
            api: Arc<Api>,
        }

        impl Drop for $name {
            fn drop(&mut self) {
                // SAFETY: the shim made it, and nobody else frees it.
                unsafe { (self.api.$free)(self.raw) }
            }
        }

        impl $name {
            fn made(raw: Raw, api: &Arc<Api>) -> Result<Self, Failed> {
                if raw.is_null() { Err(api.reason()) } else { Ok($name { raw, api: api.clone() }) }
            }
        }
    };
}

owned!(
    /// An array, perhaps not computed yet.
    Array,
    array_free
);
owned!(
    /// A stream of a device. Stays on the thread that made it.
    Context,
    context_free
);
owned!(
    /// Weights, constants and states. Stays on the thread of its context.
    Program,
    program_free
);
owned!(
    /// One step, decoded. Stays on the thread of its context.
    Code,
    code_free
);

// SAFETY: an array is a counted reference whose count is atomic; its data is only read once it is computed, and MLX lets
// any thread read it then. Arrays that are not computed yet stay on the thread of their context.
unsafe impl Send for Array {}
// SAFETY: as above.
unsafe impl Sync for Array {}

impl Array {
    /// A copy of `bytes`, which are as many as type and shape need.
    pub(crate) fn new(api: &Arc<Api>, dtype: DType, shape: &[usize], bytes: &[u8]) -> Result<Self, Failed> {
        let axes = axes(shape);
        // SAFETY: both slices live through the call and have the lengths that are passed.
        let raw = unsafe {
            (api.array_new)(
                dtype_code(dtype) as i32,
                axes.as_ptr(),
                axes.len(),
                bytes.as_ptr().cast::<c_void>(),
                bytes.len(),
            )
        };
        Array::made(raw, api)
    }

    /// Waits for the array and returns its `size` bytes.
    pub(crate) fn read(&self, context: &Context, size: usize) -> Result<Vec<u8>, Failed> {
        let mut bytes = vec![0; size];
        // SAFETY: the buffer has the size that is passed; the shim refuses an array of another size.
        let failed = unsafe {
            (self.api.array_read)(context.raw, self.raw, bytes.as_mut_ptr().cast::<c_void>(), size)
        };
        if failed != 0 { Err(self.api.reason()) } else { Ok(bytes) }
    }
}

impl Context {
    pub(crate) fn new(api: &Arc<Api>, device: i32) -> Result<Self, Failed> {
        // SAFETY: the entry takes any number.
        Context::made(unsafe { (api.context_new)(device) }, api)
    }
}

impl Program {
    pub(crate) fn new(api: &Arc<Api>, context: &Context, statics: &[&Array]) -> Result<Self, Failed> {
        /// The shim moves arrays to the device, and programs on other threads may have the same ones.
        static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
        let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
        let raws: Vec<Raw> = statics.iter().map(|a| a.raw).collect();
        // SAFETY: the context and the arrays are alive; the program keeps references of its own to the arrays.
        Program::made(unsafe { (api.program_new)(context.raw, raws.as_ptr(), raws.len()) }, api)
    }

    /// A further state, all zeros.
    pub(crate) fn add_state(&mut self, dtype: DType, shape: &[usize]) -> Result<(), Failed> {
        let axes = axes(shape);
        // SAFETY: the slice lives through the call.
        let failed = unsafe {
            (self.api.program_add_state)(self.raw, dtype_code(dtype) as i32, axes.as_ptr(), axes.len())
        };
        if failed != 0 { Err(self.api.reason()) } else { Ok(()) }
    }

    pub(crate) fn copy_state(&mut self, state: usize, pairs: &[(u32, u32)]) -> Result<(), Failed> {
        let flat: Vec<i64> = pairs.iter().flat_map(|(a, b)| [i64::from(*a), i64::from(*b)]).collect();
        // SAFETY: the slice holds as many pairs as are passed.
        let failed = unsafe { (self.api.program_copy_state)(self.raw, state, flat.as_ptr(), pairs.len()) };
        if failed != 0 { Err(self.api.reason()) } else { Ok(()) }
    }

    /// Whether its states are gone.
    pub(crate) fn is_broken(&self) -> bool {
        // SAFETY: the program is alive.
        unsafe { (self.api.program_is_broken)(self.raw) != 0 }
    }

    /// Starts a step and returns its `outputs` outputs.
    pub(crate) fn run(
        &mut self,
        code: &Code,
        inputs: &[Array],
        outputs: usize,
    ) -> Result<Vec<Array>, Failed> {
        let raws: Vec<Raw> = inputs.iter().map(|a| a.raw).collect();
        let mut made = vec![std::ptr::null_mut(); outputs];
        // SAFETY: everything is alive, and the code, which this crate encoded, has that many outputs.
        let failed =
            unsafe { (self.api.run)(self.raw, code.raw, raws.as_ptr(), raws.len(), made.as_mut_ptr()) };
        if failed != 0 {
            return Err(self.api.reason());
        }
        made.into_iter().map(|raw| Array::made(raw, &self.api)).collect()
    }
}

impl Code {
    pub(crate) fn new(
        api: &Arc<Api>,
        program: &Program,
        words: &[i64],
        labels: &str,
        mode: i32,
    ) -> Result<Self, Failed> {
        // SAFETY: the slices live through the call and have the lengths that are passed; every label ends in zero.
        let raw = unsafe {
            (api.code_new)(
                program.raw,
                words.as_ptr(),
                words.len(),
                labels.as_ptr().cast(),
                labels.len(),
                mode,
            )
        };
        Code::made(raw, api)
    }

    pub(crate) fn traces(&self) -> u64 {
        // SAFETY: the code is alive.
        unsafe { (self.api.code_traces)(self.raw) }
    }
}
