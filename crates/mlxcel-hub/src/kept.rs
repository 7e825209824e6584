//! What is kept on this machine, and removing it again. Nothing outside of the cache is ever removed.

use std::{
    fs,
    path::{Path, PathBuf},
    time::SystemTime,
};

use crate::{
    ALIASES, Error, Hub, Pinned, Result,
    cache::{key, remove},
    hf_cache,
    name::{HubName, Name},
    record::Record,
};

/// Whose folder a model is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// This program's cache.
    Cache,
    /// Hugging Face's cache, which is only read.
    HuggingFace,
}

/// A model on this machine, or a part of one.
#[derive(Clone, Debug)]
pub struct Kept {
    /// What to write to have it.
    pub name: String,
    /// The commit or version it is.
    pub commit: String,
    /// What a program opens; for a part of a model, where the part is.
    pub path: PathBuf,
    pub place: Place,
    pub is_whole: bool,
    /// With what engines packed of it.
    pub bytes: u64,
    pub fetched: Option<SystemTime>,
    id: String,
    revision: Option<String>,
    pattern: Option<String>,
    /// What is removed, and under which lock.
    folder: PathBuf,
    lock_key: String,
}

impl Hub {
    /// Every model on this machine that has a name, in the order of names.
    pub fn kept(&self) -> Vec<Kept> {
        let mut all = self.kept_aliases();
        all.extend(self.kept_records());
        all.extend(self.kept_parts());
        all.extend(self.settings.hf_cache.iter().flat_map(|root| hf_cache::all(root)).map(Kept::elsewhere));
        for kept in &mut all {
            kept.bytes += self.packed_of(&kept.path).iter().map(|folder| size_of(folder)).sum::<u64>();
        }
        all.sort_by(|a, b| (&a.name, &a.commit).cmp(&(&b.name, &b.commit)));
        all
    }

    /// What `spec` names among what is kept, all revisions and choices of files if it names none.
    pub fn kept_as(&self, spec: &str) -> Result<Vec<Kept>> {
        let name = Name::parse(spec)?;
        let mut found = self.kept();
        match &name {
            Name::Path => return Err(Error::NotOurs { spec: spec.to_owned(), path: spec.into() }),
            Name::Alias(alias, _) => found.retain(|kept| kept.id == *alias),
            Name::Package(package) => found.retain(|kept| {
                kept.id == format!("pypi:{}", package.name)
                    && package.version.as_ref().is_none_or(|version| *version == kept.commit)
            }),
            Name::Hub(model) => found.retain(|kept| kept.is_of(model)),
        }
        if let (Some(kept), true) = (found.first(), found.iter().all(|kept| kept.place != Place::Cache)) {
            return Err(Error::NotOurs { spec: spec.to_owned(), path: kept.path.clone() });
        }
        found.retain(|kept| kept.place == Place::Cache);
        if found.is_empty() { Err(Error::NotKept { spec: spec.to_owned() }) } else { Ok(found) }
    }

    /// Removes a model from the cache. Who is just fetching it is waited for.
    pub fn remove(&self, kept: &Kept) -> Result<()> {
        if kept.place != Place::Cache || !self.is_ours(&kept.folder) {
            return Err(Error::NotOurs { spec: kept.name.clone(), path: kept.folder.clone() });
        }
        // Named after the files, so they are found before those are gone.
        let packed = self.packed_of(&kept.folder);
        let claim = self.cache.claim(&kept.lock_key, &kept.name, &*self.progress)?.cleared()?;
        if kept.is_whole {
            // Out of sight in one rename, so that nobody ever sees half of it.
            let trash = claim.staging.join("trash");
            fs::rename(&kept.folder, &trash).map_err(Error::io("remove", &kept.folder))?;
            remove(&trash).map_err(Error::io("remove", &trash))?;
            let record = kept.folder.with_added_extension("json");
            if fs::symlink_metadata(&record).is_ok() {
                fs::remove_file(&record).map_err(Error::io("remove", &record))?;
            }
        }
        self.sweep(&kept.folder);
        packed.iter().try_for_each(|folder| remove(folder).map_err(Error::io("remove", folder)))
    }

    /// Whether every folder from the cache's root down to `folder` is a real one.
    fn is_ours(&self, folder: &Path) -> bool {
        let Ok(below) = folder.strip_prefix(self.cache.root()) else { return false };
        let mut at = self.cache.root().to_owned();
        below.components().all(|part| {
            at.push(part);
            fs::symlink_metadata(&at).is_ok_and(|data| !data.is_symlink())
        })
    }

