//! Between memory and AMX tiles: lines, keys and values of attention as they are multiplied, and results back as lines. It knows
//! neither what is seen nor how much it weighs.
#![allow(unsafe_code)]

use std::arch::x86_64::*;

use mlxcel_ir::DType;

use super::core::{Addresses, Memory};
use super::turn::square;
use crate::kernels::packed::decode::in_turn;
use crate::kernels::packed::tiles::{STEP, TOKENS};

/// Lines of a panel.
pub(super) const PANEL: usize = TOKENS;
/// Keys or columns that are multiplied together.
pub(super) const FOUR: usize = 4 * TOKENS;
/// Elements of a tile.
const TILE: usize = TOKENS * STEP;

/// A value that is not finite: its key, counted from the beginning of the stretch, and its column.
#[derive(Clone, Copy, Debug)]
pub(super) struct Unbounded {
    pub(super) key: usize,
    pub(super) column: usize,
    pub(super) value: f32,
}

/// Sixteen lines of so many numbers, scaled, as a panel.
///
/// # Safety
/// The machine must have the features; a line has a multiple of 32 numbers, and there must be sixteen of them.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")]
pub(super) unsafe fn lay_lines(lines: &[f32], (width, scale): (usize, f32), to: &mut [u16]) {
    assert!(lines.len() >= PANEL * width && to.len() >= PANEL * width, "a panel of lines");
    let scale = _mm512_set1_ps(scale);
    for at in (0..width).step_by(STEP) {
        let mut v = [_mm512_setzero_ps(); PANEL];
        for (line, v) in v.iter_mut().enumerate() {
            // SAFETY: the line has 32 numbers from there on.
            unsafe {
                let from = lines.as_ptr().add(line * width + at);
                let low = _mm512_mul_ps(_mm512_loadu_ps(from), scale);
                let high = _mm512_mul_ps(_mm512_loadu_ps(from.add(PANEL)), scale);
                *v = _mm512_castsi512_ps(narrowed(low, high));
            }
        }
        for (pair, v) in square(v).into_iter().enumerate() {
            // SAFETY: a row of a tile is a whole vector.
            unsafe { _mm512_storeu_ps(to.as_mut_ptr().add(at * PANEL + pair * 2 * PANEL).cast(), v) };
        }
    }
}

/// Four tiles of keys.
///
/// # Safety
/// The machine must have the features; rows must be whole or null.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")]
pub(super) unsafe fn lay_keys(keys: &Memory<'_>, rows: &Addresses, to: &mut [u16]) {
    assert!(to.len() >= FOUR * keys.width, "four tiles of keys");
    for (slot, row) in rows.iter().enumerate() {
        for at in (0..keys.width).step_by(STEP) {
            // SAFETY: the row has 32 numbers from there on, and a row of a tile is a whole vector.
            unsafe {
                let bits = if row.is_null() {
                    _mm512_setzero_si512()
                } else {
                    narrowed(widened(keys.dtype, *row, at), widened(keys.dtype, *row, at + 16))
                };
                _mm512_storeu_si512(to.as_mut_ptr().add(at * FOUR + slot * STEP).cast(), bits);
            }
        }
    }
}

