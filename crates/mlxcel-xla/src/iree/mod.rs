//! Running modules through IREE: its compiler is opened at run time, its runtime is built in. The modules are those of
//! PJRT, but that indices are guarded, since IREE reads and writes wherever one points, and that equal numbers are put
//! in order, since its sorting is not stable.

mod api;
mod array;
mod compiler;
mod device;

use std::path::PathBuf;
use std::sync::Arc;

use mlxcel_engine::weights::Bytes;
use mlxcel_ir::DType;

use crate::cache::{Cache, Complain, Modules, processor};
use crate::emit::EmitOptions;
use crate::error::XlaError;
use crate::executor::{Buffer, Effort, Executable, Executor};
use crate::find::Device;
use array::{Array, Loaded};
pub use compiler::Compiler;

/// How a device is opened.
#[derive(Clone, Debug, Default)]
pub struct IreeOptions {
    pub device: Device,
    pub effort: Effort,
    /// Where compiled modules are kept; nowhere, if `None`.
    pub cache: Option<PathBuf>,
    /// Told once, if nothing can be kept there.
    pub complain: Option<Complain>,
}

/// A compiler with a device for which it compiles.
pub struct IreeExecutor {
    compiler: Compiler,
    device: Arc<device::Device>,
    target: Target,
    flags: Vec<&'static str>,
    modules: Modules,
}

/// A device's names in IREE.
#[derive(Clone, Copy)]
struct Target {
    device: Device,
    driver: &'static str,
    flags: &'static [&'static str],
}

/// A runtime that was built without a driver can be built with it.
const WITH_CUDA: &str = "; build with --features iree-cuda";

impl Target {
    fn of(device: Device) -> Option<Target> {
        let (driver, flags): (_, &[_]) = match device {
            Device::Cpu => (
                "local-task",
                &[
                    "--iree-hal-target-device=local",
                    "--iree-hal-local-target-device-backends=llvm-cpu",
                    "--iree-llvmcpu-target-cpu=host",
                ],
            ),
            // The newest target that the compiler has for this family; later GPUs take its code.
            Device::Cuda => ("cuda", &["--iree-hal-target-device=cuda", "--iree-cuda-target=sm_89"]),
            Device::Rocm => ("hip", &["--iree-hal-target-device=hip"]),
            Device::Vulkan => ("vulkan", &["--iree-hal-target-device=vulkan"]),
            Device::Metal => ("metal", &["--iree-hal-target-device=metal"]),
            Device::Tpu => return None,
        };
        Some(Target { device, driver, flags })
    }

    /// What the compiler is told.
    fn all_flags(&self, effort: Effort) -> Vec<&'static str> {
        let level = match effort {
            Effort::Full => "--iree-opt-level=O3",
            Effort::Little => "--iree-opt-level=O0",
        };
        let always = ["--iree-input-type=stablehlo", "--iree-input-demote-f64-to-f32=false"];
        always.iter().chain(self.flags).copied().chain([level]).collect()
    }

    fn emit_options(&self) -> EmitOptions {
        EmitOptions {
            guarded_indices: true,
            total_orders: true,
            for_iree_gpu: self.device != Device::Cpu,
            ..EmitOptions::default()
        }
    }
}

impl IreeExecutor {
    /// Opens the device for the modules of a compiler.
    pub fn open(compiler: Compiler, options: &IreeOptions) -> Result<Self, XlaError> {
        let absent = || -> Result<XlaError, XlaError> {
            let (device, has) = (options.device.name().to_string(), device::drivers()?.join(", "));
            let hint = if options.device == Device::Cuda { WITH_CUDA } else { "" };
            Ok(XlaError::NoDriver { device, has, hint })
        };
        let Some(target) = Target::of(options.device) else { return Err(absent()?) };
        let Some(device) = device::Device::open(target.driver, options.device.name())? else {
            return Err(absent()?);
        };
        let flags = target.all_flags(options.effort);
        let identity = ["iree".to_string(), compiler.revision().to_string(), processor()];
        let disk = options.cache.as_ref().map(|folder| Cache::new(folder, &identity, options.complain));
        let modules = Modules::new(disk);
        Ok(IreeExecutor { compiler, device: Arc::new(device), target, flags, modules })
    }
}

impl Executor for IreeExecutor {
    fn device(&self) -> String {
        if self.is_cpu() {
            "processor, through IREE".to_string()
        } else {
            format!("{}, through IREE", self.target.device.name())
        }
    }

    fn is_cpu(&self) -> bool {
        self.target.device == Device::Cpu
    }

    fn emit_options(&self) -> EmitOptions {
        self.target.emit_options()
    }

    fn compile(&self, what: &str, module: &str) -> Result<Arc<dyn Executable>, XlaError> {
        let load = |bytes: &[u8]| -> Result<Arc<dyn Executable>, XlaError> {
            Ok(Arc::new(Loaded::new(&self.device, bytes.to_vec())?))
        };
        let make = || {
            let bytes = self.compiler.compile(what, module, &self.flags)?;
            Ok((load(&bytes)?, Some(bytes)))
        };
        self.modules.get((module, self.flags.join(" ").as_bytes()), load, make)
    }

    fn upload(&self, dtype: DType, sizes: &[usize], bytes: Bytes) -> Result<Buffer, XlaError> {
        Ok(Buffer(Box::new(Array::upload((&self.device, self.is_cpu()), dtype, sizes, bytes)?)))
    }

    /// Not by a module: results that are equal may be one array in IREE.
    fn zeros(&self, dtype: DType, sizes: &[usize]) -> Result<Buffer, XlaError> {
        Ok(Buffer(Box::new(Array::zeros(&self.device, dtype, sizes)?)))
    }
}

#[cfg(test)]
mod tests {
    use mlxcel_ir::{Type, shape};

    use super::*;
    use crate::program::copies;

    /// No GPU is needed to compile for one.
    #[test]
    fn copies_of_state_entries_compile_for_gpus() {
        let path = std::env::var_os("MLXCEL_TEST_IREE").expect("`cargo xtask test` sets MLXCEL_TEST_IREE");
        let compiler = Compiler::open(&PathBuf::from(path)).unwrap();
        let target = Target::of(Device::Cuda).unwrap();
        let keys = ("keys", Type::new(DType::BF16, shape![64, 16, 2, 64].to_vec()));
        let module = copies(&[keys], 2, target.emit_options()).unwrap();
        let compiled = compiler.compile("copies", &module.text, &target.all_flags(Effort::Full));
        assert!(!compiled.unwrap().is_empty());
    }

    /// As models that are loaded at once do, in a process that has compiled nothing yet.
    #[test]
    fn modules_compile_at_once_from_the_first() {
        let path = std::env::var_os("MLXCEL_TEST_IREE").expect("`cargo xtask test` sets MLXCEL_TEST_IREE");
        let target = Target::of(Device::Cpu).unwrap();
        let keys = ("keys", Type::new(DType::F32, shape![4, 4, 2, 8].to_vec()));
        let module = copies(&[keys], 2, target.emit_options()).unwrap();
        let together = std::sync::Barrier::new(8);
        std::thread::scope(|scope| {
            let one = || {
                let compiler = Compiler::open(&PathBuf::from(&path)).unwrap();
                together.wait();
                compiler.compile("copies", &module.text, &target.all_flags(Effort::Little))
            };
            let all: Vec<_> = (0..8).map(|_| scope.spawn(one)).collect();
            for made in all {
                assert!(!made.join().unwrap().unwrap().is_empty());
            }
        });
    }
}
