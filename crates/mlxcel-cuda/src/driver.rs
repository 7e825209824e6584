//! The NVIDIA driver behind a trait: exactly the calls that the engine makes. [`Loaded`] is the real one, found at run
//! time; tests put a recorded one in its place. Knows nothing of tensors.
#![allow(unsafe_code)]

use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};

use crate::error::{CudaError, Result};

/// An address on the device.
pub(crate) type Address = u64;

/// A handle that the driver gave: a context, stream, event, module, function or graph.
pub(crate) type Handle = usize;

/// What a device is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Attribute {
    Multiprocessors = 16,
    Major = 75,
    Minor = 76,
    SharedMemoryMax = 97,
    MemoryClockKilohertz = 36,
    BusBits = 37,
}

/// How a kernel is started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    pub(crate) grid: [u32; 3],
    pub(crate) block: u32,
    pub(crate) shared: u32,
    /// Whether it may begin while the kernel before it ends; it waits itself for what it reads.
    pub(crate) overlaps: bool,
}

/// How a kernel that copies whole tiles of 16-bit numbers finds them: the numbers of the first axis lie side by side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tiles {
    /// Axes that there are; the others have no meaning.
    pub(crate) rank: u32,
    pub(crate) sizes: [u64; 3],
    /// Bytes from one to the next of the second axis and the third.
    pub(crate) strides: [u64; 2],
    pub(crate) tile: [u32; 3],
    /// Whether pieces of 16 bytes are exchanged by the number of the 128 bytes they lie in; rows of 32, 64 or 128 bytes.
    pub(crate) is_swizzled: bool,
}

/// What the driver makes of it for the device.
pub(crate) type Described = [u64; 16];

/// The calls that the engine makes.
pub(crate) trait Driver: Send + Sync {
    fn version(&self) -> Result<i32>;
    fn device_count(&self) -> Result<usize>;
    fn device_name(&self, device: i32) -> Result<String>;
    fn attribute(&self, device: i32, attribute: Attribute) -> Result<i32>;
    fn total_memory(&self, device: i32) -> Result<u64>;
    fn retain_context(&self, device: i32) -> Result<Handle>;
    fn release_context(&self, device: i32) -> Result<()>;
    fn make_current(&self, context: Handle) -> Result<()>;
    /// Free and total bytes.
    fn memory(&self) -> Result<(u64, u64)>;
    fn allocate(&self, bytes: u64) -> Result<Address>;
    fn free(&self, at: Address) -> Result<()>;
    /// Memory of the host that the device reads and writes directly.
    fn allocate_host(&self, bytes: usize) -> Result<*mut u8>;
    fn free_host(&self, at: *mut u8) -> Result<()>;
    fn clear(&self, at: Address, bytes: u64, stream: Handle) -> Result<()>;
    /// The host's memory is read until the stream has come past the copy.
    fn upload(&self, to: Address, from: *const u8, bytes: u64, stream: Handle) -> Result<()>;
    fn download(&self, to: *mut u8, from: Address, bytes: u64, stream: Handle) -> Result<()>;
    fn copy(&self, to: Address, from: Address, bytes: u64, stream: Handle) -> Result<()>;
    fn create_stream(&self) -> Result<Handle>;
    fn wait_stream(&self, stream: Handle) -> Result<()>;
    fn destroy_stream(&self, stream: Handle) -> Result<()>;
    fn create_event(&self) -> Result<Handle>;
    fn record_event(&self, event: Handle, stream: Handle) -> Result<()>;
    fn wait_event(&self, event: Handle) -> Result<()>;
    fn destroy_event(&self, event: Handle) -> Result<()>;
    fn load_module(&self, image: &[u8]) -> Result<Handle>;
    fn unload_module(&self, module: Handle) -> Result<()>;
    fn function(&self, module: Handle, name: &CStr) -> Result<Handle>;
    fn allow_shared(&self, function: Handle, bytes: u32) -> Result<()>;
    /// Asks for as much shared memory as there is beside a kernel, so that kernels which do not fit the same division of
    /// a multiprocessor's memory need not wait for each other.
    fn prefer_shared(&self, function: Handle) -> Result<()>;
    /// Registers that a thread of a kernel takes.
    fn registers(&self, function: Handle) -> Result<u32>;
    fn describe(&self, at: Address, tiles: &Tiles) -> Result<Described>;
    /// Starts a kernel with these arguments, each the bytes of one parameter.
    fn launch(&self, function: Handle, shape: Shape, arguments: &[&[u8]], stream: Handle) -> Result<()>;
    fn begin_capture(&self, stream: Handle) -> Result<()>;
    /// The graph of what was captured, ready to run.
    fn end_capture(&self, stream: Handle) -> Result<Handle>;
    fn launch_graph(&self, graph: Handle, stream: Handle) -> Result<()>;
    fn destroy_graph(&self, graph: Handle) -> Result<()>;
}

