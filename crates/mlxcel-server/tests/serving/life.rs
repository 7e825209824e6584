//! Beginning and end: sockets, certificates, draining.

use std::io::{Read as _, Write as _};
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

use mlxcel_server::{Config, Listen, Server, ServerError, TlsFiles};
use serde_json::json;

use crate::client::{Answer, read_answer};
use crate::house::{House, PATIENCE, Plan, Rooms, wait};

/// A server that is not run.
pub fn bind(config: Config) -> Result<Server, ServerError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(Server::bind(config, Rooms::empty()))
}

#[test]
fn a_port_in_use_is_told() {
    let house = House::new();
    let port = house.client.address.rsplit(':').next().unwrap().parse().unwrap();
    let listen = Listen::Tcp { host: "127.0.0.1".to_string(), port };
    let error = bind(Config { listen, ..Config::default() }).err().expect("the port is taken").to_string();
    assert_eq!(
        error,
        format!("127.0.0.1:{port} is already in use; end the other process, or give another --port")
    );
}

#[test]
fn what_cannot_be_used_is_told_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        path
    };
    let any = || Listen::Tcp { host: "127.0.0.1".to_string(), port: 0 };
    let tls = |cert, key| Config { listen: any(), tls: Some(TlsFiles { cert, key }), ..Config::default() };
    let missing = folder.path().join("missing.pem");
    let error = bind(tls(missing.clone(), missing.clone())).err().unwrap();
    assert!(matches!(error, ServerError::Read { .. }), "{error}");
    let empty = file("empty.pem", "");
    assert!(matches!(
        bind(tls(empty.clone(), empty.clone())).err().unwrap(),
        ServerError::NoCertificate { .. }
    ));
    let cert = file("cert.pem", CERTIFICATE);
    assert!(matches!(bind(tls(cert.clone(), empty)).err().unwrap(), ServerError::NoPrivateKey { .. }));
    let other = file("other.pem", OTHER_KEY);
    assert!(matches!(bind(tls(cert, other)).err().unwrap(), ServerError::Certificate { .. }));
    let empty_key = Config { listen: any(), api_keys: vec![String::new()], ..Config::default() };
    assert!(matches!(bind(empty_key).err().unwrap(), ServerError::EmptyKey));
    let host = Listen::Tcp { host: "no such host".to_string(), port: 0 };
    let error = bind(Config { listen: host, ..Config::default() }).err().unwrap();
    assert!(matches!(error, ServerError::Listen { .. }), "{error}");
}

#[cfg(unix)]
#[test]
fn a_unix_socket_is_taken_and_left_clean() {
    use std::os::unix::net::UnixStream;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("server.sock");
    let plan = Plan::default();
    let config = Config { listen: Listen::Unix(path.clone()), ..plan.config };
    let mut house = House::cold(Plan { config, ..plan });
    let mut stream = UnixStream::connect(&path).unwrap();
    stream.write_all(b"GET /health HTTP/1.1\r\nhost: anything\r\nconnection: close\r\n\r\n").unwrap();
    assert_eq!(read_answer(&mut stream).status, 200);
    let again = Config { listen: Listen::Unix(path.clone()), ..Config::default() };
    assert!(matches!(bind(again.clone()).err().unwrap(), ServerError::AddressInUse { .. }));
    house.lifecycle.end();
    house.wait_for_end().unwrap();
    assert!(!path.exists());
    // A socket that a killed server left behind is no obstacle; another file is.
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    assert!(path.exists() && bind(again.clone()).is_ok());
    std::fs::write(&path, "precious").unwrap();
    assert!(matches!(bind(again).err().unwrap(), ServerError::NotASocket { .. }));
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "precious");
}

/// A server with a certificate.
fn private_house() -> House {
    let folder = tempfile::tempdir().unwrap();
    let (cert, key) = (folder.path().join("cert.pem"), folder.path().join("key.pem"));
    std::fs::write(&cert, CERTIFICATE).unwrap();
    std::fs::write(&key, KEY).unwrap();
    let plan = Plan::default();
    let config = Config { tls: Some(TlsFiles { cert, key }), ..plan.config };
    House::cold(Plan { config, ..plan })
}

