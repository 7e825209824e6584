//! Reading Hugging Face's own cache: `models--OWNER--NAME/refs/REVISION` names a commit, and `snapshots/COMMIT` holds
//! links to its files. Nothing is ever written there.
//!
//! That cache has no list of what a snapshot should hold, so whether one is whole is told from names: weights with
//! all their parts, a configuration, a tokenizer.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    time::SystemTime,
};

use serde_json::Value;

use crate::{
    listing::{Listed, Listing},
    name::{HubName, is_commit},
    paths,
    select::{self, Wanted},
};

const INDEX_BYTES_MAX: u64 = 64 << 20;
const FILES_MAX: usize = 10_000;

/// A model there that is whole.
pub(crate) struct Snapshot {
    pub(crate) name: HubName,
    pub(crate) commit: String,
    pub(crate) path: PathBuf,
    pub(crate) bytes: u64,
    pub(crate) modified: Option<SystemTime>,
}

/// The path of the model, if its revision is known and whole.
pub(crate) fn find(root: &Path, model: &HubName, wanted: &Wanted<'_>) -> Option<PathBuf> {
    let folder = root.join(format!("models--{}", model.folder()));
    let revision = model.revision();
    let commit = if is_commit(revision) {
        revision.to_ascii_lowercase()
    } else {
        fs::read_to_string(paths::join(&folder.join("refs"), revision)).ok()?.trim().to_owned()
    };
    let folder = commit_folder(root, model, Some(commit.as_str()).filter(|commit| is_commit(commit))?);
    Some(whole(&folder, wanted)?.0)
}

/// Where the files of a commit are, if they are there.
pub(crate) fn commit_folder(root: &Path, model: &HubName, commit: &str) -> PathBuf {
    root.join(format!("models--{}", model.folder())).join("snapshots").join(commit)
}

/// Every whole model.
pub(crate) fn all(root: &Path) -> Vec<Snapshot> {
    let mut found = Vec::new();
    for folder in names(root) {
        let id = folder.strip_prefix("models--").and_then(|rest| rest.split_once("--"));
        let name = id.and_then(|(owner, name)| HubName::parse(&format!("{owner}/{name}")).ok());
        let Some(name) = name else { continue };
        for commit in names(&root.join(&folder).join("snapshots")) {
            let place = commit_folder(root, &name, &commit);
            if let Some((path, bytes)) = whole(&place, &Wanted::default()) {
                let modified = fs::metadata(&place).and_then(|data| data.modified()).ok();
                found.push(Snapshot { name: name.clone(), commit, path, bytes, modified });
            }
        }
    }
    found
}

/// What a program opens in a snapshot's folder, and the size of all that belongs to it; `None` if something is missing.
fn whole(folder: &Path, wanted: &Wanted<'_>) -> Option<(PathBuf, u64)> {
    let mut files = Vec::new();
    collect(folder, "", &mut files);
    let listing = Listing { commit: String::new(), files };
    let chosen = select::choose(&listing, wanted);
    let has_free_choice = !wanted.include.is_empty() || !wanted.exclude.is_empty();
    if has_free_choice || !select::has_all_parts(&chosen) {
        return None;
    }
    let bytes = chosen.iter().map(|file| file.size).sum();
    if let Some(entry) = select::entry(chosen.iter().map(|file| file.path.as_str())) {
        return Some((paths::join(folder, entry), bytes));
    }
    let has = |path: &str| chosen.iter().any(|file| file.path == path);
    let is_tokenizer = |path: &str| {
        ["tokenizer", "vocab", "spiece"].iter().any(|start| path.starts_with(start))
            || path.ends_with(".tiktoken")
    };
    let has_tokenizer = chosen.iter().any(|file| is_tokenizer(&file.path));
    let has_shards = shards(&folder.join("model.safetensors.index.json")).iter().all(|shard| has(shard));
    (has_tokenizer && has_shards).then(|| (folder.to_owned(), bytes))
}

/// The files that an index of weights names; none if there is no index.
fn shards(index: &Path) -> BTreeSet<String> {
    let is_small = fs::metadata(index).is_ok_and(|data| data.len() <= INDEX_BYTES_MAX);
    let text = if is_small { fs::read(index).unwrap_or_default() } else { Vec::new() };
    let value: Value = serde_json::from_slice(&text).unwrap_or_default();
    let map = value.get("weight_map").and_then(Value::as_object);
    map.into_iter().flat_map(|map| map.values()).filter_map(Value::as_str).map(str::to_owned).collect()
}

/// The files below a folder, at most two levels deep, with the sizes of what they link to.
fn collect(folder: &Path, prefix: &str, files: &mut Vec<Listed>) {
    for name in names(folder) {
        let path = format!("{prefix}{name}");
        match fs::metadata(folder.join(&name)) {
            Ok(data) if data.is_file() && files.len() < FILES_MAX => {
                files.push(Listed { path, size: data.len(), digest: None });
            }
            Ok(data) if data.is_dir() && prefix.matches('/').count() < 2 => {
                collect(&folder.join(&name), &format!("{path}/"), files);
            }
            _ => {}
        }
    }
}

/// The names in a folder that could be ours, in order. A folder that cannot be read has none.
fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    let mut names: Vec<String> = names.filter(|name| paths::is_part(name)).collect();
    names.sort();
    names
}
