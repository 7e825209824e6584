//! Names for requests and answers that do not repeat: random, since several servers may stand side by side.

use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// A new name that begins with `prefix`.
pub fn new(prefix: &str) -> String {
    format!("{prefix}{:016x}{:08x}", random(), random() as u32)
}

/// A number that nobody foresees: every state of the standard hasher is keyed by the system's randomness.
pub fn random() -> u64 {
    static STATE: OnceLock<RandomState> = OnceLock::new();
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let mut hasher = STATE.get_or_init(RandomState::new).build_hasher();
    hasher.write_u64(COUNT.fetch_add(1, Ordering::Relaxed));
    hasher.finish()
}

#[cfg(test)]
mod tests {
    #[test]
    fn names_do_not_repeat() {
        let names: std::collections::BTreeSet<String> = (0..1000).map(|_| super::new("x_")).collect();
        assert_eq!(names.len(), 1000);
        assert!(names.iter().all(|name| name.len() == 26));
    }
}
