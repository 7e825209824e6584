//! Where a file of packed weights lies: opening it, making it, and clearing away what is of no use. A file is made under
//! another name, by whoever needs it, and enters its place by one rename: of several at once the last remains. What is not
//! whole is told by its hash, so that nothing need be on the disk before.

use std::fs::{self, File, TryLockError};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use mlxcel_platform::{files, large_pages};

use super::fill::{Failure, fill};
use super::head::{self, Head};
use super::plan::Plan;
use super::{Keeper, KeptError};
use crate::context::Context;
use crate::memory::Mapped;
use crate::weight::Matrix;

/// Bytes that are left free on the disk.
const SPARE: u64 = 1 << 30;

/// What files end with, and what they end with on their way.
const ENDING: &str = "panels";
const DRAFT: &str = "draft";

/// The place of one file.
pub(super) struct Place {
    root: PathBuf,
    folder: PathBuf,
    name: String,
    /// Whether a file is read as fast as memory.
    pub(super) suits: fn(&Mapped) -> bool,
}

/// Why a file is not used.
pub(super) enum Miss {
    /// There is none, or it was made of something else.
    Absent,
    Damaged(&'static str),
    /// It is right, but the system has it in small pages.
    SmallPages,
}

/// What came of making a file.
pub(super) struct Made {
    /// `None` if memory is better.
    pub(super) panels: Option<Mapped>,
    /// Why it will not be there the next time, although it is now.
    pub(super) unkept: Option<KeptError>,
}

/// A file on its way. Its lock says that somebody works on it, until the process ends however it ends.
struct Draft {
    file: File,
    path: PathBuf,
}

impl Place {
    pub(super) fn new(keeper: &Keeper, plan: &Plan) -> Self {
        let name = plan.name[..16].iter().map(|byte| format!("{byte:02x}")).collect();
        let (root, folder) = (keeper.root.clone(), keeper.root.join(files::key(&plan.source)));
        Place { root, folder, name, suits: keeper.suits }
    }

    pub(super) fn folder(&self) -> PathBuf {
        self.folder.clone()
    }

    pub(super) fn path(&self) -> PathBuf {
        self.folder.join(format!("{}.{ENDING}", self.name))
    }

    /// The panels that are there, if they are those of the plan, whole, and as fast as memory.
    pub(super) fn open(&self, ctx: &Context, plan: &Plan) -> Result<Mapped, Miss> {
        let path = self.path();
        // Opening a pipe would block.
        fs::symlink_metadata(&path).ok().filter(fs::Metadata::is_file).ok_or(Miss::Absent)?;
        let unreadable = |_: io::Error| Miss::Damaged("it cannot be read");
        let file = File::open(&path).map_err(unreadable)?;
        let head = Head::read(&file).map_err(unreadable)?.ok_or(Miss::Damaged("its head is"))?;
        if head.identity != plan.identity {
            return Err(Miss::Absent);
        }
        let len = file.metadata().map_err(unreadable)?.len();
        if len != (head::BYTES + plan.len) as u64 || head.len != plan.len as u64 {
            return Err(Miss::Damaged("its length is wrong"));
        }
        let panels = self.map(&file, plan.len).map_err(unreadable)?.ok_or(Miss::SmallPages)?;
        if head::hash(ctx, &panels) == head.hash {
            Ok(panels)
        } else {
            Err(Miss::Damaged("its contents are"))
        }
    }

    /// The contents of a file, mapped. What others have read of it in small pages is read once more.
    fn map(&self, file: &File, len: usize) -> io::Result<Option<Mapped>> {
        let map = || Mapped::of(file, head::BYTES as u64, len);
        let first = map()?;
        if (self.suits)(&first) {
            return Ok(Some(first));
        }
        drop(first);
        large_pages::forget(file);
        Ok(Some(map()?).filter(self.suits))
    }

