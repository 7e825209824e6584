//! What the environment says about where files are kept and where models and packages come from.

use std::{ffi::OsString, fmt, path::PathBuf};

use crate::{Error, Patience, Result, cache::Cache};

/// The hub that is asked when `HF_ENDPOINT` names no other.
pub const DEFAULT_ENDPOINT: &str = "https://huggingface.co";

/// A secret. It is never shown.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(String);

impl Token {
    pub fn new(secret: impl Into<String>) -> Self {
        Self(secret.into())
    }

    pub(crate) fn secret(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(…)")
    }
}

/// Where to keep files and how to reach packages. Plain data, so that tests and callers need no environment.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The root of the cache. It is created on first use.
    pub cache: PathBuf,
    /// The folder where what engines pack of models is kept; nothing is, if `None`.
    pub packed: Option<PathBuf>,
    /// The address of a package index that speaks the simple API, if one is configured.
    pub index: Option<String>,
    /// The search path on which `pip` and `npm` are looked for; `None` means this process's own.
    pub path: Option<OsString>,
    /// Whether nothing may be fetched.
    pub offline: bool,
    /// The address of the hub.
    pub endpoint: String,
    /// The token for the hub, and for no other host.
    pub token: Option<Token>,
    /// Hugging Face's cache of models, which is only read.
    pub hf_cache: Option<PathBuf>,
    /// How many files are fetched at once.
    pub parallel: usize,
    pub patience: Patience,
}

/// What the variable of packed weights is set to so that none are kept.
pub const PACKED_OFF: &str = "off";

/// How many files are fetched at once unless somebody says otherwise.
const PARALLEL: usize = 4;

/// Where an index address is looked for first.
const OWN_INDEX_VARIABLE: &str = "MLXCEL_INDEX_URL";

/// Where the Python clients have theirs; the first that is set wins.
const CLIENT_INDEX_VARIABLES: [&str; 3] = ["PIP_INDEX_URL", "UV_DEFAULT_INDEX", "UV_INDEX_URL"];

impl Settings {
    /// Keeps files below `cache` and knows nothing else: no environment, no token, no other cache.
    pub fn at(cache: impl Into<PathBuf>) -> Self {
        let cache = cache.into();
        Self {
            packed: Some(Cache::new(cache.clone()).packed()),
            cache,
            index: None,
            path: None,
            offline: false,
            endpoint: DEFAULT_ENDPOINT.to_owned(),
            token: None,
            hf_cache: None,
            parallel: PARALLEL,
            patience: Patience::default(),
        }
    }

    /// Reads the process's environment.
    pub fn from_env() -> Result<Self> {
        Self::from_variables(|name| std::env::var_os(name))
    }

    fn from_variables(get: impl Fn(&str) -> Option<OsString>) -> Result<Self> {
        let get = |name: &str| get(name).filter(|value| !value.is_empty());
        let cache = cache_root(&get).ok_or(Error::NoCacheFolder)?;
        let text = |name: &str| get(name).and_then(|value| value.into_string().ok());
        let is_on = |name: &str| {
            let off = ["0", "false", "no", "off"];
            text(name).is_some_and(|value| !off.contains(&value.to_ascii_lowercase().as_str()))
        };
        let endpoint = text("HF_ENDPOINT").unwrap_or_else(|| DEFAULT_ENDPOINT.to_owned());
        let hf_home = hf_home(&get);
        let hf_cache =
            ["HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"].iter().find_map(|name| get(name)).map(PathBuf::from);
        let packed = match get("MLXCEL_PACKED_CACHE").map(PathBuf::from) {
            Some(folder) => Some(folder).filter(|folder| folder.as_os_str() != PACKED_OFF),
            None => Some(Cache::new(cache.clone()).packed()),
        };
        Ok(Self {
            packed,
            index: index(&get),
            offline: is_on("MLXCEL_OFFLINE") || is_on("HF_HUB_OFFLINE"),
            endpoint: endpoint.trim_end_matches('/').to_owned(),
            token: token(&get, hf_home.as_ref())?,
            hf_cache: hf_cache.or_else(|| Some(hf_home?.join("hub"))),
            ..Self::at(cache)
        })
    }
}

