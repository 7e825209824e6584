//! Where a conversion goes: written beside its final place under a temporary name, then renamed, so that nobody ever
//! sees half a model. What was begun is removed when it cannot be finished.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, anyhow, bail};
use indicatif::{ProgressBar, ProgressStyle};
use mlxcel_weights::WeightsError;
use mlxcel_weights::write::Watch;
use tempfile::{NamedTempFile, TempDir};

use super::Convert;
use crate::interrupt::Interrupt;
use crate::report::in_words;

/// Folders that a model's folder may have.
const SUBFOLDERS: [&str; 2] = ["1_Pooling", "additional_chat_templates"];

/// The person ended the conversion.
#[derive(Debug, thiserror::Error)]
#[error("interrupted: {} was not written", .0.display())]
pub struct Interrupted(PathBuf);

/// Refuses to write over what is there unless that was asked for, and over the source always.
pub fn check_free(options: &Convert, source: &Path) -> Result<()> {
    let (out, shown) = (&options.output, options.output.display());
    let parent = parent(out);
    if !parent.is_dir() {
        bail!("the folder {} does not exist; make it first", parent.display());
    }
    let Ok(found) = fs::symlink_metadata(out) else { return Ok(()) };
    let same = |a: &Path, b: &Path| matches!((a.canonicalize(), b.canonicalize()), (Ok(a), Ok(b)) if a == b);
    let source_folder = if source.is_dir() { source } else { parent_of(source) };
    if same(out, source) || found.is_dir() && same(out, source_folder) {
        bail!("{shown} is what would be converted; choose another output");
    }
    if !options.force {
        bail!("{shown} exists already; choose another output, or replace it with --force");
    }
    let is_gguf = out.extension().is_some_and(|e| e.eq_ignore_ascii_case("gguf"));
    match (is_gguf, found.is_dir()) {
        (true, true) => bail!("{shown} is a folder and is not replaced by a file; choose another output"),
        (false, false) => bail!("{shown} is a file and is not replaced by a folder; choose another output"),
        (false, true) if !is_model_folder(out)? => {
            bail!("{shown} holds more than a model and is not replaced; choose another output")
        }
        _ => Ok(()),
    }
}

/// Only a folder that is nothing but a model may be thrown away.
fn is_model_folder(folder: &Path) -> Result<bool> {
    let mut has_weights = false;
    for entry in fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))? {
        let entry = entry?;
        let name = entry.file_name();
        let is_folder = entry.file_type()?.is_dir();
        if is_folder && !SUBFOLDERS.iter().any(|known| name == *known) {
            return Ok(false);
        }
        has_weights |= Path::new(&name).extension().is_some_and(|e| e == "safetensors");
    }
    Ok(has_weights)
}

fn parent_of(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if parent != Path::new("") => parent,
        _ => Path::new("."),
    }
}

fn parent(path: &Path) -> PathBuf {
    parent_of(path).to_path_buf()
}

fn temporary(path: &Path) -> tempfile::Builder<'static, 'static> {
    let mut builder = tempfile::Builder::new();
    builder.prefix(".mlxcel-convert-");
    // Like any new file: what the user's mask leaves of these.
    let is_gguf = path.extension().is_some_and(|e| e.eq_ignore_ascii_case("gguf"));
    if let Some(permissions) = mlxcel_platform::files::permissions(if is_gguf { 0o666 } else { 0o777 }) {
        builder.permissions(permissions);
    }
    builder
}

/// An error of writing, with where and what to do.
fn explain(out: &Path, bytes: u64, error: WeightsError) -> anyhow::Error {
    let shown = out.display();
    match error {
        WeightsError::Stopped => Interrupted(out.to_path_buf()).into(),
        WeightsError::Write { source } if source.kind() == io::ErrorKind::StorageFull => anyhow!(
            "the disk of {} is full: {shown} takes {}; make room or choose another output (what was begun is removed)",
            parent(out).display(),
            in_words(bytes, "B"),
        ),
        WeightsError::Write { source } => anyhow!("{shown} cannot be written: {source}"),
        error => anyhow!("{shown}: {error}"),
    }
}

/// A file that appears when it is published.
pub struct FileOutput {
    path: PathBuf,
    bytes: u64,
    temporary: NamedTempFile,
}

impl FileOutput {
    pub fn create(path: &Path, bytes: u64) -> Result<Self> {
        let made = temporary(path).tempfile_in(parent(path));
        let temporary = made.with_context(|| format!("{} cannot be written", path.display()))?;
        Ok(FileOutput { path: path.to_path_buf(), bytes, temporary })
    }

    pub fn file(&self) -> &File {
        self.temporary.as_file()
    }

    pub fn explain(&self, error: WeightsError) -> anyhow::Error {
        explain(&self.path, self.bytes, error)
    }

    pub fn publish(self) -> Result<()> {
        let write = |source| explain(&self.path, self.bytes, WeightsError::Write { source });
        self.temporary.as_file().sync_all().map_err(write)?;
        self.temporary.persist(&self.path).map_err(|error| write(error.error))?;
        Ok(())
    }
}

/// A folder that appears when it is published.
pub struct FolderOutput {
    path: PathBuf,
    bytes: u64,
    temporary: TempDir,
}

impl FolderOutput {
    pub fn create(path: &Path, bytes: u64) -> Result<Self> {
        let made = temporary(path).tempdir_in(parent(path));
        let temporary = made.with_context(|| format!("{} cannot be written", path.display()))?;
        Ok(FolderOutput { path: path.to_path_buf(), bytes, temporary })
    }

    pub fn folder(&self) -> &Path {
        self.temporary.path()
    }

    pub fn explain(&self, error: WeightsError) -> anyhow::Error {
        explain(&self.path, self.bytes, error)
    }

    pub fn explain_io(&self, source: io::Error) -> anyhow::Error {
        self.explain(WeightsError::Write { source })
    }

    /// An older folder of the name steps aside first and is removed last.
    pub fn publish(self) -> Result<()> {
        let failed = |source| explain(&self.path, self.bytes, WeightsError::Write { source });
        let older = match fs::symlink_metadata(&self.path) {
            Ok(_) => {
                let aside = temporary(&self.path).tempdir_in(parent(&self.path)).map_err(failed)?;
                fs::rename(&self.path, aside.path().join("older")).map_err(failed)?;
                Some(aside)
            }
            Err(_) => None,
        };
        fs::rename(self.temporary.path(), &self.path).map_err(|error| {
            if let Some(older) = &older {
                let _ = fs::rename(older.path().join("older"), &self.path);
            }
            failed(error)
        })?;
        // It is no longer where it was made, so there is nothing left to remove.
        let _ = self.temporary.keep();
        Ok(())
    }
}

/// A bar on a terminal, nothing elsewhere; and Ctrl-C.
pub struct Progress {
    bar: ProgressBar,
    interrupt: Interrupt,
}

impl Progress {
    pub fn new(bytes: u64) -> Result<Self> {
        let bar = ProgressBar::new(bytes);
        let style =
            ProgressStyle::with_template("{bar:40} {bytes} of {total_bytes}, {bytes_per_sec}, {eta} left")?;
        bar.set_style(style);
        let interrupt = Interrupt::install()?;
        interrupt.be_polite();
        Ok(Progress { bar, interrupt })
    }

    pub fn finish(&self) {
        self.bar.finish_and_clear();
    }
}

impl Watch for Progress {
    fn wrote(&mut self, bytes: u64) -> bool {
        self.bar.inc(bytes);
        !self.interrupt.is_asked()
    }
}
