//! Weights as the engine keeps them: the checkpoint's own memory in as many segments as there were pieces, read row
//! by row. Packed formats stay packed; only what an op needs as one dense array is joined, once, at load.

use mlxcel_engine::EngineError;
use mlxcel_engine::weights::{Bytes, RowDecoder, WeightTensor};
use mlxcel_ir::DType;

use crate::context::Context;
use crate::kernels::linear::{Store, decode, is_fast, suit};
use crate::kernels::packed::{Form, Packed};
use crate::simd::{Simd, SimdLevel};
use crate::stored::Stored;
use crate::view::View;

/// A weight: segments laid end to end along the first axis.
#[derive(Debug)]
pub(crate) struct Matrix {
    pub(crate) dtype: DType,
    pub(crate) shape: Vec<usize>,
    segments: Vec<WeightTensor>,
    /// All segments as one array, where the weight is also used that way.
    dense: Option<Stored>,
    /// The rows in panels, where products read them.
    packed: Option<Packed>,
}

impl Matrix {
    /// `None` if a segment does not hold whole rows of the last axis.
    pub(crate) fn new(dtype: DType, shape: Vec<usize>, segments: Vec<WeightTensor>) -> Option<Self> {
        let cols = shape.last().copied().unwrap_or(1);
        let whole = |t: &WeightTensor| match dtype {
            DType::Quant(_) => t.shape.last() == Some(&cols),
            _ => cols == 0 || t.elements().is_multiple_of(cols),
        };
        segments.iter().all(whole).then_some(Matrix { dtype, shape, segments, dense: None, packed: None })
    }

    pub(crate) fn cols(&self) -> usize {
        self.shape.last().copied().unwrap_or(1)
    }

    /// Prepares for use as one array: nothing for a single plain segment, a copy for several.
    pub(crate) fn make_dense(&mut self) -> Result<(), EngineError> {
        if self.segments.len() != 1 && self.dense.is_none() && !self.dtype.is_quant() {
            let pieces: Vec<&[u8]> = self.segments.iter().map(|s| &*s.parts[0]).collect();
            self.dense = Some(Stored::new(self.dtype, &self.shape, &pieces)?);
        }
        Ok(())
    }

    /// How products would read it in panels, where the level packs weights of this type.
    pub(crate) fn form(&self, level: SimdLevel) -> Option<Form> {
        let n = self.shape[..self.shape.len() - 1].iter().product();
        Form::of(level, self.dtype, (n, self.cols()))
    }

    /// Prepares for products, where the level packs weights of this type.
    pub(crate) fn pack(&mut self, ctx: &Context) -> Result<(), EngineError> {
        if let Some(form) = self.form(ctx.level) {
            self.packed = Some(Packed::new(ctx, form, &self.rows(), || self.release_rows())?);
        }
        Ok(())
    }

    /// Takes panels that were packed before.
    pub(crate) fn set_packed(&mut self, packed: Packed) {
        self.packed = Some(packed);
    }

    /// The pieces that it is laid together of.
    pub(crate) fn segments(&self) -> &[WeightTensor] {
        &self.segments
    }

    /// Gives back the memory of what is packed, as far as it is only mapped.
    pub(crate) fn release(&self) {
        if self.packed.is_some() {
            self.release_rows();
        }
    }

    /// Gives back the memory of the rows, as far as they are only mapped.
    pub(crate) fn release_rows(&self) {
        self.segments.iter().flat_map(|s| &s.parts).for_each(Bytes::release);
    }

    pub(crate) fn packed(&self) -> Option<&Packed> {
        self.packed.as_ref()
    }

    /// Whether products of rounded tokens have a kernel of their own.
    pub(crate) fn rounds(&self, level: SimdLevel) -> bool {
        self.packed().map_or_else(|| suit(level, self.dtype, self.cols()), |packed| packed.rounds(level))
    }