/// The address of a package index, if one is configured.
fn index(get: &impl Fn(&str) -> Option<OsString>) -> Option<String> {
    let own = get(OWN_INDEX_VARIABLE);
    let is_own = own.is_some();
    let index = own.or_else(|| CLIENT_INDEX_VARIABLES.iter().find_map(|name| get(name)));
    let index = index.and_then(|value| value.into_string().ok()).map(index_address);
    // An index that is not reached over HTTP (a folder, say) is left to pip, which reads its own variable.
    index.filter(|url| is_own || is_http(url))
}

/// Hugging Face's folder.
fn hf_home(get: &impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    let home = || get("HOME").or_else(|| get("USERPROFILE")).map(|home| PathBuf::from(home).join(".cache"));
    let caches = || get("XDG_CACHE_HOME").map(PathBuf::from).or_else(home);
    get("HF_HOME").map(PathBuf::from).or_else(|| Some(caches()?.join("huggingface")))
}

/// The token from its variable, else from its file.
fn token(get: &impl Fn(&str) -> Option<OsString>, hf_home: Option<&PathBuf>) -> Result<Option<Token>> {
    let variables = ["HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"];
    let set = variables.iter().find_map(|name| Some((*name, get(name)?.into_string().ok()?)));
    let file = || get("HF_TOKEN_PATH").map(PathBuf::from).or_else(|| Some(hf_home?.join("token")));
    let read = || Some(("HF_TOKEN_PATH", std::fs::read_to_string(file()?).ok()?));
    let Some((variable, text)) = set.or_else(read) else { return Ok(None) };
    match text.trim() {
        "" => Ok(None),
        token if token.len() <= 4096 && token.bytes().all(|b| b.is_ascii_graphic()) => {
            Ok(Some(Token::new(token)))
        }
        _ => Err(Error::BadToken { variable }),
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
    fn packed_weights_are_in_the_cache_or_where_their_variable_says() {
        let packed =
            |value: &str| read(&[("MLXCEL_CACHE", "/a"), ("MLXCEL_PACKED_CACHE", value)]).unwrap().packed;
        assert_eq!(packed(""), Some("/a/packed".into()));
        assert_eq!(packed("/fast"), Some("/fast".into()));
        assert_eq!(packed("off"), None);
        assert_eq!(Settings::at("/a").packed, packed(""));
    }

    #[test]
    fn hugging_faces_variables_are_read() {
        let settings = |variables: &[(&str, &str)]| read(&[variables, &[("HOME", "/c")]].concat()).unwrap();
        let plain = settings(&[]);
        assert_eq!((plain.endpoint.as_str(), plain.offline, plain.token), (DEFAULT_ENDPOINT, false, None));
        assert_eq!(plain.hf_cache, Some(PathBuf::from("/c/.cache/huggingface/hub")));
        let set = settings(&[
            ("HF_ENDPOINT", "http://mirror.test/hf/"),
            ("HF_HOME", "/hf"),
            ("HF_HUB_OFFLINE", "1"),
            ("HF_TOKEN", " hf_secret\n"),
        ]);
        assert_eq!((set.endpoint.as_str(), set.offline), ("http://mirror.test/hf", true));
        assert_eq!((set.hf_cache, set.token), (Some("/hf/hub".into()), Some(Token::new("hf_secret"))));
        assert_eq!(settings(&[("HF_HOME", "/hf"), ("HF_HUB_CACHE", "/x")]).hf_cache, Some("/x".into()));
        assert!(!settings(&[("MLXCEL_OFFLINE", "0")]).offline);
        let error = read(&[("HOME", "/c"), ("HF_TOKEN", "a\nb: c")]).unwrap_err().to_string();
        assert!(error.contains("HF_TOKEN"), "{error}");
    }

    #[test]
    fn a_token_is_not_shown() {
        let settings = Settings { token: Some(Token::new("hf_secret")), ..Settings::at("/c") };
        assert!(!format!("{settings:?}").contains("secret"));
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
