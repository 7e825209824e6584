//! What can be seen of a library for Windows without one: that it is for x86-64, and that it has the shim's entries and asks
//! for MLX. The names of both stand in it as they are; the tables around them are not read.

use anyhow::{Context as _, Result, ensure};

/// Where the header's place is told, its mark, and the number of x86-64.
const HEADER_AT: usize = 0x3c;
const MARK: &[u8] = b"PE\0\0\x64\x86";

/// Names that the shim exports and imports.
const NAMES: [&[u8]; 3] = [b"\0mlxcel_abi\0", b"\0mlxcel_run\0", b"mlx.dll\0"];

pub(crate) fn check_shim(library: &[u8]) -> Result<()> {
    let at = library.get(HEADER_AT..).and_then(|rest| rest.first_chunk()).context("it is cut")?;
    let header = library.get(u32::from_le_bytes(*at) as usize..).context("it is cut")?;
    ensure!(
        library.starts_with(b"MZ") && header.starts_with(MARK),
        "this is no library for Windows on x86-64"
    );
    for name in NAMES {
        ensure!(
            library.windows(name.len()).any(|window| window.eq_ignore_ascii_case(name)),
            "it does not name {}",
            String::from_utf8_lossy(name).trim_matches('\0')
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_for_another_machine_or_without_the_entries_is_no_shim() {
        let mut bytes = b"MZ".to_vec();
        bytes.resize(HEADER_AT, 0);
        bytes.extend(64_u32.to_le_bytes());
        bytes.extend(MARK);
        bytes.extend(NAMES.concat());
        check_shim(&bytes).expect("it has everything");
        for at in [0, 64, 69, bytes.len() - 3, 75] {
            let mut changed = bytes.clone();
            changed[at] ^= 0x40;
            assert!(check_shim(&changed).is_err(), "changed at {at}");
        }
        for end in 0..bytes.len() {
            assert!(check_shim(&bytes[..end]).is_err(), "cut at {end}");
        }
    }
}
