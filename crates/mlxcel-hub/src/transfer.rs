//! One file of the hub, brought to the disk: resumed after a cut, tried again when the server is busy, checked.
//!
//! The bytes grow in a part file that is named after their digest, so whatever is in it belongs to them; a later run
//! goes on where this one stopped. Where no digest is known, a part is only resumed within one run.

use std::{
    fs::{self, File},
    io::{self, Read, Seek, SeekFrom, Write},
    path::Path,
    sync::atomic::{AtomicBool, Ordering},
};

use ureq::http::{Uri, header};

use crate::{
    Error, Event, Progress, Result,
    api::Api,
    digest::{self, Hasher},
    http::{Answer, shown},
    listing::{Digest, Listed},
    name::HubName,
    retry::{Patience, Retries},
};

/// An attempt that brought this many bytes is progress, and patience starts anew.
const PROGRESS_BYTES: u64 = 64 << 10;

/// What is needed to bring a file here.
pub(crate) struct Transfer<'a> {
    pub(crate) api: &'a Api,
    pub(crate) model: &'a HubName,
    pub(crate) commit: &'a str,
    pub(crate) patience: Patience,
    pub(crate) progress: &'a dyn Progress,
    /// Set when another file has failed.
    pub(crate) stop: &'a AtomicBool,
}

/// A file on its way.
struct Part<'a> {
    file: File,
    place: &'a Path,
    wanted: &'a Listed,
    received: u64,
    digest: Option<Digest>,
    hasher: Hasher,
    /// For resuming: what the server called these bytes.
    etag: Option<String>,
    /// Whether some of the bytes are of an earlier run.
    is_resumed: bool,
}

impl Transfer<'_> {
    /// Brings the file to `place`, whole and checked. What goes wrong on the way leaves a part to resume, unless the
    /// bytes are wrong.
    pub(crate) fn fetch(&self, wanted: &Listed, place: &Path) -> Result<()> {
        let uri = self.api.file(self.model, self.commit, &wanted.path)?;
        let mut part = Part::open(place, wanted)?;
        let result = self.fetch_part(&uri, &mut part).or_else(|error| match error {
            // Bytes of an earlier run may have been damaged since: once they are fetched anew.
            Error::WrongDigest { .. } if part.is_resumed => {
                part.restart()?;
                self.fetch_part(&uri, &mut part)
            }
            error => Err(error),
        });
        if matches!(result, Err(Error::WrongDigest { .. } | Error::WrongSize { .. })) {
            fs::remove_file(place).map_err(Error::io("clear away", place))?;
        }
        result
    }

    fn fetch_part(&self, uri: &Uri, part: &mut Part<'_>) -> Result<()> {
        let what = &part.wanted.path;
        if part.received < part.wanted.size || part.wanted.size == 0 {
            let retries = Retries::new(what, self.patience, self.progress, self.stop);
            retries.run(|| {
                let before = part.received;
                let result = self.attempt(uri, part);
                result.map_err(|error| (error, part.received >= before.saturating_add(PROGRESS_BYTES)))
            })?;
        }
        part.check()?;
        part.file.sync_all().map_err(Error::write(part.place))
    }

    /// One request for what is missing.
    fn attempt(&self, uri: &Uri, part: &mut Part<'_>) -> Result<()> {
        let range = format!("bytes={}-", part.received);
        let mut headers = vec![(header::ACCEPT, "*/*"), (header::ACCEPT_ENCODING, "identity")];
        if part.received > 0 {
            headers.push((header::RANGE, &range));
        }
        let etag = part.etag.clone().filter(|_| part.received > 0);
        if let Some(etag) = &etag {
            headers.push((header::IF_RANGE, etag));
        }
        let answer = self.api.client.send(uri, &headers)?;
        let answer = self.accept(answer, part)?;
        self.receive(answer, part)
    }

    /// Looks at the head of an answer, and makes the part fit to it.
    fn accept(&self, answer: Answer, part: &mut Part<'_>) -> Result<Answer> {
        let broken = |problem: &str| Error::BrokenDownload {
            url: shown(&answer.uri),
            received: part.received,
            source: io::Error::other(problem.to_owned()),
        };
        match answer.status() {
            206 if part.received > 0 => {
                let range = answer.header("content-range").and_then(content_range);
                if range != Some((part.received, part.wanted.size)) {
                    let error = broken("the server sent another part than was asked for");
                    part.restart()?;
                    return Err(error);
                }
            }
            200 => part.restart()?,
            416 => {
                let error = broken("the server has no such part");
                part.restart()?;
                return Err(error);
            }
            // A signed address that has run out is signed anew at the next attempt.
            403 if !crate::link::same_origin(self.api.client.home(), &answer.uri) => {
                return Err(broken("the server that has the bytes refused to give them (HTTP status 403)"));
            }
            _ => return Err(self.api.refusal(answer, self.model)),
        }
        let length = answer.header("content-length").and_then(|text| text.parse::<u64>().ok());
        if let Some(length) = length {
            let total = part.received.saturating_add(length);
            digest::check_size(&part.wanted.path, part.wanted.size, total)?;
        }
        part.learn(&answer);
        Ok(answer)
    }

    /// Appends the body to the part.
    fn receive(&self, answer: Answer, part: &mut Part<'_>) -> Result<()> {
        let url = shown(&answer.uri);
        let rest = (part.wanted.size - part.received).saturating_add(1);
        let mut body = answer.response.into_body().into_with_config().limit(u64::MAX).reader().take(rest);
        let mut buffer = vec![0; 256 * 1024];
        let broken = |received, source| Error::BrokenDownload { url: url.clone(), received, source };
        loop {
            if self.stop.load(Ordering::Relaxed) {
                return Err(Error::Stopped);
            }
            match body.read(&mut buffer) {
                Ok(0) => break,
                Ok(count) => part.append(&buffer[..count])?,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                Err(source) => return Err(broken(part.received, source)),
            }
            self.progress.on(Event::Advanced { what: &part.wanted.path, bytes: part.received });
        }
        if part.received < part.wanted.size {
            return Err(broken(part.received, io::ErrorKind::UnexpectedEof.into()));
        }
        Ok(())
    }
}

