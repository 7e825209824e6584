//! Running modules through PJRT, the interface of XLA's plugins, which are opened at run time. One client per plugin
//! and process: the caller keeps the [`PjrtExecutor`] and shares it.
#![allow(unsafe_code)]

mod array;
mod cache;
mod elf;
mod options;
mod plugin;
mod sys;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use mlxcel_engine::weights::Bytes;
use mlxcel_ir::DType;

use crate::error::XlaError;
use crate::executor::{Buffer, Executable, Executor};
use array::{Array, Loaded};
use cache::Cache;
use options::Flag;
use plugin::{Plugin, text};

/// How hard the compiler tries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Effort {
    #[default]
    Full,
    /// For tests, whose modules run a few times each.
    Little,
}

/// How a device is opened.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PjrtOptions {
    /// The device in the user's words, for messages; anything but `cpu` is an accelerator with memory of its own.
    pub device: String,
    /// The share of an accelerator's memory that may be used.
    pub memory_fraction: Option<f32>,
    pub effort: Effort,
    /// Where compiled modules are kept; nowhere, if `None`.
    pub cache: Option<PathBuf>,
}

/// The faster minimum and maximum of the processor lose NaN.
const CPU_FLAGS: [(&str, Flag); 1] = [("xla_cpu_enable_fast_min_max", Flag::Is(false))];

/// Machine code that is made sooner and runs slower.
const QUICK_FLAGS: [(&str, Flag); 2] = [
    ("xla_backend_optimization_level", Flag::Number(1)),
    ("xla_llvm_disable_expensive_passes", Flag::Is(true)),
];

/// A client of a plugin with its first device.
pub struct PjrtExecutor {
    client: Arc<Client>,
    cache: Option<Cache>,
    options: Vec<u8>,
    /// Compiled modules by the hash of their text.
    compiled: Mutex<HashMap<[u8; 32], Arc<dyn Executable>>>,
}

struct Client {
    plugin: Plugin,
    client: *mut sys::Client,
    device: *mut sys::Device,
    platform: String,
    version: String,
    kind: String,
}

// SAFETY: PJRT clients and devices may be used from any thread.
unsafe impl Send for Client {}
// SAFETY: as above.
unsafe impl Sync for Client {}

impl PjrtExecutor {
    /// Loads the plugin and opens its first device.
    pub fn open(path: &Path, options: &PjrtOptions) -> Result<Self, XlaError> {
        quieten();
        let client = Client::open(Plugin::open(path)?, options)?;
        let cache = options.cache.as_ref().map(|folder| Cache::new(folder, &client.identity()));
        let mut flags = vec![];
        flags.extend(CPU_FLAGS.iter().filter(|_| client.is_cpu()));
        flags.extend(QUICK_FLAGS.iter().filter(|_| options.effort == Effort::Little));
        let options = options::compile_options(&flags);
        Ok(PjrtExecutor { client: Arc::new(client), cache, options, compiled: Mutex::default() })
    }

    fn compile_new(&self, what: &str, module: &str) -> Result<Arc<dyn Executable>, XlaError> {
        let key = self.cache.as_ref().map(|c| c.key(module, &self.options));
        if let (Some(cache), Some(key)) = (&self.cache, &key)
            && let Some(bytes) = cache.read(key)
            && let Ok(loaded) = Loaded::deserialize(&self.client, &bytes)
        {
            return Ok(Arc::new(loaded));
        }
        let loaded = Loaded::compile(&self.client, module, &self.options).map_err(|e| match e {
            XlaError::Pjrt { message, .. } => XlaError::Compile { what: what.to_string(), message },
            other => other,
        })?;
        // A plugin that cannot store its modules compiles them at every start.
        if let (Some(cache), Some(key)) = (&self.cache, &key)
            && let Ok(bytes) = loaded.serialize()
        {
            cache.write(key, &bytes)?;
        }
        Ok(Arc::new(loaded))
    }
}

/// XLA writes to standard error what it thinks of the machine; only its errors are wanted.
fn quieten() {
    for name in ["TF_CPP_MIN_LOG_LEVEL", "ABSL_MIN_LOG_LEVEL"] {
        if std::env::var_os(name).is_none() {
            // SAFETY: the plugin, which reads it, is not loaded yet, and nothing else of this process reads the
            // environment outside of Rust's own lock while an engine is opened.
            unsafe { std::env::set_var(name, "2") };
        }
    }
}

