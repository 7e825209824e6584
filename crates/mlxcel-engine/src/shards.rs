//! A member's share of a model's weights: what [`mlxcel_ir::passes::shard`] says is cut, is cut here, whatever its format.
//! Nothing here knows how members talk to each other.

use std::collections::BTreeMap;

use mlxcel_ir::DType;
use mlxcel_ir::passes::Cut;
use mlxcel_weights::{Bytes, WeightTensor};

use crate::{EngineError, WeightSource};

/// The weights of a sharded graph.
pub struct Shards<'a> {
    source: &'a dyn WeightSource,
    cuts: &'a BTreeMap<String, Cut>,
}

impl<'a> Shards<'a> {
    pub fn new(source: &'a dyn WeightSource, cuts: &'a BTreeMap<String, Cut>) -> Self {
        Shards { source, cuts }
    }
}

impl WeightSource for Shards<'_> {
    fn tensor(&self, name: &str) -> Result<WeightTensor, EngineError> {
        match self.cuts.get(name) {
            Some(cut) => part(&self.source.tensor(&cut.tensor)?, cut),
            None => self.source.tensor(name),
        }
    }
}

/// The ranges of an axis, end to end. A single run of rows is not copied.
fn part(whole: &WeightTensor, cut: &Cut) -> Result<WeightTensor, EngineError> {
    let whole = whole.reshaped(&cut.shape)?;
    check_blocks(whole.dtype, cut)?;
    let outer: usize = cut.shape[..cut.axis].iter().product();
    let length = cut.shape[cut.axis].max(1);
    let mut shape = cut.shape.clone();
    shape[cut.axis] = cut.ranges.iter().map(|r| r.len()).sum();
    let take = |bytes: &Bytes| {
        // Packed rows divide into blocks, and ranges end between them.
        let run = bytes.len() / outer.max(1);
        let places = (0..outer).flat_map(|o| {
            cut.ranges.iter().map(move |r| o * run + r.start * run / length..o * run + r.end * run / length)
        });
        let places: Vec<_> = places.collect();
        match places.as_slice() {
            _ if cut.is_zero => Bytes::copied(&[&vec![0; bytes.len()]]),
            [only] => bytes.slice(only.clone()),
            many => Bytes::copied(&many.iter().map(|r| &bytes[r.clone()]).collect::<Vec<_>>()),
        }
    };
    Ok(WeightTensor::new(whole.dtype, shape, whole.parts.iter().map(take).collect())?)
}

/// Packed rows can only be cut between blocks.
fn check_blocks(dtype: DType, cut: &Cut) -> Result<(), EngineError> {
    let DType::Quant(format) = dtype else { return Ok(()) };
    let block = format.block_len();
    let is_odd = |n: usize| !n.is_multiple_of(block);
    let is_last = cut.axis + 1 == cut.shape.len();
    match cut.ranges.iter().find(|r| is_last && (is_odd(r.start) || is_odd(r.end))) {
        None => Ok(()),
        Some(r) => Err(EngineError::WeightType {
            name: cut.tensor.clone(),
            declared: format!("{}..{} of its rows", r.start, r.end),
            found: format!("{dtype} in blocks of {block}"),
        }),
    }
}

#[cfg(test)]
#[allow(clippy::single_range_in_vec_init, reason = "a cut has several ranges, or one")]
mod tests {
    use std::ops::Range;

    use mlxcel_ir::{GgufFormat, HostTensor, QuantFormat};

    use super::*;

    fn cut(shape: &[usize], axis: usize, ranges: Vec<Range<usize>>) -> Cut {
        Cut { tensor: String::new(), shape: shape.to_vec(), axis, ranges, is_zero: false }
    }

    fn numbers(t: &WeightTensor) -> Vec<u32> {
        t.to_f32().into_iter().map(|v| v as u32).collect()
    }

    #[test]
    fn every_axis_of_a_plain_tensor_can_be_cut() {
        let all: Vec<f32> = (0..24).map(|i| i as f32).collect();
        let t = WeightTensor::from_host(HostTensor::new(&[2, 3, 4], &all));
        let rows = part(&t, &cut(&[2, 3, 4], 0, vec![1..2])).unwrap();
        assert_eq!((rows.shape.clone(), numbers(&rows)), (vec![1, 3, 4], (12..24).collect()));
        let middle = part(&t, &cut(&[2, 3, 4], 1, vec![0..1, 2..3])).unwrap();
        let expected: Vec<u32> = [0..4, 8..12, 12..16, 20..24].into_iter().flatten().collect();
        assert_eq!((middle.shape.clone(), numbers(&middle)), (vec![2, 2, 4], expected));
        let last = part(&t, &cut(&[6, 4], 1, vec![1..3])).unwrap();
        assert_eq!(numbers(&last)[..4], [1, 2, 5, 6]);
    }

    #[test]
    fn packed_rows_are_cut_between_blocks() {
        // Blocks of 34 bytes: a scale of one half as f16 and 32 codes.
        let block = |code: i8| [vec![0, 0x38], vec![code as u8; 32]].concat();
        let bytes: Vec<u8> = (0..6).flat_map(|i| block(2 * i)).collect();
        let q8 = DType::Quant(QuantFormat::Gguf(GgufFormat::Q8_0));
        let t = WeightTensor::new(q8, vec![2, 96], vec![Bytes::copied(&[&bytes])]).unwrap();
        let last = part(&t, &cut(&[2, 96], 1, vec![32..64])).unwrap();
        assert_eq!(numbers(&last), [[1u32; 32], [4; 32]].concat());
        assert!(part(&t, &cut(&[2, 96], 1, vec![16..48])).is_err());
    }

    #[test]
    fn what_only_the_first_member_adds_is_zero_elsewhere() {
        let t = WeightTensor::from_host(HostTensor::new(&[3], &[1f32, 2.0, 3.0]));
        let zero = Cut { is_zero: true, ..cut(&[3], 0, vec![0..3]) };
        assert_eq!(part(&t, &zero).unwrap().to_f32(), [0.0; 3]);
    }
}
