//! The hub's protocol: which commit a revision is, which files it has, and where their bytes are.
//!
//! Everything the hub says is checked before it is believed: sizes are numbers, paths stay within a folder, digests
//! are digests. What the files mean is not known here.

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Deserialize;
use ureq::http::{Uri, header};

use crate::{
    Error, Result, Settings,
    http::{Answer, Client, shown},
    link,
    listing::{Digest, Listed, Listing},
    name::{HubName, is_commit, near_aliases},
    paths,
};

/// What stays as it is in one component of a path.
const COMPONENT: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');

/// A thousand files are on a page.
const PAGES_MAX: usize = 200;

/// The hub at one address.
pub(crate) struct Api {
    pub(crate) client: Client,
    endpoint: String,
}

#[derive(Deserialize)]
struct Revision {
    sha: String,
}

#[derive(Deserialize)]
struct TreeEntry {
    #[serde(rename = "type")]
    kind: String,
    path: String,
    #[serde(default)]
    size: u64,
    oid: Option<String>,
    lfs: Option<Lfs>,
}

#[derive(Deserialize)]
struct Lfs {
    oid: String,
    size: u64,
}

#[derive(Deserialize)]
struct Found {
    id: String,
}

impl Api {
    pub(crate) fn new(settings: &Settings) -> Result<Self> {
        let client = Client::with_token(&settings.endpoint, settings.token.as_ref())?;
        let endpoint = client.home().to_string().trim_end_matches('/').to_owned();
        Ok(Self { client, endpoint })
    }

    /// The commit that the name's revision is now, and its files.
    pub(crate) fn listing(&self, model: &HubName) -> Result<Listing> {
        let commit = self.commit(model)?;
        let mut files = Vec::new();
        let mut next = Some(self.uri(&format!("api/models/{}/tree/{commit}?recursive=true", model.id()))?);
        for _ in 0..PAGES_MAX {
            let Some(uri) = next.take() else { return Ok(Listing { commit, files }) };
            let answer = self.ask(&uri, model)?;
            next = next_page(&answer, self.client.home())?;
            for entry in parse::<Vec<TreeEntry>>(answer)? {
                files.extend(listed(entry, model)?);
            }
        }
        Err(Error::BadAnswer { url: self.endpoint.clone(), problem: "the list of files has no end" })
    }

    /// Where the bytes of a file are.
    pub(crate) fn file(&self, model: &HubName, commit: &str, path: &str) -> Result<Uri> {
        let path: Vec<_> = path.split('/').map(encode).collect();
        self.uri(&format!("{}/resolve/{commit}/{}", model.id(), path.join("/")))
    }

    /// Models whose names are like this one's, for a message. Whatever goes wrong, there are none.
    fn near(&self, model: &HubName) -> Vec<String> {
        let aliases = near_aliases(&model.name).map(str::to_owned);
        let search = || {
            let uri = self.uri(&format!("api/models?search={}&limit=3", encode(&model.name))).ok()?;
            parse::<Vec<Found>>(self.client.send(&uri, &[]).ok()?.success().ok()?).ok()
        };
        let is_plain = |id: &String| id.len() < 200 && !id.chars().any(char::is_control);
        let found = search().unwrap_or_default().into_iter().map(|found| found.id).filter(is_plain);
        aliases.chain(found).take(4).collect()
    }

    fn commit(&self, model: &HubName) -> Result<String> {
        let uri = self.uri(&format!("api/models/{}/revision/{}", model.id(), encode(model.revision())))?;
        let revision: Revision = parse(self.ask(&uri, model)?)?;
        if is_commit(&revision.sha) {
            return Ok(revision.sha.to_ascii_lowercase());
        }
        Err(Error::BadAnswer { url: shown(&uri), problem: "its commit is not one" })
    }

