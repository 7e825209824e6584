//! How much memory there is, and the part of it that a cache may take.

pub use mlxcel_platform::memory::{available_bytes, peak_bytes, total_bytes};

/// The part of what is available that a cache may take; the rest is for activations and for others.
pub fn cache_bytes() -> Option<u64> {
    const SHARE: f64 = 0.8;
    available_bytes().map(|bytes| (bytes as f64 * SHARE) as u64)
}
