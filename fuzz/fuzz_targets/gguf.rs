//! Metadata and tensor table of a GGUF file. Seeds: `crates/mlxcel-weights/tests/fixtures/gguf`.
//!
//! ```text
//! cargo +nightly fuzz run gguf -- -max_len=4096 -rss_limit_mb=512
//! ```
#![no_main]

use libfuzzer_sys::fuzz_target;
use mlxcel_weights::gguf::parse_gguf;

fuzz_target!(|bytes: &[u8]| {
    let Ok(gguf) = parse_gguf(bytes) else { return };
    for info in gguf.tensors.values() {
        assert_eq!(info.dtype.storage_bytes(&info.shape), Some(bytes[info.range.clone()].len()));
    }
    for (key, _) in gguf.metadata.iter() {
        // Asking for the wrong type is an error, never a panic.
        let _ = (gguf.metadata.u32(key), gguf.metadata.f32s(key), gguf.metadata.strings(key));
    }
});