const LIBRARY: &str = if cfg!(windows) { "nvcuda.dll" } else { "libcuda.so.1" };

#[repr(C)]
struct LaunchAttribute {
    id: u32,
    pad: u32,
    value: [u64; 8],
}

#[repr(C)]
struct LaunchConfig {
    grid: [c_uint; 3],
    block: [c_uint; 3],
    shared: c_uint,
    stream: *mut c_void,
    attributes: *const LaunchAttribute,
    count: c_uint,
}

/// The driver wants the description at a multiple of 64 bytes.
#[repr(C, align(64))]
struct Aligned(Described);

/// The kernels are made by NVRTC 13, whose cubins and PTX drivers of earlier versions do not load.
const OLDEST: i32 = 13_000;

/// `CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION`.
const OVERLAPS: u32 = 6;

macro_rules! api {
    ($($name:ident = $symbol:literal ($($t:ty),*);)*) => {
        /// The driver's functions, by the names they have in it.
        struct Api { $($name: unsafe extern "C" fn($($t),*) -> c_int,)* }

        impl Api {
            fn find(library: &libloading::Library, version: i32) -> Result<Self> {
                Ok(Api { $($name: {
                    let symbol = concat!($symbol, "\0");
                    // SAFETY: the signature is the one that NVIDIA documents for this symbol.
                    let found = unsafe { library.get(symbol.as_bytes()) };
                    *found.map_err(|_| CudaError::OldDriver { version })?
                },)* })
            }
        }
    };
}

api! {
    device_count = "cuDeviceGetCount" (*mut c_int);
    device_get = "cuDeviceGet" (*mut c_int, c_int);
    device_name = "cuDeviceGetName" (*mut c_char, c_int, c_int);
    device_attribute = "cuDeviceGetAttribute" (*mut c_int, c_int, c_int);
    device_memory = "cuDeviceTotalMem_v2" (*mut usize, c_int);
    retain = "cuDevicePrimaryCtxRetain" (*mut *mut c_void, c_int);
    release = "cuDevicePrimaryCtxRelease_v2" (c_int);
    set_current = "cuCtxSetCurrent" (*mut c_void);
    memory = "cuMemGetInfo_v2" (*mut usize, *mut usize);
    allocate = "cuMemAlloc_v2" (*mut u64, usize);
    free = "cuMemFree_v2" (u64);
    allocate_host = "cuMemHostAlloc" (*mut *mut c_void, usize, c_uint);
    free_host = "cuMemFreeHost" (*mut c_void);
    clear = "cuMemsetD8Async" (u64, u8, usize, *mut c_void);
    upload = "cuMemcpyHtoDAsync_v2" (u64, *const c_void, usize, *mut c_void);
    download = "cuMemcpyDtoHAsync_v2" (*mut c_void, u64, usize, *mut c_void);
    copy = "cuMemcpyDtoDAsync_v2" (u64, u64, usize, *mut c_void);
    stream_create = "cuStreamCreate" (*mut *mut c_void, c_uint);
    stream_wait = "cuStreamSynchronize" (*mut c_void);
    stream_destroy = "cuStreamDestroy_v2" (*mut c_void);
    event_create = "cuEventCreate" (*mut *mut c_void, c_uint);
    event_record = "cuEventRecord" (*mut c_void, *mut c_void);
    event_wait = "cuEventSynchronize" (*mut c_void);
    event_destroy = "cuEventDestroy_v2" (*mut c_void);
    module_load = "cuModuleLoadData" (*mut *mut c_void, *const c_void);
    module_unload = "cuModuleUnload" (*mut c_void);
    module_function = "cuModuleGetFunction" (*mut *mut c_void, *mut c_void, *const c_char);
    function_set = "cuFuncSetAttribute" (*mut c_void, c_int, c_int);
    function_get = "cuFuncGetAttribute" (*mut c_int, c_int, *mut c_void);
    launch = "cuLaunchKernelEx" (*const LaunchConfig, *mut c_void, *mut *mut c_void, *mut *mut c_void);
    describe = "cuTensorMapEncodeTiled"
        (*mut Aligned, c_int, c_uint, u64, *const u64, *const u64, *const c_uint, *const c_uint, c_int, c_int, c_int, c_int);
    begin_capture = "cuStreamBeginCapture_v2" (*mut c_void, c_int);
    end_capture = "cuStreamEndCapture" (*mut c_void, *mut *mut c_void);
    instantiate = "cuGraphInstantiateWithFlags" (*mut *mut c_void, *mut c_void, u64);
    graph_launch = "cuGraphLaunch" (*mut c_void, *mut c_void);
    graph_destroy = "cuGraphDestroy" (*mut c_void);
    exec_destroy = "cuGraphExecDestroy" (*mut c_void);
    error_name = "cuGetErrorName" (c_int, *mut *const c_char);
}

