//! An open device: its driver, context, stream, kernels and the memory it may use.

use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use crate::driver::{Attribute, Driver, Handle, c_name};
use crate::engine::CudaOptions;
use crate::error::{CudaError, Result};
use crate::exchange::Exchange;
use crate::images;

/// What a device is, as the driver tells it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Facts {
    pub(crate) name: String,
    pub(crate) capability: (i32, i32),
    pub(crate) multiprocessors: u32,
    pub(crate) shared_max: u32,
    pub(crate) memory: u64,
    /// Bytes in a second, by clock and width of the memory.
    pub(crate) bandwidth: u64,
    pub(crate) driver_version: i32,
}

/// Everything that is shared by the programs on a device.
pub(crate) struct Context {
    pub(crate) driver: Box<dyn Driver>,
    device: i32,
    context: Handle,
    pub(crate) stream: Handle,
    pub(crate) facts: Facts,
    /// Modules with the names of their kernels.
    modules: Vec<(Handle, BTreeSet<String>)>,
    /// Kernels by name, with the shared memory they may be started with.
    functions: Mutex<HashMap<String, (Handle, u32)>>,
    /// Bytes that the engine may take, and those it has.
    pub(crate) limit: u64,
    pub(crate) used: AtomicU64,
    /// Whether every sum has one order, whatever the number of rows.
    pub(crate) exact: bool,
    /// How tensors are exchanged with the other members of a group, once one was joined.
    pub(crate) exchange: OnceLock<Arc<dyn Exchange>>,
}

/// What is left to the driver and to others unless a limit is given.
const HEADROOM: u64 = 768 << 20;

/// Facts of a device, without opening it.
pub(crate) fn facts(driver: &dyn Driver, index: usize) -> Result<Facts> {
    let count = driver.device_count()?;
    if count == 0 {
        return Err(CudaError::NoDevice);
    }
    if index >= count {
        return Err(CudaError::UnknownDevice { index, count });
    }
    let device = index as i32;
    let of = |attribute| driver.attribute(device, attribute);
    let clock = of(Attribute::MemoryClockKilohertz)?.max(0) as u64 * 1000;
    Ok(Facts {
        name: driver.device_name(device)?,
        capability: (of(Attribute::Major)?, of(Attribute::Minor)?),
        multiprocessors: of(Attribute::Multiprocessors)?.max(1) as u32,
        shared_max: of(Attribute::SharedMemoryMax)?.max(0) as u32,
        memory: driver.total_memory(device)?,
        bandwidth: 2 * clock * (of(Attribute::BusBits)?.max(0) as u64 / 8),
        driver_version: driver.version()?,
    })
}

impl Context {
    /// Opens a device.
    pub(crate) fn open(driver: Box<dyn Driver>, options: CudaOptions) -> Result<Self> {
        let CudaOptions { device: index, memory: limit, exact } = options;
        let facts = facts(&*driver, index)?;
        if facts.capability < (8, 0) {
            return Err(CudaError::OldDevice { name: facts.name, capability: facts.capability });
        }
        let images = images::for_device(facts.capability)?;
        let device = index as i32;
        let context = driver.retain_context(device)?;
        driver.make_current(context)?;
        let (free, _) = driver.memory()?;
        let mut opened = Context {
            driver,
            device,
            context,
            stream: 0,
            facts,
            modules: vec![],
            functions: Mutex::default(),
            limit: limit.unwrap_or(free.saturating_sub(HEADROOM)),
            used: AtomicU64::new(0),
            exact,
            exchange: OnceLock::new(),
        };
        opened.stream = opened.driver.create_stream()?;
        for mut image in images {
            // The driver wants text to end in a zero.
            image.push(0);
            let module = opened.driver.load_module(&image)?;
            opened.modules.push((module, images::names(&image)));
        }
        Ok(opened)
    }

    /// Makes the device the calling thread's.
    pub(crate) fn enter(&self) -> Result<()> {
        self.driver.make_current(self.context)
    }

    /// The kernel of a name, whichever module has it, ready to be started with so many bytes of shared memory.
    pub(crate) fn function(&self, name: &str, shared: u32) -> Result<Handle> {
        let mut known = self.functions.lock().unwrap_or_else(PoisonError::into_inner);
        let (function, allowed) = match known.get(name) {
            Some(&found) => found,
            None => {
                let missing = || CudaError::Kernels { reason: format!("there is no kernel '{name}'") };
                let module =
                    self.modules.iter().find(|(_, names)| names.contains(name)).ok_or_else(missing)?;
                let function = self.driver.function(module.0, &c_name(name)?)?;
                self.driver.prefer_shared(function)?;
                (function, SHARED_ALWAYS)
            }
        };
        if shared > allowed {
            self.driver.allow_shared(function, shared)?;
        }
        known.insert(name.to_string(), (function, allowed.max(shared)));
        Ok(function)
    }

    /// Waits for everything that was started.
    pub(crate) fn wait(&self) -> Result<()> {
        self.driver.wait_stream(self.stream)
    }

    /// Bytes that may still be taken.
    pub(crate) fn free(&self) -> u64 {
        self.limit.saturating_sub(self.used.load(Ordering::Relaxed))
    }
}

/// What every kernel may be started with, whatever it declares itself.
const SHARED_ALWAYS: u32 = 4 << 10;

impl Drop for Context {
    fn drop(&mut self) {
        // Nothing can be done about a device that fails while it is left.
        let _ = self.enter();
        for (module, _) in &self.modules {
            let _ = self.driver.unload_module(*module);
        }
        if self.stream != 0 {
            let _ = self.driver.destroy_stream(self.stream);
        }
        let _ = self.driver.release_context(self.device);
    }
}

impl std::fmt::Debug for Context {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?}", self.facts)
    }
}
