//! What a file of packed weights holds, where, and by what it is known. It reads and writes nothing.

use std::path::{Path, PathBuf};

use mlxcel_engine::weights::Origin;
use mlxcel_platform::large_pages;
use sha2::{Digest as _, Sha256};

use crate::kernels::packed::Form;
use crate::simd::SimdLevel;
use crate::weight::Matrix;

/// Every weight begins at a multiple of this, as it would in memory.
pub(super) const ALIGNMENT: usize = 64;

/// What is less is packed sooner than a file is looked for.
const WORTH_KEEPING: usize = large_pages::SIZE;

/// Weights one after the other.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) pieces: Vec<Piece>,
    /// Bytes of all of them, up to the end of the last large page.
    pub(super) len: usize,
    /// The first file that has a part in it.
    pub(super) source: PathBuf,
    /// What the contents depend on, but for the state of files.
    pub(super) name: [u8; 32],
    /// All that the contents depend on.
    pub(super) identity: [u8; 32],
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Piece {
    pub(super) matrix: usize,
    pub(super) form: Form,
    /// Where it begins.
    pub(super) at: usize,
}

impl Piece {
    /// Where the next one may begin.
    pub(super) fn end(&self) -> usize {
        self.at + self.form.bytes().next_multiple_of(ALIGNMENT)
    }
}

impl Plan {
    /// Of the matrices at `products`, those that are packed at the level and come from files alone. `None` if they are not
    /// worth it. What was folded or joined at load is not in files and is packed at every start.
    pub(super) fn new(level: SimdLevel, matrices: &[Matrix], products: &[usize]) -> Option<Self> {
        let (mut pieces, mut origins, mut name) = (vec![], vec![], Fields(Sha256::new()));
        let mut end = 0;
        for &matrix in products {
            let Some(form) = matrices[matrix].form(level) else { continue };
            let Some(parts) = parts(&matrices[matrix]) else { continue };
            describe(&mut name, &matrices[matrix], &form, &parts);
            for (origin, _, _) in parts {
                if !origins.contains(&origin) {
                    origins.push(origin);
                }
            }
            let piece = Piece { matrix, form, at: end };
            end = piece.end();
            pieces.push(piece);
        }
        if end < WORTH_KEEPING {
            return None;
        }
        let (name, source) = (name.finish(), origins.first()?.path.clone());
        let identity = identity(&name, &origins);
        Some(Plan { pieces, len: end.next_multiple_of(large_pages::SIZE), source, name, identity })
    }
}

/// A range of a file: where it begins and how long it is.
type Part<'a> = (&'a Origin, usize, usize);

/// The ranges of files that a matrix is made of; `None` if any of it is in memory.
fn parts(matrix: &Matrix) -> Option<Vec<Part<'_>>> {
    let parts = matrix.segments().iter().flat_map(|segment| &segment.parts);
    parts.map(|part| part.origin().map(|(origin, at)| (origin, at, part.len()))).collect()
}

fn describe(to: &mut Fields, matrix: &Matrix, form: &Form, parts: &[Part<'_>]) {
    to.text(&format!("{:?}", matrix.dtype));
    // Panels of codes are the same at every level, and so are halves.
    to.numbers(&[usize::from(form.has_codes())]);
    to.numbers(&matrix.shape);
    for segment in matrix.segments() {
        to.numbers(&segment.shape);
    }
    for (origin, at, len) in parts {
        to.path(&origin.path);
        to.numbers(&[*at, *len]);
    }
}

fn identity(name: &[u8; 32], origins: &[&Origin]) -> [u8; 32] {
    let mut to = Fields(Sha256::new());
    to.text(env!("CARGO_PKG_VERSION"));
    to.numbers(&[Form::LAYOUT as usize, ALIGNMENT]);
    to.bytes(name);
    for origin in origins {
        to.path(&origin.path);
        to.bytes(origin.stamp.map(u64::to_le_bytes).as_flattened());
    }
    to.finish()
}

/// A hash of fields, each with its length, so that no two lists of them are the same text.
struct Fields(Sha256);

impl Fields {
    fn bytes(&mut self, bytes: &[u8]) {
        self.0.update((bytes.len() as u64).to_le_bytes());
        self.0.update(bytes);
    }

    fn text(&mut self, text: &str) {
        self.bytes(text.as_bytes());
    }

    fn path(&mut self, path: &Path) {
        self.bytes(path.as_os_str().as_encoded_bytes());
    }

    fn numbers(&mut self, numbers: &[usize]) {
        let bytes: Vec<u8> = numbers.iter().flat_map(|&n| (n as u64).to_le_bytes()).collect();
        self.bytes(&bytes);
    }

    fn finish(self) -> [u8; 32] {
        self.0.finalize().into()
    }
}
