//! Permissions of new files.

use std::fs::Permissions;

/// The permissions of a new file or folder with this mode, of which the user's mask takes its part. `None` where files
/// have no mode and what is new needs nothing.
#[cfg(unix)]
pub fn permissions(mode: u32) -> Option<Permissions> {
    use std::os::unix::fs::PermissionsExt as _;
    Some(Permissions::from_mode(mode))
}

#[cfg(not(unix))]
pub fn permissions(_mode: u32) -> Option<Permissions> {
    None
}
