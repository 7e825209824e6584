//! Where the lines that people typed are kept between two chats. The line editor reads and writes the file.

use std::ffi::OsString;
use std::path::PathBuf;

/// More lines than anybody looks through.
pub const LINES_MAX: usize = 1000;

/// A file longer than this is not one of ours.
pub const BYTES_MAX: u64 = 16 << 20;

/// The file, unless there is no place for one or none is wanted.
pub fn file() -> Option<PathBuf> {
    file_by(&|name| std::env::var_os(name))
}

fn file_by(get: &dyn Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    if let Some(file) = get("MLXCEL_HISTORY") {
        return (!file.is_empty()).then(|| file.into());
    }
    let folder = |name: &str| get(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let local = || if cfg!(windows) { folder("LOCALAPPDATA") } else { None };
    let home = || folder("HOME").map(|home| home.join(".local/state"));
    Some(folder("XDG_STATE_HOME").or_else(local).or_else(home)?.join("mlxcel").join("history"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(unix)]
    #[test]
    fn the_file_is_where_the_most_specific_variable_says() {
        let all = [("MLXCEL_HISTORY", "lines"), ("XDG_STATE_HOME", "/state"), ("HOME", "/me")];
        let file = |variables: &[(&str, &str)]| {
            file_by(&|name| variables.iter().find(|(key, _)| *key == name).map(|(_, value)| value.into()))
        };
        assert_eq!(file(&all), Some("lines".into()));
        assert_eq!(file(&all[1..]), Some("/state/mlxcel/history".into()));
        assert_eq!(file(&all[2..]), Some("/me/.local/state/mlxcel/history".into()));
        assert_eq!(
            file(&[("XDG_STATE_HOME", "state"), all[2]]),
            file(&all[2..]),
            "a relative folder is ignored"
        );
        assert_eq!(file(&[("MLXCEL_HISTORY", ""), all[2]]), None);
        assert_eq!(file(&[]), None);
    }
}
