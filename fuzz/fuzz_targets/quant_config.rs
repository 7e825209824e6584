//! The quantisation settings of a `config.json`.
//!
//! ```text
//! cargo +nightly fuzz run quant_config -- -max_len=4096 -rss_limit_mb=512
//! ```
#![no_main]

use libfuzzer_sys::fuzz_target;
use mlxcel_weights::{Packing, QuantConfig};

fuzz_target!(|bytes: &[u8]| {
    let Ok(config) = serde_json::from_slice(bytes) else { return };
    let Ok(config) = QuantConfig::from_config(&config) else { return };
    if let Some(Packing::Affine { bits, group }) = config.packing("model.layers.0.mlp.up_proj") {
        assert!(matches!(bits, 2..=6 | 8) && group % 8 == 0 && group > 0);
    }
});
