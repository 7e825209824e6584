//! `cargo xtask kernels`: compiles the kernels of the CUDA engine for every architecture with NVRTC, which is fetched as a
//! Python package. Neither a GPU nor a CUDA toolkit is needed. What was compiled before from the same text is kept below
//! `target/`.
#![allow(unsafe_code)]

use std::ffi::{CString, c_char, c_int, c_void};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::{fs, ptr};

use anyhow::{Context as _, Result, bail, ensure};
use mlxcel_hub::{Folder, Hub, Package, Registry, Settings, Stderr};
use sha2::{Digest as _, Sha256};

use crate::shell;

const NVRTC: Folder<'static> = Folder {
    package: Package {
        registry: Registry::Python,
        name: "nvidia-cuda-nvrtc",
        version: "13.0.88",
        file: "nvidia_cuda_nvrtc-13.0.88-py3-none-manylinux2010_x86_64.manylinux_2_12_x86_64.whl",
        size: 90_215_200,
        sha256: "ad9b6d2ead2435f11cbb6868809d2adeeee302e9bb94bcf0539c7a40d80e8575",
    },
    path: "nvidia/cu13/lib/",
    save_as: "nvrtc",
};

/// The variable that names a folder with NVRTC, instead of fetching it.
const VARIABLE: &str = "MLXCEL_NVRTC";

/// Machine code for these, and text that later drivers compile for what comes after them.
const TARGETS: [(&str, &str); 7] = [
    ("sm_80", "sm_80"),
    ("sm_86", "sm_86"),
    ("sm_89", "sm_89"),
    ("sm_90a", "sm_90a"),
    ("sm_100", "sm_100"),
    ("sm_120", "sm_120"),
    ("ptx", "compute_90"),
];

/// A source file by name.
struct Source {
    name: String,
    text: String,
}

/// Compiles what changed and packs the results. `only` is one of the targets, for work on kernels.
pub(crate) fn run(only: Option<&str>) -> Result<()> {
    ensure!(
        only.is_none_or(|o| TARGETS.iter().any(|t| t.0 == o)),
        "the targets are {:?}",
        TARGETS.map(|t| t.0)
    );
    let folder = shell::root().join("crates/mlxcel-cuda/kernels");
    let sources = sources(&folder)?;
    let (headers, files): (Vec<Source>, Vec<Source>) =
        sources.into_iter().partition(|s| s.name.ends_with(".cuh"));
    let compiler = Compiler::open(&headers)?;
    let built = folder.join("built");
    fs::create_dir_all(&built)?;
    for (name, architecture) in TARGETS.into_iter().filter(|t| only.is_none_or(|o| o == t.0)) {
        let mut packed = vec![];
        for file in &files {
            let image = compiler.image(file, architecture)?;
            packed.extend_from_slice(&u32::try_from(image.len())?.to_le_bytes());
            packed.extend_from_slice(&image);
        }
        let mut out = flate2::write::ZlibEncoder::new(vec![], flate2::Compression::best());
        out.write_all(&packed)?;
        let out = out.finish()?;
        eprintln!("xtask: {name}: {} modules, {} bytes packed", files.len(), out.len());
        fs::write(built.join(format!("{name}.z")), out)?;
    }
    let all: Vec<&Source> = headers.iter().chain(&files).collect();
    fs::write(built.join("sources.sha256"), digest(&all))?;
    Ok(())
}

/// The kernels, by name.
fn sources(folder: &Path) -> Result<Vec<Source>> {
    let mut sources = vec![];
    for entry in fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))? {
        let path = entry?.path();
        if path.extension().is_some_and(|e| e == "cu" || e == "cuh") {
            let name = path.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
            sources.push(Source { name, text: fs::read_to_string(&path)? });
        }
    }
    sources.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(sources)
}

/// The digest of names and texts, in the order of the names. A test of the engine's crate computes the same.
fn digest(sources: &[&Source]) -> String {
    let mut sorted = sources.to_vec();
    sorted.sort_by(|a, b| a.name.cmp(&b.name));
    let mut hash = Sha256::new();
    for source in sorted {
        hash.update(source.name.as_bytes());
        hash.update([0]);
        hash.update(source.text.as_bytes());
        hash.update([0]);
    }
    hash.finalize().iter().map(|b| format!("{b:02x}")).collect()
}

type Create = unsafe extern "C" fn(
    *mut *mut c_void,
    *const c_char,
    *const c_char,
    c_int,
    *const *const c_char,
    *const *const c_char,
) -> c_int;
type Compile = unsafe extern "C" fn(*mut c_void, c_int, *const *const c_char) -> c_int;
type GetSize = unsafe extern "C" fn(*mut c_void, *mut usize) -> c_int;
type Get = unsafe extern "C" fn(*mut c_void, *mut c_char) -> c_int;
type Destroy = unsafe extern "C" fn(*mut *mut c_void) -> c_int;

