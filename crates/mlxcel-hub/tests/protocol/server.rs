//! A hub on a local socket: one model, whose files it lists and serves as the real one does, and which misbehaves
//! where a test tells it to. It answers one request on each connection.

use std::{
    io::{BufRead as _, BufReader, Write as _},
    net::{TcpListener, TcpStream},
    sync::{Arc, Condvar, Mutex},
    thread,
};

use serde_json::{Value, json};
use sha1::Digest as _;

pub const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

/// How many files are on a page of the list.
const PAGE: usize = 3;

/// What a client asked for.
#[derive(Clone, Debug)]
pub struct Request {
    /// With the query.
    pub path: String,
    pub headers: Vec<(String, String)>,
}

impl Request {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }
}

/// A door that opens once.
#[derive(Default)]
pub struct Door(Mutex<bool>, Condvar);

impl Door {
    pub fn open(&self) {
        *self.0.lock().expect("nobody panics at the door") = true;
        self.1.notify_all();
    }

    pub fn pass(&self) {
        let is_open = self.0.lock().expect("nobody panics at the door");
        drop(self.1.wait_while(is_open, |open| !*open).expect("nobody panics at the door"));
    }
}

/// Bytes, and what happens before the connection is closed.
pub struct Reply {
    pub bytes: Vec<u8>,
    /// If there is one, the connection stays open until somebody opens it.
    pub then: Option<Arc<Door>>,
}

impl From<Vec<u8>> for Reply {
    fn from(bytes: Vec<u8>) -> Self {
        Reply { bytes, then: None }
    }
}

/// What a test changes: a reply of its own, or none for the usual one.
type Mischief = dyn Fn(&Request, &Repository) -> Option<Reply> + Send + Sync;

/// One model.
#[derive(Clone, Default)]
pub struct Repository {
    pub id: String,
    pub files: Vec<(String, Vec<u8>)>,
}

impl Repository {
    pub fn new(id: &str, files: &[(&str, &[u8])]) -> Self {
        let files = files.iter().map(|(path, bytes)| (path.to_string(), bytes.to_vec())).collect();
        Repository { id: id.to_string(), files }
    }

    /// A small model of safetensors, with files beside it that nobody needs.
    pub fn safetensors() -> Self {
        Self::new(
            "tiny/model",
            &[
                ("README.md", b"# tiny"),
                ("config.json", br#"{"model_type":"llama","dtype":"bfloat16"}"#),
                ("model.safetensors", &weights(300_000)),
                ("onnx/model.onnx", b"not needed"),
                ("pytorch_model.bin", b"not needed either"),
                ("tokenizer.json", b"{}"),
            ],
        )
    }

    pub fn bytes(&self, path: &str) -> &[u8] {
        &self.files.iter().find(|(name, _)| name == path).expect("the file is in the repository").1
    }

    /// An entry of the list. Weights are large files, with a SHA-256; the others have the id of a git blob.
    fn entry(&self, path: &str, bytes: &[u8]) -> Value {
        let git = hex(&sha1::Sha1::digest([format!("blob {}\0", bytes.len()).as_bytes(), bytes].concat()));
        let mut entry = json!({ "type": "file", "oid": git, "size": bytes.len(), "path": path });
        if is_large(path) {
            entry["lfs"] = json!({ "oid": sha256(bytes), "size": bytes.len(), "pointerSize": 134 });
        }
        entry
    }

    /// The list of files.
    pub fn tree(&self) -> Vec<Value> {
        let folder = json!({ "type": "directory", "oid": "00", "size": 0, "path": "onnx" });
        let files = self.files.iter().map(|(path, bytes)| self.entry(path, bytes));
        [folder].into_iter().chain(files).collect()
    }

    /// What the real hub would answer.
    pub fn answer(&self, request: &Request) -> Vec<u8> {
        let (path, query) = request.path.split_once('?').unwrap_or((&request.path, ""));
        let api = format!("/api/models/{}", self.id);
        let resolve = format!("/{}/resolve/{COMMIT}/", self.id);
        if path.strip_prefix(&api).is_some_and(|rest| rest.starts_with("/revision/")) {
            return page(&json!({ "id": self.id, "sha": COMMIT }).to_string(), "");
        }
        if path == format!("{api}/tree/{COMMIT}") {
            return self.tree_page(path, query);
        }
        if let Some(file) = path.strip_prefix(&resolve).or(path.strip_prefix("/cdn/")) {
            return match self.files.iter().find(|(name, _)| name == file) {
                Some((_, bytes)) => file_answer(request, bytes),
                None => status(404, "X-Error-Code: EntryNotFound\r\n"),
            };
        }
        status(404, "X-Error-Code: RepoNotFound\r\n")
    }

    fn tree_page(&self, path: &str, query: &str) -> Vec<u8> {
        assert!(query.contains("recursive=true"), "{query}");
        let start = query.split_once("cursor=").map_or(0, |(_, at)| at.parse().expect("our own cursor"));
        let tree = self.tree();
        let end = tree.len().min(start + PAGE);
        let next = format!("Link: <{path}?recursive=true&cursor={end}>; rel=\"next\"\r\n");
        let text = Value::from(&tree[start..end]).to_string();
        page(&text, if end < tree.len() { &next } else { "" })
    }
}

/// The server and what it was asked.
pub struct Server {
    pub address: String,
    requests: Arc<Mutex<Vec<Request>>>,
}

impl Server {
    /// A hub that behaves.
    pub fn honest(repository: Repository) -> Self {
        Self::start(repository, |_, _| None)
    }