/// The driver of this machine.
pub(crate) struct Loaded {
    api: Api,
    version: i32,
    /// Kept so that the functions stay where they are.
    _library: libloading::Library,
}

impl Loaded {
    /// Finds the driver and starts it.
    pub(crate) fn open() -> Result<Self> {
        Self::open_named(LIBRARY)
    }

    pub(crate) fn open_named(name: &'static str) -> Result<Self> {
        // SAFETY: loading the driver runs its initialisers, which NVIDIA answers for.
        let library = unsafe { libloading::Library::new(name) };
        let library = library.map_err(|e| CudaError::NoDriver { library: name, reason: reason(&e) })?;
        // SAFETY: the signatures are documented.
        let (init, version) = unsafe {
            let init = library.get::<unsafe extern "C" fn(c_uint) -> c_int>(b"cuInit\0");
            let version = library.get::<unsafe extern "C" fn(*mut c_int) -> c_int>(b"cuDriverGetVersion\0");
            let missing = |_| CudaError::OldDriver { version: 0 };
            (*init.map_err(missing)?, *version.map_err(missing)?)
        };
        let mut number = 0;
        // SAFETY: the pointer is valid for the call.
        let code = unsafe { version(&mut number) };
        if code != 0 {
            return Err(CudaError::Call { call: "cuDriverGetVersion", code, name: String::new() });
        }
        if number < OLDEST {
            return Err(CudaError::OldDriver { version: number });
        }
        let api = Api::find(&library, number)?;
        let driver = Loaded { api, version: number, _library: library };
        // SAFETY: zero is the only flag there is.
        let code = unsafe { init(0) };
        // `CUDA_ERROR_NO_DEVICE`
        if code == 100 {
            return Err(CudaError::NoDevice);
        }
        driver.check("cuInit", code)?;
        Ok(driver)
    }

    fn check(&self, call: &'static str, code: c_int) -> Result<()> {
        if code == 0 {
            return Ok(());
        }
        let mut name = std::ptr::null();
        // SAFETY: the driver sets the pointer to a constant of its own, or leaves it null.
        let known = unsafe { (self.api.error_name)(code, &mut name) } == 0 && !name.is_null();
        let name = if known {
            // SAFETY: as above.
            unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned()
        } else {
            "an error it has no name for".to_string()
        };
        Err(CudaError::Call { call, code, name })
    }
}

/// The loader's words without the name of the library, which the message has already.
fn reason(error: &libloading::Error) -> String {
    let text = match std::error::Error::source(error) {
        Some(source) => source.to_string(),
        None => error.to_string(),
    };
    text.trim_start_matches(LIBRARY).trim_start_matches(": ").to_string()
}

fn pointer(handle: Handle) -> *mut c_void {
    std::ptr::with_exposed_provenance_mut(handle)
}

fn handle(p: *mut c_void) -> Handle {
    p.expose_provenance()
}

