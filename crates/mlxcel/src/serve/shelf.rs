//! Which models a server has: the one it was given, or what lies in a folder.

use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use anyhow::{Result, anyhow, ensure};
use mlxcel_server::{Card, LoadError, Parts, Source};

use super::Serve;
use super::models::Loading;

pub struct Shelf {
    place: Place,
    loading: Loading,
}

enum Place {
    One { card: Card, path: PathBuf },
    Folder(PathBuf),
}

impl Shelf {
    /// Finds the model, and fetches it where it must.
    pub fn open(options: &Serve) -> Result<Self> {
        let place = match &options.models_dir {
            None => {
                let path = options.fetching.resolve(&options.model)?;
                let id = options.alias.clone().unwrap_or_else(|| name_of(&options.model));
                let aliases = if id == options.model { Vec::new() } else { vec![options.model.clone()] };
                Place::One { card: Card { id, aliases, created: created(&path) }, path }
            }
            Some(folder) => {
                let found =
                    list(folder).map_err(|error| anyhow!("cannot read {}: {error}", folder.display()))?;
                ensure!(
                    !found.is_empty(),
                    "{} holds no models; put folders with config.json or .gguf files into it",
                    folder.display()
                );
                Place::Folder(folder.clone())
            }
        };
        Ok(Shelf { place, loading: Loading::new(options)? })
    }
}

impl Source for Shelf {
    fn cards(&self) -> Vec<Card> {
        match &self.place {
            Place::One { card, .. } => vec![card.clone()],
            // What was put there since the start counts, too; a folder that is gone has nothing.
            Place::Folder(folder) => {
                list(folder).unwrap_or_default().into_iter().map(|(card, _)| card).collect()
            }
        }
    }

    fn load(&self, id: &str) -> Result<Parts, LoadError> {
        let path = match &self.place {
            Place::One { path, .. } => Some(path.clone()),
            // Only what the listing has is opened, so a name cannot lead elsewhere.
            Place::Folder(folder) => {
                let found = list(folder).unwrap_or_default().into_iter().find(|(card, _)| card.id == id);
                found.map(|(_, path)| path)
            }
        };
        let path = path.ok_or_else(|| LoadError { reason: "it is no longer there".to_string() })?;
        self.loading.load(&path).map_err(|error| LoadError { reason: format!("{error:#}") })
    }
}

/// Whether this is a file of a model in several that is not the first, `NAME-00002-of-00003.gguf`: the first is opened, and
/// brings the others.
fn is_later_part(path: &Path) -> bool {
    let parts = path.file_stem().and_then(|stem| stem.to_str()).and_then(|stem| stem.rsplit_once("-of-"));
    let Some((before, count)) = parts else { return false };
    let number = before.rsplit_once('-').map_or("", |(_, number)| number);
    let is_number = |text: &str| text.len() == 5 && text.bytes().all(|b| b.is_ascii_digit());
    is_number(number) && is_number(count) && number != "00001"
}

/// The models in a folder, by name.
fn list(folder: &Path) -> std::io::Result<Vec<(Card, PathBuf)>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        let is_gguf = path.extension().is_some_and(|e| e == "gguf") && path.is_file();
        if !is_gguf && !path.join("config.json").is_file() || is_later_part(&path) {
            continue;
        }
        let name = if is_gguf { path.file_stem() } else { path.file_name() };
        if let Some(id) = name.and_then(|name| name.to_str()) {
            let card = Card { id: id.to_string(), aliases: Vec::new(), created: created(&path) };
            found.push((card, path));
        }
    }
    found.sort_by(|a, b| a.0.id.cmp(&b.0.id));
    Ok(found)
}

/// What a model is called where nobody gave it a name: a path's last part, else the name itself.
fn name_of(model: &str) -> String {
    let path = Path::new(model);
    let is_path = path.exists() || model.starts_with('.') || path.is_absolute();
    let last = path.file_name().and_then(|name| name.to_str()).filter(|_| is_path);
    last.map_or(model, |name| name.strip_suffix(".gguf").unwrap_or(name)).to_string()
}

fn created(path: &Path) -> u64 {
    let modified = std::fs::metadata(path).and_then(|metadata| metadata.modified());
    modified.ok().and_then(|time| time.duration_since(UNIX_EPOCH).ok()).map_or(0, |time| time.as_secs())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_lists_folders_and_gguf_files_by_name() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("b")).unwrap();
        std::fs::write(folder.path().join("b/config.json"), "{}").unwrap();
        for name in ["a.gguf", "c-00001-of-00002.gguf", "c-00002-of-00002.gguf", "notes.txt"] {
            std::fs::write(folder.path().join(name), "").unwrap();
        }
        std::fs::create_dir(folder.path().join("empty")).unwrap();
        let names: Vec<String> = list(folder.path()).unwrap().into_iter().map(|(card, _)| card.id).collect();
        assert_eq!(names, ["a", "b", "c-00001-of-00002"]);
    }

    #[test]
    fn a_path_is_called_by_its_last_part() {
        assert_eq!(name_of("./models/Qwen3-0.6B"), "Qwen3-0.6B");
        assert_eq!(name_of("./tiny.gguf"), "tiny");
        assert_eq!(name_of("smollm2"), "smollm2");
        assert_eq!(name_of("Qwen/Qwen3-0.6B"), "Qwen/Qwen3-0.6B");
    }
}
