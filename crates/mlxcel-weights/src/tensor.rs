//! One tensor of a checkpoint: its type, its logical shape, and the arrays it is stored in. It can be cut and
//! joined along its first axis whatever its format; arithmetic is the engines' business.

use std::ops::Range;

use mlxcel_ir::{DType, HostTensor, QuantFormat};
use rayon::prelude::*;

use crate::bytes::Bytes;
use crate::error::{Result, WeightsError};
use crate::quant::RowDecoder;

/// A tensor whose clone costs nothing. Row-major; packed formats pack the last axis.
#[derive(Clone, Debug)]
pub struct WeightTensor {
    pub dtype: DType,
    pub shape: Vec<usize>,
    /// Plain types and GGUF blocks have one array; affine formats have codes, scales and biases; MXFP4 has
    /// codes (two to a byte, low nibble first) and scales. Every array begins at a multiple of its element
    /// size.
    pub parts: Vec<Bytes>,
}

/// Where one array lies in its file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorInfo {
    pub dtype: DType,
    pub shape: Vec<usize>,
    /// Counted from the start of the file.
    pub range: Range<usize>,
}

impl WeightTensor {
    /// Checks that the arrays are what type and shape need.
    pub fn new(dtype: DType, shape: Vec<usize>, parts: Vec<Bytes>) -> Result<Self> {
        let found: Vec<usize> = parts.iter().map(|p| p.len()).collect();
        if part_sizes(dtype, &shape).is_none_or(|sizes| sizes != found) {
            return Err(WeightsError::BadParts { dtype, shape, found });
        }
        Ok(WeightTensor { dtype, shape, parts })
    }

    pub fn from_host(tensor: HostTensor) -> Self {
        let parts = vec![Bytes::copied(&[tensor.bytes()])];
        WeightTensor { dtype: tensor.dtype(), shape: tensor.shape().to_vec(), parts }
    }

    /// Elements, not counting how they are packed.
    pub fn elements(&self) -> usize {
        self.shape.iter().product()
    }

    /// Bytes of all arrays together.
    pub fn byte_len(&self) -> usize {
        self.parts.iter().map(|p| p.len()).sum()
    }

    /// The entries `range` of the first axis, without a copy.
    pub fn rows(&self, range: Range<usize>) -> Result<Self> {
        let Range { start, end } = range;
        let refuse = || WeightsError::RowRange { start, end, dtype: self.dtype, shape: self.shape.clone() };
        let &count = self.shape.first().ok_or_else(refuse)?;
        // In a packed vector the first axis is the packed one and can only be cut between blocks.
        let unit = if self.shape.len() == 1 { block_len(self.dtype) } else { 1 };
        if start > end || end > count || start % unit != 0 || end % unit != 0 {
            return Err(refuse());
        }
        let blocks = (count / unit).max(1);
        let cut = |part: &Bytes| {
            let step = part.len() / blocks;
            part.slice(start / unit * step..end / unit * step)
        };
        let mut shape = self.shape.clone();
        shape[0] = end - start;
        WeightTensor::new(self.dtype, shape, self.parts.iter().map(cut).collect())
    }

    /// The tensors one below the other: a copy, unless there is only one.
    pub fn concat_rows(tensors: &[WeightTensor]) -> Result<Self> {
        let (first, others) = tensors.split_first().ok_or(WeightsError::ConcatEmpty)?;
        if others.is_empty() {
            return Ok(first.clone());
        }
        let mut shape = first.shape.clone();
        for other in others {
            let fits = other.dtype == first.dtype && !shape.is_empty() && other.shape.len() == shape.len();
            if !fits || other.shape[1..] != shape[1..] {
                return Err(WeightsError::ConcatMismatch {
                    dtype: first.dtype,
                    shape: first.shape.clone(),
                    other_dtype: other.dtype,
                    other_shape: other.shape.clone(),
                });
            }
            shape[0] += other.shape[0];
        }
        let join = |part: usize| Bytes::copied(&tensors.iter().map(|t| &*t.parts[part]).collect::<Vec<_>>());
        WeightTensor::new(first.dtype, shape, (0..first.parts.len()).map(join).collect())
    }

    /// The same elements under another shape. A packed tensor keeps its last axis.
    pub fn reshaped(&self, wanted: &[usize]) -> Result<Self> {
        let keeps_last = !self.dtype.is_quant() || wanted.last() == self.shape.last();
        let count = wanted.iter().try_fold(1usize, |a, &d| a.checked_mul(d));
        if count != Some(self.elements()) || !keeps_last {
            let shape = self.shape.clone();
            return Err(WeightsError::Reshape { dtype: self.dtype, shape, wanted: wanted.to_vec() });
        }
        Ok(WeightTensor { dtype: self.dtype, shape: wanted.to_vec(), parts: self.parts.clone() })
    }

    /// Reads any range of any row as `f32`.
    pub fn decoder(&self) -> RowDecoder<'_> {
        let parts: Vec<&[u8]> = self.parts.iter().map(|p| &**p).collect();
        RowDecoder::new(self.dtype, self.cols(), &parts)
    }

    /// All elements as `f32`, in row-major order. Integers and `f64` are rounded.
    pub fn to_f32(&self) -> Vec<f32> {
        let mut values = vec![0.0; self.elements()];
        let decoder = self.decoder();
        for (row, out) in values.chunks_exact_mut(self.cols().max(1)).enumerate() {
            decoder.decode(row, 0, out);
        }
        values
    }

    /// All elements as the bytes of `f32`, in row-major order, by several threads. Panics unless there are four bytes for each.
    pub fn write_f32(&self, out: &mut [u8]) {
        assert_eq!(out.len(), 4 * self.elements(), "there is room for each element");
        let (cols, decoder) = (self.cols().max(1), self.decoder());
        out.par_chunks_exact_mut(4 * cols).enumerate().for_each_init(
            || vec![0.0; cols],
            |numbers, (row, bytes)| {
                decoder.decode(row, 0, numbers);
                bytes.chunks_exact_mut(4).zip(numbers).for_each(|(b, v)| b.copy_from_slice(&v.to_ne_bytes()));
            },
        );
    }

    fn cols(&self) -> usize {
        self.shape.last().copied().unwrap_or(1)
    }
}

/// Bytes of each array of a tensor; `None` if the shape overflows or does not divide into blocks.
pub(crate) fn part_sizes(dtype: DType, shape: &[usize]) -> Option<Vec<usize>> {
    let whole = dtype.storage_bytes(shape)?;
    let elements: usize = shape.iter().product();
    Some(match dtype {
        DType::Quant(QuantFormat::Affine { group, scale, .. }) => {
            let scales = elements / group as usize * scale.dtype().size()?;
            vec![whole - 2 * scales, scales, scales]
        }
        DType::Quant(QuantFormat::MxFp4) => vec![elements / 2, elements / 32],
        _ => vec![whole],
    })
}

fn block_len(dtype: DType) -> usize {
    if let DType::Quant(format) = dtype { format.block_len() } else { 1 }
}
