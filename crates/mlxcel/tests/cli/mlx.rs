//! The mlx engine from the command line: the same text as the cpu engine's in every mode, and what is said when MLX is not
//! there. `cargo xtask test` says where MLX is.
#![cfg(target_os = "linux")]

use std::ffi::OsString;

use crate::support::{Finished, ModelCopy, finished, mlxcel};

fn given(name: &str) -> OsString {
    std::env::var_os(name).unwrap_or_else(|| panic!("{name} is not set: run `cargo xtask test -p mlxcel`"))
}

fn with_mlx(arguments: &[&str]) -> Finished {
    let mut command = mlxcel(arguments);
    for name in ["MLXCEL_MLX_HOME", "MLXCEL_MLX_SHIM"] {
        command.env(name, given(name));
    }
    finished(command.env("MLXCEL_MLX_BLAS", "").output().expect("the binary runs"))
}

#[test]
fn every_mode_writes_what_the_cpu_engine_writes() {
    let model = ModelCopy::with_tokenizer();
    let model = ["-m", model.argument(), "--dtype", "f32", "--temp", "0"];
    let flags = [&model[..], &["-p", "Hello there", "-n", "12", "--ignore-eos"]].concat();
    let cpu = with_mlx(&[&["generate"], &flags[..], &["--products", "exact"]].concat());
    assert!(cpu.code == Some(0) && !cpu.stdout.is_empty(), "{}", cpu.stderr);
    for mode in ["lazy", "eager", "compiled"] {
        let got = with_mlx(&[&["generate", "--engine", "mlx", "--mlx-mode", mode], &flags[..]].concat());
        assert_eq!((got.code, &got.stdout), (Some(0), &cpu.stdout), "{mode}: {}", got.stderr);
    }
}

#[test]
fn devices_says_what_is_loaded_from_where() {
    let got = with_mlx(&["devices"]);
    let home = given("MLXCEL_MLX_HOME");
    assert!(got.stdout.contains("mlx ") && got.stdout.contains(&*home.to_string_lossy()), "{}", got.stdout);
}

#[test]
fn a_plan_says_how_steps_run() {
    let model = ModelCopy::with_tokenizer();
    let got = with_mlx(&["inspect", model.argument(), "--plan", "--engine", "mlx"]);
    assert!(got.stdout.contains("note: a step is built whole and evaluated once"), "{}", got.stderr);
}

#[test]
fn an_engine_that_is_not_installed_says_what_to_run() {
    let nothing = tempfile::tempdir().expect("a folder");
    let mut command = mlxcel(&["generate", "--engine", "mlx", "-p", "Hi"]);
    command.env("MLXCEL_CACHE", nothing.path()).env("MLXCEL_MLX_SHIM", given("MLXCEL_MLX_SHIM"));
    let got = finished(command.output().expect("the binary runs"));
    assert_ne!(got.code, Some(0));
    assert!(got.stderr.contains("mlxcel engine install mlx-cpu"), "{}", got.stderr);
    let mut gpu = mlxcel(&["generate", "--engine", "mlx", "--device", "gpu", "-p", "Hi"]);
    for name in ["MLXCEL_MLX_HOME", "MLXCEL_MLX_SHIM"] {
        gpu.env(name, given(name));
    }
    let got = finished(gpu.output().expect("the binary runs"));
    assert!(got.code != Some(0) && got.stderr.contains("--device cpu"), "{}", got.stderr);
}
