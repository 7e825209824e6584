//! The kernels that are embedded were made from the sources beside them.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::Path;

use sha2::{Digest as _, Sha256};

#[test]
fn the_embedded_kernels_were_made_from_these_sources() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("kernels");
    let paths = std::fs::read_dir(folder).unwrap().map(|e| e.unwrap().path());
    let mut paths: Vec<_> =
        paths.filter(|p| p.extension().is_some_and(|e| e == "cu" || e == "cuh")).collect();
    paths.sort();
    assert!(paths.len() > 5, "{paths:?}");
    let mut hash = Sha256::new();
    for path in paths {
        hash.update(path.file_name().unwrap().to_str().unwrap().as_bytes());
        hash.update([0]);
        hash.update(std::fs::read(path).unwrap());
        hash.update([0]);
    }
    let digest: String = hash.finalize().iter().map(|b| format!("{b:02x}")).collect();
    assert_eq!(mlxcel_cuda::SOURCES_DIGEST, digest, "run `cargo xtask kernels` and commit what it made");
}
