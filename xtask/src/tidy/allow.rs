//! The allowlist: what may be larger than the rules say, and why.
//!
//! An entry without a reason, or one that nothing needs any more, is itself a finding.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
    sync::Mutex,
};

use anyhow::{Context as _, Result};
use serde::Deserialize;

use super::Finding;

/// Where the allowlist lies.
pub(crate) const PATH: &str = "xtask/tidy-allow.toml";

/// The parsed allowlist, which remembers what was asked of it.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Allow {
    /// Files by path.
    #[serde(default)]
    files: BTreeMap<String, String>,
    /// Functions as `path::name`.
    #[serde(default)]
    functions: BTreeMap<String, String>,
    #[serde(skip)]
    used: Mutex<BTreeSet<String>>,
}

impl Allow {
    pub(crate) fn load(path: &Path) -> Result<Self> {
        let text = fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
        Self::parse(&text)
    }

    pub(crate) fn parse(text: &str) -> Result<Self> {
        toml::from_str(text).with_context(|| format!("cannot parse {PATH}"))
    }

    /// Whether a file that is too large may stay so.
    pub(crate) fn file(&self, path: &str) -> bool {
        self.has(&self.files, path.to_owned())
    }

    /// Whether a function that is too long may stay so.
    pub(crate) fn function(&self, path: &str, name: &str) -> bool {
        self.has(&self.functions, format!("{path}::{name}"))
    }

    /// Entries that no file or function needed, and entries that give no reason.
    pub(crate) fn unused(&self) -> Vec<Finding> {
        let used = self.used.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let entries = self.files.iter().chain(&self.functions);
        let finding = |message: String| Finding { path: PATH.to_owned(), line: 0, message };
        entries
            .filter_map(|(entry, reason)| match (used.contains(entry), reason.trim().is_empty()) {
                (false, _) => Some(finding(format!("nothing needs the entry '{entry}'"))),
                (true, true) => Some(finding(format!("the entry '{entry}' gives no reason"))),
                (true, false) => None,
            })
            .collect()
    }

    fn has(&self, entries: &BTreeMap<String, String>, entry: String) -> bool {
        let found = entries.contains_key(&entry);
        if found {
            self.used.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).insert(entry);
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_that_nothing_needs_or_that_give_no_reason_are_findings() {
        let allow =
            Allow::parse("[files]\n'a.rs' = 'a table'\n'b.rs' = ''\n[functions]\n'c.rs::f' = 'x'\n").unwrap();
        assert!(
            allow.file("a.rs") && allow.file("b.rs") && !allow.file("c.rs") && !allow.function("a.rs", "f")
        );
        let said: Vec<_> = allow.unused().into_iter().map(|finding| finding.message).collect();
        assert_eq!(said, ["the entry 'b.rs' gives no reason", "nothing needs the entry 'c.rs::f'"]);
    }
}
