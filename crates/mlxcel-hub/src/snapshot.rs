//! Models of the hub in the cache: found where they are, completed where they are not whole, published in one rename.
//!
//! Layout, below `models/OWNER--NAME`: `refs/REVISION` holds the commit a revision was when it was last asked for,
//! `listings/COMMIT.json` the files of a commit, `snapshots/KEY/` some of these files, all whole, and
//! `snapshots/KEY.json` what they are. `KEY` stands for the commit and the choice of files.

use std::{
    collections::VecDeque,
    fs,
    path::{Path, PathBuf},
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread,
};

use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};

use crate::{
    Error, Event, Hub, Result,
    api::Api,
    cache::{Claim, create_folder, remove, write_json},
    digest, hf_cache,
    listing::{Listed, Listing},
    name::{HubName, is_commit},
    paths,
    record::Record,
    retry::{Patience, Retries},
    select::{self, Wanted},
    transfer::Transfer,
};

const ASK_ATTEMPTS_MAX: u32 = 3;

/// Whether what is on this machine is good enough, or the hub is asked for what is current.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Freshness {
    Local,
    Current,
}

/// The files of one commit that belong together.
struct Snapshot<'a> {
    model: &'a HubName,
    commit: &'a str,
    files: Vec<&'a Listed>,
    /// The name of the folder that holds them.
    key: String,
}

impl Hub {
    /// The path of a model of the hub: a folder, or a GGUF file.
    pub(crate) fn model(
        &self,
        model: &HubName,
        wanted: &Wanted<'_>,
        freshness: Freshness,
    ) -> Result<PathBuf> {
        let is_local = freshness == Freshness::Local || self.settings.offline;
        if is_local && let Some(path) = self.local_model(model, wanted) {
            return Ok(path);
        }
        if self.settings.offline {
            return Err(Error::Offline { what: model.to_string() });
        }
        let api = Api::new(&self.settings)?;
        let listing = self.ask(&api, model)?;
        let snapshot = Snapshot::choose(model, &listing, wanted)?;
        if let Some(path) = self.in_hf_cache(&snapshot) {
            return Ok(path);
        }
        self.complete(&api, &snapshot)?;
        self.remember(model, &listing)?;
        Ok(snapshot.path(&self.snapshots(model)))
    }

    /// The model as it is on this machine, if all of it is.
    fn local_model(&self, model: &HubName, wanted: &Wanted<'_>) -> Option<PathBuf> {
        let own = || {
            let listing = self.recall(model)?;
            let snapshot = Snapshot::choose(model, &listing, wanted).ok()?;
            let folder = self.snapshots(model);
            snapshot.is_whole(&folder).then(|| snapshot.path(&folder))
        };
        own().or_else(|| hf_cache::find(self.settings.hf_cache.as_deref()?, model, wanted))
    }

    /// The snapshot where Hugging Face's own tools have put it, if all of it is there.
    fn in_hf_cache(&self, snapshot: &Snapshot<'_>) -> Option<PathBuf> {
        let folder =
            hf_cache::commit_folder(self.settings.hf_cache.as_deref()?, snapshot.model, snapshot.commit);
        let is_there = |file: &&Listed| {
            let data = fs::metadata(paths::join(&folder, &file.path));
            data.is_ok_and(|data| data.is_file() && data.len() == file.size)
        };
        snapshot.files.iter().all(is_there).then(|| snapshot.path_in(&folder))
    }

    fn ask(&self, api: &Api, model: &HubName) -> Result<Listing> {
        let (what, stop) = (model.id(), AtomicBool::new(false));
        // Who waits for a first answer should soon learn that there is none; a download has time.
        let attempts = self.settings.patience.attempts.min(ASK_ATTEMPTS_MAX);
        let patience = Patience { attempts, ..self.settings.patience };
        let retries = Retries::new(&what, patience, &*self.progress, &stop);
        retries.run(|| api.listing(model).map_err(|error| (error, false)))
    }

