//! What can be seen of a program or library for macOS without a Mac: that it is for ARM, which libraries it asks for, that
//! its signature is of its bytes, since macOS ends a program on ARM whose pages are not as they were signed, and that names
//! it looks up are in the library that has them.

use std::collections::BTreeSet;

use anyhow::{Context as _, Result, ensure};

use super::digest;

/// The magic number of 64-bit Mach-O, and ARM's number for processors.
const HEADER: [u8; 8] = [0xcf, 0xfa, 0xed, 0xfe, 0x0c, 0, 0, 1];
const COMMANDS_AT: usize = 32;
const LOAD_LIBRARY: u32 = 0xc;
const SYMBOLS: u32 = 0x2;
const SIGNATURE: u32 = 0x1d;
const SUPER_BLOB: u32 = 0xfade_0cc0;
const CODE_DIRECTORY: u32 = 0xfade_0c02;
/// Digests of SHA-256.
const HASH_TYPE: u8 = 2;
const HASH_BYTES: usize = 32;

/// A symbol's size, and in its type: that others see it, that only this file does, and whether it is defined in a section.
const SYMBOL_BYTES: usize = 16;
const EXTERNAL: u8 = 0x01;
const PRIVATE: u8 = 0x10;
const PLACE: u8 = 0x0e;
const IN_SECTION: u8 = 0x0e;
/// The library of a symbol that is looked up in everything that is loaded: Apple's number, and what Zig writes here (what the
/// loader reads has Apple's).
const LOOKED_UP: [u8; 2] = [0xfe, 0];

/// Libraries outside these folders are not on every Mac.
const SYSTEM: [&str; 2] = ["/usr/lib/", "/System/Library/Frameworks/"];

/// Checks a program; returns how many pages its signature covers.
pub(crate) fn check(program: &[u8]) -> Result<usize> {
    let mut pages = None;
    for (kind, command) in commands(program)? {
        match kind {
            LOAD_LIBRARY => check_library(command)?,
            SIGNATURE => pages = Some(check_signature(program, little(command, 8)? as usize)?),
            _ => {}
        }
    }
    pages.context("it is not signed, and macOS on ARM runs nothing unsigned")
}

/// The load commands, by their numbers.
fn commands(file: &[u8]) -> Result<Vec<(u32, &[u8])>> {
    ensure!(file.starts_with(&HEADER), "this is nothing for macOS on ARM");
    let mut at = COMMANDS_AT;
    let mut command = |_| {
        let (kind, size) = (little(file, at)?, little(file, at + 4)? as usize);
        ensure!(size >= 8, "a command of no size at {at}");
        let command = file.get(at..at + size).context("a command ends behind the file")?;
        at += size;
        Ok((kind, command))
    };
    (0..little(file, 16)?).map(&mut command).collect()
}

/// Checks that a library exports every name that a shim leaves to be looked up; returns how many those are.
pub(crate) fn check_looked_up(shim: &[u8], library: &[u8]) -> Result<usize> {
    let exported: BTreeSet<_> =
        symbols(library)?.into_iter().filter(Symbol::is_exported).map(|s| s.name).collect();
    let wanted: Vec<_> = symbols(shim)?.into_iter().filter(Symbol::is_looked_up).collect();
    ensure!(!wanted.is_empty(), "it wants nothing of the library, which cannot be");
    for Symbol { name, .. } in &wanted {
        let name = String::from_utf8_lossy(name);
        ensure!(
            exported.contains(name.as_bytes()),
            "it wants {name}, which neither the library nor a stub of the system's has"
        );
    }
    Ok(wanted.len())
}

struct Symbol<'a> {
    name: &'a [u8],
    kind: u8,
    library: u8,
}

impl Symbol<'_> {
    fn is_exported(&self) -> bool {
        self.kind & (EXTERNAL | PRIVATE | PLACE) == EXTERNAL | IN_SECTION
    }

    fn is_looked_up(&self) -> bool {
        self.kind & (EXTERNAL | PLACE) == EXTERNAL && LOOKED_UP.contains(&self.library)
    }
}

/// The table of symbols.
fn symbols(file: &[u8]) -> Result<Vec<Symbol<'_>>> {
    let (_, table) = commands(file)?
        .into_iter()
        .find(|(kind, _)| *kind == SYMBOLS)
        .context("it has no table of symbols")?;
    let word = |at| little(table, at).map(|word| word as usize);
    let (first, count, names) = (word(8)?, word(12)?, word(16)?);
    let symbol = |index: usize| {
        let at = first + index * SYMBOL_BYTES;
        let entry = file.get(at..at + SYMBOL_BYTES).context("the table of symbols is cut")?;
        let name = file.get(names + little(entry, 0)? as usize..).context("a name is behind the file")?;
        let name = name.split(|byte| *byte == 0).next().unwrap_or_default();
        Ok(Symbol { name, kind: entry[4], library: entry[7] })
    };
    (0..count).map(symbol).collect()
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
    /// A file with nothing but symbols: name, type, description.
    fn with_symbols(symbols: &[(&str, u8, u16)]) -> Vec<u8> {
        let (mut table, mut names) = (Vec::new(), vec![0]);
        for (name, kind, description) in symbols {
            table.extend((names.len() as u32).to_le_bytes());
            table.extend([*kind, 0]);
            table.extend(description.to_le_bytes());
            table.extend([0; 8]);
            names.extend(name.bytes().chain([0]));
        }
        let mut bytes = HEADER.to_vec();
        let (first, count) = (56, symbols.len() as u32);
        for word in
            [0, 6, 1, 24, 0, 0, SYMBOLS, 24, first, count, first + table.len() as u32, names.len() as u32]
        {
            bytes.extend(word.to_le_bytes());
        }
        bytes.extend(table);
        bytes.extend(names);
        bytes
    }

    #[test]
    fn every_name_that_is_looked_up_must_be_exported_by_the_library() {
        // Types and descriptions as in the wheel and in what Zig links: 0x0f is defined and external, 0x1f private.
        let library = with_symbols(&[("_array", 0x0f, 0), ("_hidden", 0x1f, 0), ("_malloc", 0x01, 0x0200)]);
        let shim = |name, description| {
            with_symbols(&[("_malloc", 0x01, 0x0200), ("_entry", 0x0f, 0), (name, 0x01, description)])
        };
        for description in [0, 0xfe00] {
            assert_eq!(check_looked_up(&shim("_array", description), &library).expect("it is there"), 1);
            for absent in ["_hidden", "_malloc", "_other"] {
                let error =
                    check_looked_up(&shim(absent, description), &library).expect_err("it is not there");
                assert!(error.to_string().contains(absent), "{error}");
            }
        }
        assert!(check_looked_up(&shim("_array", 0x0100), &library).is_err(), "it wants nothing");
        let whole = shim("_array", 0);
        for end in 0..whole.len() - 1 {
            assert!(check_looked_up(&whole[..end], &library).is_err(), "cut at {end}");
        }
    }
}