    pub fn start(
        repository: Repository,
        mischief: impl Fn(&Request, &Repository) -> Option<Reply> + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a local port");
        let address = format!("http://{}", listener.local_addr().expect("it has an address"));
        let requests = Arc::new(Mutex::new(Vec::new()));
        let log = Arc::clone(&requests);
        let (mischief, repository): (Arc<Mischief>, _) = (Arc::new(mischief), Arc::new(repository));
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (log, mischief, repository) = (log.clone(), mischief.clone(), repository.clone());
                thread::spawn(move || {
                    serve(stream, &log, &|request| {
                        mischief(request, &repository).unwrap_or_else(|| repository.answer(request).into())
                    })
                });
            }
        });
        Server { address, requests }
    }

    pub fn requests(&self) -> Vec<Request> {
        self.requests.lock().expect("nobody panics in the log").clone()
    }

    /// The requests for the bytes of files.
    pub fn downloads(&self) -> Vec<Request> {
        let is_file =
            |request: &Request| request.path.contains("/resolve/") || request.path.starts_with("/cdn/");
        self.requests().into_iter().filter(is_file).collect()
    }
}

fn serve(mut stream: TcpStream, log: &Mutex<Vec<Request>>, answer: &dyn Fn(&Request) -> Reply) {
    let mut lines = BufReader::new(stream.try_clone().expect("a socket")).lines();
    let Some(Ok(first)) = lines.next() else { return };
    let path = first.split(' ').nth(1).unwrap_or_default().to_string();
    let lines = lines.map_while(Result::ok).take_while(|line| !line.is_empty());
    let split = |line: String| {
        line.split_once(": ").map(|(name, value)| (name.to_ascii_lowercase(), value.to_string()))
    };
    let request = Request { path, headers: lines.filter_map(split).collect() };
    log.lock().expect("nobody panics in the log").push(request.clone());
    let reply = answer(&request);
    // A client that has seen enough hangs up; that is no concern of the server's.
    let _ = stream.write_all(&reply.bytes);
    let _ = stream.flush();
    if let Some(door) = reply.then {
        door.pass();
    }
}

/// Weights that nobody could guess.
pub fn weights(size: usize) -> Vec<u8> {
    let mut state = 1u32;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 24) as u8
    };
    (0..size).map(|_| next()).collect()
}

fn is_large(path: &str) -> bool {
    [".safetensors", ".gguf", ".bin", ".onnx"].iter().any(|end| path.ends_with(end))
}

pub fn sha256(bytes: &[u8]) -> String {
    hex(&sha2::Sha256::digest(bytes))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// JSON, with more headers.
pub fn page(text: &str, headers: &str) -> Vec<u8> {
    let head = format!(
        "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {}\r\n{headers}Connection: close\r\n\r\n",
        text.len()
    );
    [head.as_bytes(), text.as_bytes()].concat()
}

/// An answer without a body, with more headers.
pub fn status(code: u16, headers: &str) -> Vec<u8> {
    format!("HTTP/1.1 {code} Said\r\nContent-Length: 0\r\n{headers}Connection: close\r\n\r\n").into_bytes()
}

/// The bytes of a file from where the client wants them.
pub fn file_answer(request: &Request, bytes: &[u8]) -> Vec<u8> {
    let start = request
        .header("range")
        .and_then(|range| range.strip_prefix("bytes=")?.strip_suffix('-')?.parse().ok());
    let etag = format!("\"{}\"", sha256(bytes));
    let (code, start, range) = match start {
        Some(start) if request.header("if-range").is_none_or(|wanted| wanted == etag) => {
            (206, start, format!("Content-Range: bytes {start}-{}/{}\r\n", bytes.len() - 1, bytes.len()))
        }
        _ => (200, 0, String::new()),
    };
    let rest: &[u8] = &bytes[start..];
    let head = format!(
        "HTTP/1.1 {code} Here\r\nContent-Length: {}\r\nETag: {etag}\r\n{range}Accept-Ranges: bytes\r\nConnection: close\r\n\r\n",
        rest.len()
    );
    [head.as_bytes(), rest].concat()
}

/// An honest answer of which only the first `bytes` bytes of the body arrive.
pub fn cut(answer: Vec<u8>, bytes: usize) -> Vec<u8> {
    let end = b"\r\n\r\n";
    let head =
        answer.windows(end.len()).position(|window| window == end).expect("an answer has a head") + end.len();
    answer[..answer.len().min(head + bytes)].to_vec()
}
