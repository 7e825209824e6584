//! How much memory the machine has, has left, and this process has used at most. Where a system does not say, the
//! answer is `None`.
#![allow(unsafe_code)]

/// The most memory that this process has had resident, mapped files included.
pub fn peak_bytes() -> Option<u64> {
    if let Some(bytes) = kibibytes("/proc/self/status", "VmHWM:") {
        return Some(bytes);
    }
    usage_bytes()
}

/// All memory of the machine.
pub fn total_bytes() -> Option<u64> {
    kibibytes("/proc/meminfo", "MemTotal:").or_else(physical_bytes)
}

/// What can be allocated without pushing others out; on Linux only.
pub fn available_bytes() -> Option<u64> {
    let machine = kibibytes("/proc/meminfo", "MemAvailable:")?;
    Some(group_bytes().map_or(machine, |group| group.min(machine)))
}

/// The part of what is available that a cache may take; the rest is for activations and for others.
pub fn cache_bytes() -> Option<u64> {
    const SHARE: f64 = 0.8;
    available_bytes().map(|bytes| (bytes as f64 * SHARE) as u64)
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

/// The number behind `key` in a file of lines like `VmHWM:   1234 kB`.
fn kibibytes(file: &str, key: &str) -> Option<u64> {
    let text = std::fs::read_to_string(file).ok()?;
    let rest = text.lines().find_map(|line| line.strip_prefix(key))?;
    rest.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

#[cfg(unix)]
fn usage_bytes() -> Option<u64> {
    // Apple's systems count bytes, all others kibibytes.
    let unit = if cfg!(target_vendor = "apple") { 1 } else { 1024 };
    // SAFETY: a zeroed rusage is valid, and the call only writes to it.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        (libc::getrusage(libc::RUSAGE_SELF, &mut usage) == 0).then_some(usage)
    };
    u64::try_from(usage?.ru_maxrss).ok()?.checked_mul(unit)
}

#[cfg(unix)]
fn physical_bytes() -> Option<u64> {
    // SAFETY: the call has no preconditions.
    let ask = |name| u64::try_from(unsafe { libc::sysconf(name) }).ok();
    ask(libc::_SC_PHYS_PAGES)?.checked_mul(ask(libc::_SC_PAGESIZE)?)
}

#[cfg(not(unix))]
fn usage_bytes() -> Option<u64> {
    None
}

#[cfg(not(unix))]
fn physical_bytes() -> Option<u64> {
    None
}

#[cfg(test)]
mod tests {
    #[cfg(target_os = "linux")]
    #[test]
    fn two_sources_agree_on_memory() {
        use super::{available_bytes, peak_bytes, physical_bytes, total_bytes, usage_bytes};
        let total = total_bytes().unwrap();
        assert!(total.abs_diff(physical_bytes().unwrap()) < total / 4);
        assert!(available_bytes().unwrap() <= total);
        // The usage counts what the process was before it became this program, too.
        let ours = vec![1u8; 50 << 20].iter().map(|&b| u64::from(b)).sum::<u64>();
        assert!((ours..=usage_bytes().unwrap()).contains(&peak_bytes().unwrap()));
    }
}
