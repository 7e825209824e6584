//! What the environment says about where files are kept and where packages come from.

use std::{ffi::OsString, path::PathBuf};

use crate::{Error, Result};

/// Where to keep files and how to reach packages. Plain data, so that tests and callers need no environment.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The root of the cache. It is created on first use.
    pub cache: PathBuf,
    /// The address of a package index that speaks the simple API, if one is configured.
    pub index: Option<String>,
    /// The search path on which `pip` and `npm` are looked for; `None` means this process's own.
    pub path: Option<OsString>,
}

/// Where an index address is looked for first.
const OWN_INDEX_VARIABLE: &str = "MLXCEL_INDEX_URL";

/// Where the Python clients have theirs; the first that is set wins.
const CLIENT_INDEX_VARIABLES: [&str; 3] = ["PIP_INDEX_URL", "UV_DEFAULT_INDEX", "UV_INDEX_URL"];

impl Settings {
    /// Reads the process's environment.
    pub fn from_env() -> Result<Self> {
        Self::from_variables(|name| std::env::var_os(name))
    }

    fn from_variables(get: impl Fn(&str) -> Option<OsString>) -> Result<Self> {
        let get = |name: &str| get(name).filter(|value| !value.is_empty());
        let cache = cache_root(&get).ok_or(Error::NoCacheFolder)?;
        let index =
            get(OWN_INDEX_VARIABLE).or_else(|| CLIENT_INDEX_VARIABLES.iter().find_map(|name| get(name)));
        let index = index.and_then(|value| value.into_string().ok()).map(index_address);
        // An index that is not reached over HTTP (a folder, say) is left to pip, which reads its own variable.
        let for_us = |url: &String| get(OWN_INDEX_VARIABLE).is_some() || is_http(url);
        Ok(Self { cache, index: index.filter(for_us), path: None })
    }
}

/// `MLXCEL_CACHE`, else the platform's cache folder.
fn cache_root(get: &impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    if let Some(root) = get("MLXCEL_CACHE") {
        return Some(root.into());
    }
    // The XDG specification says that a relative path is to be ignored.
    let xdg = get("XDG_CACHE_HOME").map(PathBuf::from).filter(|path| path.is_absolute());
    let local = || if cfg!(windows) { get("LOCALAPPDATA").map(PathBuf::from) } else { None };
    let home = || get("HOME").map(|home| PathBuf::from(home).join(".cache"));
    Some(xdg.or_else(local).or_else(home)?.join("mlxcel"))
}

fn is_http(url: &str) -> bool {
    url.starts_with("http://") || url.starts_with("https://")
}

/// uv allows `name=address` where pip has a bare address.
fn index_address(value: String) -> String {
    match value.split_once('=') {
        Some((name, url)) if !name.contains("://") => url.to_owned(),
        _ => value,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(variables: &[(&str, &str)]) -> Result<Settings> {
        Settings::from_variables(|name| {
            variables.iter().find(|(key, _)| *key == name).map(|(_, value)| OsString::from(value))
        })
    }

    #[test]
    fn the_cache_is_where_the_most_specific_variable_says() {
        let cache = |variables: &[(&str, &str)]| read(variables).unwrap().cache;
        let all = [("MLXCEL_CACHE", "/a"), ("XDG_CACHE_HOME", "/b"), ("HOME", "/c")];
        assert_eq!(cache(&all), PathBuf::from("/a"));
        if cfg!(unix) {
            assert_eq!(cache(&all[1..]), PathBuf::from("/b/mlxcel"));
            assert_eq!(cache(&all[2..]), PathBuf::from("/c/.cache/mlxcel"));
            assert_eq!(
                cache(&[("XDG_CACHE_HOME", "relative"), ("HOME", "/c")]),
                PathBuf::from("/c/.cache/mlxcel")
            );
        }
        assert_eq!(cache(&[("MLXCEL_CACHE", ""), ("HOME", "/c")]), cache(&[("HOME", "/c")]));
    }

    #[test]
    fn without_any_home_the_error_names_the_variable_to_set() {
        assert!(read(&[]).unwrap_err().to_string().contains("MLXCEL_CACHE"));
    }

    #[test]
    fn the_index_is_the_first_that_is_configured() {
        let index =
            |variables: &[(&str, &str)]| read(&[variables, &[("HOME", "/c")]].concat()).unwrap().index;
        assert_eq!(index(&[]), None);
        let pip = ("PIP_INDEX_URL", "http://pip.test/simple");
        let own = ("MLXCEL_INDEX_URL", "http://own.test/simple");
        let uv = ("UV_DEFAULT_INDEX", "corp=https://uv.test/simple?a=b");
        assert_eq!(index(&[pip]).as_deref(), Some(pip.1));
        assert_eq!(index(&[pip, own, uv]).as_deref(), Some(own.1));
        assert_eq!(index(&[uv]).as_deref(), Some("https://uv.test/simple?a=b"));
    }

    #[test]
    fn an_index_that_is_not_http_is_left_to_pip() {
        let settings = read(&[("HOME", "/c"), ("PIP_INDEX_URL", "file:///srv/simple")]).unwrap();
        assert_eq!(settings.index, None);
    }
}
