//! A device of IREE's runtime: driver, allocator, and the module through which compiled code reaches them.
#![allow(unsafe_code)]

use std::ffi::{c_char, c_void};
use std::ptr::null_mut;

use eerie_sys::runtime as sys;

use crate::error::XlaError;

/// Types that an instance has room for, as IREE has it by default.
const TYPES_MAX: usize = 64;

/// Waiting has no end.
pub(super) const FOREVER: sys::iree_timeout_t = sys::iree_timeout_t { type_: 0, nanos: i64::MAX };

unsafe extern "C" {
    /// The allocator that the runtime is built with.
    fn iree_allocator_libc_ctl(
        this: *mut c_void,
        command: sys::iree_allocator_command_t,
        params: *const c_void,
        pointer: *mut *mut c_void,
    ) -> sys::iree_status_t;
}

pub(super) fn allocator() -> sys::iree_allocator_t {
    sys::iree_allocator_t { self_: null_mut(), ctl: Some(iree_allocator_libc_ctl) }
}

pub(super) fn view(text: &str) -> sys::iree_string_view_t {
    sys::iree_string_view_t { data: text.as_ptr().cast::<c_char>(), size: text.len() }
}

/// An error for a status that is not good. The status is freed.
pub(super) fn check(doing: &'static str, status: sys::iree_status_t) -> Result<(), XlaError> {
    if status.is_null() {
        return Ok(());
    }
    let (mut start, mut size) = (null_mut::<c_char>(), 0);
    // SAFETY: the status is whole, and the text is the caller's to free.
    let told = unsafe { sys::iree_status_to_string(status, &allocator(), &mut start, &mut size) };
    let mut message = "no reason given".to_string();
    if told && !start.is_null() {
        // SAFETY: so many bytes lie there until they are freed.
        let bytes = unsafe { std::slice::from_raw_parts(start.cast::<u8>(), size) };
        message = String::from_utf8_lossy(bytes).into_owned();
        // SAFETY: the text came from this allocator.
        unsafe { sys::iree_allocator_free(allocator(), start.cast()) };
    }
    // SAFETY: the status is not used again.
    unsafe { sys::iree_status_free(status) };
    Err(XlaError::Iree { doing, message })
}

/// An open device.
pub(super) struct Device {
    pub(super) instance: *mut sys::iree_vm_instance_t,
    pub(super) device: *mut sys::iree_hal_device_t,
    pub(super) hal: *mut sys::iree_vm_module_t,
}

// SAFETY: instances, devices and modules of IREE may be used from any thread; what may not, contexts, has a lock.
unsafe impl Send for Device {}
// SAFETY: as above.
unsafe impl Sync for Device {}

impl Device {
    /// Opens the driver's default device, whose name for users is another. `Ok(None)` if the runtime has no such driver.
    pub(super) fn open(driver: &str, name: &str) -> Result<Option<Device>, XlaError> {
        if !drivers()?.iter().any(|known| known == driver) {
            return Ok(None);
        }
        let mut opened = Device { instance: null_mut(), device: null_mut(), hal: null_mut() };
        // SAFETY: the call fills in the instance, which lives until the device is dropped, as do the others below.
        let status = unsafe { sys::iree_vm_instance_create(TYPES_MAX, allocator(), &mut opened.instance) };
        check("starting the runtime", status)?;
        // SAFETY: the instance was just made.
        check("starting the runtime", unsafe { sys::iree_hal_module_register_all_types(opened.instance) })?;
        opened.device = create(driver, name)?;
        opened.hal = hal_module(opened.instance, opened.device)?;
        Ok(Some(opened))
    }

    pub(super) fn heap(&self) -> *mut sys::iree_hal_allocator_t {
        // SAFETY: the device lives, and its allocator with it.
        unsafe { sys::iree_hal_device_allocator(self.device) }
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        // SAFETY: each was made once here, and what used them held this device. Nothing is done for null.
        unsafe {
            sys::iree_vm_module_release(self.hal);
            sys::iree_hal_device_release(self.device);
            sys::iree_vm_instance_release(self.instance);
        }
    }
}

