//! The header of a safetensors file. Seeds: the `.safetensors` files in `crates/mlxcel-weights/tests/fixtures`.
//!
//! ```text
//! cargo +nightly fuzz run safetensors -- -max_len=4096 -rss_limit_mb=512
//! ```
#![no_main]

use libfuzzer_sys::fuzz_target;
use mlxcel_weights::safetensors::parse_header;

fuzz_target!(|bytes: &[u8]| {
    let Ok(tensors) = parse_header(bytes) else { return };
    for info in tensors.values() {
        assert_eq!(info.dtype.storage_bytes(&info.shape), Some(bytes[info.range.clone()].len()));
    }
});