    /// Makes the snapshot whole, waiting for others who are at it.
    fn complete(&self, api: &Api, snapshot: &Snapshot<'_>) -> Result<()> {
        let folder = self.snapshots(snapshot.model);
        if snapshot.is_whole(&folder) {
            return Ok(());
        }
        let what = snapshot.model.to_string();
        let claim = self.cache.claim(&snapshot.lock_key(), &what, &*self.progress)?;
        if snapshot.is_whole(&folder) {
            return Ok(());
        }
        let place = folder.join(&snapshot.key);
        let staged = claim.staging.join("files");
        take_back(&place, &staged)?;
        write_json(&claim.staging.join("record.json"), &snapshot.record())?;
        self.fetch_missing(api, snapshot, &claim)?;
        create_folder(&folder)?;
        write_json(&folder.join(format!("{}.json", snapshot.key)), &snapshot.record())?;
        claim.publish(&staged, &place)?;
        self.progress.on(Event::Finished { what: &what, path: &snapshot.path(&folder) });
        claim.finish()
    }

    /// Brings every file that is not whole into the claim's folder, a few at a time, largest first.
    fn fetch_missing(&self, api: &Api, snapshot: &Snapshot<'_>, claim: &Claim) -> Result<()> {
        let (staged, parts) = (claim.staging.join("files"), claim.staging.join("parts"));
        paths::create_folder(&claim.staging, "files")?;
        paths::create_folder(&claim.staging, "parts")?;
        let is_missing = |file: &&&Listed| !paths::is_whole(&staged, &file.path, file.size);
        let mut missing: Vec<&Listed> = snapshot.files.iter().filter(is_missing).copied().collect();
        missing.sort_by_key(|file| std::cmp::Reverse(file.size));
        self.check_space(snapshot, &missing, &parts)?;
        let bytes = missing.iter().fold(0u64, |sum, file| sum.saturating_add(file.size));
        let what = snapshot.model.to_string();
        self.progress.on(Event::Snapshot { what: &what, files: missing.len(), bytes });
        let stop = AtomicBool::new(false);
        let transfer = Transfer {
            api,
            model: snapshot.model,
            commit: snapshot.commit,
            patience: self.settings.patience,
            progress: &*self.progress,
            stop: &stop,
        };
        self.in_parallel(missing, &stop, &|file| {
            self.progress.on(Event::Started { what: &file.path, through: "the hub", bytes: file.size });
            let part = parts.join(part_name(file));
            transfer.fetch(file, &part)?;
            let place = paths::create_parents(&staged, &file.path)?;
            fs::rename(&part, &place).map_err(Error::io("move to", &place))?;
            self.progress.on(Event::Arrived { what: &file.path });
            Ok(())
        })
    }

    /// Runs `work` on all files on a few threads. The first error stops the others and is returned.
    fn in_parallel(
        &self,
        files: Vec<&Listed>,
        stop: &AtomicBool,
        work: &(dyn Fn(&Listed) -> Result<()> + Sync),
    ) -> Result<()> {
        let threads = self.settings.parallel.clamp(1, 16).min(files.len());
        let queue = Mutex::new(VecDeque::from(files));
        let failure = Mutex::new(None);
        let next = || queue.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
        thread::scope(|scope| {
            for _ in 0..threads {
                scope.spawn(|| {
                    while let Some(file) = next().filter(|_| !stop.load(Ordering::Relaxed)) {
                        if let Err(error) = work(file) {
                            let mut failure = failure.lock().unwrap_or_else(PoisonError::into_inner);
                            // Who was merely stopped has nothing to tell.
                            if !matches!(error, Error::Stopped) {
                                failure.get_or_insert(error);
                            }
                            stop.store(true, Ordering::Relaxed);
                        }
                    }
                });
            }
        });
        failure.into_inner().unwrap_or_else(PoisonError::into_inner).map_or(Ok(()), Err)
    }

    /// Refuses early what cannot fit.
    fn check_space(&self, snapshot: &Snapshot<'_>, missing: &[&Listed], parts: &Path) -> Result<()> {
        let there =
            |file: &Listed| fs::symlink_metadata(parts.join(part_name(file))).map_or(0, |data| data.len());
        let needed =
            missing.iter().fold(0u64, |sum, file| sum.saturating_add(file.size.saturating_sub(there(file))));
        // Where the system does not say what is left, writing finds out.
        let Ok(available) = fs4::available_space(parts) else { return Ok(()) };
        if needed <= available {
            return Ok(());
        }
        let path = self.settings.cache.clone();
        Err(Error::NoSpace { what: snapshot.model.to_string(), path, needed, available })
    }

