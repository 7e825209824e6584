//! Loading MLX and the shim at run time, and checking that they fit each other and this engine. It does not know where
//! packages come from; a [`Home`] says where the two libraries lie.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_char, c_void};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use libloading::Library;

use crate::error::MlxError;
use crate::lower::Instr;

/// The number of the interface in the shim's `abi.h`.
const ABI: u32 = 3;

/// The names of the two libraries on this platform.
pub(crate) const MLX_LIBRARY: &str = if cfg!(target_os = "macos") {
    "libmlx.dylib"
} else if cfg!(windows) {
    "mlx.dll"
} else {
    "libmlx.so"
};
const SHIM_LIBRARY: &str = if cfg!(target_os = "macos") {
    "libmlxcel_mlx.dylib"
} else if cfg!(windows) {
    "mlxcel_mlx.dll"
} else {
    "libmlxcel_mlx.so"
};

/// Where MLX and the shim lie.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Home {
    /// A folder with MLX: `lib/libmlx.so` in it, as an installation has, or `mlx/lib/libmlx.so`, as an unpacked wheel has;
    /// wheels for Windows have `mlx/mlx.dll`.
    pub mlx: PathBuf,
    pub shim: PathBuf,
    /// Libraries that MLX needs and this machine may not have, in the order in which they are loaded.
    pub needs: Vec<PathBuf>,
}

impl Home {
    pub fn new(mlx: impl Into<PathBuf>, shim: impl Into<PathBuf>) -> Self {
        Home { mlx: mlx.into(), shim: shim.into(), needs: vec![] }
    }

    /// The file name of the shim on this platform.
    pub fn shim_name() -> &'static str {
        SHIM_LIBRARY
    }

    /// The MLX library in this home.
    pub fn library(&self) -> Result<PathBuf, MlxError> {
        let places = [self.mlx.join("lib"), self.mlx.join("mlx/lib"), self.mlx.join("mlx"), self.mlx.clone()];
        let found = places.into_iter().map(|p| p.join(MLX_LIBRARY)).find(|p| p.is_file());
        found.ok_or_else(|| MlxError::NoLibrary { home: self.mlx.clone(), hint: HINT })
    }
}

const HINT: &str = "fetch one with `mlxcel engine install mlx-cpu` (or mlx-cuda13), or set MLXCEL_MLX_HOME to the folder \
                    of another MLX";

/// What MLX says of a device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceInfo {
    pub name: String,
    pub memory: Option<u64>,
}

pub(crate) type Raw = *mut c_void;

macro_rules! entries {
    ($($name:ident : fn($($arg:ty),*) $(-> $ret:ty)?;)*) => {
        /// The entries of the shim; see its `abi.h`.
        pub(crate) struct Api {
            $(pub(crate) $name: unsafe extern "C" fn($($arg),*) $(-> $ret)?,)*
        }

        impl Api {
            fn entries(shim: &Path, library: &'static Library) -> Result<Api, MlxError> {
                $(
                    // SAFETY: the shim declares this entry with these types; the number of its interface says so, and
                    // is checked before anything else is called.
                    let $name = *unsafe {
                        library.get(concat!("mlxcel_", stringify!($name)))
                    }.map_err(|_| MlxError::Entry { path: shim.to_path_buf(), name: stringify!($name).to_string() })?;
                )*
                Ok(Api { $($name,)* })
            }
        }
    };
}

entries! {
    abi: fn() -> u32;
    built_version: fn() -> *const c_char;
    loaded_version: fn() -> *const c_char;
    op_name: fn(u32) -> *const c_char;
    error: fn() -> *const c_char;
    device_count: fn(i32) -> i32;
    device_info: fn(i32, *mut c_char, usize) -> i32;
    memory: fn(*mut u64, *mut u64);
    reset_peak: fn();
    group_join: fn(*const c_char, *const c_char, i32, i32) -> i32;
    context_new: fn(i32) -> Raw;
    context_free: fn(Raw);
    array_new: fn(i32, *const i64, usize, *const c_void, usize) -> Raw;
    array_read: fn(Raw, Raw, *mut c_void, usize) -> i32;
    array_free: fn(Raw);
    program_new: fn(Raw, *const Raw, usize) -> Raw;
    program_add_state: fn(Raw, i32, *const i64, usize) -> i32;
    program_copy_state: fn(Raw, usize, *const i64, usize) -> i32;
    program_is_broken: fn(Raw) -> i32;
    program_free: fn(Raw);
    code_new: fn(Raw, *const i64, usize, *const c_char, usize, i32) -> Raw;
    code_traces: fn(Raw) -> u64;
    code_free: fn(Raw);
    run: fn(Raw, Raw, *const Raw, usize, *mut Raw) -> i32;
}

impl std::fmt::Debug for Api {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Api")
    }
}

