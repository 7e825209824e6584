//! Carries out a recipe, row by row.

use mlxcel_weights::WeightTensor;
use mlxcel_weights::write::Rows;

use super::recipe::{Map, Origin, Recipe, View};

/// The rows of a recipe, whose stored tensors `open` gives by name.
pub fn rows<E>(
    recipe: &Recipe,
    mut open: impl FnMut(&str) -> Result<Box<dyn Rows>, E>,
) -> Result<Box<dyn Rows>, E> {
    let (files, each, view) = match &recipe.origin {
        Origin::Numbers(values) => return Ok(Box::new(Numbers(values.clone()))),
        Origin::Stored { files, each, view } => (files, each, view),
    };
    let mut pieces = files.iter().map(|file| open(file)).collect::<Result<Vec<_>, E>>()?;
    if pieces.len() == 1 && view.is_whole() && recipe.map == Map::Keep && each.last() == recipe.shape.last() {
        return Ok(pieces.remove(0));
    }
    let elements = each.iter().product::<usize>().max(1);
    let source = Source { pieces, elements, cols: each.last().copied().unwrap_or(1).max(1) };
    let cols = recipe.shape.last().copied().unwrap_or(1);
    let in_rows = view.strides.last() == Some(&1) && view.dims.last() == Some(&cols) && source.cols == cols;
    Ok(match in_rows {
        true => Box::new(Picked { source, view: view.clone(), map: recipe.map }),
        false => Box::new(Turned { source, view: view.clone(), map: recipe.map }),
    })
}

struct Numbers(Vec<f32>);

impl Rows for Numbers {
    fn fill(&self, first: usize, out: &mut [f32]) {
        let start = first * self.0.len();
        out.copy_from_slice(&self.0[start..start + out.len()]);
    }
}

/// Tensors of one shape, end to end.
struct Source {
    pieces: Vec<Box<dyn Rows>>,
    /// Of each piece.
    elements: usize,
    cols: usize,
}

impl Source {
    /// One stored row, by the number of its first element.
    fn row(&self, element: usize, out: &mut [f32]) {
        let (piece, inside) = (element / self.elements, element % self.elements);
        self.pieces[piece].fill(inside / self.cols, out);
    }
}

/// Where the index `number`, counted row-major over all but the last `skip` axes, begins.
fn begin(view: &View, mut number: usize, skip: usize) -> usize {
    let axes = view.dims.len().saturating_sub(skip);
    let mut element = view.offset;
    for (dim, stride) in view.dims[..axes].iter().zip(&view.strides[..axes]).rev() {
        element += number % dim * stride;
        number /= dim;
    }
    element
}

/// Whole stored rows in another order.
struct Picked {
    source: Source,
    view: View,
    map: Map,
}

impl Rows for Picked {
    fn fill(&self, first: usize, out: &mut [f32]) {
        for (i, row) in out.chunks_exact_mut(self.source.cols).enumerate() {
            self.source.row(begin(&self.view, first + i, 1), row);
        }
        self.map.apply(out);
    }
}

/// New rows that run across stored ones: the stored rows below the last two axes are decoded, then picked from.
struct Turned {
    source: Source,
    view: View,
    map: Map,
}

impl Turned {
    /// The last two axes; a vector is a matrix of one row.
    fn matrix(&self) -> ([usize; 2], [usize; 2]) {
        let last = |v: &[usize], back: usize, or: usize| {
            v.len().checked_sub(back).and_then(|i| v.get(i)).copied().unwrap_or(or)
        };
        let (dims, strides) = (&self.view.dims, &self.view.strides);
        ([last(dims, 2, 1), last(dims, 1, 1)], [last(strides, 2, 0), last(strides, 1, 1)])
    }
}

impl Rows for Turned {
    fn fill(&self, first: usize, out: &mut [f32]) {
        let ([height, width], [down, across]) = self.matrix();
        let cols = self.source.cols;
        for (i, matrix) in out.chunks_mut(height * width).enumerate() {
            let base = begin(&self.view, first / height + i, 2);
            let (top, bottom) = (base / cols, (base + (height - 1) * down + (width - 1) * across) / cols);
            let mut stored = vec![0.0; (bottom - top + 1) * cols];
            for (row, values) in stored.chunks_exact_mut(cols).enumerate() {
                self.source.row((top + row) * cols, values);
            }
            for (y, row) in matrix.chunks_mut(width).enumerate() {
                for (x, value) in row.iter_mut().enumerate() {
                    *value = stored[base + y * down + x * across - top * cols];
                }
            }
        }
        self.map.apply(out);
    }

    fn together(&self) -> usize {
        self.matrix().0[0]
    }
}

/// A stored tensor, row by row.
pub struct StoredRows(pub WeightTensor);

impl Rows for StoredRows {
    fn fill(&self, first: usize, out: &mut [f32]) {
        let decoder = self.0.decoder();
        for (i, row) in out.chunks_exact_mut(decoder.cols().max(1)).enumerate() {
            decoder.decode(first + i, 0, row);
        }
    }

    fn stored(&self) -> Option<&WeightTensor> {
        Some(&self.0)
    }
}
