//! A conversation in a file: JSON with the messages and the settings, replaced in one step. What a file holds is
//! checked as a whole before anything of it is used.

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};

use anyhow::{Result, anyhow, bail, ensure};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::conversation::{Conversation, Message, Role};
use super::settings::Settings;

/// More than any context holds.
const BYTES_MAX: u64 = 64 << 20;

#[derive(Debug, Serialize, Deserialize)]
struct Saved {
    #[serde(default)]
    model: Option<String>,
    messages: Vec<Message>,
    #[serde(default)]
    settings: Map<String, Value>,
}

/// What a file held.
#[derive(Debug)]
pub struct Restored {
    /// The model that it was saved with, if the file says so.
    pub model: Option<String>,
    pub conversation: Conversation,
    pub settings: Settings,
}

/// Writes a file anew, or replaces one that holds a conversation. Any other file is left alone.
pub fn save(path: &Path, model: &str, conversation: &Conversation, settings: &Settings) -> Result<()> {
    let name = path.display();
    if path.exists() && read(path).is_err() {
        bail!("'{name}' is there and holds no conversation; give another name or remove it");
    }
    let settings = settings.to_object()?;
    let saved = Saved { model: Some(model.to_string()), messages: conversation.all(), settings };
    let mut text = serde_json::to_string_pretty(&saved)?;
    text.push('\n');
    write(path, text.as_bytes())
        .map_err(|e| anyhow!("cannot save to '{name}': {e}; give a place that can be written to"))
}

fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let folder = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut file = tempfile::NamedTempFile::new_in(folder)?;
    file.write_all(bytes)?;
    file.as_file().sync_all()?;
    file.persist(path)?;
    Ok(())
}

/// Reads a conversation; its settings are put on top of `settings`.
pub fn load(path: &Path, settings: &Settings) -> Result<Restored> {
    let name = path.display();
    let saved = read(path)?;
    let settings =
        settings.with(&saved.settings).map_err(|e| anyhow!("'{name}' holds a bad setting: {e}"))?;
    let mut messages = saved.messages;
    let is_system = |message: &Message| message.role == Role::System;
    let system = messages.first().is_some_and(is_system).then(|| messages.remove(0).content);
    ensure!(
        !messages.iter().any(is_system),
        "'{name}' has a system message that is not the first one; a conversation has one at most, at its beginning"
    );
    Ok(Restored { model: saved.model, conversation: Conversation { system, messages }, settings })
}

fn read(path: &Path) -> Result<Saved> {
    let name = path.display();
    let cannot = |e: io::Error| anyhow!("cannot read '{name}': {e}; give a file that /save wrote");
    let mut bytes = Vec::new();
    // Asking first keeps a pipe or a folder from being opened.
    ensure!(path.metadata().map_err(cannot)?.is_file(), "'{name}' is not a file; give one that /save wrote");
    File::open(path).map_err(cannot)?.take(BYTES_MAX + 1).read_to_end(&mut bytes).map_err(cannot)?;
    ensure!(bytes.len() as u64 <= BYTES_MAX, "'{name}' is longer than {} MB", BYTES_MAX >> 20);
    serde_json::from_slice(&bytes)
        .map_err(|e| anyhow!("'{name}' holds no conversation: {e}; give a file that /save wrote"))
}

/// A path as people write it: `~/` is the home folder.
pub fn place(text: &str) -> PathBuf {
    let home = std::env::var_os("HOME").filter(|home| !home.is_empty());
    match (text.strip_prefix("~/"), home) {
        (Some(rest), Some(home)) => Path::new(&home).join(rest),
        _ => PathBuf::from(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::settings::tests::settings;

    fn conversation() -> Conversation {
        let mut conversation = Conversation { system: Some("Be kind.".to_string()), messages: Vec::new() };
        conversation.push(Role::User, "Grüße 👋\n\"quoted\"".to_string());
        conversation.push(Role::Assistant, "\u{0}\u{1b}[31m".to_string());
        conversation
    }

    #[test]
    fn what_was_saved_is_loaded_again() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("chat.json");
        let mut changed = settings();
        changed.set("temp", "0.3").unwrap();
        changed.set("stop", "[\"x\"]").unwrap();
        for _ in 0..2 {
            save(&path, "some model", &conversation(), &changed).unwrap();
        }
        let restored = load(&path, &settings()).unwrap();
        assert_eq!(restored.conversation, conversation());
        assert_eq!(restored.settings.list().unwrap(), changed.list().unwrap());
        assert_eq!(restored.model.as_deref(), Some("some model"));
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "nothing else is left");
    }

    #[test]
    fn a_file_of_another_kind_is_never_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("notes.txt");
        std::fs::write(&path, "mine").unwrap();
        let refused = save(&path, "m", &conversation(), &settings()).unwrap_err().to_string();
        assert!(refused.contains("notes.txt") && refused.contains("holds no conversation"), "{refused}");
        assert_eq!(std::fs::read(&path).unwrap(), b"mine");
        assert!(save(folder.path(), "m", &conversation(), &settings()).is_err(), "a folder");
        assert!(save(&folder.path().join("no/such"), "m", &conversation(), &settings()).is_err());
    }

    #[test]
    fn files_that_are_no_conversation_are_refused_by_name() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("hostile.json");
        let deep = format!("{{\"messages\":{}{}}}", "[".repeat(100_000), "]".repeat(100_000));
        let files: [&[u8]; 12] = [
            b"",
            b"\xff\xfe",
            b"null",
            b"[]",
            b"{}",
            b"{\"messages\":{}}",
            b"{\"messages\":[{\"role\":\"user\"}]}",
            b"{\"messages\":[{\"role\":\"tool\",\"content\":\"x\"}]}",
            b"{\"messages\":[{\"role\":\"user\",\"content\":5}]}",
            b"{\"messages\":[],\"settings\":{\"temp\":1e400}}",
            b"{\"messages\":[],\"settings\":{\"heat\":1}}",
            deep.as_bytes(),
        ];
        for bytes in files {
            std::fs::write(&path, bytes).unwrap();
            let refused = load(&path, &settings()).unwrap_err().to_string();
            assert!(refused.contains("hostile.json"), "{refused}");
        }
        let late =
            "{\"messages\":[{\"role\":\"user\",\"content\":\"\"},{\"role\":\"system\",\"content\":\"\"}]}";
        std::fs::write(&path, late).unwrap();
        assert!(load(&path, &settings()).unwrap_err().to_string().contains("not the first one"));
        assert!(load(folder.path(), &settings()).is_err(), "a folder");
        assert!(load(Path::new("/dev/zero"), &settings()).is_err(), "a device");
    }

    #[test]
    fn a_list_of_messages_is_enough() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("chat.json");
        std::fs::write(&path, "{\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"}]}").unwrap();
        let restored = load(&path, &settings()).unwrap();
        assert_eq!((restored.conversation.messages.len(), restored.conversation.system), (1, None));
    }
}