/// A step of 32 values, the first of them at `place.0` keys of the stretch, in all columns, of which four tiles lie `place.1`
/// apart; those that are not finite are put down instead.
///
/// # Safety
/// The machine must have the features; rows must be whole or null.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")]
pub(super) unsafe fn lay_values(
    values: &Memory<'_>,
    rows: &[*const u8],
    (first, apart): (usize, usize),
    (values_to, unbounded): (&mut [u16], &mut Vec<Unbounded>),
) {
    assert!(rows.len() == STEP, "a step of values");
    for column in (0..values.width).step_by(PANEL) {
        let mut v = [_mm512_setzero_ps(); PANEL];
        for (pair, v) in v.iter_mut().enumerate() {
            let mut both = [_mm512_setzero_ps(); 2];
            for (i, both) in both.iter_mut().enumerate() {
                let row = rows[2 * pair + i];
                if !row.is_null() {
                    let at = (first + 2 * pair + i, column);
                    // SAFETY: the row has sixteen columns from there on.
                    *both = bounded(unsafe { widened(values.dtype, row, column) }, at, unbounded);
                }
            }
            *v = _mm512_castsi512_ps(paired(both));
        }
        let to = column / FOUR * apart + first * FOUR + column % FOUR * STEP;
        let to = &mut values_to[to..][..TILE];
        for (row, v) in square(v).into_iter().enumerate() {
            // SAFETY: a row of a tile is a whole vector.
            unsafe { _mm512_storeu_ps(to.as_mut_ptr().add(row * STEP).cast(), v) };
        }
    }
}

/// Lines of results, multiplied by their factors, from columns of a panel.
///
/// # Safety
/// The machine must have the features; there must be so many columns, and each place have room for them.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
pub(super) unsafe fn turn_back(columns: &[f32], factors: &[f32; PANEL], to: &[*mut f32], width: usize) {
    assert!(width.is_multiple_of(PANEL) && columns.len() >= width * PANEL, "columns of results");
    // SAFETY: as the caller promises.
    unsafe {
        let factors = _mm512_loadu_ps(factors.as_ptr());
        for at in (0..width).step_by(PANEL) {
            let mut v = [_mm512_setzero_ps(); PANEL];
            for (i, v) in v.iter_mut().enumerate() {
                *v = _mm512_mul_ps(_mm512_loadu_ps(columns.as_ptr().add((at + i) * PANEL)), factors);
            }
            for (v, to) in square(v).into_iter().zip(to) {
                _mm512_storeu_ps(to.add(at), v);
            }
        }
    }
}

/// The nearest `bf16` of two vectors, each beside its neighbour of the other.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")]
pub(super) fn paired([even, odd]: [__m512; 2]) -> __m512i {
    in_turn(narrowed(even, odd))
}

/// Values of a key from a column on with zeros for those that are not finite, which are put down.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")]
fn bounded(v: __m512, (key, column): (usize, usize), unbounded: &mut Vec<Unbounded>) -> __m512 {
    // Not a number, or infinite.
    const UNBOUNDED: i32 = 0x99;
    let mask = _mm512_fpclass_ps_mask::<UNBOUNDED>(v);
    if mask == 0 {
        return v;
    }
    let mut numbers = [0.0; PANEL];
    // SAFETY: they are a whole vector.
    unsafe { _mm512_storeu_ps(numbers.as_mut_ptr(), v) };
    for (i, value) in numbers.into_iter().enumerate().filter(|(i, _)| mask >> i & 1 == 1) {
        unbounded.push(Unbounded { key, column: column + i, value });
    }
    _mm512_maskz_mov_ps(!mask, v)
}

/// Sixteen numbers of a row of 16-bit floats or of codes.
///
/// # Safety
/// The row must have them.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")]
unsafe fn widened(dtype: DType, row: *const u8, at: usize) -> __m512 {
    // SAFETY: as the caller promises.
    unsafe {
        match dtype {
            DType::I8 => _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(row.add(at).cast()))),
            DType::F16 => _mm512_cvtph_ps(_mm256_loadu_si256(row.add(at * 2).cast())),
            _ => {
                let bits = _mm512_cvtepu16_epi32(_mm256_loadu_si256(row.add(at * 2).cast()));
                _mm512_castsi512_ps(_mm512_slli_epi32::<16>(bits))
            }
        }
    }
}

/// The nearest `bf16` of 32 numbers.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")]
fn narrowed(low: __m512, high: __m512) -> __m512i {
    // SAFETY: both are 64 bytes.
    unsafe { std::mem::transmute::<__m512bh, __m512i>(_mm512_cvtne2ps_pbh(high, low)) }
}
