//! The file of a group's members.

use std::net::{SocketAddr, ToSocketAddrs as _};
use std::path::Path;

use anyhow::{Context as _, Result, bail, ensure};

/// Where the members are, in the order of their ranks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hosts(Vec<SocketAddr>);

/// The longest file that is read.
const FILE_MAX: u64 = 64 << 10;

/// Reads the members: a line `ADDRESS:PORT` for each; empty lines and what follows `#` do not count.
pub fn read(path: &Path, members: usize) -> Result<Hosts> {
    let said = || format!("cannot read the hosts in {}", path.display());
    let size = std::fs::metadata(path).map_err(|e| anyhow::anyhow!("{}: {e}", said()))?.len();
    ensure!(size <= FILE_MAX, "{} is no list of hosts: it has {size} bytes", path.display());
    let text = std::fs::read_to_string(path).map_err(|e| anyhow::anyhow!("{}: {e}", said()))?;
    let hosts = parse(&text).with_context(said).map_err(|e| anyhow::anyhow!("{e:#}"))?;
    ensure!(
        hosts.0.len() == members,
        "{} lists {} hosts, but --tp is {members}; give a line ADDRESS:PORT for each member",
        path.display(),
        hosts.0.len()
    );
    Ok(hosts)
}

fn parse(text: &str) -> Result<Hosts> {
    let mut members: Vec<SocketAddr> = vec![];
    for (number, line) in text.lines().enumerate() {
        let line = line.split('#').next().unwrap_or_default().trim();
        if line.is_empty() {
            continue;
        }
        // MLX's ring reads addresses of IPv4 only.
        let found = line.to_socket_addrs().ok().and_then(|mut all| all.find(SocketAddr::is_ipv4));
        let Some(address) = found else {
            bail!("line {}: '{line}' is not ADDRESS:PORT of a machine with an IPv4 address", number + 1)
        };
        ensure!(address.port() < u16::MAX, "line {}: port {} has none after it", number + 1, address.port());
        let overlaps =
            |other: &SocketAddr| other.ip() == address.ip() && other.port().abs_diff(address.port()) < 2;
        ensure!(!members.iter().any(overlaps), "line {}: '{line}' shares a port with another", number + 1);
        members.push(address);
    }
    Ok(Hosts(members))
}

impl Hosts {
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// Where a member is known to be.
    pub fn of(&self, rank: usize) -> SocketAddr {
        self.0[rank]
    }

    /// Where the first member waits for the others.
    pub fn meeting(&self) -> SocketAddr {
        self.0[0]
    }

    /// Where members exchange numbers: the port after the one in the file.
    pub fn exchange(&self) -> Vec<SocketAddr> {
        let next = |a: &SocketAddr| SocketAddr::new(a.ip(), a.port().saturating_add(1));
        self.0.iter().map(next).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_are_lines_of_address_and_port() {
        let hosts = parse("# two machines\n10.0.0.1:7000\n\n10.0.0.2:7000 # the other\n").unwrap();
        assert_eq!((hosts.count(), hosts.meeting()), (2, "10.0.0.1:7000".parse().unwrap()));
        let exchange: Vec<SocketAddr> =
            vec!["10.0.0.1:7001".parse().unwrap(), "10.0.0.2:7001".parse().unwrap()];
        assert_eq!(hosts.exchange(), exchange);
    }

    #[test]
    fn what_is_no_address_is_refused_by_its_line() {
        for (text, reason) in [
            ("10.0.0.1\n", "line 1: '10.0.0.1' is not ADDRESS:PORT"),
            ("10.0.0.1:7000\n[::1]:7000\n", "line 2"),
            ("10.0.0.1:65535\n", "has none after it"),
            ("10.0.0.1:7000\n10.0.0.1:7001\n", "shares a port"),
        ] {
            let error = parse(text).unwrap_err().to_string();
            assert!(error.contains(reason), "{error}");
        }
    }
}
