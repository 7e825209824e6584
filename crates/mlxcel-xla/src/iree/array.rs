//! Arrays and loaded modules of a device: owned handles that free what they hold.
#![allow(unsafe_code)]

use std::any::Any;
use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::{Arc, Mutex};

use eerie_sys::runtime as sys;
use mlxcel_engine::weights::Bytes;
use mlxcel_ir::DType;

use super::device::{Device, FOREVER, allocator, check, view};
use crate::error::XlaError;
use crate::executor::{Buffer, DeviceArray, Executable, assert_size};

/// Bytes of the processor are used where they lie if they begin at a multiple of this.
const ALIGNMENT: usize = sys::IREE_HAL_HEAP_BUFFER_ALIGNMENT as usize;

/// Zeros are copied to the device so many bytes at a time.
const ZEROS: usize = 1 << 24;

/// A loaded module.
pub(super) struct Loaded {
    device: Arc<Device>,
    module: *mut sys::iree_vm_module_t,
    /// Contexts are for one thread at a time.
    context: Mutex<Context>,
    function: sys::iree_vm_function_t,
    /// What the module was loaded from, which it reads as long as it lives.
    _bytes: Box<[u8]>,
}

struct Context(*mut sys::iree_vm_context_t);

// SAFETY: a context may move between threads, and the lock lets one in at a time.
unsafe impl Send for Context {}
// SAFETY: the module and the function in it are constant; the context has a lock.
unsafe impl Send for Loaded {}
// SAFETY: as above.
unsafe impl Sync for Loaded {}

impl Loaded {
    pub(super) fn new(device: &Arc<Device>, bytes: Vec<u8>) -> Result<Self, XlaError> {
        let doing = "loading a compiled module";
        let function = sys::iree_vm_function_t { module: null_mut(), linkage: 0, ordinal: 0 };
        let mut loaded = Loaded {
            device: device.clone(),
            module: null_mut(),
            context: Mutex::new(Context(null_mut())),
            function,
            _bytes: bytes.into_boxed_slice(),
        };
        let span =
            sys::iree_const_byte_span_t { data: loaded._bytes.as_ptr(), data_length: loaded._bytes.len() };
        let none = sys::iree_allocator_t { self_: null_mut(), ctl: None };
        // SAFETY: the bytes are the module's as long as it lives, and nobody else frees them.
        let status = unsafe {
            sys::iree_vm_bytecode_module_create(
                device.instance,
                0,
                span,
                none,
                allocator(),
                &mut loaded.module,
            )
        };
        check(doing, status)?;
        let mut modules = [device.hal, loaded.module];
        let mut context = null_mut();
        // SAFETY: both modules live, and the context keeps them.
        let status = unsafe {
            sys::iree_vm_context_create_with_modules(
                device.instance,
                0,
                modules.len(),
                modules.as_mut_ptr(),
                allocator(),
                &mut context,
            )
        };
        check(doing, status)?;
        loaded.context = Mutex::new(Context(context));
        let export = sys::iree_vm_function_linkage_e_IREE_VM_FUNCTION_LINKAGE_EXPORT;
        // SAFETY: the module lives.
        let status = unsafe {
            sys::iree_vm_module_lookup_function_by_name(
                loaded.module,
                export,
                view("main"),
                &mut loaded.function,
            )
        };
        check(doing, status)?;
        Ok(loaded)
    }
}

impl Drop for Loaded {
    fn drop(&mut self) {
        let context = self.context.get_mut().unwrap_or_else(|e| e.into_inner()).0;
        // SAFETY: nothing runs any more, and the bytes go after the module that reads them.
        unsafe {
            sys::iree_vm_context_release(context);
            sys::iree_vm_module_release(self.module);
        }
    }
}

/// A list of arguments or results.
struct List(*mut sys::iree_vm_list_t);

