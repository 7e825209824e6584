//! The kernel that MLX compiles for GPUs of NVIDIA, on threads of the processor: its text is C++ but for a few names, which
//! `decode.cpp` has.
#![cfg(unix)]

use std::path::Path;
use std::process::Command;

#[test]
fn single_tokens_read_pages_where_they_lie() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let folder = tempfile::tempdir().expect("a folder");
    let source = std::fs::read_to_string(here.join("shim/decode.cuh")).expect("the kernel's text");
    let (_, body) = source.split_once("R\"(\n").expect("a raw string");
    let (body, _) = body.split_once(")\"").expect("the end of the raw string");
    std::fs::write(folder.path().join("kernel_body.h"), body).expect("a file");
    let program = folder.path().join("decode");
    let compiler = std::env::var_os("CXX").unwrap_or_else(|| "c++".into());
    let mut compile = Command::new(compiler);
    compile.args(["-std=c++20", "-O1", "-pthread", "-w", "-I"]).arg(folder.path());
    compile.arg(here.join("tests/decode.cpp")).arg("-o").arg(&program);
    assert!(compile.status().expect("a C++ compiler").success());
    let run = Command::new(program).output().expect("it runs");
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stdout));
}
