//! Seeded random tensors: the same numbers for a case on every machine, whatever cases stand before it.

use mlxcel_ir::{DType, HostTensor};

/// A small generator (splitmix64), seeded by a name.
#[derive(Debug)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn named(name: &str) -> Self {
        // FNV-1a, so that the seed does not depend on the standard library's hasher.
        let hash = name
            .bytes()
            .fold(0xcbf2_9ce4_8422_2325u64, |h, b| (h ^ u64::from(b)).wrapping_mul(0x0000_0100_0000_01b3));
        Random(hash)
    }

    pub(crate) fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// In `[0, 1)`.
    fn unit(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1u64 << 53) as f64
    }

    pub(crate) fn normal(&mut self, dtype: DType, shape: &[usize]) -> HostTensor {
        // The sum of twelve uniform numbers is normal enough, and bounded.
        let values = |r: &mut Self| (0..12).map(|_| r.unit()).sum::<f64>() - 6.0;
        self.fill(dtype, shape, values)
    }

    pub(crate) fn uniform(&mut self, dtype: DType, shape: &[usize], range: (f64, f64)) -> HostTensor {
        self.fill(dtype, shape, |r| range.0 + r.unit() * (range.1 - range.0))
    }

    /// Whole numbers from `range.0` up to and without `range.1`.
    pub(crate) fn whole(&mut self, dtype: DType, shape: &[usize], range: (i64, i64)) -> HostTensor {
        let width = (range.1 - range.0).unsigned_abs().max(1);
        self.fill(dtype, shape, |r| (range.0 + (r.bits() % width) as i64) as f64)
    }

    pub(crate) fn bytes(&mut self, count: usize) -> Vec<u8> {
        (0..count).map(|_| self.bits() as u8).collect()
    }

    fn fill(&mut self, dtype: DType, shape: &[usize], mut next: impl FnMut(&mut Self) -> f64) -> HostTensor {
        let count = shape.iter().product::<usize>();
        let values: Vec<f64> = (0..count).map(|_| next(self)).collect();
        HostTensor::from_f64(dtype, shape, &values)
    }
}