impl<'a> Part<'a> {
    /// Opens the part of an earlier run, or a new one. A link or folder in its place is not followed but removed.
    fn open(place: &'a Path, wanted: &'a Listed) -> Result<Self> {
        if fs::symlink_metadata(place).is_ok_and(|there| !there.is_file()) {
            crate::cache::remove(place).map_err(Error::io("clear away", place))?;
        }
        let mut file = File::options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(wanted.digest.is_none())
            .open(place)
            .map_err(Error::io("open", place))?;
        let mut hasher = Hasher::new(wanted.digest.as_ref(), wanted.size);
        let mut received = 0;
        let mut buffer = vec![0; 256 * 1024];
        loop {
            match file.read(&mut buffer).map_err(Error::io("read", place))? {
                0 => break,
                count => {
                    hasher.update(&buffer[..count]);
                    received += count as u64;
                }
            }
        }
        let digest = wanted.digest.clone();
        let is_resumed = received > 0;
        let mut part = Self { file, place, wanted, received, digest, hasher, etag: None, is_resumed };
        if received > wanted.size {
            part.restart()?;
        }
        Ok(part)
    }

    /// Forgets all bytes.
    fn restart(&mut self) -> Result<()> {
        self.file
            .set_len(0)
            .and_then(|()| self.file.seek(SeekFrom::Start(0)))
            .map_err(Error::write(self.place))?;
        self.received = 0;
        self.is_resumed = false;
        self.etag = None;
        self.hasher = Hasher::new(self.digest.as_ref(), self.wanted.size);
        Ok(())
    }

    /// Keeps what the server calls the bytes; where the listing has no digest, the hub's tag is one.
    fn learn(&mut self, answer: &Answer) {
        self.etag = answer.header("etag").filter(|etag| etag.starts_with('"')).map(str::to_owned);
        if self.digest.is_none() && self.received == 0 {
            self.digest = answer.linked_etag.as_deref().and_then(Digest::from_etag);
            self.hasher = Hasher::new(self.digest.as_ref(), self.wanted.size);
        }
    }

    fn append(&mut self, bytes: &[u8]) -> Result<()> {
        self.file.write_all(bytes).map_err(Error::write(self.place))?;
        self.hasher.update(bytes);
        self.received += bytes.len() as u64;
        Ok(())
    }

    fn check(&mut self) -> Result<()> {
        digest::check_size(&self.wanted.path, self.wanted.size, self.received)?;
        let hasher = std::mem::replace(&mut self.hasher, Hasher::Nothing);
        match (&self.digest, hasher.finish()) {
            (Some(expected), Some(got)) => digest::check_digest(&self.wanted.path, expected.hex(), &got),
            _ => Ok(()),
        }
    }
}

/// `bytes 10-99/100` as the first byte and the size of the whole.
fn content_range(text: &str) -> Option<(u64, u64)> {
    let (range, total) = text.trim().strip_prefix("bytes ")?.split_once('/')?;
    let (start, _) = range.split_once('-')?;
    Some((start.trim().parse().ok()?, total.trim().parse().ok()?))
}