    /// Keeps what the hub said, for the next time and for times without a network.
    fn remember(&self, model: &HubName, listing: &Listing) -> Result<()> {
        let folder = self.cache.models().join(model.folder());
        for name in ["refs", "listings"] {
            create_folder(&folder.join(name))?;
        }
        write_json(&folder.join("listings").join(format!("{}.json", listing.commit)), listing)?;
        if is_commit(model.revision()) {
            return Ok(());
        }
        write_json(&folder.join("refs").join(ref_name(model.revision())), &listing.commit)
    }

    fn recall(&self, model: &HubName) -> Option<Listing> {
        let folder = self.cache.models().join(model.folder());
        let read = |path: PathBuf| fs::read(path).ok();
        let commit = if is_commit(model.revision()) {
            model.revision().to_ascii_lowercase()
        } else {
            serde_json::from_slice(&read(folder.join("refs").join(ref_name(model.revision())))?).ok()?
        };
        let listing = folder.join("listings").join(format!("{commit}.json"));
        let listing: Listing = serde_json::from_slice(&read(listing).filter(|_| is_commit(&commit))?).ok()?;
        let is_sane = |file: &Listed| paths::is_within(&file.path);
        (listing.commit == commit && listing.files.iter().all(is_sane)).then_some(listing)
    }

    fn snapshots(&self, model: &HubName) -> PathBuf {
        self.cache.models().join(model.folder()).join("snapshots")
    }
}

impl<'a> Snapshot<'a> {
    fn choose(model: &'a HubName, listing: &'a Listing, wanted: &Wanted<'_>) -> Result<Self> {
        let files = select::choose(listing, wanted);
        if files.is_empty() {
            let names: Vec<&str> = listing.files.iter().map(|file| file.path.as_str()).take(20).collect();
            let available = if names.is_empty() { "no files".to_owned() } else { names.join(", ") };
            let pattern = wanted.pattern.map(str::to_owned);
            return Err(Error::NothingFits { model: model.id(), pattern, available });
        }
        let paths: Vec<&str> = files.iter().map(|file| file.path.as_str()).collect();
        let key = format!("{}-{}", &listing.commit[..12], digest::short(&paths.join("\n")));
        Ok(Self { model, commit: &listing.commit, files, key })
    }

    fn lock_key(&self) -> String {
        format!("{}-{}", self.model.folder(), self.key)
    }

    fn is_whole(&self, snapshots: &Path) -> bool {
        let folder = snapshots.join(&self.key);
        self.files.iter().all(|file| paths::is_whole(&folder, &file.path, file.size))
    }

    /// What a program opens.
    fn path(&self, snapshots: &Path) -> PathBuf {
        self.path_in(&snapshots.join(&self.key))
    }

    fn path_in(&self, folder: &Path) -> PathBuf {
        match self.entry() {
            Some(entry) => paths::join(folder, entry),
            None => folder.to_owned(),
        }
    }

    fn entry(&self) -> Option<&str> {
        select::entry(self.files.iter().map(|file| file.path.as_str()))
    }

    fn record(&self) -> Record {
        let pattern = self.entry().map(|entry| select::quantisation(entry).unwrap_or(entry).to_owned());
        let named = HubName { pattern, ..self.model.clone() };
        Record::new(
            named,
            self.commit,
            self.entry().unwrap_or_default(),
            self.files.iter().map(|file| file.size),
        )
    }
}

/// Moves a snapshot that is no longer whole back to where it can be completed.
fn take_back(place: &Path, staged: &Path) -> Result<()> {
    let Ok(there) = fs::symlink_metadata(place) else { return Ok(()) };
    if there.is_dir() && fs::symlink_metadata(staged).is_err() {
        return fs::rename(place, staged).map_err(Error::io("move to", staged));
    }
    remove(place).map_err(Error::io("clear away", place))
}

/// A file's part is named after its bytes, so that it never goes on with others.
fn part_name(file: &Listed) -> String {
    let digest = file.digest.as_ref().map_or("unknown", |digest| digest.hex());
    format!("{digest}-{}", digest::short(&file.path))
}

fn ref_name(revision: &str) -> String {
    utf8_percent_encode(revision, NON_ALPHANUMERIC).to_string()
}
