//! What the tests share: a package index on a local socket that can misbehave, archives, pins and listeners.

use std::{
    io::{BufRead, BufReader, Cursor, Read, Write},
    net::{TcpListener, TcpStream},
    path::Path,
    sync::{Arc, Mutex},
    thread,
};

use mlxcel_hub::{Event, Hub, Member, Package, Registry, Settings};
use sha2::{Digest, Sha256};

pub(crate) const FILE: &str = "tiny_model-1.0-py3-none-any.whl";
pub(crate) const MEMBER: &str = "tiny_model/tiny.gguf";
pub(crate) const PAYLOAD: &[u8] = b"GGUF, or what passes for it in a test";

/// What a client asked for.
pub(crate) struct Request {
    pub(crate) path: String,
    pub(crate) authorization: Option<String>,
    pub(crate) accept: String,
}

/// A server that answers every request with the bytes `answer` returns, and then closes the connection.
pub(crate) struct Server {
    pub(crate) address: String,
    pub(crate) requests: Arc<Mutex<Vec<Request>>>,
}

impl Server {
    pub(crate) fn start(answer: impl Fn(&str) -> Vec<u8> + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let requests = Arc::new(Mutex::new(Vec::new()));
        let (log, answer) = (Arc::clone(&requests), Arc::new(answer));
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (log, answer) = (Arc::clone(&log), Arc::clone(&answer));
                thread::spawn(move || serve(stream, &log, &*answer));
            }
        });
        Self { address, requests }
    }

    pub(crate) fn index(&self) -> String {
        format!("http://{}/simple", self.address)
    }

    pub(crate) fn paths(&self) -> Vec<String> {
        self.requests.lock().unwrap().iter().map(|request| request.path.clone()).collect()
    }
}

fn serve(mut stream: TcpStream, log: &Mutex<Vec<Request>>, answer: &dyn Fn(&str) -> Vec<u8>) {
    let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
    let Some(Ok(first)) = lines.next() else { return };
    let path = first.split(' ').nth(1).unwrap_or_default().to_owned();
    let mut request = Request { path: path.clone(), authorization: None, accept: String::new() };
    for line in lines.map_while(Result::ok).take_while(|line| !line.is_empty()) {
        let (name, value) = line.split_once(": ").unwrap_or((&line, ""));
        match name.to_ascii_lowercase().as_str() {
            "authorization" => request.authorization = Some(value.to_owned()),
            "accept" => request.accept = value.to_owned(),
            _ => {}
        }
    }
    log.lock().unwrap().push(request);
    // A client that has seen enough hangs up; that is no concern of the server's.
    let _ = stream.write_all(&answer(&path));
}

/// A complete and honest answer.
pub(crate) fn ok(media_type: &str, body: &[u8]) -> Vec<u8> {
    claiming(media_type, body.len(), body)
}

/// An answer that claims a length of its own choosing.
pub(crate) fn claiming(media_type: &str, length: usize, body: &[u8]) -> Vec<u8> {
    let head = format!(
        "HTTP/1.1 200 OK\r\nContent-Type: {media_type}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n"
    );
    [head.as_bytes(), body].concat()
}

pub(crate) fn not_found() -> Vec<u8> {
    b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".to_vec()
}

pub(crate) fn redirect(to: &str) -> Vec<u8> {
    format!("HTTP/1.1 302 Found\r\nLocation: {to}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        .into_bytes()
}

/// A project page in the JSON form with one file.
pub(crate) fn page(url: &str) -> Vec<u8> {
    let json = format!(
        r#"{{"meta":{{"api-version":"1.0"}},"name":"tiny-model","files":[{{"filename":"{FILE}","url":"{url}"}}]}}"#
    );
    ok("application/vnd.pypi.simple.v1+json", json.as_bytes())
}

/// An index with one project, whose file is answered by `file`.
pub(crate) fn index_with(file: impl Fn() -> Vec<u8> + Send + Sync + 'static) -> Server {
    Server::start(move |path| match path {
        "/simple/tiny-model/" => page("../../files/tiny.whl"),
        "/files/tiny.whl" => file(),
        _ => not_found(),
    })
}

/// An index that serves `wheel` as it is.
pub(crate) fn index_of(wheel: &[u8]) -> Server {
    let wheel = wheel.to_vec();
    index_with(move || ok("application/octet-stream", &wheel))
}

/// A wheel with the given members.
pub(crate) fn wheel(members: &[(&str, &[u8])]) -> Vec<u8> {
    let mut zip = zip::ZipWriter::new(Cursor::new(Vec::new()));
    for (name, content) in members {
        zip.start_file(*name, zip::write::SimpleFileOptions::default()).unwrap();
        zip.write_all(content).unwrap();
    }
    zip.finish().unwrap().into_inner()
}

/// The wheel that most tests fetch.
pub(crate) fn good_wheel() -> Vec<u8> {
    wheel(&[("tiny_model/__init__.py", b""), (MEMBER, PAYLOAD)])
}

pub(crate) fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A pin, with owned digests.
pub(crate) struct Pin {
    pub(crate) size: u64,
    pub(crate) sha256: String,
    pub(crate) member_size: u64,
    pub(crate) member_sha256: String,
}

impl Pin {
    /// The pin under which `archive` and [`PAYLOAD`] are right.
    pub(crate) fn of(archive: &[u8]) -> Self {
        Self {
            size: archive.len() as u64,
            sha256: sha256(archive),
            member_size: PAYLOAD.len() as u64,
            member_sha256: sha256(PAYLOAD),
        }
    }

    pub(crate) fn package(&self) -> Package<'_> {
        Package {
            registry: Registry::Python,
            name: "tiny_model",
            version: "1.0",
            file: FILE,
            size: self.size,
            sha256: &self.sha256,
        }
    }

    pub(crate) fn member(&self) -> Member<'_> {
        Member {
            package: self.package(),
            path: MEMBER,
            member_size: self.member_size,
            save_as: "tiny.gguf",
            size: self.member_size,
            sha256: &self.member_sha256,
        }
    }
}

/// A hub with an empty search path, so that no test reaches the machine's own pip.
pub(crate) fn hub(cache: &Path, index: Option<String>) -> Hub {
    hub_hearing(cache, index, |_| {})
}

pub(crate) fn hub_hearing(
    cache: &Path,
    index: Option<String>,
    hear: impl Fn(Event<'_>) + Send + Sync + 'static,
) -> Hub {
    Hub::new(Settings { index, path: Some("".into()), ..Settings::at(cache) }, hear)
}

/// All files below a folder except locks, relative to it.
pub(crate) fn files(folder: &Path) -> Vec<String> {
    let mut found = Vec::new();
    let mut open = vec![folder.to_owned()];
    while let Some(next) = open.pop() {
        for entry in std::fs::read_dir(next).into_iter().flatten().flatten() {
            let path = entry.path();
            if path.is_dir() {
                open.push(path);
            } else if path.extension().is_none_or(|extension| extension != "lock") {
                found.push(path.strip_prefix(folder).unwrap().to_string_lossy().into_owned());
            }
        }
    }
    found
}

/// Reads a file whole.
pub(crate) fn read(path: &Path) -> Vec<u8> {
    let mut bytes = Vec::new();
    std::fs::File::open(path).unwrap().read_to_end(&mut bytes).unwrap();
    bytes
}