/// Drivers are registered once in a process.
fn registry() -> Result<*mut sys::iree_hal_driver_registry_t, XlaError> {
    static REGISTERED: std::sync::Mutex<bool> = std::sync::Mutex::new(false);
    let mut registered = REGISTERED.lock().unwrap_or_else(|e| e.into_inner());
    // SAFETY: the registry is the process's own and lives as long.
    let registry = unsafe { sys::iree_hal_driver_registry_default() };
    if !*registered {
        // SAFETY: as above; the lock is held.
        check("listing drivers", unsafe { sys::iree_hal_register_all_available_drivers(registry) })?;
        *registered = true;
    }
    Ok(registry)
}

/// The names of the drivers in this build.
pub(super) fn drivers() -> Result<Vec<String>, XlaError> {
    let (mut count, mut infos) = (0, null_mut());
    // SAFETY: the call fills in a list that is the caller's to free.
    let status =
        unsafe { sys::iree_hal_driver_registry_enumerate(registry()?, allocator(), &mut count, &mut infos) };
    check("listing drivers", status)?;
    let name = |i: usize| {
        // SAFETY: so many entries lie there, with names that live as long as the list.
        let name = unsafe { (*infos.add(i)).driver_name };
        // SAFETY: as above.
        let bytes = unsafe { std::slice::from_raw_parts(name.data.cast::<u8>(), name.size) };
        String::from_utf8_lossy(bytes).into_owned()
    };
    let names = (0..count).map(name).collect();
    // SAFETY: the list came from this allocator and its names were copied.
    unsafe { sys::iree_allocator_free(allocator(), infos.cast()) };
    Ok(names)
}

fn create(driver: &str, name: &str) -> Result<*mut sys::iree_hal_device_t, XlaError> {
    let no_device = |e: XlaError| match e {
        XlaError::Iree { message, .. } => XlaError::NoDevice { device: name.to_string(), reason: message },
        other => other,
    };
    let (mut opened, mut pool, mut device) = (null_mut(), null_mut(), null_mut());
    // SAFETY: each call fills in its last argument. The device keeps the pool, so that both it and the driver are let
    // go here, whatever the last call said.
    unsafe {
        let status =
            sys::iree_hal_driver_registry_try_create(registry()?, view(driver), allocator(), &mut opened);
        check("opening the driver", status).map_err(no_device)?;
        let options = sys::iree_async_proactor_pool_options_default();
        let nodes = sys::iree_numa_node_count();
        let mut status =
            sys::iree_async_proactor_pool_create(nodes, std::ptr::null(), options, allocator(), &mut pool);
        if status.is_null() {
            let params = sys::iree_hal_device_create_params_t { next: std::ptr::null(), proactor_pool: pool };
            status = sys::iree_hal_driver_create_default_device(opened, &params, allocator(), &mut device);
        }
        sys::iree_async_proactor_pool_release(pool);
        sys::iree_hal_driver_release(opened);
        check("opening the device", status).map_err(no_device)?;
    }
    Ok(device)
}

fn hal_module(
    instance: *mut sys::iree_vm_instance_t,
    device: *mut sys::iree_hal_device_t,
) -> Result<*mut sys::iree_vm_module_t, XlaError> {
    let options = sys::iree_async_frontier_tracker_options_t {
        axis_table_capacity: 256,
        session_epoch: 1,
        machine_index: 0,
    };
    let (mut tracker, mut group, mut module) = (null_mut(), null_mut(), null_mut());
    // SAFETY: each call fills in its last argument from what the one before made, and keeps it alive itself.
    unsafe {
        let mut status = sys::iree_async_frontier_tracker_create(options, allocator(), &mut tracker);
        if status.is_null() {
            status = sys::iree_hal_device_group_create_from_device(device, tracker, allocator(), &mut group);
        }
        sys::iree_async_frontier_tracker_release(tracker);
        if status.is_null() {
            let (policy, sink) =
                (sys::iree_hal_module_device_policy_default(), sys::iree_hal_module_debug_sink_null());
            status = sys::iree_hal_module_create(instance, policy, group, 0, sink, allocator(), &mut module);
        }
        sys::iree_hal_device_group_release(group);
        check("starting the runtime", status)?;
    }
    Ok(module)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    #[test]
    fn a_device_that_cannot_be_opened_has_the_users_name_for_it() {
        let error = create("no such driver", "rocm").unwrap_err().to_string();
        assert!(error.contains("no rocm is visible"), "{error}");
    }
}