    /// Asks, and says what a refusal means for `model`.
    fn ask(&self, uri: &Uri, model: &HubName) -> Result<Answer> {
        let answer = self.client.send(uri, &[(header::ACCEPT, "application/json")])?;
        if answer.response.status().is_success() {
            return Ok(answer);
        }
        Err(self.refusal(answer, model))
    }

    /// What the hub means by an answer that is not a good one.
    pub(crate) fn refusal(&self, answer: Answer, model: &HubName) -> Error {
        let is_home = link::same_origin(self.client.home(), &answer.uri);
        let code = answer.header("x-error-code").unwrap_or_default().to_owned();
        match (answer.status(), code.as_str()) {
            (401 | 403, "GatedRepo") if is_home => {
                Error::Gated { model: model.id(), page: format!("{}/{}", self.endpoint, model.id()) }
            }
            (404, "RevisionNotFound") if is_home => {
                Error::NoSuchRevision { model: model.id(), revision: model.revision().to_owned() }
            }
            // Without a token the hub does not tell a private model from none.
            (401, code) if is_home && self.client.has_credentials() && code != "RepoNotFound" => {
                Error::TokenRefused { url: shown(&answer.uri), status: 401 }
            }
            (401 | 404, _) if is_home => self.no_such(model),
            (403, _) if is_home => Error::TokenRefused { url: shown(&answer.uri), status: 403 },
            (status, _) => match answer.success() {
                Err(error) => error,
                Ok(answer) => Error::Status { url: shown(&answer.uri), status, retry_after: None },
            },
        }
    }

    fn no_such(&self, model: &HubName) -> Error {
        Error::NoSuchRepository { model: model.id(), endpoint: self.endpoint.clone(), near: self.near(model) }
    }

    fn uri(&self, path: &str) -> Result<Uri> {
        let url = format!("{}/{path}", self.endpoint);
        url.parse().map_err(|_| Error::BadEndpoint { url: self.endpoint.clone() })
    }
}

fn encode(component: &str) -> String {
    utf8_percent_encode(component, COMPONENT).to_string()
}

fn parse<T: for<'a> Deserialize<'a>>(answer: Answer) -> Result<T> {
    let url = shown(&answer.uri);
    serde_json::from_str(&answer.text()?)
        .map_err(|_| Error::BadAnswer { url, problem: "its JSON is not what was asked for" })
}

/// The address of the next page, as RFC 8288 writes it. It must be on the same host.
fn next_page(answer: &Answer, home: &Uri) -> Result<Option<Uri>> {
    let links = answer.header("link").unwrap_or_default();
    let is_next = |link: &&str| link.contains("rel=\"next\"") || link.contains("rel=next");
    let Some(next) = links.split(',').find(is_next) else { return Ok(None) };
    let reference = next.split_once('<').and_then(|(_, rest)| rest.split_once('>')).map(|(uri, _)| uri);
    let uri = reference.and_then(|reference| link::join(&answer.uri, reference));
    match uri.filter(|uri| link::same_origin(home, uri)) {
        Some(uri) => Ok(Some(uri)),
        None => Err(Error::BadAnswer { url: shown(&answer.uri), problem: "its next page is elsewhere" }),
    }
}

/// A file of the tree. Folders are none, nor are names that some platform cannot hold; names that climb are refused.
fn listed(entry: TreeEntry, model: &HubName) -> Result<Option<Listed>> {
    if paths::climbs(&entry.path) {
        let path = entry.path.escape_default().take(200).collect();
        return Err(Error::UnsafeFile { model: model.id(), path });
    }
    if entry.kind != "file" || !paths::is_within(&entry.path) {
        return Ok(None);
    }
    let (size, digest) = match entry.lfs {
        Some(lfs) => (lfs.size, Digest::sha256(lfs.oid.trim_start_matches("sha256:"))),
        None => (entry.size, entry.oid.as_deref().and_then(Digest::git)),
    };
    Ok(Some(Listed { path: entry.path, size, digest }))
}