impl List {
    fn new(room: usize) -> Result<Self, XlaError> {
        let mut list = null_mut();
        // SAFETY: a definition of zeros allows anything, and the call fills in the list.
        let status = unsafe {
            sys::iree_vm_list_create(sys::iree_vm_type_def_t::default(), room, allocator(), &mut list)
        };
        check("running a module", status)?;
        Ok(List(list))
    }
}

impl Drop for List {
    fn drop(&mut self) {
        // SAFETY: the list was made here.
        unsafe { sys::iree_vm_list_release(self.0) };
    }
}

impl Executable for Loaded {
    fn run(&self, arguments: &[&Buffer]) -> Result<Vec<Buffer>, XlaError> {
        let doing = "running a module";
        let (inputs, outputs) = (List::new(arguments.len())?, List::new(0)?);
        for argument in arguments {
            // SAFETY: the array lives during the call, and the list takes the reference that is made here.
            let status = unsafe {
                let mut reference = sys::iree_hal_buffer_view_retain_ref(argument.array::<Array>().view);
                sys::iree_vm_list_push_ref_move(inputs.0, &mut reference)
            };
            check(doing, status)?;
        }
        let context = self.context.lock().unwrap_or_else(|e| e.into_inner());
        // SAFETY: the function is of a module of this context, of which the lock lets one in at a time.
        let status = unsafe {
            let policy = std::ptr::null();
            sys::iree_vm_invoke(context.0, self.function, 0, policy, inputs.0, outputs.0, allocator())
        };
        check(doing, status)?;
        // SAFETY: the list lives.
        let count = unsafe { sys::iree_vm_list_size(outputs.0) };
        (0..count).map(|i| self.result(&outputs, i)).collect()
    }
}

impl Loaded {
    fn result(&self, list: &List, i: usize) -> Result<Buffer, XlaError> {
        let doing = "reading the results of a module";
        let mut reference = sys::iree_vm_ref_t { ptr: null_mut(), type_: 0 };
        let mut view = null_mut();
        // SAFETY: the list has such an entry, which it holds during the calls; what is no array is refused by the second.
        let status = unsafe {
            check(doing, sys::iree_vm_list_get_ref_assign(list.0, i, &mut reference))?;
            sys::iree_hal_buffer_view_check_deref(reference, &mut view)
        };
        check(doing, status)?;
        // SAFETY: the view is alive, and the reference that is made here becomes the array's.
        unsafe { sys::iree_hal_buffer_view_retain(view) };
        Ok(Buffer(Box::new(Array { device: self.device.clone(), view })))
    }
}

/// An array on the device.
pub(super) struct Array {
    device: Arc<Device>,
    view: *mut sys::iree_hal_buffer_view_t,
}

// SAFETY: views may be used from any thread.
unsafe impl Send for Array {}

impl Array {
    pub(super) fn upload(
        (device, in_place): (&Arc<Device>, bool),
        dtype: DType,
        sizes: &[usize],
        bytes: Bytes,
    ) -> Result<Self, XlaError> {
        assert_size(dtype, sizes, &bytes);
        let in_place = in_place && bytes.as_ptr().addr().is_multiple_of(ALIGNMENT) && !bytes.is_empty();
        let buffer = if in_place { import(device, bytes)? } else { copied(device, &bytes)? };
        Self::new(device, buffer, (dtype, sizes))
    }

    pub(super) fn zeros(device: &Arc<Device>, dtype: DType, sizes: &[usize]) -> Result<Self, XlaError> {
        let size = dtype.storage_bytes(sizes).ok_or_else(|| unsupported(dtype))?;
        let buffer = allocate(device, size)?;
        let array = Self::new(device, buffer, (dtype, sizes))?;
        let zeros = vec![0; size.min(ZEROS)];
        for at in (0..size).step_by(ZEROS) {
            fill(device, buffer, at, &zeros[..ZEROS.min(size - at)])?;
        }
        Ok(array)
    }