    /// The dense array; nothing if the type is packed or [`Matrix::make_dense`] was needed and not called.
    pub(crate) fn view(&self) -> View<'_> {
        if let Some(stored) = &self.dense {
            return stored.view();
        }
        let view = match self.segments.as_slice() {
            [one] if !self.dtype.is_quant() => View::of_bytes(&one.parts[0], self.dtype, &self.shape),
            _ => None,
        };
        view.unwrap_or_else(|| View::empty(self.dtype))
    }

    /// The matrix as rows of its last axis, all leading axes flattened.
    pub(crate) fn rows(&self) -> Rows<'_> {
        let cols = self.cols();
        let mut rows = Rows { dtype: self.dtype, cols, segments: Vec::with_capacity(self.segments.len()) };
        let mut first = 0;
        for t in self.segments.iter().filter(|t| t.elements() > 0) {
            let parts: Vec<&[u8]> = t.parts.iter().map(|p| &**p).collect();
            rows.segments.push(Segment::new(first, t.dtype, cols, &parts));
            first += t.elements() / cols;
        }
        rows
    }
}

struct Segment<'a> {
    first: usize,
    decoder: RowDecoder<'a>,
    /// The arrays; the first holds the elements themselves, for plain types.
    parts: [&'a [u8]; 3],
    /// Bytes of a row in each array.
    row_bytes: [usize; 3],
}

impl<'a> Segment<'a> {
    fn new(first: usize, dtype: DType, cols: usize, parts: &[&'a [u8]]) -> Self {
        let decoder = RowDecoder::new(dtype, cols, parts);
        let part = |i: usize| parts.get(i).copied().unwrap_or_default();
        let bytes = |i: usize| part(i).len() / decoder.rows().max(1);
        Segment {
            first,
            decoder,
            parts: [part(0), part(1), part(2)],
            row_bytes: [bytes(0), bytes(1), bytes(2)],
        }
    }

    /// The arrays of a row, counted from the first of the segment.
    #[inline(always)]
    fn row(&self, row: usize) -> [&'a [u8]; 3] {
        let cut = |i: usize| &self.parts[i][row * self.row_bytes[i]..(row + 1) * self.row_bytes[i]];
        [cut(0), cut(1), cut(2)]
    }
}

/// Rows of numbers in any stored format.
pub(crate) struct Rows<'a> {
    pub(crate) dtype: DType,
    pub(crate) cols: usize,
    segments: Vec<Segment<'a>>,
}

impl<'a> Rows<'a> {
    /// The rows of a row-major plain tensor.
    pub(crate) fn of_view(view: &View<'a>) -> Self {
        let cols = view.shape().last().copied().unwrap_or(1);
        let bytes = view.bytes();
        let segments = if cols == 0 || bytes.is_empty() {
            vec![]
        } else {
            vec![Segment::new(0, view.dtype, cols, &[bytes])]
        };
        Rows { dtype: view.dtype, cols, segments }
    }

    /// Elements from `start` on of a row as `f32`.
    #[inline(always)]
    pub(crate) fn decode<S: Simd>(&self, row: usize, start: usize, out: &mut [f32]) {
        let s = self.segment(row);
        if is_fast(self.dtype) && out.len().is_multiple_of(S::LANES) {
            let range = start..start + out.len();
            decode::<S>(self.dtype, s.row(row - s.first), range, &mut Store(out));
        } else {
            decode_slowly(s, row - s.first, start, out);
        }
    }

    /// The arrays that a row is stored in; the first holds the elements themselves, for plain types.
    #[inline(always)]
    pub(crate) fn parts(&self, row: usize) -> [&'a [u8]; 3] {
        let s = self.segment(row);
        s.row(row - s.first)
    }

    #[inline(always)]
    fn segment(&self, row: usize) -> &Segment<'a> {
        let at = self.segments.partition_point(|s| s.first <= row);
        &self.segments[at - 1]
    }
}

/// Formats without a fast way: compiled once, for the baseline.
#[inline(never)]
fn decode_slowly(s: &Segment<'_>, row: usize, start: usize, out: &mut [f32]) {
    s.decoder.decode(row, start, out);
}