    /// Removes what is of no use after the last snapshot of a model is gone.
    fn sweep(&self, folder: &Path) {
        let Some(parent) = folder.parent() else { return };
        // Both fail where something is left, which is then of use.
        let is_empty = fs::remove_dir(parent).is_ok();
        if is_empty && parent.starts_with(self.cache.models()) {
            let model = parent.parent().filter(|model| model.parent() == Some(&self.cache.models()));
            let _ = model.map(remove);
        }
    }

    fn kept_aliases(&self) -> Vec<Kept> {
        let entry = |(alias, pinned): &(&str, Pinned)| {
            let folder = self.cache.place(pinned.package(), pinned.save_as());
            let data = fs::symlink_metadata(&folder).ok()?;
            Some(Kept {
                name: alias.to_string(),
                commit: pinned.package().version.to_owned(),
                path: folder.clone(),
                place: Place::Cache,
                is_whole: true,
                bytes: size_of(&folder),
                fetched: data.modified().ok(),
                id: alias.to_string(),
                revision: None,
                pattern: None,
                folder,
                lock_key: key(pinned.package()),
            })
        };
        ALIASES.iter().filter_map(entry).collect()
    }

    fn kept_records(&self) -> Vec<Kept> {
        let mut all = Vec::new();
        for folder in folders(&self.cache.packages()) {
            let lock_key = file_name(&folder);
            all.extend(read(&folder.with_added_extension("json")).map(|r| Kept::whole(r, folder, lock_key)));
        }
        for model in folders(&self.cache.models()) {
            for folder in folders(&model.join("snapshots")) {
                let lock_key = format!("{}-{}", file_name(&model), file_name(&folder));
                all.extend(
                    read(&folder.with_added_extension("json")).map(|r| Kept::whole(r, folder, lock_key)),
                );
            }
        }
        all
    }

    fn kept_parts(&self) -> Vec<Kept> {
        let part = |folder: PathBuf| {
            let record = read(&folder.join("record.json"))?;
            let (bytes, lock_key, path) = (size_of(&folder), file_name(&folder), folder.clone());
            Some(Kept { is_whole: false, bytes, path, ..Kept::whole(record, folder, lock_key) })
        };
        folders(&self.cache.staging()).into_iter().filter_map(part).collect()
    }
}

impl Kept {
    fn whole(record: Record, folder: PathBuf, lock_key: String) -> Self {
        let path =
            if record.model.is_empty() { folder.clone() } else { crate::paths::join(&folder, &record.model) };
        Self {
            name: record.name(),
            path,
            place: Place::Cache,
            is_whole: true,
            bytes: record.bytes,
            fetched: Some(record.fetched()),
            commit: record.commit,
            id: record.id,
            revision: record.revision,
            pattern: record.pattern,
            folder,
            lock_key,
        }
    }

    fn elsewhere(found: hf_cache::Snapshot) -> Self {
        Self {
            name: found.name.id(),
            commit: found.commit,
            place: Place::HuggingFace,
            is_whole: true,
            bytes: found.bytes,
            fetched: found.modified,
            id: found.name.id(),
            revision: None,
            pattern: None,
            folder: found.path.clone(),
            path: found.path,
            lock_key: String::new(),
        }
    }

    fn is_of(&self, model: &HubName) -> bool {
        let same = |kept: &Option<String>, wanted: &String| {
            kept.as_ref().is_some_and(|k| k.eq_ignore_ascii_case(wanted))
        };
        self.id == model.id()
            && model
                .revision
                .as_ref()
                .is_none_or(|r| same(&self.revision, r) || self.commit.starts_with(r.as_str()))
            && model.pattern.as_ref().is_none_or(|pattern| same(&self.pattern, pattern))
    }
}

fn read(path: &Path) -> Option<Record> {
    let record: Record = serde_json::from_slice(&fs::read(path).ok()?).ok()?;
    (record.model.is_empty() || crate::paths::is_within(&record.model)).then_some(record)
}

fn file_name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// The folders in a folder, links left out.
fn folders(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
        .map(|entry| entry.path())
        .collect()
}

/// The size of a file, or of all files below a folder. Links count as nothing.
fn size_of(path: &Path) -> u64 {
    match fs::symlink_metadata(path) {
        Ok(data) if data.is_file() => data.len(),
        Ok(data) if data.is_dir() => {
            fs::read_dir(path).into_iter().flatten().flatten().map(|entry| size_of(&entry.path())).sum()
        }
        _ => 0,
    }
}