impl Api {
    /// Loads both libraries and checks that they belong together.
    pub(crate) fn load(home: &Home) -> Result<Arc<Api>, MlxError> {
        let library = home.library()?;
        if !home.shim.is_file() {
            return Err(MlxError::NoShim { path: home.shim.clone() });
        }
        for path in home.needs.iter().chain([&library]) {
            open(path)?;
        }
        let api = Api::entries(&home.shim, open(&home.shim)?)?;
        // SAFETY: an entry without arguments.
        let found = unsafe { (api.abi)() };
        if found != ABI {
            return Err(MlxError::Abi { path: home.shim.clone(), found, wanted: ABI });
        }
        // SAFETY: entries without arguments that return texts which live as long as the libraries.
        let [built, loaded] = [api.built_version, api.loaded_version].map(|f| text(unsafe { f() }));
        if built != loaded {
            return Err(MlxError::Version { built, loaded, library });
        }
        api.check_ops(&home.shim)?;
        Ok(Arc::new(api))
    }

    /// The instructions have one order on both sides.
    fn check_ops(&self, shim: &Path) -> Result<(), MlxError> {
        let count = Instr::ALL.len() as u32;
        // SAFETY: the entry takes any number and returns a static text or null.
        let names = (0..=count).map(|i| unsafe { (self.op_name)(i) });
        let names: Vec<String> = names.map(|p| if p.is_null() { String::new() } else { text(p) }).collect();
        let wanted = Instr::ALL.iter().map(|i| i.name()).chain([""]);
        match names.iter().zip(wanted).find(|(found, wanted)| found != wanted) {
            None => Ok(()),
            Some((_, wanted)) => {
                Err(MlxError::Entry { path: shim.to_path_buf(), name: format!("instruction {wanted}") })
            }
        }
    }

    /// What the last call on this thread left as its reason.
    pub(crate) fn reason(&self) -> String {
        // SAFETY: the text belongs to this thread and lives until its next call.
        text(unsafe { (self.error)() })
    }

    pub(crate) fn version(&self) -> String {
        // SAFETY: a static text of the library.
        text(unsafe { (self.loaded_version)() })
    }

    pub(crate) fn device_count(&self, kind: i32) -> usize {
        // SAFETY: the entry takes any number.
        usize::try_from(unsafe { (self.device_count)(kind) }).unwrap_or(0)
    }

    pub(crate) fn device_info(&self, kind: i32) -> DeviceInfo {
        let mut buffer = [0u8; 4096];
        // SAFETY: the buffer has the size that is passed, and the shim ends the text within it.
        let failed = unsafe { (self.device_info)(kind, buffer.as_mut_ptr().cast(), buffer.len()) };
        if failed != 0 {
            return DeviceInfo::default();
        }
        let all = CStr::from_bytes_until_nul(&buffer).map(|c| c.to_string_lossy()).unwrap_or_default();
        let value = |key: &str| {
            let mut pairs = all.lines().filter_map(|l| l.split_once('='));
            pairs.find(|(k, _)| *k == key).map(|(_, v)| v.trim().to_string())
        };
        let memory = value("total_memory").or_else(|| value("memory_size"));
        DeviceInfo {
            name: value("device_name").unwrap_or_default(),
            memory: memory.and_then(|m| m.parse().ok()),
        }
    }

    /// Joins the group of this process; see the shim's `abi.h`.
    pub(crate) fn join(
        &self,
        backend: &CStr,
        settings: &CStr,
        (rank, size): (i32, i32),
    ) -> Result<(), String> {
        // SAFETY: both texts end in zero and live through the call.
        let failed = unsafe { (self.group_join)(backend.as_ptr(), settings.as_ptr(), rank, size) };
        if failed != 0 { Err(self.reason()) } else { Ok(()) }
    }

    pub(crate) fn forget_peak(&self) {
        // SAFETY: an entry without arguments.
        unsafe { (self.reset_peak)() }
    }

    /// Bytes in use, and the most since the peak was last reset.
    pub(crate) fn memory(&self) -> (u64, u64) {
        let (mut active, mut peak) = (0, 0);
        // SAFETY: both are places for a number.
        unsafe { (self.memory)(&mut active, &mut peak) };
        (active, peak)
    }
}

/// Opens a library so that those loaded after it find its symbols. It stays for as long as the process does: threads of
/// MLX leave destructors behind, which would be called where nothing is any more.
fn open(path: &Path) -> Result<&'static Library, MlxError> {
    let refused = |e: libloading::Error| {
        use std::error::Error as _;
        let reason = e.source().map_or_else(|| e.to_string(), |s| s.to_string());
        let path = path.to_path_buf();
        match missing(&reason).filter(|library| !path.ends_with(library)) {
            Some(library) => MlxError::Needs { path, library },
            None => MlxError::Load { path, reason },
        }
    };
    // SAFETY: initialisers of MLX and its libraries only set up their own data.
    let library = unsafe { mlxcel_platform::library::open_for_all(path) }.map_err(refused)?;
    Ok(Box::leak(Box::new(library)))
}

/// The library that a loader's message says it did not find.
fn missing(reason: &str) -> Option<String> {
    let (name, rest) = reason.split_once(':')?;
    let is_name = name.contains(".so") && !name.contains(char::is_whitespace);
    (is_name && rest.contains("cannot open shared object file")).then(|| name.to_string())
}

fn text(p: *const c_char) -> String {
    if p.is_null() {
        return String::new();
    }
    // SAFETY: the shim returns texts that end in zero and are not changed while this thread reads them.
    unsafe { CStr::from_ptr(p) }.to_string_lossy().into_owned()
}
