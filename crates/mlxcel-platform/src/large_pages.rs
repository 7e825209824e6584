//! Memory in large pages, so that a stream of reads meets fewer page tables: asking for them, and finding out whether they are
//! given.
#![allow(unsafe_code)]

use std::fs::File;

/// Bytes of a large page, and what one begins at a multiple of.
pub const SIZE: usize = 2 << 20;

/// Asks the system for large pages under this memory, which may be uninitialised or a mapped file. It may decline; elsewhere
/// than on Linux nothing is asked.
#[cfg(target_os = "linux")]
pub fn prefer(start: *const u8, len: usize) {
    let first = start.addr().next_multiple_of(SIZE);
    let end = (start.addr() + len) / SIZE * SIZE;
    if first < end {
        // SAFETY: the advice changes no contents, whatever lies there, and an address that is not mapped is refused.
        unsafe { libc::madvise(std::ptr::without_provenance_mut(first), end - first, libc::MADV_HUGEPAGE) };
    }
}

#[cfg(not(target_os = "linux"))]
pub fn prefer(_start: *const u8, _len: usize) {}

/// Whether memory of no file gets large pages if they are asked for.
pub fn are_given() -> bool {
    const FOLDER: &str = "/sys/kernel/mm/transparent_hugepage";
    let chosen = |file: &str| {
        let text = std::fs::read_to_string(format!("{FOLDER}/{file}")).ok()?;
        let (_, rest) = text.split_once('[')?;
        rest.split_once(']').map(|(word, _)| word.to_string())
    };
    let own = chosen("hugepages-2048kB/enabled").filter(|word| word != "inherit");
    own.or_else(|| chosen("enabled")).is_some_and(|word| word != "never")
}

/// Bytes that lie in large pages of those that were read so far of the mapped file whose mapping has this address.
pub fn of_mapped_file(address: *const u8) -> usize {
    let text = if cfg!(target_os = "linux") {
        std::fs::read_to_string("/proc/self/smaps").unwrap_or_default()
    } else {
        String::new()
    };
    of_file_in(&text, address.addr())
}

/// The same in the text of `smaps`: a line with the range of a mapping, then lines with what it has.
fn of_file_in(text: &str, address: usize) -> usize {
    let range = |line: &str| {
        let (start, end) = line.split_once(' ')?.0.split_once('-')?;
        Some(usize::from_str_radix(start, 16).ok()?..usize::from_str_radix(end, 16).ok()?)
    };
    let is_there = |line: &&str| range(line).is_some_and(|range| range.contains(&address));
    let lines = text.lines().skip_while(|line| !is_there(line)).skip(1);
    let mut lines = lines.take_while(|line| range(line).is_none());
    let found = lines.find_map(|line| line.strip_prefix("FilePmdMapped:")?.trim().strip_suffix(" kB"));
    found.and_then(|kibibytes| kibibytes.trim().parse::<usize>().ok()).map_or(0, |n| n << 10)
}

/// Lets the system forget what it has in memory of a file that nobody maps and that is on the disk, so that it is read anew, in
/// pages as large as are asked for then.
#[cfg(target_os = "linux")]
pub fn forget(file: &File) {
    use std::os::fd::AsRawFd as _;
    // SAFETY: the advice changes no contents, and the file is open.
    unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) };
}

#[cfg(not(target_os = "linux"))]
pub fn forget(_file: &File) {}

#[cfg(test)]
mod tests {
    use super::*;

    const SMAPS: &str = "\
7f0000000000-7f0000400000 r--s 00200000 fe:00 77 /packed
Size:               4096 kB
FilePmdMapped:      2048 kB
VmFlags: rd mr me ms
7f0000400000-7f0000800000 rw-p 00000000 00:00 0
Size:               4096 kB
AnonHugePages:      4096 kB
FilePmdMapped:         0 kB
7f0000900000-7f0000a00000 r--s 00000000 fe:00 78 /other
FilePmdMapped:        64 kB
";

    #[test]
    fn a_mappings_large_pages_are_those_of_its_own_lines() {
        let of = |address| of_file_in(SMAPS, address);
        assert_eq!(of(0x7f00_0000_0000), 2 << 20);
        assert_eq!(of(0x7f00_003f_ffff), 2 << 20);
        assert_eq!(of(0x7f00_0040_0000), 0);
        assert_eq!(of(0x7f00_0090_0000), 64 << 10);
        assert_eq!(of(0x7f00_0080_0000), 0, "nothing is mapped there");
        assert_eq!(of_file_in("", 0), 0);
    }
}