/// What a client that trusts the certificate gets for these bytes, offering these protocols.
fn privately(house: &House, protocols: &[&str], bytes: &[u8]) -> std::io::Result<Answer> {
    use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName, pem::PemObject as _};
    use tokio_rustls::rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(CERTIFICATE.as_bytes()).unwrap()).unwrap();
    let provider = std::sync::Arc::new(tokio_rustls::rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let mut config = config.with_root_certificates(roots).with_no_client_auth();
    config.alpn_protocols = protocols.iter().map(|name| name.as_bytes().to_vec()).collect();
    let name = ServerName::try_from("localhost").unwrap();
    let connection = ClientConnection::new(config.into(), name).unwrap();
    let socket = std::net::TcpStream::connect(house.address.trim_start_matches("https://"))?;
    socket.set_read_timeout(Some(PATIENCE))?;
    let mut stream = StreamOwned::new(connection, socket);
    stream.write_all(bytes)?;
    stream.flush()?;
    Ok(read_answer(&mut stream))
}

const HEALTH: &[u8] = b"GET /health HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";

#[test]
fn a_certificate_makes_connections_private() {
    let house = private_house();
    assert!(house.address.starts_with("https://"));
    for protocols in [&[][..], &["http/1.1"], &["h2", "http/1.1"]] {
        assert_eq!(privately(&house, protocols, HEALTH).unwrap().status, 200, "{protocols:?}");
    }
}

/// The server speaks HTTP/1.1 only, so there are no streams to open and reset.
#[test]
fn who_speaks_only_http_2_is_told_so_and_others_are_answered() {
    let house = private_house();
    let refused = privately(&house, &["h2"], HEALTH).expect_err("they have no protocol in common");
    assert!(refused.to_string().contains("NoApplicationProtocol"), "{refused}");
    let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00";
    let status = privately(&house, &[], preface).map_or(0, |answer| answer.status);
    assert!([400, 505, 0].contains(&status), "{status}");
    assert_eq!(privately(&house, &["http/1.1"], HEALTH).unwrap().status, 200);
}

#[test]
fn asked_to_end_it_finishes_what_it_has_begun() {
    let mut house = House::new();
    house.faults.let_pass(1);
    let client = house.client.clone();
    let body = json!({"messages": [{"role": "user", "content": "A"}], "max_tokens": 3});
    let asked = thread::spawn(move || client.post("/v1/chat/completions", &body));
    house.wait_for("mlxcel_requests_running{", 1.0);
    house.lifecycle.end();
    wait(
        || std::net::TcpStream::connect(&house.client.address).is_err(),
        || "no connection is taken any more".to_string(),
    );
    house.faults.open_gate();
    assert_eq!(asked.join().unwrap().content(), "BCD");
    house.wait_for_end().unwrap();
}

#[test]
fn what_does_not_end_in_time_is_cut_off() {
    let mut plan = Plan::default();
    plan.config.limits.drain_time = Duration::from_millis(200);
    let mut house = House::build(plan);
    let body = json!({"messages": [{"role": "user", "content": "5"}], "max_tokens": 400, "stream": true});
    house.faults.close_gate();
    let mut stream = house.client.begin_post("/v1/chat/completions", &body);
    wait(|| house.metric("mlxcel_http_connections") >= 2.0, || "the request is here".to_string());
    house.lifecycle.end();
    let mut rest = String::new();
    let _ = stream.read_to_string(&mut rest);
    house.faults.open_gate();
    house.wait_for_end().unwrap();
    assert!(!rest.contains("[DONE]"));
}

#[test]
fn asked_twice_it_ends_at_once() {
    let mut house = House::new();
    house.faults.close_gate();
    let body = json!({"messages": [{"role": "user", "content": "5"}]});
    let stream = house.client.begin_post("/v1/chat/completions", &body);
    wait(|| house.metric("mlxcel_http_connections") >= 2.0, || "the request is here".to_string());
    house.lifecycle.end();
    house.lifecycle.end();
    house.faults.open_gate();
    house.wait_for_end().unwrap();
    drop(stream);
}

#[test]
fn a_server_whose_model_cannot_be_loaded_ends_and_says_why() {
    let mut plan = Plan::default();
    plan.config.keeping.first = mlxcel_server::First::AtOnce;
    let mut house = House::cold_with(plan, |rooms| rooms.refuses_to_load.store(true, Ordering::SeqCst));
    let error = house.wait_for_end().expect_err("a model that cannot be loaded").to_string();
    assert_eq!(error, "the model 'script' cannot be loaded: the file is damaged");
}

const CERTIFICATE: &str = include_str!("tls/cert.pem");
const KEY: &str = include_str!("tls/key.pem");
const OTHER_KEY: &str = include_str!("tls/other-key.pem");
