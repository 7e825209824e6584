//! Rows of a cache of eight bits: codes, and a byte that says the step between two of them. Scores and weights are
//! products with codes; the steps of the keys are multiplied to scores, and those of the values to weights.
#![allow(unsafe_code)]

use std::sync::LazyLock;

use mlxcel_ir::CacheRow;

/// The steps by the byte that says them.
static STEPS: LazyLock<[f32; 256]> = LazyLock::new(|| {
    std::array::from_fn(|byte| (f64::from(byte as u8 as i8) / CacheRow::EIGHTHS).exp2() as f32)
});

/// The steps of some rows, whose bytes lie `at` bytes behind their beginnings.
///
/// # Safety
/// The rows must have that byte.
pub(super) unsafe fn steps(rows: &[*const u8], at: usize, to: &mut [f32]) {
    let table = &*STEPS;
    for (to, row) in to.iter_mut().zip(rows) {
        // SAFETY: as the caller promises.
        *to = table[unsafe { *row.add(at) } as usize];
    }
}

/// Multiplies scores or weights by the steps of their keys or values.
#[inline(always)]
pub(super) fn scale(numbers: &mut [f32], steps: &[f32]) {
    for (x, step) in numbers.iter_mut().zip(steps) {
        *x *= step;
    }
}

/// Writes numbers as codes with their step behind them.
pub(super) fn encode(line: &[f32], row: &mut [u8]) {
    let most = line.iter().fold(0.0, |most: f32, x| most.max(x.abs())) / CacheRow::MOST as f32;
    let eighths = (most.log2() * CacheRow::EIGHTHS as f32 - CacheRow::SLACK as f32).ceil() as i8;
    let step = STEPS[eighths as u8 as usize];
    let most = CacheRow::MOST as f32;
    for (to, x) in row.iter_mut().zip(line) {
        *to = (x / step).round_ties_even().clamp(-most, most) as i8 as u8;
    }
    row[line.len()] = eighths as u8;
}