/// Calls a function of the table and checks its answer.
macro_rules! call {
    ($self:ident . $name:ident ( $($argument:expr),* )) => {{
        // SAFETY: pointers are valid for the call, and handles came from the driver.
        let code = unsafe { ($self.api.$name)($($argument),*) };
        $self.check(concat!("call '", stringify!($name), "'"), code)
    }};
}

impl Driver for Loaded {
    fn version(&self) -> Result<i32> {
        Ok(self.version)
    }

    fn device_count(&self) -> Result<usize> {
        let mut count = 0;
        call!(self.device_count(&mut count))?;
        Ok(count as usize)
    }

    fn device_name(&self, device: i32) -> Result<String> {
        let mut name = [0u8; 128];
        call!(self.device_name(name.as_mut_ptr().cast(), 127, device))?;
        let text = CStr::from_bytes_until_nul(&name).map(|t| t.to_string_lossy().into_owned());
        Ok(text.unwrap_or_default())
    }

    fn attribute(&self, device: i32, attribute: Attribute) -> Result<i32> {
        let mut value = 0;
        call!(self.device_attribute(&mut value, attribute as c_int, device))?;
        Ok(value)
    }

    fn total_memory(&self, device: i32) -> Result<u64> {
        let mut bytes = 0;
        call!(self.device_memory(&mut bytes, device))?;
        Ok(bytes as u64)
    }

    fn retain_context(&self, device: i32) -> Result<Handle> {
        let (mut number, mut context) = (0, std::ptr::null_mut());
        call!(self.device_get(&mut number, device))?;
        call!(self.retain(&mut context, number))?;
        Ok(handle(context))
    }

    fn release_context(&self, device: i32) -> Result<()> {
        call!(self.release(device))
    }

    fn make_current(&self, context: Handle) -> Result<()> {
        call!(self.set_current(pointer(context)))
    }

    fn memory(&self) -> Result<(u64, u64)> {
        let (mut free, mut total) = (0, 0);
        call!(self.memory(&mut free, &mut total))?;
        Ok((free as u64, total as u64))
    }

    fn allocate(&self, bytes: u64) -> Result<Address> {
        let mut at = 0;
        call!(self.allocate(&mut at, bytes as usize))?;
        Ok(at)
    }

    fn free(&self, at: Address) -> Result<()> {
        call!(self.free(at))
    }

    fn allocate_host(&self, bytes: usize) -> Result<*mut u8> {
        let mut at = std::ptr::null_mut();
        call!(self.allocate_host(&mut at, bytes, 0))?;
        Ok(at.cast())
    }

    fn free_host(&self, at: *mut u8) -> Result<()> {
        call!(self.free_host(at.cast()))
    }

    fn clear(&self, at: Address, bytes: u64, stream: Handle) -> Result<()> {
        call!(self.clear(at, 0, bytes as usize, pointer(stream)))
    }

    fn upload(&self, to: Address, from: *const u8, bytes: u64, stream: Handle) -> Result<()> {
        call!(self.upload(to, from.cast(), bytes as usize, pointer(stream)))
    }

    fn download(&self, to: *mut u8, from: Address, bytes: u64, stream: Handle) -> Result<()> {
        call!(self.download(to.cast(), from, bytes as usize, pointer(stream)))
    }

    fn copy(&self, to: Address, from: Address, bytes: u64, stream: Handle) -> Result<()> {
        call!(self.copy(to, from, bytes as usize, pointer(stream)))
    }

    fn create_stream(&self) -> Result<Handle> {
        let mut stream = std::ptr::null_mut();
        // `CU_STREAM_NON_BLOCKING`
        call!(self.stream_create(&mut stream, 1))?;
        Ok(handle(stream))
    }

    fn wait_stream(&self, stream: Handle) -> Result<()> {
        call!(self.stream_wait(pointer(stream)))
    }

    fn destroy_stream(&self, stream: Handle) -> Result<()> {
        call!(self.stream_destroy(pointer(stream)))
    }

    fn create_event(&self) -> Result<Handle> {
        let mut event = std::ptr::null_mut();
        // `CU_EVENT_DISABLE_TIMING`
        call!(self.event_create(&mut event, 2))?;
        Ok(handle(event))
    }

    fn record_event(&self, event: Handle, stream: Handle) -> Result<()> {
        call!(self.event_record(pointer(event), pointer(stream)))
    }

