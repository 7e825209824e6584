//! What the tests share: a machine with an empty cache and a hub.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
    time::Duration,
};

use crate::server::{Repository, Server};
use mlxcel_hub::{Error, Event, Hub, Patience, Request, Settings, Token};
use tempfile::TempDir;

pub(crate) const TOKEN: &str = "hf_secret";

/// A cache of its own.
pub(crate) struct Machine {
    pub(crate) root: TempDir,
}

impl Machine {
    pub(crate) fn new() -> Self {
        Self { root: TempDir::new().unwrap() }
    }

    pub(crate) fn at(&self, path: &str) -> PathBuf {
        self.root.path().join(path)
    }

    pub(crate) fn cache(&self) -> PathBuf {
        self.at("cache")
    }

    /// Settings that know one hub and nothing else, and that are quick to try again.
    pub(crate) fn settings(&self, endpoint: &str) -> Settings {
        Settings {
            endpoint: endpoint.to_owned(),
            token: Some(Token::new(TOKEN)),
            hf_cache: Some(self.at("hf")),
            path: Some("".into()),
            patience: Patience {
                attempts: 3,
                wait: Duration::from_millis(1),
                wait_max: Duration::from_secs(2),
            },
            ..Settings::at(self.cache())
        }
    }

    pub(crate) fn hub(&self, server: &Server) -> Hub {
        self.hub_at(&server.address)
    }

    pub(crate) fn hub_at(&self, endpoint: &str) -> Hub {
        Hub::new(self.settings(endpoint), |_: Event<'_>| {})
    }

    pub(crate) fn offline(&self) -> Hub {
        Hub::new(Settings { offline: true, ..self.settings("http://127.0.0.1:9") }, |_: Event<'_>| {})
    }

    /// A hub, and what it tells.
    pub(crate) fn hub_heard(&self, server: &Server) -> (Hub, Arc<Mutex<Vec<String>>>) {
        let heard = Arc::new(Mutex::new(Vec::new()));
        let log = Arc::clone(&heard);
        let hear = move |event: Event<'_>| log.lock().unwrap().push(format!("{event:?}"));
        (Hub::new(self.settings(&server.address), hear), heard)
    }

    /// The files of the cache that are published, without records.
    pub(crate) fn published(&self) -> Vec<String> {
        let mut files = files(&self.cache().join("models"));
        files.retain(|path| path.contains("/snapshots/") && path.matches('/').count() > 2);
        files
    }

    pub(crate) fn staged(&self) -> Vec<String> {
        files(&self.cache().join("staging"))
    }
}

pub(crate) fn download(hub: &Hub, spec: &str) -> Result<PathBuf, Error> {
    hub.download(spec, &Request::default())
}

/// Every file of the repository that is in the folder is the same there.
pub(crate) fn assert_same(folder: &Path, repository: &Repository, expected: &[&str]) {
    let mut there = files(folder);
    there.sort();
    assert_eq!(there, expected);
    for path in there {
        assert!(fs::read(folder.join(&path)).unwrap() == repository.bytes(&path), "{path} differs");
    }
}

/// All files below a folder, relative to it.
pub(crate) fn files(folder: &Path) -> Vec<String> {
    let mut found = Vec::new();
    let mut open = vec![folder.to_owned()];
    while let Some(next) = open.pop() {
        for entry in fs::read_dir(next).into_iter().flatten().flatten() {
            let path = entry.path();
            if path.is_dir() {
                open.push(path);
            } else {
                found.push(path.strip_prefix(folder).unwrap().to_str().unwrap().replace('\\', "/"));
            }
        }
    }
    found.sort();
    found
}
