//! Models in Python packages that nobody pinned: `pypi:NAME[==VERSION]`.
//!
//! The archive is checked against the digest that the index publishes, where it does. Of what is inside, only the model
//! is kept: a folder with `config.json` and safetensors, or a GGUF file. No code of the package is ever run.

use std::{
    collections::BTreeSet,
    ops::ControlFlow,
    path::{Path, PathBuf},
};

use crate::{
    Error, Event, Hub, Result, archive,
    cache::{create_folder, plain, write_json},
    digest,
    http::Client,
    name::PackageName,
    paths, pip,
    progress::Meter,
    record::Record,
    select, simple,
};

/// More than any index lets people upload.
const ARCHIVE_BYTES_MAX: u64 = 100 << 30;

/// An archive in the staging folder.
struct Fetched {
    archive: PathBuf,
    version: String,
}

impl Hub {
    /// The path of the model in a package, from the cache if it is there.
    pub(crate) fn package_model(
        &self,
        name: &PackageName,
        freshness: crate::snapshot::Freshness,
    ) -> Result<PathBuf> {
        let is_local = freshness == crate::snapshot::Freshness::Local || self.settings.offline;
        if is_local && let Some(path) = self.kept_package(name) {
            return Ok(path);
        }
        if self.settings.offline {
            return Err(Error::Offline { what: name.to_string() });
        }
        let what = name.to_string();
        let lock = plain(&format!("pypi-{}", simple::normal(&name.name)));
        let claim = self.cache.claim(&lock, &what, &*self.progress)?.cleared()?;
        if is_local && let Some(path) = self.kept_package(name) {
            return Ok(path);
        }
        let fetched = self.fetch_archive(name, &claim.staging)?;
        self.progress.on(Event::Unpacking { what: &what });
        let model = inside(&fetched.archive, &what)?;
        let staged = claim.staging.join("model");
        let bytes = self.unpack(&fetched.archive, &model, &staged)?;
        let record = Record::of_package(name, &fetched.version, model.entry(), bytes);
        let key = plain(&format!("pypi-{}-{}", simple::normal(&name.name), fetched.version));
        let place = self.cache.packages().join(key);
        create_folder(&self.cache.packages())?;
        write_json(&place.with_added_extension("json"), &record)?;
        claim.publish(&staged, &place)?;
        let path = if record.model.is_empty() { place } else { paths::join(&place, &record.model) };
        self.progress.on(Event::Finished { what: &what, path: &path });
        Ok(path)
    }

    fn kept_package(&self, name: &PackageName) -> Option<PathBuf> {
        let spec = name.to_string();
        let mut kept = self.kept_as(&spec).ok()?;
        kept.sort_by_key(|kept| kept.fetched);
        kept.pop().map(|kept| kept.path).filter(|path| path.exists())
    }

    /// From the configured index, or the one that pip uses; through pip if there is none or it fails.
    fn fetch_archive(&self, name: &PackageName, staging: &Path) -> Result<Fetched> {
        let found = pip::find(self.settings.path.as_ref());
        let ask_pip = || found.as_ref().and_then(pip::index);
        let from_index = match self.settings.index.clone().or_else(ask_pip) {
            Some(address) => self.fetch_from_index(&address, name, staging),
            None => Err(Error::NoPip { package: name.to_string() }),
        };
        match (from_index, found) {
            (Err(failed), Some(pip))
                if failed.is_route_failure() || matches!(failed, Error::NoPip { .. }) =>
            {
                self.progress.on(Event::Rerouted { failed: &failed, next: "pip" });
                let fetched = self.fetch_through_pip(pip, name, staging);
                fetched.map_err(|pip| Error::BothRoutes { index: Box::new(failed), pip: Box::new(pip) })
            }
            (result, _) => result,
        }
    }

    fn fetch_from_index(&self, address: &str, name: &PackageName, staging: &Path) -> Result<Fetched> {
        let client = Client::new(address)?;
        let found = simple::find(&client, name)?;
        let what = name.to_string();
        self.progress.on(Event::Started { what: &what, through: "the package index", bytes: 0 });
        let archive = staging.join(&found.file);
        let meter = Meter { what: &what, progress: &*self.progress };
        client.download(&found.uri, &archive, ARCHIVE_BYTES_MAX, meter)?;
        if let Some(sha256) = &found.sha256 {
            let size = std::fs::metadata(&archive).map_err(Error::io("look at", &archive))?.len();
            digest::verify(&archive, &found.file, size, sha256)?;
        }
        Ok(Fetched { archive, version: found.version })
    }