    /// A view of a buffer, which is then the array's own.
    fn new(
        device: &Arc<Device>,
        buffer: *mut sys::iree_hal_buffer_t,
        (dtype, sizes): (DType, &[usize]),
    ) -> Result<Self, XlaError> {
        let mut array = Array { device: device.clone(), view: null_mut() };
        let dense = sys::iree_hal_encoding_types_t_IREE_HAL_ENCODING_TYPE_DENSE_ROW_MAJOR;
        let element = element_type(dtype);
        // SAFETY: so many sizes lie there; the view keeps the buffer, so that it is let go here.
        let status = unsafe {
            let (rank, shape, view) = (sizes.len(), sizes.as_ptr(), &mut array.view);
            let of = |element| {
                sys::iree_hal_buffer_view_create(buffer, rank, shape, element, dense, allocator(), view)
            };
            let status = element.map(of);
            sys::iree_hal_buffer_release(buffer);
            status
        };
        check("copying to the device", status?)?;
        Ok(array)
    }
}

fn params() -> sys::iree_hal_buffer_params_t {
    sys::iree_hal_buffer_params_t {
        usage: sys::iree_hal_buffer_usage_bits_t_IREE_HAL_BUFFER_USAGE_DEFAULT,
        access: sys::iree_hal_memory_access_bits_t_IREE_HAL_MEMORY_ACCESS_ALL as _,
        type_: sys::iree_hal_memory_type_bits_t_IREE_HAL_MEMORY_TYPE_DEVICE_LOCAL,
        ..Default::default()
    }
}

/// A buffer that is these bytes, which go when it does.
fn import(device: &Device, bytes: Bytes) -> Result<*mut sys::iree_hal_buffer_t, XlaError> {
    unsafe extern "C" fn release(kept: *mut c_void, _: *mut sys::iree_hal_buffer_t) {
        // SAFETY: this is what was handed over below, and the runtime calls this once.
        drop(unsafe { Box::from_raw(kept.cast::<Bytes>()) });
    }
    let kept = Box::new(bytes);
    let mut external = sys::iree_hal_external_buffer_t {
        type_: sys::iree_hal_external_buffer_type_e_IREE_HAL_EXTERNAL_BUFFER_TYPE_HOST_ALLOCATION,
        size: kept.len(),
        ..Default::default()
    };
    external.handle.host_allocation.ptr = kept.as_ptr().cast_mut().cast();
    let kept = Box::into_raw(kept);
    let callback = sys::iree_hal_buffer_release_callback_t { fn_: Some(release), user_data: kept.cast() };
    let mut params = params();
    // Modules write only to what they alias, and that is never an upload.
    params.type_ |= sys::iree_hal_memory_type_bits_t_IREE_HAL_MEMORY_TYPE_HOST_VISIBLE;
    let mut buffer = null_mut();
    // SAFETY: the bytes stay where they are until the runtime calls back.
    let status = unsafe {
        sys::iree_hal_allocator_import_buffer(device.heap(), params, &mut external, callback, &mut buffer)
    };
    if !status.is_null() {
        // SAFETY: the runtime refused, so that it will not call back.
        drop(unsafe { Box::from_raw(kept) });
    }
    check("copying to the device", status)?;
    Ok(buffer)
}

fn allocate(device: &Device, size: usize) -> Result<*mut sys::iree_hal_buffer_t, XlaError> {
    let mut buffer = null_mut();
    // SAFETY: the call fills in the buffer.
    let status =
        unsafe { sys::iree_hal_allocator_allocate_buffer(device.heap(), params(), size.max(1), &mut buffer) };
    check("making room on the device", status)?;
    Ok(buffer)
}

fn fill(
    device: &Device,
    buffer: *mut sys::iree_hal_buffer_t,
    at: usize,
    bytes: &[u8],
) -> Result<(), XlaError> {
    // SAFETY: the bytes are read during the call, and the buffer has room for them there.
    let status = unsafe {
        let from = bytes.as_ptr().cast();
        sys::iree_hal_device_transfer_h2d(device.device, from, buffer, at, bytes.len(), 0, FOREVER)
    };
    check("copying to the device", status)
}

