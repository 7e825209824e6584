//! Running modules through PJRT, the interface of XLA's plugins, which are opened at run time. One client per plugin
//! and process: the caller keeps the [`PjrtExecutor`] and shares it.
#![allow(unsafe_code)]

mod array;
mod options;
mod plugin;
mod sys;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use mlxcel_engine::weights::Bytes;
use mlxcel_ir::{Builder, DType, Dim};

use crate::cache::{Cache, Complain, Modules, processor};
use crate::emit::{EmitOptions, emit};
use crate::error::XlaError;
pub use crate::executor::Effort;
use crate::executor::{Buffer, Executable, Executor};
use array::{Array, Loaded};
use options::Flag;
use plugin::{Plugin, text};

/// How a device is opened.
#[derive(Clone, Debug, Default)]
pub struct PjrtOptions {
    /// The device in the user's words, for messages; anything but `cpu` is an accelerator with memory of its own.
    pub device: String,
    /// The share of an accelerator's memory that may be used.
    pub memory_fraction: Option<f32>,
    pub effort: Effort,
    /// Where compiled modules are kept; nowhere, if `None`.
    pub cache: Option<PathBuf>,
    /// Told once, if nothing can be kept there.
    pub complain: Option<Complain>,
}

impl PjrtOptions {
    /// The share of memory in the user's words: a number above 0, at most 1.
    pub fn parse_memory(text: &str) -> Result<f32, XlaError> {
        let share = text.parse().ok().filter(|share| *share > 0.0 && *share <= 1.0);
        share.ok_or_else(|| XlaError::MemoryShare { text: text.to_string() })
    }
}

/// What plugins call their platforms, where that is also what users call the device.
const PLATFORMS: [&str; 4] = [CPU, "cuda", "rocm", "tpu"];
const CPU: &str = "cpu";

/// The share that is used where none is given.
const MEMORY_SHARE: f32 = 0.9;

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
    modules: Modules,
    options: Vec<u8>,
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
        let cache =
            options.cache.as_ref().map(|folder| Cache::new(folder, &client.identity(), options.complain));
        let mut flags = vec![];
        flags.extend(CPU_FLAGS.iter().filter(|_| client.is_cpu()));
        flags.extend(QUICK_FLAGS.iter().filter(|_| options.effort == Effort::Little));
        let options = options::compile_options(&flags);
        Ok(PjrtExecutor { client: Arc::new(client), modules: Modules::new(cache), options })
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

    fn emit_options(&self) -> EmitOptions {
        let on_accelerator = !self.is_cpu();
        EmitOptions {
            narrow_products: on_accelerator,
            joined_inputs: on_accelerator,
            held_updates: !on_accelerator,
            ..EmitOptions::default()
        }
    }

    fn free_memory(&self) -> Option<u64> {
        let mut stats = sys::MemoryStats::new();
        stats.device = self.client.device;
        let plugin = &self.client.plugin;
        // A plugin need not know.
        plugin.call("asking for memory", sys::DEVICE_MEMORY_STATS, &mut stats).ok()?;
        let known = !self.is_cpu() && stats.limit.is_known != 0;
        known.then(|| u64::try_from(stats.limit.bytes.saturating_sub(stats.in_use)).unwrap_or(0))
    }

    fn compile(&self, what: &str, module: &str) -> Result<Arc<dyn Executable>, XlaError> {
        let make = || {
            let loaded = Loaded::compile(&self.client, module, &self.options).map_err(|e| match e {
                XlaError::Pjrt { message, .. } => XlaError::Compile { what: what.to_string(), message },
                other => other,
            })?;
            // A plugin that cannot store its modules compiles them at every start.
            let bytes = loaded.serialize().ok();
            Ok((Arc::new(loaded) as Arc<dyn Executable>, bytes))
        };
        let load =
            |bytes: &[u8]| Ok(Arc::new(Loaded::deserialize(&self.client, bytes)?) as Arc<dyn Executable>);
        self.modules.get((module, &self.options), load, make)
    }

    fn upload(&self, dtype: DType, sizes: &[usize], bytes: Bytes) -> Result<Buffer, XlaError> {
        Ok(Buffer(Box::new(Array::upload(&self.client, dtype, sizes, bytes)?)))
    }

    /// Made on the device: nothing is copied there.
    fn zeros(&self, dtype: DType, sizes: &[usize]) -> Result<Buffer, XlaError> {
        let b = Builder::new();
        b.output(
            "zeros",
            b.scalar_of(dtype, 0.0).broadcast(sizes.iter().map(|&n| Dim::fixed(n)).collect::<Vec<_>>()),
        );
        let module = emit(&b.finish()?, self.emit_options())?;
        let mut results = self.compile("an empty state", &module.text)?.run(&[])?;
        let none =
            || XlaError::Pjrt { doing: "making an empty state", message: "no result came back".into() };
        results.pop().ok_or_else(none)
    }
}

