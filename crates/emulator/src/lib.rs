//! Instructions of x86-64 that the machine lacks, executed one by one for tests: products of bytes (AVX-VNNI, AVX512-VNNI) and of
//! pairs of `bf16` numbers (AVX512-BF16), and tiles (AMX). The processor reports what it does not know as a signal, whose handler
//! does it in the registers that the system will restore.
//!
//! It is for the instructions that our kernels use, with what they use of them, on Linux with AVX-512; it refuses others loudly.
//! Each costs a signal.

#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
mod decode;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
mod execute;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
mod registers;

/// The variable that asks for it.
const VARIABLE: &str = "MLXCEL_TEST_EMULATE";

/// Lets a program of tests do without what the machine lacks before any of them begins, and then calls a function that says so.
#[macro_export]
macro_rules! lend {
    ($then:path) => {
        #[used]
        #[cfg_attr(target_os = "linux", unsafe(link_section = ".init_array"))]
        static LEND: extern "C" fn() = {
            extern "C" fn begin() {
                if $crate::lend() {
                    $then();
                }
            }
            begin
        };
    };
}

/// From now on this process executes what the machine lacks, if `MLXCEL_TEST_EMULATE` is set. Says whether it does.
pub fn lend() -> bool {
    if std::env::var_os(VARIABLE).is_none() {
        return false;
    }
    assert!(install(), "{VARIABLE} is set, but only Linux on x86-64 with AVX-512 can do without the rest");
    true
}

#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
fn install() -> bool {
    let has_avx512 = is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512bw");
    if has_avx512 {
        execute::install();
    }
    has_avx512
}

#[cfg(not(all(target_os = "linux", target_arch = "x86_64")))]
fn install() -> bool {
    false
}
