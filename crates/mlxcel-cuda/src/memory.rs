//! Memory of the device, and memory of the host that the device reads directly. Counted against the engine's limit and
//! given back when dropped. Knows nothing of tensors.
#![allow(unsafe_code)]

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::context::Context;
use crate::driver::Address;
use crate::error::{CudaError, Result};

/// Owned memory of the device.
pub(crate) struct Block {
    ctx: Arc<Context>,
    pub(crate) at: Address,
    pub(crate) bytes: u64,
}

impl Block {
    /// Uninitialised memory; at least one byte, so that every block has an address of its own.
    pub(crate) fn new(ctx: &Arc<Context>, bytes: u64, what: &str) -> Result<Self> {
        let bytes = bytes.max(1).next_multiple_of(256);
        let refuse = || CudaError::OutOfMemory {
            what: what.to_string(),
            needed: bytes,
            free: ctx.free(),
            limit: ctx.limit,
        };
        if bytes > ctx.free() {
            return Err(refuse());
        }
        let at = ctx.driver.allocate(bytes).map_err(|e| if e.is_out_of_memory() { refuse() } else { e })?;
        ctx.used.fetch_add(bytes, Ordering::Relaxed);
        Ok(Block { ctx: ctx.clone(), at, bytes })
    }

    /// Memory that is zero once the stream has come so far.
    pub(crate) fn zeroed(ctx: &Arc<Context>, bytes: u64, what: &str) -> Result<Self> {
        let block = Self::new(ctx, bytes, what)?;
        ctx.driver.clear(block.at, block.bytes, ctx.stream)?;
        Ok(block)
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        // A device that fails here has failed a call that was looked at before.
        let _ = self.ctx.enter();
        let _ = self.ctx.driver.free(self.at);
        self.ctx.used.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// Memory of the host that the device copies from and to without help.
pub(crate) struct Pinned {
    ctx: Arc<Context>,
    at: *mut u8,
    len: usize,
}

// SAFETY: the memory is owned, like a boxed slice.
unsafe impl Send for Pinned {}

impl Pinned {
    pub(crate) fn new(ctx: &Arc<Context>, len: usize) -> Result<Self> {
        let len = len.max(1).next_power_of_two();
        let at = ctx.driver.allocate_host(len)?;
        // SAFETY: the driver gave this many bytes.
        unsafe { at.write_bytes(0, len) };
        Ok(Pinned { ctx: ctx.clone(), at, len })
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn ptr(&self) -> *mut u8 {
        self.at
    }

    /// The bytes; the caller sees to it that the device does not write them now.
    pub(crate) fn bytes(&self) -> &[u8] {
        // SAFETY: initialised when made, and as long as told.
        unsafe { std::slice::from_raw_parts(self.at, self.len) }
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and the borrow is exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.at, self.len) }
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        let _ = self.ctx.enter();
        let _ = self.ctx.driver.free_host(self.at);
    }
}
