//! The simple repository API of Python package indexes: finding one file on a project's page and fetching it.
//!
//! Both forms are spoken, [JSON](https://peps.python.org/pep-0691/) and [HTML](https://peps.python.org/pep-0503/). The
//! digests an index publishes are not looked at: what counts is the pin.

use std::{
    collections::HashMap,
    path::{Path, PathBuf},
};

use percent_encoding::percent_decode_str;
use serde::Deserialize;
use serde_json::Value;
use ureq::http::Uri;

use crate::{
    Error, Package, Result,
    http::{Client, Page},
    link,
    name::PackageName,
    paths,
    progress::Meter,
};

const JSON: &str = "application/vnd.pypi.simple.v1+json";
const ACCEPT: &str =
    "application/vnd.pypi.simple.v1+json, application/vnd.pypi.simple.v1+html;q=0.2, text/html;q=0.01";

#[derive(Deserialize)]
struct Project {
    files: Vec<Listed>,
}

#[derive(Deserialize)]
struct Listed {
    filename: String,
    url: String,
    #[serde(default)]
    hashes: HashMap<String, String>,
    #[serde(default)]
    yanked: Value,
}

/// An archive that was chosen on a project's page.
pub(crate) struct Found {
    pub(crate) file: String,
    pub(crate) version: String,
    pub(crate) uri: Uri,
    /// The digest that the index publishes, if it does.
    pub(crate) sha256: Option<String>,
}

/// Fetches the package's archive from the index at `address` into `folder`.
pub(crate) fn fetch(
    address: &str,
    package: &Package<'_>,
    folder: &Path,
    meter: Meter<'_>,
) -> Result<PathBuf> {
    let client = Client::new(address)?;
    let page = client.page(&project_page(client.home(), package.name)?, ACCEPT)?;
    let uri = locate(&page, package.file)?;
    let to = folder.join(package.file);
    client.download(&uri, &to, package.size, meter)?;
    Ok(to)
}

/// Finds the archive of a package that is not pinned: the version that is wanted, else the newest that is not a
/// preview; a wheel for every platform, else the source package.
pub(crate) fn find(client: &Client, name: &PackageName) -> Result<Found> {
    let page = client.page(&project_page(client.home(), &name.name)?, ACCEPT)?;
    let mut best: Option<(Rank, Found)> = None;
    for listed in all_listed(&page)? {
        let Some((version, is_wheel)) = version_of(&listed.filename, &name.name) else { continue };
        let is_wanted = name.version.as_deref().map_or(!is_true(&listed.yanked), |wanted| wanted == version);
        let rank = Rank { is_final: is_final(version), release: release(version), is_wheel };
        if !is_wanted || best.as_ref().is_some_and(|(other, _)| *other >= rank) {
            continue;
        }
        let bad = Error::BadIndexPage {
            url: page.uri.to_string(),
            problem: "the file's link is not an http address",
        };
        let uri = link::join(&page.uri, &listed.url).ok_or(bad)?;
        let in_link = listed.url.split_once("#sha256=").map(|(_, digest)| digest.to_owned());
        let sha256 = listed.hashes.get("sha256").cloned().or(in_link);
        let version = version.to_owned();
        best = Some((rank, Found { file: listed.filename, version, uri, sha256 }));
    }
    let missing = || Error::NotListed { url: page.uri.to_string(), file: format!("an archive for {name}") };
    best.map(|(_, found)| found).ok_or_else(missing)
}

/// What makes one archive better than another, most important first.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Rank {
    is_final: bool,
    release: Vec<u64>,
    is_wheel: bool,
}

/// The numbers of a version, as far as they go.
fn release(version: &str) -> Vec<u64> {
    version.split('.').map_while(|part| part.parse().ok()).collect()
}

/// Whether a version is made of numbers alone, so that it is no preview. Post-releases count as final.
fn is_final(version: &str) -> bool {
    let version = version.split(['+']).next().unwrap_or_default();
    version.split('.').all(|part| part.parse::<u64>().is_ok() || part.starts_with("post"))
}

/// PEP 592: a reason, or `true`.
fn is_true(yanked: &Value) -> bool {
    !matches!(yanked, Value::Null | Value::Bool(false))
}

/// The version in an archive's name, and whether it is a wheel. Wheels for one platform hold programs, not models.
fn version_of<'f>(file: &'f str, name: &str) -> Option<(&'f str, bool)> {
    if !paths::is_part(file) {
        return None;
    }
    if let Some(stem) = file.strip_suffix("-any.whl") {
        return Some((stem.split('-').nth(1)?, true));
    }
    let (project, version) = file.strip_suffix(".tar.gz")?.rsplit_once('-')?;
    (normal(project) == normal(name)).then_some((version, false))
}

