//! The part of the compiler's embedding interface that is used, found by name in its library. The library is opened
//! once for each path and never unloaded, since it starts threads.
//!
//! <https://iree.dev/reference/bindings/c-api/>
#![allow(unsafe_code)]

use std::ffi::{CStr, c_char, c_int, c_void};
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use crate::error::XlaError;

pub(super) enum Failure {}
pub(super) enum Session {}
pub(super) enum Invocation {}
pub(super) enum Source {}
pub(super) enum Output {}

/// Called with each message: severity, text, its length, and what was handed over with it.
pub(super) type OnMessage = unsafe extern "C" fn(c_int, *const c_char, usize, *mut c_void);

/// The whole pipeline, and the severity of errors.
pub(super) const PIPELINE_STD: c_int = 0;
pub(super) const SEVERITY_ERROR: c_int = 2;

macro_rules! functions {
    ($($field:ident: $symbol:literal = fn($($argument:ty),*) $(-> $result:ty)?;)*) => {
        /// The functions of a compiler.
        pub(super) struct Api {
            $(pub(super) $field: unsafe extern "C" fn($($argument),*) $(-> $result)?,)*
        }

        impl Api {
            fn find(library: &libloading::Library) -> Result<Api, libloading::Error> {
                // SAFETY: these are the types of the functions in the header of every compiler of interface 1.
                unsafe { Ok(Api { $($field: *library.get($symbol)?,)* }) }
            }
        }
    };
}

functions! {
    version: b"ireeCompilerGetAPIVersion\0" = fn() -> c_int;
    initialize: b"ireeCompilerGlobalInitialize\0" = fn();
    revision: b"ireeCompilerGetRevision\0" = fn() -> *const c_char;
    message: b"ireeCompilerErrorGetMessage\0" = fn(*mut Failure) -> *const c_char;
    free_error: b"ireeCompilerErrorDestroy\0" = fn(*mut Failure);
    session: b"ireeCompilerSessionCreate\0" = fn() -> *mut Session;
    free_session: b"ireeCompilerSessionDestroy\0" = fn(*mut Session);
    set_flags: b"ireeCompilerSessionSetFlags\0" = fn(*mut Session, c_int, *const *const c_char) -> *mut Failure;
    invocation: b"ireeCompilerInvocationCreate\0" = fn(*mut Session) -> *mut Invocation;
    free_invocation: b"ireeCompilerInvocationDestroy\0" = fn(*mut Invocation);
    on_message: b"ireeCompilerInvocationEnableCallbackDiagnostics\0" =
        fn(*mut Invocation, c_int, OnMessage, *mut c_void);
    source: b"ireeCompilerSourceWrapBuffer\0" =
        fn(*mut Session, *const c_char, *const c_char, usize, bool, *mut *mut Source) -> *mut Failure;
    free_source: b"ireeCompilerSourceDestroy\0" = fn(*mut Source);
    parse: b"ireeCompilerInvocationParseSource\0" = fn(*mut Invocation, *mut Source) -> bool;
    pipeline: b"ireeCompilerInvocationPipeline\0" = fn(*mut Invocation, c_int) -> bool;
    output: b"ireeCompilerOutputOpenMembuffer\0" = fn(*mut *mut Output) -> *mut Failure;
    free_output: b"ireeCompilerOutputDestroy\0" = fn(*mut Output);
    write_bytecode: b"ireeCompilerInvocationOutputVMBytecode\0" =
        fn(*mut Invocation, *mut Output) -> *mut Failure;
    map: b"ireeCompilerOutputMapMemory\0" = fn(*mut Output, *mut *mut c_void, *mut u64) -> *mut Failure;
}

impl Api {
    /// Opens the library, or finds the open one, and makes it ready.
    pub(super) fn open(path: &Path) -> Result<&'static Api, XlaError> {
        static OPEN: Mutex<Vec<(PathBuf, &'static Api)>> = Mutex::new(vec![]);
        let mut open = OPEN.lock().unwrap_or_else(|e| e.into_inner());
        if let Some((_, api)) = open.iter().find(|(known, _)| known == path) {
            return Ok(api);
        }
        let api: &'static Api = Box::leak(Box::new(Self::load(path)?));
        open.push((path.to_path_buf(), api));
        Ok(api)
    }

    fn load(path: &Path) -> Result<Api, XlaError> {
        let library = crate::library::open(path)?;
        let not = |reason: String| XlaError::NotACompiler { path: path.to_path_buf(), reason };
        let api = Api::find(&library).map_err(|e| not(e.to_string()))?;
        // SAFETY: the function takes nothing.
        let version = unsafe { (api.version)() };
        if version >> 16 != 1 {
            return Err(not(format!("its interface is {}.{}, not 1", version >> 16, version & 0xffff)));
        }
        // SAFETY: called once for each library, before anything else of it.
        unsafe { (api.initialize)() };
        std::mem::forget(library);
        Ok(api)
    }

    pub(super) fn revision(&self) -> String {
        // SAFETY: the library is initialised and holds the text.
        text(unsafe { (self.revision)() })
    }

    /// The message of an error, which is then freed; nothing if there is none.
    pub(super) fn check(&self, failure: *mut Failure) -> Result<(), String> {
        if failure.is_null() {
            return Ok(());
        }
        // SAFETY: the error came from this library and is not used again.
        let message = text(unsafe { (self.message)(failure) });
        // SAFETY: as above.
        unsafe { (self.free_error)(failure) };
        Err(message)
    }
}

fn text(start: *const c_char) -> String {
    if start.is_null() {
        return String::new();
    }
    // SAFETY: the library says that a text with a zero at its end lies there, and it is copied at once.
    unsafe { CStr::from_ptr(start) }.to_string_lossy().into_owned()
}
