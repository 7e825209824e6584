//! The simple repository API of Python package indexes: finding one file on a project's page and fetching it.
//!
//! Both forms are spoken, [JSON](https://peps.python.org/pep-0691/) and [HTML](https://peps.python.org/pep-0503/). The
//! digests an index publishes are not looked at: what counts is the pin.

use std::path::{Path, PathBuf};

use percent_encoding::percent_decode_str;
use serde::Deserialize;
use ureq::http::Uri;

use crate::{
    Error, Package, Progress, Result,
    http::{Client, Page},
    link,
};

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
}

/// Fetches the package's archive from the index at `address` into `folder`.
pub(crate) fn fetch(
    address: &str,
    package: &Package<'_>,
    folder: &Path,
    progress: &dyn Progress,
) -> Result<PathBuf> {
    let client = Client::new(address)?;
    let page = client.page(&project_page(client.index(), package.name)?, ACCEPT)?;
    let uri = locate(&page, package.file)?;
    let to = folder.join(package.file);
    client.download(&uri, &to, package.size, progress)?;
    Ok(to)
}

/// The address of a project's page. Names are normalised as PEP 503 says.
fn project_page(index: &Uri, name: &str) -> Result<Uri> {
    let mut normal = String::new();
    for part in name.split(['-', '_', '.']).filter(|part| !part.is_empty()) {
        if !normal.is_empty() {
            normal.push('-');
        }
        normal.push_str(&part.to_ascii_lowercase());
    }
    let url = format!("{}/{normal}/", index.to_string().trim_end_matches('/'));
    url.parse().map_err(|_| Error::BadIndexUrl { url })
}

/// The address of `file`, as the page lists it.
fn locate(page: &Page, file: &str) -> Result<Uri> {
    let url = || page.uri.to_string();
    let reference = match page.media_type.as_str() {
        "application/vnd.pypi.simple.v1+json" | "application/json" => {
            let project: Project = serde_json::from_str(&page.text)
                .map_err(|_| Error::BadIndexPage { url: url(), problem: "its JSON has no list of files" })?;
            project.files.into_iter().find(|listed| listed.filename == file).map(|listed| listed.url)
        }
        "application/vnd.pypi.simple.v1+html" | "text/html" => {
            references(&page.text).find(|reference| file_name(reference) == file)
        }
        _ => return Err(Error::BadIndexPage { url: url(), problem: "it is neither JSON nor HTML" }),
    };
    let reference = reference.ok_or_else(|| Error::NotListed { url: url(), file: file.to_owned() })?;
    link::join(&page.uri, &reference)
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