    /// Packs a plan to a new file, maps it, and puts it in its place.
    pub(super) fn make(&self, ctx: &Context, plan: &Plan, matrices: &[Matrix]) -> Result<Made, Failure> {
        let draft = self.begin(plan).map_err(Failure::Kept)?;
        match fill(ctx, plan, matrices, (self, &draft.file)) {
            Ok(Some(panels)) => {
                let kept = fs::rename(&draft.path, self.path());
                let unkept = kept.err().map(|source| {
                    draft.remove();
                    KeptError::Io { path: self.path(), source }
                });
                Ok(Made { panels: Some(panels), unkept })
            }
            Ok(None) => {
                draft.remove();
                Ok(Made { panels: None, unkept: None })
            }
            Err(failure) => {
                draft.remove();
                Err(failure)
            }
        }
    }

    /// An empty file where there is room for all of it, after clearing up.
    fn begin(&self, plan: &Plan) -> Result<Draft, KeptError> {
        let io = |source| KeptError::Io { path: self.folder(), source };
        fs::create_dir_all(&self.folder).map_err(io)?;
        clear(&self.root);
        let needed = (head::BYTES + plan.len) as u64;
        let available = fs4::available_space(&self.folder).map_err(io)?;
        if available < needed + SPARE {
            return Err(KeptError::NoRoom { folder: self.folder(), needed, available });
        }
        Draft::new(&self.folder, &self.name).map_err(io)
    }
}

impl Draft {
    fn new(folder: &Path, name: &str) -> io::Result<Self> {
        static DRAFTS: AtomicU64 = AtomicU64::new(0);
        loop {
            let number = DRAFTS.fetch_add(1, Ordering::Relaxed);
            let path = folder.join(format!("{name}.{}-{number}.{DRAFT}", std::process::id()));
            let file = match files::create_private(&path) {
                // Left by a process that had our number and was killed.
                Err(e) if e.kind() == ErrorKind::AlreadyExists => continue,
                // Another process cleared it away, since it was empty.
                Err(e) if e.kind() == ErrorKind::NotFound => {
                    fs::create_dir_all(folder)?;
                    continue;
                }
                other => other?,
            };
            // Who clears up at this moment may have it, or may have had it; where nothing can be locked, nobody does.
            let is_taken = matches!(file.try_lock(), Err(TryLockError::WouldBlock));
            if !is_taken && path.exists() {
                return Ok(Draft { file, path });
            }
        }
    }

    fn remove(&self) {
        // If it stays, who makes the next one clears it away.
        let _ = fs::remove_file(&self.path);
    }
}

/// Removes what killed processes left on its way, and what was packed of files that are gone. Nothing but what has our names is
/// touched; what cannot be removed stays.
fn clear(root: &Path) {
    for folder in entries(root).filter(|path| is_key(path) && path.is_dir()) {
        let useless = |path: &PathBuf| {
            let ending = path.extension().unwrap_or_default();
            (ending == DRAFT && is_left(path)) || (ending == ENDING && is_orphan(path))
        };
        for path in entries(&folder).filter(useless) {
            let _ = fs::remove_file(&path);
            // Fails unless that was the last.
            let _ = fs::remove_dir(&folder);
        }
    }
}

fn entries(folder: &Path) -> impl Iterator<Item = PathBuf> {
    fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path())
}

fn is_key(path: &Path) -> bool {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    name.len() == 32 && name.bytes().all(|c| c.is_ascii_hexdigit())
}

/// Whether nobody works on it any more.
fn is_left(path: &Path) -> bool {
    let is_file = fs::symlink_metadata(path).is_ok_and(|data| data.is_file());
    is_file && File::open(path).is_ok_and(|file| file.try_lock().is_ok())
}

fn is_orphan(path: &Path) -> bool {
    let source = Head::at(path).map(|head| head.source);
    source.is_some_and(|path| path != Path::new("") && fs::exists(&path).is_ok_and(|exists| !exists))
}