impl Client {
    fn open(plugin: Plugin, options: &PjrtOptions) -> Result<Self, XlaError> {
        let values = create_options(options)?;
        let mut create = sys::ClientCreate::new();
        (create.create_options, create.num_options) = (values.as_ptr(), values.len());
        let no_device = |reason: String| XlaError::NoDevice { device: options.device.clone(), reason };
        plugin.call("opening the device", sys::CLIENT_CREATE, &mut create).map_err(|e| match e {
            XlaError::Pjrt { message, .. } => no_device(message),
            other => other,
        })?;
        // It owns the handle from here on, so that whatever fails below closes it.
        let mut client = Client {
            plugin,
            client: create.client,
            device: std::ptr::null_mut(),
            platform: String::new(),
            version: String::new(),
            kind: String::new(),
        };
        client.device =
            client.first_device()?.ok_or_else(|| no_device("the plugin lists none".to_string()))?;
        client.platform = client.ask(sys::CLIENT_PLATFORM_NAME)?;
        client.check_platform(&options.device)?;
        client.version = client.ask(sys::CLIENT_PLATFORM_VERSION)?;
        client.kind = kind(&client.plugin, client.device)?;
        Ok(client)
    }

    fn first_device(&self) -> Result<Option<*mut sys::Device>, XlaError> {
        let mut list = sys::AddressableDevices::new();
        list.client = self.client;
        self.plugin.call("listing devices", sys::CLIENT_ADDRESSABLE_DEVICES, &mut list)?;
        // SAFETY: the list has at least one entry and lives as long as the client.
        Ok((list.num_devices > 0).then(|| unsafe { *list.devices }))
    }

    fn ask(&self, function: usize) -> Result<String, XlaError> {
        let mut name = sys::ClientText::new();
        name.client = self.client;
        self.plugin.call("asking for the platform", function, &mut name)?;
        Ok(text(name.text, name.text_size))
    }

    /// A plugin that was named may be for another device than the one that was asked for. A platform with a name of its
    /// own is taken for the accelerator, whichever that is.
    fn check_platform(&self, device: &str) -> Result<(), XlaError> {
        let is_known = PLATFORMS.contains(&self.platform.as_str());
        if self.platform == device || (device != CPU && !is_known) {
            return Ok(());
        }
        let (path, platform) = (self.plugin.path.clone(), self.platform.clone());
        Err(XlaError::WrongPlugin { path, platform, device: device.to_string() })
    }

    fn is_cpu(&self) -> bool {
        self.platform == CPU
    }

    /// What a compiled module depends on besides its text.
    fn identity(&self) -> Vec<String> {
        let size = std::fs::metadata(&self.plugin.path).map_or(0, |m| m.len());
        // The compiler takes flags from the environment too; written so that no two values look the same.
        let flags = format!("{:?}", std::env::var_os("XLA_FLAGS").unwrap_or_default());
        let (platform, version, kind) = (self.platform.clone(), self.version.clone(), self.kind.clone());
        vec![platform, version, kind, size.to_string(), processor(), flags]
    }
}

/// What the client is created with. Only the clients of GPUs take memory as they are told.
fn create_options(options: &PjrtOptions) -> Result<Vec<sys::NamedValue>, XlaError> {
    if !matches!(options.device.as_str(), "cuda" | "rocm") {
        return match options.memory_fraction {
            Some(_) => Err(XlaError::NoMemoryShare { device: options.device.clone() }),
            None => Ok(vec![]),
        };
    }
    let share = options.memory_fraction.unwrap_or(MEMORY_SHARE).to_bits();
    Ok(vec![
        named("memory_fraction", sys::VALUE_FLOAT, u64::from(share)),
        named("preallocate", sys::VALUE_BOOL, 0),
    ])
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

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    #[test]
    fn a_share_of_memory_is_above_nothing_and_at_most_all() {
        assert_eq!(PjrtOptions::parse_memory("0.5").unwrap(), 0.5);
        assert_eq!(PjrtOptions::parse_memory("1").unwrap(), 1.0);
        for wrong in ["0", "-1", "1.5", "NaN", "inf", "half", ""] {
            let error = PjrtOptions::parse_memory(wrong).unwrap_err().to_string();
            assert!(error.contains("MLXCEL_XLA_MEMORY") && error.contains("0.5"), "{error}");
        }
    }
}
