//! Joining a group of processes by MLX's own means. MLX reads who and where the members are from the environment and from
//! a file; the shim sets the first, and the second is written here. Watching over the members is the caller's business:
//! joining waits for all of them.

use std::ffi::CString;
use std::io::Write as _;

use mlxcel_engine::Seat;

use crate::error::MlxError;
use crate::library::Api;
use crate::options::Device;

/// Waits until every member has joined.
pub(crate) fn join(api: &Api, group: &Seat, device: Device) -> Result<(), MlxError> {
    let refused =
        |reason: String| MlxError::Group { rank: group.rank, members: group.addresses.len(), reason };
    let mut hosts = tempfile::NamedTempFile::new().map_err(|e| refused(e.to_string()))?;
    hosts.write_all(ring_file(group).as_bytes()).map_err(|e| refused(e.to_string()))?;
    let (backend, settings) = match device {
        Device::Cpu => (c"ring", ring_settings(group, &hosts.path().display().to_string())),
        Device::Gpu => (c"nccl", nccl_settings(group)),
    };
    let settings = CString::new(settings).map_err(|_| refused("a path has a zero in it".to_string()))?;
    let number = |n: usize| i32::try_from(n).unwrap_or(i32::MAX);
    let place = (number(group.rank), number(group.addresses.len()));
    api.join(backend, &settings, place).map_err(refused)
}

/// The addresses of each member's ring: a list of lists in JSON.
fn ring_file(group: &Seat) -> String {
    let members: Vec<String> = group.addresses.iter().map(|a| format!("[\"{a}\"]")).collect();
    format!("[{}]", members.join(","))
}

fn ring_settings(group: &Seat, file: &str) -> String {
    format!("MLX_RANK={}\nMLX_HOSTFILE={file}", group.rank)
}

/// NCCL meets at the first member.
fn nccl_settings(group: &Seat) -> String {
    let Seat { rank, addresses } = group;
    let (ip, port) = (addresses[0].ip(), addresses[0].port());
    format!("MLX_RANK={rank}\nMLX_WORLD_SIZE={}\nNCCL_HOST_IP={ip}\nNCCL_PORT={port}", addresses.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_are_written_as_mlx_reads_them() {
        let addresses = ["10.0.0.1:7000", "10.0.0.2:7001"].map(|a| a.parse().expect("an address"));
        let group = Seat { rank: 1, addresses: addresses.to_vec() };
        assert_eq!(ring_file(&group), r#"[["10.0.0.1:7000"],["10.0.0.2:7001"]]"#);
        assert_eq!(ring_settings(&group, "hosts.json"), "MLX_RANK=1\nMLX_HOSTFILE=hosts.json");
        let nccl = "MLX_RANK=1\nMLX_WORLD_SIZE=2\nNCCL_HOST_IP=10.0.0.1\nNCCL_PORT=7000";
        assert_eq!(nccl_settings(&group), nccl);
    }
}
