//! What a revision of a model on the hub consists of: a commit, and its files with sizes and digests.

use serde::{Deserialize, Serialize};

/// The files of one commit. Every path has been found harmless.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct Listing {
    pub(crate) commit: String,
    pub(crate) files: Vec<Listed>,
}

/// One file.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub(crate) struct Listed {
    pub(crate) path: String,
    pub(crate) size: u64,
    /// What its bytes must hash to. A mirror may leave it out.
    pub(crate) digest: Option<Digest>,
}

/// The digest by which the hub knows a file, in lower-case hex.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Digest {
    /// Of large files.
    Sha256(String),
    /// Of the others: the id of a git blob, SHA-1 of `blob`, the size and the bytes.
    Git(String),
}

impl Digest {
    /// What an entity tag of the hub says: it is the digest in quotes.
    pub(crate) fn from_etag(etag: &str) -> Option<Self> {
        let hex = etag.trim().trim_start_matches("W/").trim_matches('"').to_ascii_lowercase();
        match hex.len() {
            64 => Self::sha256(&hex),
            40 => Self::git(&hex),
            _ => None,
        }
    }

    pub(crate) fn sha256(hex: &str) -> Option<Self> {
        is_hex(hex, 64).then(|| Digest::Sha256(hex.to_ascii_lowercase()))
    }

    pub(crate) fn git(hex: &str) -> Option<Self> {
        is_hex(hex, 40).then(|| Digest::Git(hex.to_ascii_lowercase()))
    }

    pub(crate) fn hex(&self) -> &str {
        match self {
            Digest::Sha256(hex) | Digest::Git(hex) => hex,
        }
    }
}

fn is_hex(text: &str, length: usize) -> bool {
    text.len() == length && text.bytes().all(|b| b.is_ascii_hexdigit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entity_tags_of_the_hub_are_digests() {
        let git = "\"70d35b2ce3b4bb7f9f4ef4cbb5b4eb9dd3e5bcb5\"";
        assert!(matches!(Digest::from_etag(git), Some(Digest::Git(_))));
        let sha = format!("W/\"{}\"", "AB".repeat(32));
        assert_eq!(Digest::from_etag(&sha), Some(Digest::Sha256("ab".repeat(32))));
        for other in ["", "\"\"", "\"5d8c72a5edda8d6a:0\"", &"z".repeat(64)] {
            assert_eq!(Digest::from_etag(other), None, "{other}");
        }
    }
}
