//! GGUF files on the reference engine.

use mlxcel_engine::ReferenceEngine;

conformance::gguf_suite!(reference, ReferenceEngine);
