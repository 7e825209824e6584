//! What a person reads when XLA cannot be used: damaged and foreign plugins, no device, modules that do not compile,
//! damaged entries of the cache.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::{Path, PathBuf};
use std::process::Command;

use mlxcel_xla::pjrt::{Effort, PjrtExecutor, PjrtOptions};
use mlxcel_xla::{Executor as _, XlaError};

fn options(device: &str) -> PjrtOptions {
    PjrtOptions { device: device.to_string(), effort: Effort::Little, ..PjrtOptions::default() }
}

fn refusal(path: &Path, device: &str) -> XlaError {
    PjrtExecutor::open(path, &options(device)).err().expect("the plugin is refused")
}

fn real() -> PathBuf {
    std::env::var_os("MLXCEL_TEST_XLA_CPU").expect("`cargo xtask test` sets MLXCEL_TEST_XLA_CPU").into()
}

/// A plugin of the given version that has no device.
fn fake(folder: &Path, major: i32, minor: i32) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fake_plugin.c");
    let library = folder.join(format!("fake-{major}-{minor}.so"));
    let mut cc = Command::new("cc");
    cc.args(["-shared", "-fPIC", "-o"]).arg(&library).arg(source);
    cc.args([format!("-DMAJOR={major}"), format!("-DMINOR={minor}")]);
    assert!(cc.status().unwrap().success(), "the C compiler that Rust links with builds the fake plugin");
    library
}

#[test]
fn a_truncated_plugin_says_to_fetch_it_again() {
    let folder = tempfile::tempdir().unwrap();
    let cut = folder.path().join("xla_cpu_pjrt.so");
    let whole = std::fs::read(real()).unwrap();
    std::fs::write(&cut, &whole[..whole.len() / 1000]).unwrap();
    let error = refusal(&cut, "cpu");
    assert!(matches!(error, XlaError::Load { .. }), "{error}");
    assert!(error.to_string().contains("fetch it again"), "{error}");
}

#[test]
fn a_library_that_is_no_plugin_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("empty.c");
    std::fs::write(&source, "int nothing;").unwrap();
    let library = folder.path().join("empty.so");
    let built = Command::new("cc").args(["-shared", "-fPIC", "-o"]).arg(&library).arg(&source).status();
    assert!(built.unwrap().success());
    assert!(matches!(refusal(&library, "cpu"), XlaError::NotAPlugin { path } if path == library));
}

#[test]
fn a_plugin_of_another_version_says_both_versions() {
    let folder = tempfile::tempdir().unwrap();
    for (major, minor) in [(7, 3), (0, 20)] {
        let error = refusal(&fake(folder.path(), major, minor), "cpu").to_string();
        assert!(error.contains(&format!("version {major}.{minor} ")) && error.contains("0.81"), "{error}");
    }
}

#[test]
fn a_machine_without_the_device_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let error = refusal(&fake(folder.path(), 0, 81), "cuda");
    assert!(matches!(error, XlaError::NoDevice { .. }), "{error}");
    let error = error.to_string();
    assert!(error.contains("no cuda is visible: no CUDA-capable device is detected"), "{error}");
}

#[test]
fn a_module_that_does_not_compile_says_which_and_why() {
    let executor = PjrtExecutor::open(&real(), &options("cpu")).unwrap();
    let module = "module { func.func @main() -> tensor<f32> { return %nothing : tensor<f32> } }";
    let error = executor.compile("a step of 3 tokens", module).err().expect("it is refused").to_string();
    assert!(error.contains("a step of 3 tokens") && error.contains("undeclared SSA value"), "{error}");
}

#[test]
fn compiled_modules_are_kept_and_damaged_ones_are_made_anew() {
    let folder = tempfile::tempdir().unwrap();
    let cached = PjrtOptions { cache: Some(folder.path().to_path_buf()), ..options("cpu") };
    let module = "module @m { func.func public @main() -> (tensor<2xf32>) {\n\
        %c = stablehlo.constant dense<[1.5, 2.5]> : tensor<2xf32>\n\
        %s = stablehlo.add %c, %c : tensor<2xf32>\n return %s : tensor<2xf32> } }";
    let run = || {
        let executor = PjrtExecutor::open(&real(), &cached).unwrap();
        let results = executor.compile("a sum", module).unwrap().run(&[]).unwrap();
        let mut bytes = [0; 8];
        results[0].read(&mut bytes).unwrap();
        assert_eq!(bytes[..4], 3f32.to_le_bytes());
        assert_eq!(bytes[4..], 5f32.to_le_bytes());
    };
    let entries = || {
        let entries = std::fs::read_dir(folder.path()).unwrap();
        entries.map(|e| e.unwrap().path()).collect::<Vec<_>>()
    };
    run();
    let kept = entries();
    assert_eq!(kept.len(), 1);
    let whole = std::fs::read(&kept[0]).unwrap();
    run();
    std::fs::write(&kept[0], &whole[..whole.len() / 2]).unwrap();
    run();
    assert_eq!(entries(), kept);
    assert!(std::fs::read(&kept[0]).unwrap().len() > whole.len() / 2, "the entry was not made anew");
}
