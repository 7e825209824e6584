//! How much memory the machine has, has left, and this process has used at most. Where a system does not say, the
//! answer is `None`.
#![allow(unsafe_code)]

/// The most memory that this process has had resident, mapped files included.
pub fn peak_bytes() -> Option<u64> {
    kibibytes("/proc/self/status", "VmHWM:").or_else(system::peak_bytes)
}

/// All memory of the machine.
pub fn total_bytes() -> Option<u64> {
    kibibytes("/proc/meminfo", "MemTotal:").or_else(system::total_bytes)
}

/// What can be allocated without pushing others out; on Linux and Windows.
pub fn available_bytes() -> Option<u64> {
    let machine = kibibytes("/proc/meminfo", "MemAvailable:").or_else(system::available_bytes)?;
    Some(group_bytes().map_or(machine, |group| group.min(machine)))
}

/// What is left of the control group's limit, where it has one. Cached files count as left.
fn group_bytes() -> Option<u64> {
    let read = |name: &str| std::fs::read_to_string(format!("/sys/fs/cgroup/{name}")).ok();
    let limit: u64 = read("memory.max")?.trim().parse().ok()?;
    let used: u64 = read("memory.current")?.trim().parse().ok()?;
    let statistics = read("memory.stat")?;
    let cached = statistics.lines().find_map(|line| line.strip_prefix("file ")?.parse().ok()).unwrap_or(0);
    Some(limit.saturating_sub(used.saturating_sub(cached)))
}

/// The number behind `key` in a file of lines like `VmHWM:   1234 kB`, which only Linux has.
fn kibibytes(file: &str, key: &str) -> Option<u64> {
    if !cfg!(target_os = "linux") {
        return None;
    }
    let text = std::fs::read_to_string(file).ok()?;
    let rest = text.lines().find_map(|line| line.strip_prefix(key))?;
    rest.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

#[cfg(unix)]
mod system {
    pub(super) fn peak_bytes() -> Option<u64> {
        // Apple's systems count bytes, all others kibibytes.
        let unit = if cfg!(target_vendor = "apple") { 1 } else { 1024 };
        // SAFETY: a zeroed rusage is valid, and the call only writes to it.
        let usage = unsafe {
            let mut usage: libc::rusage = std::mem::zeroed();
            (libc::getrusage(libc::RUSAGE_SELF, &mut usage) == 0).then_some(usage)
        };
        u64::try_from(usage?.ru_maxrss).ok()?.checked_mul(unit)
    }

    pub(super) fn total_bytes() -> Option<u64> {
        // SAFETY: the call has no preconditions.
        let ask = |name| u64::try_from(unsafe { libc::sysconf(name) }).ok();
        ask(libc::_SC_PHYS_PAGES)?.checked_mul(ask(libc::_SC_PAGESIZE)?)
    }

    pub(super) fn available_bytes() -> Option<u64> {
        None
    }
}

#[cfg(windows)]
mod system {
    use windows_sys::Win32::System::ProcessStatus::{K32GetProcessMemoryInfo, PROCESS_MEMORY_COUNTERS};
    use windows_sys::Win32::System::SystemInformation::{GlobalMemoryStatusEx, MEMORYSTATUSEX};
    use windows_sys::Win32::System::Threading::GetCurrentProcess;

    pub(super) fn peak_bytes() -> Option<u64> {
        const SIZE: u32 = size_of::<PROCESS_MEMORY_COUNTERS>() as u32;
        let mut counters = PROCESS_MEMORY_COUNTERS { cb: SIZE, ..PROCESS_MEMORY_COUNTERS::default() };
        // SAFETY: the handle is this process's, and the call writes no more than the size that it is told.
        let is_told = unsafe { K32GetProcessMemoryInfo(GetCurrentProcess(), &mut counters, SIZE) } != 0;
        is_told.then_some(counters.PeakWorkingSetSize as u64)
    }

    pub(super) fn total_bytes() -> Option<u64> {
        status().map(|status| status.ullTotalPhys)
    }

    pub(super) fn available_bytes() -> Option<u64> {
        status().map(|status| status.ullAvailPhys)
    }

    fn status() -> Option<MEMORYSTATUSEX> {
        const SIZE: u32 = size_of::<MEMORYSTATUSEX>() as u32;
        let mut status = MEMORYSTATUSEX { dwLength: SIZE, ..MEMORYSTATUSEX::default() };
        // SAFETY: the structure says its own size, and the call only writes to it.
        let is_told = unsafe { GlobalMemoryStatusEx(&mut status) } != 0;
        is_told.then_some(status)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(target_os = "linux")]
    #[test]
    fn two_sources_agree_on_memory() {
        let total = total_bytes().unwrap();
        assert!(total.abs_diff(system::total_bytes().unwrap()) < total / 4);
        assert!(available_bytes().unwrap() <= total);
        // The usage counts what the process was before it became this program, too.
        let ours = vec![1u8; 50 << 20].iter().map(|&b| u64::from(b)).sum::<u64>();
        assert!((ours..=system::peak_bytes().unwrap()).contains(&peak_bytes().unwrap()));
    }

    #[test]
    fn every_system_says_what_it_has_and_what_this_process_took() {
        let ours = vec![1u8; 50 << 20].iter().map(|&b| u64::from(b)).sum::<u64>();
        let (total, peak) = (total_bytes().unwrap(), peak_bytes().unwrap());
        assert!(ours <= peak && peak < total, "{ours} {peak} {total}");
    }
}
