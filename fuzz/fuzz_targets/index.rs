//! The index of a sharded safetensors checkpoint: whatever is accepted stays inside its folder.
//!
//! ```text
//! cargo +nightly fuzz run index -- -max_len=4096 -rss_limit_mb=512
//! ```
#![no_main]

use std::path::{Component, Path};

use libfuzzer_sys::fuzz_target;
use mlxcel_weights::index::parse_index;

fuzz_target!(|bytes: &[u8]| {
    let Ok(shards) = parse_index(bytes) else { return };
    for file in shards.values() {
        assert!(Path::new(file).components().all(|c| matches!(c, Component::Normal(_))));
    }
});
