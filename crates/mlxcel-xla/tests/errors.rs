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
    built(folder, &[format!("-DMAJOR={major}"), format!("-DMINOR={minor}")])
}

/// A plugin for the platform with so many devices, which tells its calls in the file that comes with it.
fn fake_for(folder: &Path, platform: &str, devices: usize) -> (PathBuf, PathBuf) {
    let log = folder.join("calls");
    let platform = [format!("-DPLATFORM=\"{platform}\""), format!("-DDEVICES={devices}")];
    let version = ["-DMAJOR=0".to_string(), "-DMINOR=81".to_string()];
    let log_at = [format!("-DLOG=\"{}\"", log.display())];
    (built(folder, &[&platform[..], &version, &log_at].concat()), log)
}

fn built(folder: &Path, definitions: &[String]) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fake_plugin.c");
    let library = tempfile::Builder::new().suffix(".so").tempfile_in(folder).unwrap();
    let library = library.into_temp_path().keep().unwrap();
    let mut cc = Command::new("cc");
    cc.args(["-shared", "-fPIC", "-o"]).arg(&library).arg(source).args(definitions);
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
fn a_plugin_for_another_device_is_refused_with_what_to_set() {
    let error = refusal(&real(), "cuda");
    assert!(matches!(error, XlaError::WrongPlugin { .. }), "{error}");
    let error = error.to_string();
    assert!(error.contains("is a plugin for cpu") && error.contains("the device is cuda"), "{error}");
    let folder = tempfile::tempdir().unwrap();
    let (cuda, _) = fake_for(folder.path(), "cuda", 1);
    for device in ["cpu", "rocm", "tpu"] {
        let error = refusal(&cuda, device).to_string();
        assert!(error.contains("--device cuda") && error.contains("MLXCEL_XLA_DEVICE"), "{error}");
    }
    assert!(PjrtExecutor::open(&cuda, &options("cuda")).is_ok());
    // A name that is not known may be that of any accelerator, but never of the processor.
    let (other, _) = fake_for(folder.path(), "gpu", 1);
    assert!(PjrtExecutor::open(&other, &options("rocm")).is_ok());
    assert!(matches!(refusal(&other, "cpu"), XlaError::WrongPlugin { .. }));
}

#[test]
fn a_client_that_is_refused_is_closed() {
    for (devices, device) in [(1, "cpu"), (0, "cuda")] {
        let folder = tempfile::tempdir().unwrap();
        let (plugin, log) = fake_for(folder.path(), "cuda", devices);
        refusal(&plugin, device);
        let calls = std::fs::read_to_string(log).unwrap();
        assert!(calls.starts_with("created\n") && calls.ends_with("destroyed\n"), "{calls}");
    }
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

const CACHE_VARIABLE: &str = "MLXCEL_TEST_XLA_CACHE";

/// XLA reads its flags once in a process, so that this test runs itself for each value.
#[test]
fn modules_made_with_other_flags_of_the_environment_are_other_entries() {
    if let Some(folder) = std::env::var_os(CACHE_VARIABLE) {
        let cached = PjrtOptions { cache: Some(folder.into()), ..options("cpu") };
        let module = "module @m { func.func public @main() -> (tensor<f32>) {\n\
            %c = stablehlo.constant dense<1.5> : tensor<f32>\n return %c : tensor<f32> } }";
        PjrtExecutor::open(&real(), &cached).unwrap().compile("a number", module).unwrap();
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let mut entries = vec![];
    for flags in ["", "", "--xla_cpu_enable_fast_math=true"] {
        let mut child = Command::new(std::env::current_exe().unwrap());
        child.args(["--exact", "modules_made_with_other_flags_of_the_environment_are_other_entries"]);
        child.env(CACHE_VARIABLE, folder.path()).env("XLA_FLAGS", flags);
        let ended = child.output().unwrap();
        assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stdout));
        entries.push(std::fs::read_dir(folder.path()).unwrap().count());
    }
    assert_eq!(entries, [1, 1, 2]);
}

#[test]
fn a_share_of_memory_goes_to_gpus_only() {
    let half = |device| PjrtOptions { memory_fraction: Some(0.5), ..options(device) };
    for device in ["cuda", "rocm", "tpu"] {
        let folder = tempfile::tempdir().unwrap();
        let (plugin, log) = fake_for(folder.path(), device, 1);
        PjrtExecutor::open(&plugin, &options(device)).unwrap();
        let given = if device == "tpu" { "" } else { "memory_fraction\npreallocate\n" };
        assert_eq!(std::fs::read_to_string(&log).unwrap(), format!("created\n{given}destroyed\n"));
        assert_eq!(PjrtExecutor::open(&plugin, &half(device)).is_ok(), device != "tpu");
    }
    let error = PjrtExecutor::open(&real(), &half("cpu")).err().expect("it is refused").to_string();
    assert!(error.contains("MLXCEL_XLA_MEMORY") && error.contains("cpu"), "{error}");
}