fn copied(device: &Device, bytes: &[u8]) -> Result<*mut sys::iree_hal_buffer_t, XlaError> {
    let buffer = allocate(device, bytes.len())?;
    let copied = fill(device, buffer, 0, bytes);
    if copied.is_err() {
        // SAFETY: nobody else has the buffer.
        unsafe { sys::iree_hal_buffer_release(buffer) };
    }
    copied.map(|()| buffer)
}

impl DeviceArray for Array {
    fn read(&self, to: &mut [u8]) -> Result<(), XlaError> {
        let doing = "copying from the device";
        // SAFETY: the view lives.
        let size = unsafe { sys::iree_hal_buffer_view_byte_length(self.view) };
        if size != to.len() {
            let message = format!("an array of {size} bytes into {}", to.len());
            return Err(XlaError::Iree { doing, message });
        }
        // SAFETY: the view lives, its buffer with it, and `to` has room for what is read.
        let status = unsafe {
            let buffer = sys::iree_hal_buffer_view_buffer(self.view);
            let to = to.as_mut_ptr().cast();
            sys::iree_hal_device_transfer_d2h(self.device.device, buffer, 0, to, size, 0, FOREVER)
        };
        check(doing, status)
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl Drop for Array {
    fn drop(&mut self) {
        // SAFETY: the view is this array's own.
        unsafe { sys::iree_hal_buffer_view_release(self.view) };
    }
}

fn unsupported(dtype: DType) -> XlaError {
    XlaError::Unsupported { op: "an array".into(), operands: dtype.to_string() }
}

/// IREE's number of an element type.
fn element_type(dtype: DType) -> Result<sys::iree_hal_element_type_t, XlaError> {
    Ok(match dtype {
        DType::Bool => sys::iree_hal_element_types_t_IREE_HAL_ELEMENT_TYPE_BOOL_8,
        DType::I8 => sys::iree_hal_element_types_t_IREE_HAL_ELEMENT_TYPE_INT_8,
        DType::I16 => sys::iree_hal_element_types_t_IREE_HAL_ELEMENT_TYPE_INT_16,
        DType::I32 => sys::iree_hal_element_types_t_IREE_HAL_ELEMENT_TYPE_INT_32,
        DType::I64 => sys::iree_hal_element_types_t_IREE_HAL_ELEMENT_TYPE_INT_64,
        DType::U8 => sys::iree_hal_element_types_t_IREE_HAL_ELEMENT_TYPE_UINT_8,
        DType::U16 => sys::iree_hal_element_types_t_IREE_HAL_ELEMENT_TYPE_UINT_16,
        DType::U32 => sys::iree_hal_element_types_t_IREE_HAL_ELEMENT_TYPE_UINT_32,
        DType::U64 => sys::iree_hal_element_types_t_IREE_HAL_ELEMENT_TYPE_UINT_64,
        DType::F16 => sys::iree_hal_element_types_t_IREE_HAL_ELEMENT_TYPE_FLOAT_16,
        DType::F32 => sys::iree_hal_element_types_t_IREE_HAL_ELEMENT_TYPE_FLOAT_32,
        DType::F64 => sys::iree_hal_element_types_t_IREE_HAL_ELEMENT_TYPE_FLOAT_64,
        DType::BF16 => sys::iree_hal_element_types_t_IREE_HAL_ELEMENT_TYPE_BFLOAT_16,
        DType::F8E5M2 => sys::iree_hal_element_types_t_IREE_HAL_ELEMENT_TYPE_FLOAT_8_E5M2,
        DType::F8E4M3 => sys::iree_hal_element_types_t_IREE_HAL_ELEMENT_TYPE_FLOAT_8_E4M3_FN,
        DType::Quant(_) => {
            return Err(unsupported(dtype));
        }
    })
}
