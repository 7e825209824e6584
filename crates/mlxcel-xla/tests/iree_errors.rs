//! What a person reads when IREE cannot be used, and that its compiled modules are kept as those of PJRT are.
#![cfg(feature = "iree")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::{Path, PathBuf};

use mlxcel_engine::weights::Bytes;
use mlxcel_ir::DType;
use mlxcel_xla::iree::{Compiler, IreeExecutor, IreeOptions};
use mlxcel_xla::{Device, Effort, Executor as _, XlaError};

const SUM: &str = "module @m { func.func public @main(%x: tensor<2xf32>) -> (tensor<2xf32>) {\n\
    %s = stablehlo.add %x, %x : tensor<2xf32>\n return %s : tensor<2xf32> } }";

fn library() -> PathBuf {
    std::env::var_os("MLXCEL_TEST_IREE").expect("`cargo xtask test` sets MLXCEL_TEST_IREE").into()
}

fn options(device: Device, cache: Option<&Path>) -> IreeOptions {
    let cache = cache.map(Path::to_path_buf);
    IreeOptions { device, effort: Effort::Little, cache, ..IreeOptions::default() }
}

fn open(options: &IreeOptions) -> Result<IreeExecutor, XlaError> {
    IreeExecutor::open(Compiler::open(&library()).unwrap(), options)
}

/// Doubles 1.5 and 2.5.
fn double(executor: &IreeExecutor) {
    let numbers: Vec<u8> = [1.5f32, 2.5].iter().flat_map(|v| v.to_le_bytes()).collect();
    let x = executor.upload(DType::F32, &[2], Bytes::copied(&[&numbers])).unwrap();
    let results = executor.compile("a sum", SUM).unwrap().run(&[&x]).unwrap();
    let mut bytes = [0; 8];
    results[0].read(&mut bytes).unwrap();
    assert_eq!((&bytes[..4], &bytes[4..]), (&3f32.to_le_bytes()[..], &5f32.to_le_bytes()[..]));
}

#[test]
fn a_truncated_compiler_says_to_fetch_it_again() {
    let folder = tempfile::tempdir().unwrap();
    let cut = folder.path().join("libIREECompiler.so");
    let mut whole = std::fs::File::open(library()).unwrap();
    let mut part = std::io::Read::take(&mut whole, 100_000);
    std::io::copy(&mut part, &mut std::fs::File::create(&cut).unwrap()).unwrap();
    let error = Compiler::open(&cut).err().unwrap().to_string();
    assert!(error.contains("fetch it again"), "{error}");
}

#[test]
fn a_program_that_is_no_compiler_is_named() {
    let error = Compiler::open(Path::new("/bin/true")).err().unwrap();
    assert!(
        matches!(&error, XlaError::NotACompiler { path, .. } if path == Path::new("/bin/true")),
        "{error}"
    );
    let error = Compiler::open(Path::new("/no/such/iree-compile")).err().unwrap();
    assert!(matches!(error, XlaError::NotACompiler { .. }), "{error}");
}

/// A program that says it is a compiler of this version and copies its input.
fn fake(folder: &Path, version: &str) -> PathBuf {
    use std::os::unix::fs::PermissionsExt as _;
    let path = folder.join("iree-compile");
    let text = format!(
        "#!/bin/sh\n[ \"$1\" = --version ] && echo '  IREE compiler version {version} @ abc' && exit\n\
                        echo 'module.mlir:1:1: error: no such op' >&2\nexit 1\n"
    );
    std::fs::write(&path, text).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    path
}

#[test]
fn a_compiler_of_another_version_says_both_versions_and_what_to_fetch() {
    let folder = tempfile::tempdir().unwrap();
    let error = Compiler::open(&fake(folder.path(), "3.9.0")).err().unwrap().to_string();
    assert!(error.contains("3.9.0 @ abc") && error.contains("3.13"), "{error}");
    assert!(error.contains("`mlxcel engine install iree`"), "{error}");
}

#[test]
fn what_a_compiling_program_complains_of_is_passed_on() {
    let folder = tempfile::tempdir().unwrap();
    let compiler = Compiler::open(&fake(folder.path(), "3.13.0")).unwrap();
    let executor = IreeExecutor::open(compiler, &options(Device::Cpu, None)).unwrap();
    let error = executor.compile("a step of 3 tokens", SUM).err().unwrap().to_string();
    assert!(error.contains("a step of 3 tokens") && error.contains("no such op"), "{error}");
}

#[test]
fn drivers_that_are_not_built_in_are_refused_with_those_that_are() {
    for device in [Device::Vulkan, Device::Metal, Device::Rocm, Device::Tpu] {
        let error = open(&options(device, None)).err().unwrap().to_string();
        assert!(error.contains(device.name()) && error.contains("local-task"), "{error}");
        assert!(!error.contains("iree-cuda"), "{error}");
    }
}

#[test]
fn a_build_without_cuda_says_with_what_it_is_built() {
    if cfg!(feature = "iree-cuda") {
        return;
    }
    let error = open(&options(Device::Cuda, None)).err().unwrap().to_string();
    assert!(error.contains("--features iree-cuda"), "{error}");
}

#[test]
fn a_module_that_does_not_compile_says_which_and_why() {
    let executor = open(&options(Device::Cpu, None)).unwrap();
    let module = "module { func.func @main() -> tensor<f32> { return %nothing : tensor<f32> } }";
    let error = executor.compile("a step of 3 tokens", module).err().unwrap().to_string();
    assert!(error.contains("a step of 3 tokens") && error.contains("undeclared SSA value"), "{error}");
}

#[test]
fn an_array_is_read_whole_or_not_at_all() {
    let executor = open(&options(Device::Cpu, None)).unwrap();
    let numbers = executor.zeros(DType::F32, &[2]).unwrap();
    numbers.read(&mut [1; 8]).unwrap();
    for size in [0, 4, 12] {
        let error = numbers.read(&mut vec![0; size]).unwrap_err().to_string();
        assert!(error.contains(&format!("of 8 bytes into {size}")), "{error}");
    }
}

#[test]
fn a_size_beyond_all_memory_is_an_error() {
    let executor = open(&options(Device::Cpu, None)).unwrap();
    assert!(executor.zeros(DType::F32, &[usize::MAX, 2]).is_err());
}

#[test]
fn a_result_that_is_no_array_is_an_error() {
    let executor = open(&options(Device::Cpu, None)).unwrap();
    let module = "module { func.func @main() -> i32 { %c = arith.constant 7 : i32\n return %c : i32 } }";
    assert!(executor.compile("a number", module).unwrap().run(&[]).is_err());
}

#[test]
fn compiled_modules_are_kept_and_damaged_ones_are_made_anew() {
    let folder = tempfile::tempdir().unwrap();
    let options = options(Device::Cpu, Some(folder.path()));
    let entries = || std::fs::read_dir(folder.path()).unwrap().map(|e| e.unwrap().path()).collect::<Vec<_>>();
    double(&open(&options).unwrap());
    let kept = entries();
    assert_eq!(kept.len(), 1);
    let whole = std::fs::read(&kept[0]).unwrap();
    double(&open(&options).unwrap());
    std::fs::write(&kept[0], &whole[..whole.len() / 2]).unwrap();
    double(&open(&options).unwrap());
    assert_eq!((entries(), std::fs::read(&kept[0]).unwrap().len()), (kept.clone(), whole.len()));
}