/// NVRTC and the headers that every file may include.
struct Compiler<'a> {
    library: libloading::Library,
    /// NVRTC looks for it by name.
    _builtins: libloading::Library,
    headers: &'a [Source],
    kept: PathBuf,
}

impl<'a> Compiler<'a> {
    fn open(headers: &'a [Source]) -> Result<Self> {
        let folder = match std::env::var_os(VARIABLE) {
            Some(folder) => PathBuf::from(folder),
            None => Hub::new(Settings::from_env()?, Stderr::new()).fetch_folder(&NVRTC)?,
        };
        let open = |name: &str| {
            let path = folder.join(name);
            // SAFETY: the package is pinned by its digest; its initialisers are NVIDIA's.
            unsafe { libloading::Library::new(&path) }
                .with_context(|| format!("cannot load {}", path.display()))
        };
        let builtins = open("libnvrtc-builtins.so.13.0")?;
        let library = open("libnvrtc.so.13")?;
        Ok(Compiler { library, _builtins: builtins, headers, kept: shell::target_folder("kernels") })
    }

    /// The image of a file, from the last time if nothing changed.
    fn image(&self, file: &Source, architecture: &str) -> Result<Vec<u8>> {
        let all: Vec<&Source> = self.headers.iter().chain([file]).collect();
        let kept = self.kept.join(architecture).join(format!("{}.{}", file.name, digest(&all)));
        if let Ok(image) = fs::read(&kept) {
            return Ok(image);
        }
        eprintln!("xtask: compiling {} for {architecture}", file.name);
        let image = self.compile(file, architecture)?;
        fs::create_dir_all(kept.parent().context("it has a folder")?)?;
        fs::write(&kept, &image)?;
        Ok(image)
    }

    fn compile(&self, file: &Source, architecture: &str) -> Result<Vec<u8>> {
        let c = |text: &str| CString::new(text).context("sources have no zero bytes");
        let texts = self.headers.iter().map(|h| c(&h.text)).collect::<Result<Vec<_>>>()?;
        let names = self.headers.iter().map(|h| c(&h.name)).collect::<Result<Vec<_>>>()?;
        let pointers = |list: &[CString]| list.iter().map(|s| s.as_ptr()).collect::<Vec<_>>();
        let (text, name) = (c(&file.text)?, c(&file.name)?);
        let options = [c(&format!("--gpu-architecture={architecture}"))?, c("--std=c++17")?];
        let mut program = ptr::null_mut();
        // SAFETY: the signatures are NVRTC's; every pointer lives through the calls.
        unsafe {
            let create = self.library.get::<Create>(b"nvrtcCreateProgram\0")?;
            let (h, n) = (pointers(&texts), pointers(&names));
            let code =
                create(&mut program, text.as_ptr(), name.as_ptr(), h.len() as c_int, h.as_ptr(), n.as_ptr());
            ensure!(code == 0, "nvrtcCreateProgram failed with {code}");
            let compile = self.library.get::<Compile>(b"nvrtcCompileProgram\0")?;
            let code = compile(program, options.len() as c_int, pointers(&options).as_ptr());
            if code != 0 {
                let log = self.read(program, "nvrtcGetProgramLogSize\0", "nvrtcGetProgramLog\0")?;
                bail!(
                    "{} does not compile for {architecture}:\n{}",
                    file.name,
                    String::from_utf8_lossy(&log)
                );
            }
            let (size, get) = if architecture.starts_with("sm_") {
                ("nvrtcGetCUBINSize\0", "nvrtcGetCUBIN\0")
            } else {
                ("nvrtcGetPTXSize\0", "nvrtcGetPTX\0")
            };
            let image = self.read(program, size, get);
            self.library.get::<Destroy>(b"nvrtcDestroyProgram\0")?(&mut program);
            image
        }
    }

    /// # Safety
    /// The names are a pair of NVRTC's functions that tell a size and fill as many bytes.
    unsafe fn read(&self, program: *mut c_void, size: &str, get: &str) -> Result<Vec<u8>> {
        let mut length = 0;
        // SAFETY: as the caller promises.
        unsafe {
            ensure!(
                self.library.get::<GetSize>(size.as_bytes())?(program, &mut length) == 0,
                "{size} failed"
            );
            let mut bytes = vec![0u8; length];
            ensure!(
                self.library.get::<Get>(get.as_bytes())?(program, bytes.as_mut_ptr().cast()) == 0,
                "{get} failed"
            );
            Ok(bytes)
        }
    }
}
