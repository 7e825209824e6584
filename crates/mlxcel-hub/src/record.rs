//! What lies beside a folder in the cache and says what it is.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use crate::name::{HubName, PackageName};

/// A kept model: where it came from, when, and what of it a program opens.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct Record {
    /// `OWNER/NAME` or `pypi:NAME`.
    pub(crate) id: String,
    /// The branch, tag, commit or version, if one was asked for.
    pub(crate) revision: Option<String>,
    /// The commit or version that it is.
    pub(crate) commit: String,
    /// The quantisation or file, where there are several.
    pub(crate) pattern: Option<String>,
    /// The path below the folder that a program opens; empty for the folder itself.
    pub(crate) model: String,
    pub(crate) bytes: u64,
    /// In seconds since 1970.
    fetched: u64,
}

impl Record {
    pub(crate) fn new(name: HubName, commit: &str, model: &str, sizes: impl Iterator<Item = u64>) -> Self {
        Self {
            id: name.id(),
            revision: name.revision,
            commit: commit.to_owned(),
            pattern: name.pattern,
            model: model.to_owned(),
            bytes: sizes.fold(0, u64::saturating_add),
            fetched: now(),
        }
    }

    pub(crate) fn of_package(name: &PackageName, version: &str, model: &str, bytes: u64) -> Self {
        Self {
            id: format!("pypi:{}", name.name),
            revision: name.version.clone(),
            commit: version.to_owned(),
            pattern: None,
            model: model.to_owned(),
            bytes,
            fetched: now(),
        }
    }

    pub(crate) fn fetched(&self) -> SystemTime {
        UNIX_EPOCH.checked_add(Duration::from_secs(self.fetched)).unwrap_or(UNIX_EPOCH)
    }

    /// What a person writes to have it.
    pub(crate) fn name(&self) -> String {
        if self.id.starts_with("pypi:") {
            return format!("{}=={}", self.id, self.commit);
        }
        let revision = self.revision.as_ref().map(|revision| format!("@{revision}")).unwrap_or_default();
        let pattern = self.pattern.as_ref().map(|pattern| format!(":{pattern}")).unwrap_or_default();
        format!("{}{revision}{pattern}", self.id)
    }
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