/// Every file of a page, whichever form it has.
fn all_listed(page: &Page) -> Result<Vec<Listed>> {
    match page.media_type.as_str() {
        JSON | "application/json" => {
            let problem = "its JSON has no list of files";
            let bad = |_| Error::BadIndexPage { url: page.uri.to_string(), problem };
            serde_json::from_str::<Project>(&page.text).map(|project| project.files).map_err(bad)
        }
        "application/vnd.pypi.simple.v1+html" | "text/html" => {
            let listed = |url: String| Listed {
                filename: file_name(&url),
                url,
                hashes: HashMap::new(),
                yanked: Value::Null,
            };
            Ok(references(&page.text).map(listed).collect())
        }
        _ => Err(Error::BadIndexPage { url: page.uri.to_string(), problem: "it is neither JSON nor HTML" }),
    }
}

/// The address of a project's page. Names are normalised as PEP 503 says.
fn project_page(index: &Uri, name: &str) -> Result<Uri> {
    let url = format!("{}/{}/", index.to_string().trim_end_matches('/'), normal(name));
    url.parse().map_err(|_| Error::BadIndexUrl { url })
}

/// A project's name as PEP 503 normalises it.
pub(crate) fn normal(name: &str) -> String {
    let parts: Vec<_> = name.split(['-', '_', '.']).filter(|part| !part.is_empty()).collect();
    parts.join("-").to_ascii_lowercase()
}

/// The address of `file`, as the page lists it.
fn locate(page: &Page, file: &str) -> Result<Uri> {
    let url = || page.uri.to_string();
    let listed = all_listed(page)?.into_iter().find(|listed| listed.filename == file);
    let listed = listed.ok_or_else(|| Error::NotListed { url: url(), file: file.to_owned() })?;
    link::join(&page.uri, &listed.url)
        .ok_or_else(|| Error::BadIndexPage { url: url(), problem: "the file's link is not an http address" })
}

/// The values of all `href` attributes, entities resolved.
fn references(html: &str) -> impl Iterator<Item = String> + '_ {
    let lower = html.to_ascii_lowercase();
    let starts: Vec<usize> = lower.match_indices("href").map(|(at, name)| at + name.len()).collect();
    starts.into_iter().filter_map(move |start| {
        let value = html[start..].trim_start().strip_prefix('=')?.trim_start();
        let quote = value.chars().next().filter(|c| matches!(c, '"' | '\''))?;
        let value = value[1..].split(quote).next()?;
        Some(value.replace("&quot;", "\"").replace("&#x27;", "'").replace("&#39;", "'").replace("&amp;", "&"))
    })
}

/// The last path component of a reference: on an index page, the file's name.
fn file_name(reference: &str) -> String {
    let path = reference.split(['#', '?']).next().unwrap_or_default();
    percent_decode_str(path.rsplit('/').next().unwrap_or_default()).decode_utf8_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(media_type: &str, text: &str) -> Page {
        Page {
            uri: "http://host.test/simple/a/".parse().unwrap(),
            media_type: media_type.into(),
            text: text.into(),
        }
    }

    #[test]
    fn names_are_normalised_for_the_address() {
        let index: Uri = "http://host.test/simple/".parse().unwrap();
        let address = project_page(&index, "Friendly-._.Bard").unwrap();
        assert_eq!(address.to_string(), "http://host.test/simple/friendly-bard/");
    }

    #[test]
    fn a_file_is_found_on_an_html_page_however_its_link_is_written() {
        let html = r#"<!DOCTYPE html><html><head><link href=x></head><body>
            <a href="other-1.whl">other-1.whl</a>
            <A data-requires-python="&gt;=3.9" HREF = '../../f/a%2B1.whl?x=1&amp;y=2#sha256=00'>a+1.whl</A></body></html>"#;
        let uri = locate(&page("text/html", html), "a+1.whl").unwrap();
        assert_eq!(uri.to_string(), "http://host.test/f/a%2B1.whl?x=1&y=2");
    }

    #[test]
    fn a_file_is_found_on_a_json_page() {
        let json = r#"{"meta":{"api-version":"1.1"},"name":"a","files":[
            {"filename":"b.whl","url":"b.whl","hashes":{}},
            {"filename":"a.whl","url":"https://cdn.test/a.whl","hashes":{"sha256":"00"}}]}"#;
        let uri = locate(&page("application/vnd.pypi.simple.v1+json", json), "a.whl").unwrap();
        assert_eq!(uri.to_string(), "https://cdn.test/a.whl");
    }

    #[test]
    fn pages_that_are_no_index_are_said_to_be_none() {
        for (media_type, text) in [
            ("application/json", "{\"files\":"),
            ("application/json", "{}"),
            ("image/png", "<a href='a.whl'>"),
            ("text/html", "<a href=\"file:///srv/a.whl\">"),
        ] {
            let error = locate(&page(media_type, text), "a.whl").unwrap_err();
            assert!(matches!(error, Error::BadIndexPage { .. }), "{media_type} {text}: {error}");
        }
        for text in ["", "href", "href=", "<a href=\"", "<a href='b.whl'>", "hrefé='a.whl"] {
            let error = locate(&page("text/html", text), "a.whl").unwrap_err();
            assert!(matches!(error, Error::NotListed { .. }), "{text}: {error}");
        }
    }
}
