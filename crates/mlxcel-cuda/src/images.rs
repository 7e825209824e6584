//! The kernels of this build: one packed file for each architecture, made by `cargo xtask kernels` from the sources
//! beside them. Knows how they are packed, not what they compute.

use std::collections::BTreeSet;
use std::io::Read;

use crate::error::{CudaError, Result};

/// The digest of the sources that the embedded kernels were made from.
pub const SOURCES_DIGEST: &str = include_str!("../kernels/built/sources.sha256");

/// Compute capability and the kernels for it, newest first.
const NATIVE: [((i32, i32), &[u8]); 6] = [
    ((12, 0), include_bytes!("../kernels/built/sm_120.z")),
    ((10, 0), include_bytes!("../kernels/built/sm_100.z")),
    ((9, 0), include_bytes!("../kernels/built/sm_90a.z")),
    ((8, 9), include_bytes!("../kernels/built/sm_89.z")),
    ((8, 6), include_bytes!("../kernels/built/sm_86.z")),
    ((8, 0), include_bytes!("../kernels/built/sm_80.z")),
];

/// For architectures that are younger than this build; the driver compiles it.
const PORTABLE: &[u8] = include_bytes!("../kernels/built/ptx.z");

/// More than any file of kernels has.
const SIZE_MAX: u64 = 256 << 20;

/// Names a packed file to use instead of the embedded ones, for work on kernels.
const OVERRIDE: &str = "MLXCEL_CUDA_KERNELS";

/// The modules for a device, to be given to the driver.
pub(crate) fn for_device((major, minor): (i32, i32)) -> Result<Vec<Vec<u8>>> {
    if let Some(path) = std::env::var_os(OVERRIDE) {
        let read = std::fs::read(&path);
        let reason =
            |e| CudaError::Kernels { reason: format!("{}: {e}", std::path::Path::new(&path).display()) };
        return unpack(&read.map_err(reason)?);
    }
    let fits = |&((a, b), _): &((i32, i32), &[u8])| a == major && b <= minor;
    let image = NATIVE.into_iter().find(fits).map_or(PORTABLE, |(_, image)| image);
    unpack(image)
}

/// The names of the kernels of a module: machine code has a section for each, text an entry.
pub(crate) fn names(image: &[u8]) -> BTreeSet<String> {
    let dots = image.iter().enumerate().filter(|(_, b)| **b == b'.').map(|(i, _)| &image[i..]);
    let found = dots.filter_map(|rest| {
        let (name, ends) = match rest.strip_prefix(b".text.") {
            Some(name) => (name, b'\0'),
            None => (rest.strip_prefix(b".entry ")?, b'('),
        };
        let length = name.iter().take(NAME_MAX).position(|b| *b == ends)?;
        String::from_utf8(name[..length].to_vec()).ok()
    });
    found.collect()
}

/// Longer than the name of any kernel.
const NAME_MAX: usize = 64;

/// A compressed row of modules, each after its length.
fn unpack(packed: &[u8]) -> Result<Vec<Vec<u8>>> {
    let damaged = |reason: &str| CudaError::Kernels { reason: reason.to_string() };
    let mut all = vec![];
    let mut stream = flate2::read::ZlibDecoder::new(packed).take(SIZE_MAX);
    stream.read_to_end(&mut all).map_err(|e| damaged(&e.to_string()))?;
    let (mut modules, mut rest) = (vec![], all.as_slice());
    while !rest.is_empty() {
        let (length, tail) = rest.split_first_chunk::<4>().ok_or_else(|| damaged("a length is cut off"))?;
        let length = u32::from_le_bytes(*length) as usize;
        let (module, tail) = tail.split_at_checked(length).ok_or_else(|| damaged("a module is cut off"))?;
        modules.push(module.to_vec());
        rest = tail;
    }
    Ok(modules)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_architecture_has_the_same_number_of_modules() {
        let expected = unpack(PORTABLE).unwrap().len();
        assert!(expected > 0);
        for (capability, image) in NATIVE {
            assert_eq!(unpack(image).unwrap().len(), expected, "{capability:?}");
        }
    }

    #[test]
    fn a_device_gets_the_newest_kernels_that_it_runs() {
        for (device, kernels) in [((8, 0), (8, 0)), ((8, 7), (8, 6)), ((9, 0), (9, 0)), ((12, 1), (12, 0))] {
            let wanted = NATIVE.iter().find(|(c, _)| *c == kernels).unwrap().1;
            assert_eq!(for_device(device).unwrap(), unpack(wanted).unwrap());
        }
        assert_eq!(for_device((13, 0)).unwrap(), unpack(PORTABLE).unwrap());
    }

    #[test]
    fn a_kernel_is_found_in_one_module_of_every_architecture() {
        for image in NATIVE.into_iter().map(|(_, image)| image).chain([PORTABLE]) {
            let modules: Vec<_> = unpack(image).unwrap().iter().map(|m| names(m)).collect();
            for name in [
                "sample",
                "gather",
                "linear_bf16_plain_8",
                "flash_bf16_128",
                "gemm_bf16_many",
                "experts_sort",
            ] {
                assert_eq!(modules.iter().filter(|m| m.contains(name)).count(), 1, "{name}");
            }
            assert!(!modules.iter().any(|m| m.contains("no_such_kernel")));
        }
    }

    #[test]
    fn damaged_kernels_are_an_error() {
        assert!(unpack(&[1, 2, 3]).is_err());
        let mut packed = flate2::write::ZlibEncoder::new(vec![], flate2::Compression::fast());
        std::io::Write::write_all(&mut packed, &[9, 0, 0, 0, 1]).unwrap();
        let error = unpack(&packed.finish().unwrap()).unwrap_err();
        assert_eq!(error.to_string(), "the kernels of this build are damaged: a module is cut off");
    }
}
