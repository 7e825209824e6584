//! Every family on the reference engine.

use conformance::models::Depth;
use mlxcel_engine::ReferenceEngine;

conformance::models_suite!(reference_matches_transformers_on, ReferenceEngine, Depth::Brief);
