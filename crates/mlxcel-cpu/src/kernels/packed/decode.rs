//! Codes of panels as `bf16` numbers for tiles, with AVX-512.
#![allow(unsafe_code)]
// Iterators over vectors are not always compiled with the level's instructions.
#![allow(clippy::needless_range_loop)]

use std::arch::x86_64::*;

use super::codes::{Bits, Factors, Table, Unit};
use super::format::{BLOCK, Codes, Format, ROWS, UNIT};
use super::part::Avx512Vnni;
use crate::simd::Avx512;

/// Decodes `len` elements of a panel whose block begins at `from`, whole blocks or the end of the row, to pairs of
/// `bf16` numbers: `[len / 2][rows][2]`.
///
/// # Safety
/// The blocks must be readable at `from` and the pairs writable at `to`; the machine must have the features.
pub(super) unsafe fn decode(format: &Format, from: *const u8, len: usize, to: *mut u16) {
    // SAFETY: as the caller promises.
    unsafe {
        match format.codes {
            Codes::Two => decode_units(Bits::<2>, format, (from, len), to),
            Codes::Three => decode_units(Bits::<3>, format, (from, len), to),
            Codes::Four => decode_units(Bits::<4>, format, (from, len), to),
            Codes::Five => decode_units(Bits::<5>, format, (from, len), to),
            Codes::Six => decode_units(Bits::<6>, format, (from, len), to),
            Codes::Eight => decode_units(Bits::<8>, format, (from, len), to),
            Codes::Table(table) => decode_units(Table(table), format, (from, len), to),
        }
    }
}

#[target_feature(enable = "avx2,fma,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx512bf16,f16c")]
unsafe fn decode_units(unit: impl Unit, format: &Format, (from, len): (*const u8, usize), to: *mut u16) {
    let mut factors = Factors::new();
    let (mut at, mut to) = (from, to);
    let units = format.group / UNIT;
    let mut start = 0;
    while start < len {
        let groups = (len - start).min(BLOCK) / format.group;
        // SAFETY: as the caller of `decode` promises: a block is its scales and then its units.
        unsafe {
            factors.read::<Avx512>(format, at, groups);
            at = at.add(format.scale_bytes(groups));
            for g in 0..groups {
                let scale = _mm512_load_ps(factors.scales[g].as_ptr());
                let bias = _mm512_load_ps(factors.biases[g].as_ptr());
                for _ in 0..units {
                    let codes = unit.load::<Avx512Vnni, 1>(at);
                    at = at.add(format.codes.bytes());
                    for v in 0..4 {
                        store_fours(codes[v][0], scale, bias, to.add(v * 4 * ROWS));
                    }
                    to = to.add(UNIT * ROWS);
                }
            }
        }
        start += BLOCK;
    }
}

/// Four elements of sixteen rows as two lines of pairs.
///
/// # Safety
/// 64 places must be writable at `to`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")]
unsafe fn store_fours(codes: __m512i, scale: __m512, bias: __m512, to: *mut u16) {
    let byte = _mm512_set1_epi32(255);
    let number = |q: __m512i| _mm512_fmadd_ps(_mm512_cvtepi32_ps(q), scale, bias);
    let a = number(_mm512_and_si512(codes, byte));
    let b = number(_mm512_and_si512(_mm512_srli_epi32::<8>(codes), byte));
    let c = number(_mm512_and_si512(_mm512_srli_epi32::<16>(codes), byte));
    let d = number(_mm512_srli_epi32::<24>(codes));
    // SAFETY: as the caller promises; both types are 512 bits of any value.
    unsafe {
        _mm512_storeu_si512(
            to.cast(),
            in_turn(std::mem::transmute::<__m512bh, __m512i>(_mm512_cvtne2ps_pbh(b, a))),
        );
        _mm512_storeu_si512(
            to.add(2 * ROWS).cast(),
            in_turn(std::mem::transmute::<__m512bh, __m512i>(_mm512_cvtne2ps_pbh(d, c))),
        );
    }
}

/// Sixteen numbers and sixteen more, one of each in turn.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
pub(in crate::kernels) fn in_turn(halves: __m512i) -> __m512i {
    const ORDER: [u16; 32] = {
        let mut order = [0; 32];
        let mut i = 0;
        while i < 32 {
            order[i] = (i / 2 + i % 2 * 16) as u16;
            i += 1;
        }
        order
    };
    // SAFETY: the constant has as many bytes as a vector.
    _mm512_permutexvar_epi16(unsafe { _mm512_loadu_si512(ORDER.as_ptr().cast()) }, halves)
}