    fn fetch_through_pip(
        &self,
        pip: crate::tool::Tool,
        name: &PackageName,
        staging: &Path,
    ) -> Result<Fetched> {
        let folder = staging.join("pip");
        create_folder(&folder)?;
        let what = name.to_string();
        self.progress.on(Event::Started { what: &what, through: "pip", bytes: 0 });
        let requirement = what.trim_start_matches("pypi:");
        let meter = Meter { what: &what, progress: &*self.progress };
        let archive = pip::fetch_any(pip, requirement, &folder, meter)?;
        let file = archive.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let version = file.split('-').nth(1).filter(|version| paths::is_part(version));
        let version = version.unwrap_or_default().to_owned();
        Ok(Fetched { archive, version })
    }

    /// Writes the model's files below `to` and returns their size.
    fn unpack(&self, archive: &Path, model: &Inside, to: &Path) -> Result<u64> {
        create_folder(to)?;
        if let Ok(available) = fs4::available_space(to)
            && model.bytes > available
        {
            let what = archive.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let path = self.settings.cache.clone();
            return Err(Error::NoSpace { what, path, needed: model.bytes, available });
        }
        let mut bytes = 0u64;
        archive::walk(archive, &mut |entry| {
            if let Some(path) = model.path_of(entry.name) {
                let (file, size) = (paths::create_parents(to, path)?, entry.size);
                archive::keep(entry, size, &file)?;
                bytes = bytes.saturating_add(size);
            }
            Ok(ControlFlow::Continue(()))
        })?;
        Ok(bytes)
    }
}

/// Where the model is in an archive.
struct Inside {
    /// The folder, with a slash at its end; empty for the top.
    folder: String,
    /// The GGUF files, by their names in the folder; none for a folder of safetensors.
    files: BTreeSet<String>,
    /// What the archive declares.
    bytes: u64,
}

impl Inside {
    /// The path below the model's folder, for a file that belongs to the model.
    fn path_of<'n>(&self, name: &'n str) -> Option<&'n str> {
        let path = name.strip_prefix(&self.folder)?;
        (self.files.is_empty() || self.files.contains(path)).then_some(path)
    }

    /// What a program opens: the first GGUF file, or the folder.
    fn entry(&self) -> &str {
        self.files.first().map_or("", String::as_str)
    }
}

/// Finds the one model in an archive.
fn inside(archive: &Path, package: &str) -> Result<Inside> {
    let mut names: Vec<(String, u64)> = Vec::new();
    archive::walk(archive, &mut |entry| {
        names.push((entry.name.to_owned(), entry.size));
        Ok(ControlFlow::Continue(()))
    })?;
    let split = |name: &str| {
        name.rfind('/').map_or((String::new(), name.to_owned()), |at| {
            (name[..=at].to_owned(), name[at + 1..].to_owned())
        })
    };
    let mut models: Vec<Inside> = Vec::new();
    for (name, _) in &names {
        let (folder, file) = split(name);
        let has = |path: &str| names.iter().any(|(name, _)| *name == format!("{folder}{path}"));
        let is_known = models.iter().any(|model| model.folder == folder && model.files.is_empty());
        if file.ends_with(".safetensors") && has("config.json") && !is_known {
            models.push(Inside { folder, files: BTreeSet::new(), bytes: 0 });
        } else if let Some(entry) = select::entry([file.as_str()].into_iter()) {
            let same = |model: &&mut Inside| {
                model.folder == folder
                    && model.files.iter().all(|f| select::entry([entry, f].into_iter()).is_some())
            };
            match models.iter_mut().find(|model| !model.files.is_empty() && same(model)) {
                Some(model) => drop(model.files.insert(file)),
                None => models.push(Inside { folder, files: BTreeSet::from([file]), bytes: 0 }),
            }
        }
    }
    let described: Vec<String> =
        models.iter().map(|model| format!("{}{}", model.folder, model.entry())).collect();
    match models.pop() {
        None => Err(Error::NoModelInside { package: package.to_owned() }),
        Some(_) if !models.is_empty() => {
            Err(Error::SeveralModelsInside { package: package.to_owned(), models: described.join(", ") })
        }
        Some(mut model) => {
            let sizes = names.iter().filter(|(name, _)| model.path_of(name).is_some()).map(|(_, size)| *size);
            model.bytes = sizes.fold(0, u64::saturating_add);
            Ok(model)
        }
    }
}
