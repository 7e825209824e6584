//! What can be seen of a program for macOS without a Mac: that it is for ARM, which libraries it asks for, and that its
//! signature is of its bytes, since macOS ends a program on ARM whose pages are not as they were signed.

use anyhow::{Context as _, Result, ensure};

use super::digest;

/// The magic number of 64-bit Mach-O, and ARM's number for processors.
const HEADER: [u8; 8] = [0xcf, 0xfa, 0xed, 0xfe, 0x0c, 0, 0, 1];
const COMMANDS_AT: usize = 32;
const LOAD_LIBRARY: u32 = 0xc;
const SIGNATURE: u32 = 0x1d;
const SUPER_BLOB: u32 = 0xfade_0cc0;
const CODE_DIRECTORY: u32 = 0xfade_0c02;
/// Digests of SHA-256.
const HASH_TYPE: u8 = 2;
const HASH_BYTES: usize = 32;

/// Libraries outside these folders are not on every Mac.
const SYSTEM: [&str; 2] = ["/usr/lib/", "/System/Library/Frameworks/"];

/// Checks a program; returns how many pages its signature covers.
pub(crate) fn check(program: &[u8]) -> Result<usize> {
    ensure!(program.starts_with(&HEADER), "this is no program for macOS on ARM");
    let count = little(program, 16)?;
    let (mut at, mut pages) = (COMMANDS_AT, None);
    for _ in 0..count {
        let (kind, size) = (little(program, at)?, little(program, at + 4)? as usize);
        ensure!(size >= 8, "a command of no size at {at}");
        let command = program.get(at..at + size).context("a command ends behind the file")?;
        match kind {
            LOAD_LIBRARY => check_library(command)?,
            SIGNATURE => pages = Some(check_signature(program, little(command, 8)? as usize)?),
            _ => {}
        }
        at += size;
    }
    pages.context("it is not signed, and macOS on ARM runs nothing unsigned")
}

fn check_library(command: &[u8]) -> Result<()> {
    let name = command.get(little(command, 8)? as usize..).context("a library without a name")?;
    let name = String::from_utf8_lossy(name);
    let name = name.trim_end_matches('\0');
    ensure!(SYSTEM.iter().any(|folder| name.starts_with(folder)), "it asks for {name}, which no Mac has");
    Ok(())
}

fn check_signature(program: &[u8], at: usize) -> Result<usize> {
    ensure!(big(program, at)? == SUPER_BLOB, "its signature begins with another number");
    let directory = at + big(program, at + 16)? as usize;
    ensure!(big(program, directory)? == CODE_DIRECTORY, "its signature has no list of pages");
    let word = |offset| big(program, directory + offset).map(|word| word as usize);
    let (hashes, pages, end) = (directory + word(16)?, word(28)?, word(32)?);
    let kind = program.get(directory + 36..directory + 40).context("the signature is cut")?;
    ensure!(kind[0] as usize == HASH_BYTES && kind[1] == HASH_TYPE, "its pages have digests of another kind");
    ensure!(end == at && kind[3] < 32, "what is signed ends at {end}, and the signature begins at {at}");
    let size = 1_usize << kind[3];
    ensure!(pages == end.div_ceil(size), "{pages} pages are signed, and it has {}", end.div_ceil(size));
    for (page, bytes) in program[..end].chunks(size).enumerate() {
        let signed = program.get(hashes + page * HASH_BYTES..).and_then(|rest| rest.get(..HASH_BYTES));
        let signed = signed.context("the signature is cut")?;
        ensure!(digest::of(bytes) == signed, "page {page} is not as it was signed");
    }
    Ok(pages)
}

fn word(bytes: &[u8], at: usize) -> Result<[u8; 4]> {
    let found = bytes.get(at..).and_then(|rest| rest.first_chunk());
    found.copied().with_context(|| format!("the file ends before {at}"))
}

fn little(bytes: &[u8], at: usize) -> Result<u32> {
    Ok(u32::from_le_bytes(word(bytes, at)?))
}

fn big(bytes: &[u8], at: usize) -> Result<u32> {
    Ok(u32::from_be_bytes(word(bytes, at)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One library, one page of 4,096 bytes and a second of 100, and their signature.
    fn program(library: &str) -> Vec<u8> {
        let mut name = library.as_bytes().to_vec();
        name.resize(name.len().next_multiple_of(8) + 8, 0);
        let mut bytes = HEADER.to_vec();
        for word in [0_u32, 2, 2, 24 + name.len() as u32 + 16, 0, 0] {
            bytes.extend(word.to_le_bytes());
        }
        for word in [LOAD_LIBRARY, 24 + name.len() as u32, 24, 2, 0, 0] {
            bytes.extend(word.to_le_bytes());
        }
        bytes.extend(name);
        for word in [SIGNATURE, 16, 4196, 0] {
            bytes.extend(word.to_le_bytes());
        }
        bytes.resize(4196, 7);
        let hashes: Vec<u8> = bytes.chunks(4096).flat_map(digest::of).collect();
        for word in [SUPER_BLOB, 0, 1, 0, 20] {
            bytes.extend(word.to_be_bytes());
        }
        for word in [CODE_DIRECTORY, 0, 0, 0, 40, 0, 0, 2, 4196] {
            bytes.extend(word.to_be_bytes());
        }
        bytes.extend([32, HASH_TYPE, 0, 12]);
        bytes.extend(hashes);
        bytes
    }

    #[test]
    fn a_signed_program_of_system_libraries_passes_and_a_changed_one_does_not() {
        let whole = program("/usr/lib/libSystem.B.dylib");
        assert_eq!(check(&whole).expect("it is whole"), 2);
        for at in [4095, 4195] {
            let mut changed = whole.clone();
            changed[at] ^= 1;
            let error = check(&changed).expect_err("a page was changed").to_string();
            assert_eq!(error, format!("page {} is not as it was signed", at / 4096));
        }
        for end in 0..whole.len() {
            assert!(check(&whole[..end]).is_err(), "cut at {end}");
        }
        let error = check(&program("/opt/local/lib/libz.dylib")).expect_err("it is elsewhere").to_string();
        assert!(error.contains("/opt/local/lib/libz.dylib"), "{error}");
    }
}
