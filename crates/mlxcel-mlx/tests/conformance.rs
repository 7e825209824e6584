//! The suite that every engine passes, on MLX's processor device: everything in lazy mode; in eager and compiled mode the
//! rules of the seam, control flow, every family in f32, and models of every kind of layer in all variants.
//! `MLXCEL_MLX_MODE` runs everything in another mode.

use conformance::models::{Depth, check_family, check_variant, fixtures};
use mlxcel_mlx::{Home, MlxEngine, Mode, Options};

/// Where `cargo xtask test` has put MLX and the shim.
fn home() -> Home {
    let path = |name: &str| {
        std::env::var_os(name)
            .unwrap_or_else(|| panic!("{name} is not set: run `cargo xtask test -p mlxcel-mlx`"))
    };
    Home::new(path("MLXCEL_MLX_HOME"), path("MLXCEL_MLX_SHIM"))
}

fn open(mode: Mode) -> MlxEngine {
    let device = std::env::var("MLXCEL_MLX_DEVICE").ok().map(|d| d.parse().expect("a device of MLX"));
    MlxEngine::open(Options { home: home(), device, mode }).expect("MLX can be loaded")
}

/// Lazy, unless the environment says otherwise.
fn chosen() -> MlxEngine {
    open(std::env::var("MLXCEL_MLX_MODE").map_or(Mode::Lazy, |m| m.parse().expect("a mode of MLX")))
}

conformance::ops_suite!(ops, chosen());
conformance::models_suite!(models, chosen(), Depth::Full);
conformance::gguf_suite!(gguf, chosen());
conformance::embeddings_suite!(embeddings, chosen());
conformance::scheduled_suite!(scheduled, chosen());

macro_rules! f32_in_other_modes {
    ($($family:ident),*) => {
        mod other_modes {
            use super::*;
            $(#[test]
            fn $family() {
                let variant = fixtures("golden").join(stringify!($family)).join("f32");
                for mode in [Mode::Eager, Mode::Compiled] {
                    check_variant(&open(mode), &variant, Depth::Brief);
                }
            })*
        }
    };
}

conformance::every_family!(f32_in_other_modes);

/// All variants in another mode, a test for each family, so that several processes can share them.
macro_rules! models_in_mode {
    ($name:ident, $mode:expr, $($family:ident),+) => {
        mod $name {
            use super::*;
            $(#[test]
            fn $family() {
                check_family(&open($mode), stringify!($family), Depth::Brief);
            })+
        }
    };
}

models_in_mode!(eager, Mode::Eager, llama, mamba);
models_in_mode!(compiled, Mode::Compiled, llama, gemma3_text, deepseek_v3, gpt_oss, mamba);

#[test]
fn every_mode_keeps_the_rules_of_the_seam() {
    conformance::ops::seam(&open(Mode::Eager)).assert_clean();
    conformance::ops::seam(&open(Mode::Compiled)).assert_clean();
}

#[test]
fn control_flow_is_the_same_in_every_mode() {
    for mode in [Mode::Eager, Mode::Compiled] {
        conformance::ops::against_reference(&open(mode), conformance::ops::Group::Control).assert_clean();
    }
}
