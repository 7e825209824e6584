//! Moving entries of one axis of a host tensor: taking some, filling up to a size, putting back.

use mlxcel_ir::HostTensor;

/// Elements before, on and after `axis`, the last in bytes.
fn cut(t: &HostTensor, axis: usize) -> (usize, usize, usize) {
    let before = t.shape()[..axis].iter().product();
    let after: usize = t.shape()[axis + 1..].iter().product();
    (before, t.shape()[axis], after * t.dtype().size().expect("host tensors are plain"))
}

fn like(t: &HostTensor, axis: usize, n: usize, bytes: Vec<u8>) -> HostTensor {
    let mut shape = t.shape().to_vec();
    shape[axis] = n;
    HostTensor::from_bytes(t.dtype(), shape, bytes).expect("every entry has the bytes of its type")
}

/// The entries of `axis` at these places.
pub(super) fn take(t: &HostTensor, axis: usize, places: &[usize]) -> HostTensor {
    let (before, n, run) = cut(t, axis);
    let mut bytes = Vec::with_capacity(before * places.len() * run);
    for outer in 0..before {
        for &place in places {
            let at = (outer * n + place) * run;
            bytes.extend_from_slice(&t.bytes()[at..at + run]);
        }
    }
    like(t, axis, places.len(), bytes)
}

/// The tensor with `axis` filled up to `size` entries of the number `pad`.
pub(super) fn fill(t: &HostTensor, axis: usize, size: usize, pad: i64) -> HostTensor {
    let (before, n, run) = cut(t, axis);
    let element = HostTensor::from_f64(t.dtype(), &[], &[pad as f64]);
    let filler = element.bytes().repeat(size.saturating_sub(n) * run / element.bytes().len());
    let mut bytes = Vec::with_capacity(before * size * run);
    for outer in 0..before {
        bytes.extend_from_slice(&t.bytes()[outer * n * run..(outer + 1) * n * run]);
        bytes.extend_from_slice(&filler);
    }
    like(t, axis, size.max(n), bytes)
}

/// An output that is put together from the outputs of sub-steps.
pub(super) struct Joined {
    like: HostTensor,
    axis: usize,
    n: usize,
    bytes: Vec<u8>,
}

impl Joined {
    /// Zeros of the shape of `part`, with `n` entries on `axis`.
    pub(super) fn new(part: &HostTensor, axis: usize, n: usize) -> Self {
        let (before, _, run) = cut(part, axis);
        let like = take(part, axis, &[]);
        Joined { like, axis, n, bytes: vec![0; before * n * run] }
    }

    /// The first entries of `part` go to these places.
    pub(super) fn put(&mut self, part: &HostTensor, places: &[usize]) {
        let (before, padded, run) = cut(part, self.axis);
        for outer in 0..before {
            for (i, &place) in places.iter().enumerate() {
                let (from, to) = ((outer * padded + i) * run, (outer * self.n + place) * run);
                self.bytes[to..to + run].copy_from_slice(&part.bytes()[from..from + run]);
            }
        }
    }

    pub(super) fn finish(self) -> HostTensor {
        like(&self.like, self.axis, self.n, self.bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers() -> HostTensor {
        HostTensor::new(&[2, 3], &[1i32, 2, 3, 4, 5, 6])
    }

    #[test]
    fn entries_of_any_axis_are_taken_in_the_order_asked_for() {
        assert_eq!(take(&numbers(), 0, &[1, 0]).to_i64(), [4, 5, 6, 1, 2, 3]);
        let columns = take(&numbers(), 1, &[2, 0]);
        assert_eq!((columns.to_i64(), columns.shape()), (vec![3, 1, 6, 4], &[2, 2][..]));
    }

    #[test]
    fn an_axis_is_filled_up_with_the_number_of_its_input() {
        assert_eq!(fill(&numbers(), 1, 4, -1).to_i64(), [1, 2, 3, -1, 4, 5, 6, -1]);
        assert_eq!(fill(&numbers(), 0, 3, 0).to_i64(), [1, 2, 3, 4, 5, 6, 0, 0, 0]);
        assert_eq!(fill(&numbers(), 0, 1, 0), numbers(), "nothing is cut");
    }

    #[test]
    fn parts_are_joined_at_their_places() {
        let mut joined = Joined::new(&numbers(), 0, 3);
        joined.put(&numbers(), &[2]);
        joined.put(&fill(&numbers(), 0, 4, 9), &[0, 1]);
        assert_eq!(joined.finish().to_i64(), [1, 2, 3, 4, 5, 6, 1, 2, 3]);
    }
}
