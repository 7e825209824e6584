//! The `Host` header. A page of anyone can have its own name resolve to this machine and so talk to a server that
//! listens to this machine only; that name is then what `Host` says.

use std::net::IpAddr;

use axum::http::{HeaderMap, header};

use crate::app::App;
use crate::config::Listen;
use crate::refusal::{Kind, Refusal};

pub fn check(app: &App, headers: &HeaderMap) -> Result<(), Refusal> {
    let mut hosts = headers.get_all(header::HOST).iter();
    let host = hosts.next().and_then(|value| value.to_str().ok()).unwrap_or_default();
    if hosts.next().is_some() {
        return Err(Refusal::new(Kind::Invalid, "there is more than one Host header"));
    }
    let name = without_port(host);
    if !is_guarded(app) || is_address(name) || app.config.hosts.iter().any(|h| h.eq_ignore_ascii_case(name)) {
        return Ok(());
    }
    let shown: String = name.chars().take(100).collect();
    let message =
        format!("the host '{shown}' is not one of this server; start it with --allowed-host {shown}");
    Err(Refusal::new(Kind::Forbidden, message))
}

/// Whether names matter: where they were listed, and where only this machine is listened to.
fn is_guarded(app: &App) -> bool {
    match &app.config.listen {
        Listen::Unix(_) => false,
        Listen::Tcp { host, .. } => {
            let is_loopback = host.parse::<IpAddr>().map_or(host == "localhost", |ip| ip.is_loopback());
            !app.config.hosts.is_empty() || is_loopback
        }
    }
}

/// What no foreign name can resolve to: an address itself, or this machine's own name for itself.
fn is_address(name: &str) -> bool {
    let bare = name.trim_start_matches('[').trim_end_matches(']');
    name.is_empty() || bare.parse::<IpAddr>().is_ok() || name.eq_ignore_ascii_case("localhost")
}

fn without_port(host: &str) -> &str {
    match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|b| b.is_ascii_digit()) && !name.ends_with(':') => {
            if name.contains(':') && !name.ends_with(']') { host } else { name }
        }
        _ => host,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_is_no_part_of_a_host() {
        assert_eq!(without_port("localhost:8080"), "localhost");
        assert_eq!(without_port("[::1]:8080"), "[::1]");
        assert_eq!(without_port("::1"), "::1");
        assert_eq!(without_port("evil.example"), "evil.example");
        assert!(["127.0.0.1", "[::1]", "::1", "LOCALHOST", ""].iter().all(|name| is_address(name)));
        assert!(["evil.example", "127.0.0.1.evil.example", "localhost.evil"].iter().all(|n| !is_address(n)));
    }
}
