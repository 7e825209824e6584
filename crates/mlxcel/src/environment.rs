//! Every environment variable that has a say, with what it does: the one place where they are documented. Who reads
//! one is elsewhere; a test finds those that are read and not listed.

/// A variable and what it does.
pub struct Variable {
    pub name: &'static str,
    pub meaning: &'static str,
}

const fn variable(name: &'static str, meaning: &'static str) -> Variable {
    Variable { name, meaning }
}

/// The names of those that say where models are and come from: the first ones.
pub fn about_models() -> impl Iterator<Item = &'static str> {
    VARIABLES.iter().map(|variable| variable.name).take_while(|name| *name != "PATH")
}

/// In the order of the documentation: models first, then chats and the terminal.
pub const VARIABLES: &[Variable] = &[
    variable("MLXCEL_CACHE", "The folder where fetched models are kept."),
    variable(
        "MLXCEL_PACKED_CACHE",
        "The folder where the cpu engine keeps packed weights where --packed-cache is not given; off: nowhere.",
    ),
    variable("XDG_CACHE_HOME", "Without MLXCEL_CACHE, models are kept in the folder mlxcel below this one."),
    variable("LOCALAPPDATA", "The same on Windows, and for what is kept of a chat."),
    variable(
        "HOME",
        "Without the others, models are kept in .cache/mlxcel below this folder, lines in .local/state/mlxcel.",
    ),
    variable("USERPROFILE", "HOME on Windows, where Hugging Face's folder is looked for."),
    variable("MLXCEL_OFFLINE", "Set to anything but 0: nothing is fetched, as with --offline."),
    variable("HF_HUB_OFFLINE", "The same."),
    variable("HF_ENDPOINT", "The address of the hub, or of a mirror of it."),
    variable(
        "HF_TOKEN",
        "The token for gated and private models; it is sent to the hub and to no other host.",
    ),
    variable("HUGGING_FACE_HUB_TOKEN", "The older name of HF_TOKEN."),
    variable("HF_TOKEN_PATH", "A file with the token, where neither of the above is set."),
    variable(
        "HF_HOME",
        "Hugging Face's folder, with its cache (hub) and its token; ~/.cache/huggingface otherwise.",
    ),
    variable("HF_HUB_CACHE", "Hugging Face's cache of models, which is read and never written."),
    variable("HUGGINGFACE_HUB_CACHE", "The older name of HF_HUB_CACHE."),
    variable("HTTPS_PROXY", "The proxy for https addresses; ALL_PROXY stands for both."),
    variable("HTTP_PROXY", "The proxy for http addresses."),
    variable("NO_PROXY", "Hosts that are reached without a proxy."),
    variable("MLXCEL_INDEX_URL", "The index of Python packages that models come from."),
    variable("PIP_INDEX_URL", "pip's package index: used where MLXCEL_INDEX_URL is not set."),
    variable("UV_DEFAULT_INDEX", "uv's package index: used where neither of the above is set."),
    variable("UV_INDEX_URL", "The older name of UV_DEFAULT_INDEX."),
    variable("PATH", "Where pip and npm are looked for."),
    variable(
        "MLXCEL_CUDA_KERNELS",
        "A file of packed kernels that the cuda engine loads instead of its own.",
    ),
    variable("MLXCEL_BACKEND", "The engine where --engine is not given."),
    variable(
        "MLXCEL_XLA_PLUGIN",
        "The PJRT plugin that the xla engine loads where --xla-plugin is not given.",
    ),
    variable("MLXCEL_XLA_DEVICE", "Where the xla engine computes where --device is not given: cpu, cuda, …"),
    variable(
        "MLXCEL_XLA_EXECUTOR",
        "What runs the modules of the xla engine: pjrt, or iree in builds that have it.",
    ),
    variable("MLXCEL_XLA_MEMORY", "The share of a GPU's memory that the xla engine may take [default: 0.9]."),
    variable("MLXCEL_XLA_IREE_COMPILE", "The compiler of IREE: its library or the program iree-compile."),
    variable("XLA_FLAGS", "What XLA itself reads; compiled modules are kept apart by it."),
    variable("VIRTUAL_ENV", "A Python environment in which the xla engine looks for plugins."),
    variable("MLXCEL_MLX_HOME", "The folder of the MLX that the mlx engine loads."),
    variable(
        "MLXCEL_MLX_SHIM",
        "The library between the mlx engine and MLX, where it is not beside the program.",
    ),
    variable(
        "MLXCEL_MLX_BLAS",
        "The OpenBLAS whose products MLX uses on the processor, or auto; else its own.",
    ),
    variable("MLXCEL_MLX_MODE", "How the mlx engine runs a step where --mlx-mode is not given."),
    variable("MLXCEL_MLX_DEVICE", "Where the mlx engine computes where --device is not given: cpu or gpu."),
    variable(
        "OTEL_EXPORTER_OTLP_ENDPOINT",
        "Where a server sends traces where --otlp-endpoint is not given.",
    ),
    variable("OTEL_SERVICE_NAME", "The name of the service in traces; mlxcel by itself."),
    variable("MLXCEL_API_KEY", "The key that `mlxcel bench serve` sends where --api-key is not given."),
    variable("MLXCEL_HISTORY", "The file where lines typed in a chat are kept; empty: none are kept."),
    variable("XDG_STATE_HOME", "Without MLXCEL_HISTORY, lines are kept in mlxcel/history below this folder."),
    variable("NO_COLOR", "Set to anything: no colour, unless --color asks for it."),
    variable("CLICOLOR_FORCE", "Set to anything but 0: colour, terminal or not."),
    variable("CLICOLOR", "Set to 0: no colour."),
    variable("TERM", "dumb: no colour, no moving progress bars."),
    variable("COLUMNS", "How wide help is where the output is no terminal."),
];
