//! Why the engine could not be opened. What goes wrong later is an `EngineError`.

use std::path::PathBuf;

/// Why MLX could not be loaded or used.
#[derive(Debug, thiserror::Error)]
pub enum MlxError {
    #[error("there is no MLX library in {}: {hint}", home.display())]
    NoLibrary { home: PathBuf, hint: &'static str },
    #[error("the shim {} is not there: build it with `cargo xtask shim mlx`, or set MLXCEL_MLX_SHIM", path.display())]
    NoShim { path: PathBuf },
    #[error("{} could not be loaded: {reason}", path.display())]
    Load { path: PathBuf, reason: String },
    #[error(
        "{} needs {library}, which is not on this machine: `mlxcel engine install mlx-cuda13` fetches NVIDIA's libraries, \
         a driver brings libcuda; others must be where the system finds libraries",
        path.display()
    )]
    Needs { path: PathBuf, library: String },
    #[error("the shim {} has no entry '{name}': build it anew with `cargo xtask shim mlx`", path.display())]
    Entry { path: PathBuf, name: String },
    #[error(
        "the shim {} speaks interface {found}, this program {wanted}: build it anew with `cargo xtask shim mlx`",
        path.display()
    )]
    Abi { path: PathBuf, found: u32, wanted: u32 },
    #[error(
        "the shim was built for MLX {built}, but {} is MLX {loaded}: install that version, or build the shim anew with \
         `cargo xtask shim mlx`",
        library.display()
    )]
    Version { built: String, loaded: String, library: PathBuf },
    #[error(
        "the MLX in {} has no GPU it can use: choose --device cpu, or an MLX for this machine's GPU",
        home.display()
    )]
    NoGpu { home: PathBuf },
    #[error("the group of {members} could not be joined as member {rank}: {reason}")]
    Group { rank: usize, members: usize, reason: String },
    #[error("'{text}' is not {what}: choose {choices}")]
    Unknown { text: String, what: &'static str, choices: &'static str },
    #[error("MLX failed {doing}: {message}")]
    Failed { doing: String, message: String },
    #[error("a compiled step needs its sequences apart: {reason}; choose --mlx-mode lazy")]
    Unsplit { reason: &'static str },
}