impl Executor for PjrtExecutor {
    fn device(&self) -> String {
        let c = &self.client;
        if c.is_cpu() { "processor, through PJRT".to_string() } else { format!("{}, through PJRT", c.kind) }
    }

    fn is_cpu(&self) -> bool {
        self.client.is_cpu()
    }

    fn compile(&self, what: &str, module: &str) -> Result<Arc<dyn Executable>, XlaError> {
        let hash = cache::hash(&[module.as_bytes()]);
        let lock = || self.compiled.lock().unwrap_or_else(|e| e.into_inner());
        let known = lock().get(&hash).cloned();
        if let Some(done) = known {
            return Ok(done);
        }
        let done = self.compile_new(what, module)?;
        lock().insert(hash, done.clone());
        Ok(done)
    }

    fn upload(&self, dtype: DType, sizes: &[usize], bytes: Bytes) -> Result<Buffer, XlaError> {
        Ok(Buffer(Box::new(Array::upload(&self.client, dtype, sizes, bytes)?)))
    }
}

impl Client {
    fn open(plugin: Plugin, options: &PjrtOptions) -> Result<Self, XlaError> {
        let mut values = vec![];
        if options.device != "cpu" {
            let share = options.memory_fraction.unwrap_or(0.9).to_bits();
            values.push(named("memory_fraction", sys::VALUE_FLOAT, u64::from(share)));
            values.push(named("preallocate", sys::VALUE_BOOL, 0));
        }
        let mut create = sys::ClientCreate::new();
        (create.create_options, create.num_options) = (values.as_ptr(), values.len());
        let no_device = |reason: String| XlaError::NoDevice { device: options.device.clone(), reason };
        plugin.call("opening the device", sys::CLIENT_CREATE, &mut create).map_err(|e| match e {
            XlaError::Pjrt { message, .. } => no_device(message),
            other => other,
        })?;
        let client = create.client;
        let mut devices = sys::AddressableDevices::new();
        devices.client = client;
        plugin.call("listing devices", sys::CLIENT_ADDRESSABLE_DEVICES, &mut devices)?;
        if devices.num_devices == 0 {
            return Err(no_device("the plugin lists none".to_string()));
        }
        // SAFETY: the list has at least one entry and lives as long as the client.
        let device = unsafe { *devices.devices };
        let ask = |function: usize| -> Result<String, XlaError> {
            let mut name = sys::ClientText::new();
            name.client = client;
            plugin.call("asking for the platform", function, &mut name)?;
            Ok(text(name.text, name.text_size))
        };
        let (platform, version) = (ask(sys::CLIENT_PLATFORM_NAME)?, ask(sys::CLIENT_PLATFORM_VERSION)?);
        let kind = kind(&plugin, device)?;
        Ok(Client { plugin, client, device, platform, version, kind })
    }

    fn is_cpu(&self) -> bool {
        self.platform == "cpu"
    }

    /// What a compiled module depends on besides its text.
    fn identity(&self) -> Vec<String> {
        let size = std::fs::metadata(&self.plugin.path).map_or(0, |m| m.len());
        vec![self.platform.clone(), self.version.clone(), self.kind.clone(), size.to_string(), processor()]
    }
}

/// Instructions of the processor, since code for one may not run on another that shares the cache.
fn processor() -> String {
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let line = |name: &str| info.lines().find(|l| l.starts_with(name)).unwrap_or_default().to_string();
    line("model name") + &line("flags")
}

fn named(name: &'static str, kind: std::ffi::c_int, bits: u64) -> sys::NamedValue {
    let mut value = sys::NamedValue::new();
    (value.name, value.name_size) = (name.as_ptr().cast(), name.len());
    (value.kind, value.value, value.value_size) = (kind, bits, 1);
    value
}

fn kind(plugin: &Plugin, device: *mut sys::Device) -> Result<String, XlaError> {
    let mut get = sys::GetDescription::new();
    get.device = device;
    plugin.call("describing the device", sys::DEVICE_GET_DESCRIPTION, &mut get)?;
    let mut ask = sys::DescriptionKind::new();
    ask.description = get.description;
    plugin.call("describing the device", sys::DESCRIPTION_KIND, &mut ask)?;
    Ok(text(ask.kind, ask.kind_size))
}

impl Drop for Client {
    fn drop(&mut self) {
        let mut destroy = sys::ClientDestroy::new();
        destroy.client = self.client;
        let _ = self.plugin.call("closing the device", sys::CLIENT_DESTROY, &mut destroy);
    }
}
