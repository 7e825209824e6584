//! How many threads are worth having: the cores that this process may use, each counted once however many threads the
//! hardware runs on it, since two threads of one core share its arithmetic. Where the system does not tell cores
//! from threads, what it offers is taken.

use std::collections::BTreeSet;
use std::fs::read_to_string;

/// Never 0. Affinity and the limits of control groups are respected.
pub(super) fn usable() -> usize {
    let offered = std::thread::available_parallelism().map_or(1, |n| n.get());
    let status = read_to_string("/proc/self/status").unwrap_or_default();
    let siblings = |cpu: usize| {
        read_to_string(format!("/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")).ok()
    };
    distinct(&status, siblings).map_or(offered, |cores| offered.min(cores))
}

/// The cores behind the processors that `status` allows; `None` if either is not told.
fn distinct(status: &str, siblings: impl Fn(usize) -> Option<String>) -> Option<usize> {
    let allowed = status.lines().find_map(|l| l.strip_prefix("Cpus_allowed_list:"))?;
    // A core is known by its first processor.
    let cores = list(allowed)?.into_iter().map(|cpu| list(&siblings(cpu)?)?.into_iter().next());
    let cores = cores.collect::<Option<BTreeSet<usize>>>()?;
    (!cores.is_empty()).then_some(cores.len())
}

/// The numbers of a list such as `0-3,8`.
fn list(text: &str) -> Option<Vec<usize>> {
    /// More processors than any machine has: a list beyond it is not a list of processors.
    const MAX: usize = 1 << 16;
    let mut numbers = vec![];
    for range in text.trim().split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
        if last >= MAX {
            return None;
        }
        numbers.extend(first..=last);
    }
    Some(numbers)
}

#[cfg(test)]
mod tests {
    use super::*;

    const STATUS: &str = "Name:\tx\nCpus_allowed:\tf\nCpus_allowed_list:\t0-2,5\nMems_allowed:\t1\n";

    #[test]
    fn two_threads_of_one_core_count_once() {
        // Processors 0 and 4, 1 and 5, 2 and 6 share a core each.
        let siblings = |cpu: usize| Some(format!("{},{}\n", cpu % 4, cpu % 4 + 4));
        assert_eq!(distinct(STATUS, siblings), Some(3));
        assert_eq!(distinct(STATUS, |cpu| Some(format!("{cpu}\n"))), Some(4));
    }

    #[test]
    fn what_the_system_does_not_tell_is_not_guessed() {
        assert_eq!(distinct("", |_| Some("0".to_string())), None);
        assert_eq!(distinct(STATUS, |_| None), None);
        for text in ["", "a", "3-", "0-99999999999", "1,,2"] {
            assert_eq!(list(text), None, "{text:?}");
        }
    }
}