    fn wait_event(&self, event: Handle) -> Result<()> {
        call!(self.event_wait(pointer(event)))
    }

    fn destroy_event(&self, event: Handle) -> Result<()> {
        call!(self.event_destroy(pointer(event)))
    }

    fn load_module(&self, image: &[u8]) -> Result<Handle> {
        let mut module = std::ptr::null_mut();
        call!(self.module_load(&mut module, image.as_ptr().cast()))?;
        Ok(handle(module))
    }

    fn unload_module(&self, module: Handle) -> Result<()> {
        call!(self.module_unload(pointer(module)))
    }

    fn function(&self, module: Handle, name: &CStr) -> Result<Handle> {
        let mut function = std::ptr::null_mut();
        call!(self.module_function(&mut function, pointer(module), name.as_ptr()))?;
        Ok(handle(function))
    }

    fn allow_shared(&self, function: Handle, bytes: u32) -> Result<()> {
        // `CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES`
        call!(self.function_set(pointer(function), 8, bytes as c_int))
    }

    fn registers(&self, function: Handle) -> Result<u32> {
        let mut count = 0;
        // `CU_FUNC_ATTRIBUTE_NUM_REGS`
        call!(self.function_get(&mut count, 4, pointer(function)))?;
        Ok(count.max(0) as u32)
    }

    fn prefer_shared(&self, function: Handle) -> Result<()> {
        // `CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT`, in percent.
        call!(self.function_set(pointer(function), 9, 100))
    }

    fn describe(&self, at: Address, tiles: &Tiles) -> Result<Described> {
        let (mut out, ones) = (Aligned([0; 16]), [1; 3]);
        let swizzle = match (tiles.is_swizzled, 2 * tiles.tile[0]) {
            (false, _) => 0,
            (true, 32) => 1,
            (true, 64) => 2,
            (true, _) => 3,
        };
        // 16-bit numbers without a sign, no interleaving, lines of 128 bytes, zeros beyond the edges.
        call!(self.describe(
            &mut out,
            1,
            tiles.rank,
            at,
            tiles.sizes.as_ptr(),
            tiles.strides.as_ptr(),
            tiles.tile.as_ptr(),
            ones.as_ptr(),
            0,
            swizzle,
            2,
            0
        ))?;
        Ok(out.0)
    }

    fn launch(&self, function: Handle, shape: Shape, arguments: &[&[u8]], stream: Handle) -> Result<()> {
        let mut pointers = [std::ptr::null_mut::<c_void>(); 8];
        for (place, argument) in pointers.iter_mut().zip(arguments) {
            *place = argument.as_ptr().cast_mut().cast();
        }
        let mut value = [0; 8];
        value[0] = 1;
        let overlap = LaunchAttribute { id: OVERLAPS, pad: 0, value };
        let config = LaunchConfig {
            grid: shape.grid,
            block: [shape.block, 1, 1],
            shared: shape.shared,
            stream: pointer(stream),
            attributes: &overlap,
            count: u32::from(shape.overlaps),
        };
        call!(self.launch(&config, pointer(function), pointers.as_mut_ptr(), std::ptr::null_mut()))
    }

    fn begin_capture(&self, stream: Handle) -> Result<()> {
        // `CU_STREAM_CAPTURE_MODE_THREAD_LOCAL`
        call!(self.begin_capture(pointer(stream), 1))
    }

    fn end_capture(&self, stream: Handle) -> Result<Handle> {
        let (mut graph, mut ready) = (std::ptr::null_mut(), std::ptr::null_mut());
        call!(self.end_capture(pointer(stream), &mut graph))?;
        let made = call!(self.instantiate(&mut ready, graph, 0));
        call!(self.graph_destroy(graph))?;
        made?;
        Ok(handle(ready))
    }

    fn launch_graph(&self, graph: Handle, stream: Handle) -> Result<()> {
        call!(self.graph_launch(pointer(graph), pointer(stream)))
    }

    fn destroy_graph(&self, graph: Handle) -> Result<()> {
        call!(self.exec_destroy(pointer(graph)))
    }
}

/// A name for the driver, which wants a zero at its end.
pub(crate) fn c_name(name: &str) -> Result<CString> {
    CString::new(name).map_err(|_| CudaError::Kernels { reason: format!("'{name}' is no name of a kernel") })
}
