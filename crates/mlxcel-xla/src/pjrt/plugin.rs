//! A plugin: a shared library with a table of functions. Opened once, checked before use, never unloaded, since what
//! it started may still run.
#![allow(unsafe_code)]

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::path::{Path, PathBuf};

use super::sys;
use crate::error::XlaError;

/// The version of StableHLO whose ops are written.
const STABLEHLO: [i64; 3] = [1, 1, 0];

/// A loaded and initialised plugin.
pub(super) struct Plugin {
    api: *const sys::Api,
    pub(super) path: PathBuf,
}

// SAFETY: the table is constant, and the interface may be called from any thread.
unsafe impl Send for Plugin {}
// SAFETY: as above.
unsafe impl Sync for Plugin {}

impl Plugin {
    /// Loads the library, compares versions and initialises it.
    pub(super) fn open(path: &Path) -> Result<Plugin, XlaError> {
        let library = crate::library::open(path)?;
        type Get = unsafe extern "C" fn() -> *const sys::Api;
        // SAFETY: the symbol has this type in every plugin.
        let get = unsafe { library.get::<Get>(b"GetPjrtApi\0") };
        let get = *get.map_err(|_| XlaError::NotAPlugin { path: path.to_path_buf() })?;
        // SAFETY: the function takes nothing and returns a table that lives as long as the library.
        let plugin = Plugin { api: unsafe { get() }, path: path.to_path_buf() };
        std::mem::forget(library);
        plugin.check_version()?;
        plugin.call("starting the plugin", sys::PLUGIN_INITIALIZE, &mut sys::PluginInitialize::new())?;
        plugin.check_stablehlo()?;
        Ok(plugin)
    }

    fn api(&self) -> Option<&sys::Api> {
        // SAFETY: the table is constant and lives as long as the process; only its head is read before its size is
        // known to suffice.
        unsafe { self.api.as_ref() }
    }

    fn check_version(&self) -> Result<(), XlaError> {
        let (major, minor) = self.api().map_or((-1, -1), |a| (a.version.major, a.version.minor));
        let long_enough = self.api().is_some_and(|a| a.struct_size >= size_of::<sys::Api>());
        if major == 0 && minor >= sys::MINOR_LEAST && long_enough {
            return Ok(());
        }
        let (path, ours, least) = (self.path.clone(), sys::OURS, sys::MINOR_LEAST);
        Err(XlaError::ApiVersion { path, major, minor, ours, least })
    }

    fn check_stablehlo(&self) -> Result<(), XlaError> {
        let attributes = self.attributes()?;
        let range =
            (attributes.get("stablehlo_minimum_version"), attributes.get("stablehlo_current_version"));
        let (Some(from), Some(to)) = range else { return Ok(()) };
        let ours = STABLEHLO.as_slice();
        if from.as_slice() <= ours && ours <= to.as_slice() {
            return Ok(());
        }
        let text = |v: &[i64]| v.iter().map(i64::to_string).collect::<Vec<_>>().join(".");
        let path = self.path.clone();
        Err(XlaError::StableHlo { path, from: text(from), to: text(to), ours: text(ours) })
    }

    /// The plugin's lists of numbers, which are versions.
    fn attributes(&self) -> Result<BTreeMap<String, Vec<i64>>, XlaError> {
        let mut arguments = sys::PluginAttributes::new();
        self.call("asking the plugin for its versions", sys::PLUGIN_ATTRIBUTES, &mut arguments)?;
        let mut found = BTreeMap::new();
        for i in 0..arguments.num_attributes {
            // SAFETY: the plugin gave so many values, which live as long as the process.
            let value = unsafe { &*arguments.attributes.add(i) };
            if value.kind == sys::VALUE_INT64_LIST {
                let name = text(value.name, value.name_size);
                let first = value.value as usize as *const i64;
                // SAFETY: a value of this kind points at so many numbers.
                let list = unsafe { std::slice::from_raw_parts(first, value.value_size) };
                found.insert(name, list.to_vec());
            }
        }
        Ok(found)
    }

    /// Calls a function of the table with its structure of arguments.
    pub(super) fn call<T>(
        &self,
        doing: &'static str,
        function: usize,
        arguments: &mut T,
    ) -> Result<(), XlaError> {
        let missing = || XlaError::Pjrt { doing, message: "the plugin does not have this function".into() };
        let f = self.api().and_then(|a| a.functions[function]).ok_or_else(missing)?;
        // SAFETY: callers pair each function with its own structure, whose size it finds in its first field.
        let error = unsafe { f((&raw mut *arguments).cast::<c_void>()) };
        if error.is_null() { Ok(()) } else { Err(XlaError::Pjrt { doing, message: self.message(error) }) }
    }

    /// The text of an error, which is then freed.
    fn message(&self, error: *mut sys::Error) -> String {
        let mut ask = sys::ErrorMessage::new();
        ask.error = error;
        let mut free = sys::ErrorDestroy::new();
        free.error = error;
        let function = |i: usize| self.api().and_then(|a| a.functions[i]);
        let mut message = "no reason given".to_string();
        if let Some(f) = function(sys::ERROR_MESSAGE) {
            // SAFETY: the structure is the function's own, and the text lives until the error is freed below.
            unsafe { f((&raw mut ask).cast()) };
            message = text(ask.message, ask.message_size);
        }
        if let Some(f) = function(sys::ERROR_DESTROY) {
            // SAFETY: the error came from the plugin and is not used again.
            unsafe { f((&raw mut free).cast()) };
        }
        message
    }

    /// Waits for an event and frees it.
    pub(super) fn wait(&self, doing: &'static str, event: *mut sys::Event) -> Result<(), XlaError> {
        if event.is_null() {
            return Ok(());
        }
        let mut arguments = sys::EventCall::new();
        arguments.event = event;
        let waited = self.call(doing, sys::EVENT_AWAIT, &mut arguments);
        self.call("freeing an event", sys::EVENT_DESTROY, &mut arguments)?;
        waited
    }
}

/// Text that the plugin holds.
pub(super) fn text(start: *const std::ffi::c_char, size: usize) -> String {
    if start.is_null() {
        return String::new();
    }
    // SAFETY: the plugin says that so many bytes lie there, and they are copied at once.
    let bytes = unsafe { std::slice::from_raw_parts(start.cast::<u8>(), size) };
    String::from_utf8_lossy(bytes).into_owned()
}
