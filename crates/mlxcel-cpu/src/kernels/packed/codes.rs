//! Reading panels with AVX-512: scales as `f32`, codes as vectors of bytes, and both together as numbers.
#![allow(unsafe_code)]
// Iterators over vectors are not always compiled with the level's instructions.
#![allow(clippy::needless_range_loop)]

use std::arch::x86_64::*;

use mlxcel_ir::ScaleType;

use super::format::{BLOCK, Codes, Format, GROUPS, ROWS, Scales, UNIT};

/// How far ahead of its use a panel is asked for, in bytes: the processor's own guess comes too late for few tokens.
pub(super) const AHEAD: usize = 4096;

/// Scales and biases of a block as `f32`.
#[repr(align(64))]
pub(super) struct Factors {
    pub(super) scales: [[f32; ROWS]; GROUPS],
    pub(super) biases: [[f32; ROWS]; GROUPS],
}

impl Factors {
    pub(super) fn new() -> Self {
        Factors { scales: [[0.0; ROWS]; GROUPS], biases: [[0.0; ROWS]; GROUPS] }
    }

    /// Reads the scales of `groups` groups.
    ///
    /// # Safety
    /// The scales of a block of that format must be readable at `from`; the machine must have the features.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,f16c")]
    pub(super) unsafe fn read(&mut self, format: &Format, from: *const u8, groups: usize) {
        let each = format.scale_bytes(groups) / if format.zero.is_some() { 1 } else { 2 };
        for g in 0..groups {
            // SAFETY: as the caller promises; arrays of a number for each row lie group after group.
            unsafe {
                let s = number(format.scales, from, g);
                _mm512_store_ps(self.scales[g].as_mut_ptr(), s);
                let b = match (format.zero, format.scales) {
                    (Some(zero), _) => _mm512_mul_ps(s, _mm512_set1_ps(-(zero as f32))),
                    (None, Scales::Direct { .. }) => number(format.scales, from.add(each), g),
                    (None, Scales::Factored) => {
                        _mm512_sub_ps(_mm512_setzero_ps(), number(format.scales, from.add(each), g))
                    }
                };
                _mm512_store_ps(self.biases[g].as_mut_ptr(), b);
            }
        }
    }
}

/// The numbers of group `g` in an array of scales.
///
/// # Safety
/// The array must be readable at `from`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,f16c")]
unsafe fn number(scales: Scales, from: *const u8, g: usize) -> __m512 {
    // SAFETY: as the caller promises.
    unsafe {
        match scales {
            Scales::Direct { kind: ScaleType::F16 } => halves(from.add(g * ROWS * 2)),
            Scales::Direct { kind: ScaleType::BF16 } => {
                let bits = _mm512_cvtepu16_epi32(_mm256_loadu_si256(from.add(g * ROWS * 2).cast()));
                _mm512_castsi512_ps(_mm512_slli_epi32::<16>(bits))
            }
            Scales::Direct { kind: ScaleType::F32 } => _mm512_loadu_ps(from.add(g * ROWS * 4).cast()),
            // Factors have at most seven bits where they have no sign.
            Scales::Factored => {
                let factor = _mm512_cvtepi8_epi32(_mm_loadu_si128(from.add(ROWS * 2 + g * ROWS).cast()));
                _mm512_mul_ps(halves(from), _mm512_cvtepi32_ps(factor))
            }
        }
    }
}

/// # Safety
/// Sixteen halves must be readable at `from`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,f16c")]
unsafe fn halves(from: *const u8) -> __m512 {
    // SAFETY: as the caller promises.
    _mm512_cvtph_ps(unsafe { _mm256_loadu_si256(from.cast()) })
}

/// Reads one unit of codes as four vectors of bytes.
pub(super) trait Unit {
    /// # Safety
    /// A unit must be readable at `from`; the machine must have AVX-512 F and BW.
    unsafe fn load(&self, from: *const u8) -> [__m512i; 4];
}

pub(super) struct Bits<const B: usize>;
pub(super) struct Lookup(__m512i);

impl Lookup {
    #[target_feature(enable = "avx512f")]
    pub(super) fn new(table: &[u8; 16]) -> Self {
        // SAFETY: the table has sixteen bytes.
        Lookup(_mm512_broadcast_i32x4(unsafe { _mm_loadu_si128(table.as_ptr().cast()) }))
    }
}

impl<const B: usize> Unit for Bits<B> {
    #[inline(always)]
    unsafe fn load(&self, from: *const u8) -> [__m512i; 4] {
        // SAFETY: as the caller promises.
        unsafe {
            match B {
                2 => twos(from),
                3 => with_bit::<2>(twos(from), from.add(64)),
                4 => fours(from),
                5 => with_bit::<4>(fours(from), from.add(128)),
                6 => with_bit::<5>(with_bit::<4>(fours(from), from.add(128)), from.add(160)),
                _ => {
                    let p = from.cast::<__m512i>();
                    [
                        p.read_unaligned(),
                        p.add(1).read_unaligned(),
                        p.add(2).read_unaligned(),
                        p.add(3).read_unaligned(),
                    ]
                }
            }
        }
    }
}

impl Unit for Lookup {
    #[inline(always)]
    unsafe fn load(&self, from: *const u8) -> [__m512i; 4] {
        // SAFETY: as the caller promises.
        unsafe {
            let [a, b, c, d] = fours(from);
            [
                _mm512_shuffle_epi8(self.0, a),
                _mm512_shuffle_epi8(self.0, b),
                _mm512_shuffle_epi8(self.0, c),
                _mm512_shuffle_epi8(self.0, d),
            ]
        }
    }
}

#[inline(always)]
unsafe fn twos(from: *const u8) -> [__m512i; 4] {
    // SAFETY: as the caller of `Unit::load` promises.
    unsafe {
        let (q, low) = (_mm512_loadu_si512(from.cast()), _mm512_set1_epi8(3));
        [
            _mm512_and_si512(q, low),
            _mm512_and_si512(_mm512_srli_epi16::<2>(q), low),
            _mm512_and_si512(_mm512_srli_epi16::<4>(q), low),
            _mm512_and_si512(_mm512_srli_epi16::<6>(q), low),
        ]
    }
}

#[inline(always)]
unsafe fn fours(from: *const u8) -> [__m512i; 4] {
    // SAFETY: as the caller of `Unit::load` promises.
    unsafe {
        let low = _mm512_set1_epi8(15);
        let (p, q) = (_mm512_loadu_si512(from.cast()), _mm512_loadu_si512(from.add(64).cast()));
        [
            _mm512_and_si512(p, low),
            _mm512_and_si512(_mm512_srli_epi16::<4>(p), low),
            _mm512_and_si512(q, low),
            _mm512_and_si512(_mm512_srli_epi16::<4>(q), low),
        ]
    }
}

/// Adds bit `BIT` of the codes from four masks.
#[inline(always)]
unsafe fn with_bit<const BIT: i32>(mut codes: [__m512i; 4], masks: *const u8) -> [__m512i; 4] {
    // SAFETY: as the caller of `Unit::load` promises.
    unsafe {
        let bit = _mm512_set1_epi8(1 << BIT);
        let masks = masks.cast::<u64>();
        codes[0] = _mm512_mask_add_epi8(codes[0], masks.read_unaligned(), codes[0], bit);
        codes[1] = _mm512_mask_add_epi8(codes[1], masks.add(1).read_unaligned(), codes[1], bit);
        codes[2] = _mm512_mask_add_epi8(codes[2], masks.add(2).read_unaligned(), codes[2], bit);
        codes[3] = _mm512_mask_add_epi8(codes[3], masks.add(3).read_unaligned(), codes[3], bit);
        codes
    }
}

/// Calls a function that is generic over how codes lie.
macro_rules! by_codes {
    ($format:expr, $function:ident, $($argument:expr),*) => {
        match $format.codes {
            Codes::Two => $function(&Bits::<2>, $($argument),*),
            Codes::Three => $function(&Bits::<3>, $($argument),*),
            Codes::Four => $function(&Bits::<4>, $($argument),*),
            Codes::Five => $function(&Bits::<5>, $($argument),*),
            Codes::Six => $function(&Bits::<6>, $($argument),*),
            Codes::Eight => $function(&Bits::<8>, $($argument),*),
            Codes::Table(table) => $function(&Lookup::new(table), $($argument),*),
        }
    };
}

/// Unpacks the `len` elements of a block that begins at `from` to its scales and bytes: `[len / 4][rows][4]`.
///
/// # Safety
/// The block must be readable at `from`; the machine must have the features.
pub(super) unsafe fn unpack(
    format: &Format,
    from: *const u8,
    len: usize,
    to: (&mut Factors, &mut [u8; BLOCK * ROWS]),
) {
    // SAFETY: as the caller promises.
    unsafe { by_codes!(format, unpack_units, format, (from, len), to) }
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,f16c")]
unsafe fn unpack_units(
    unit: &impl Unit,
    format: &Format,
    (from, len): (*const u8, usize),
    (factors, bytes): (&mut Factors, &mut [u8; BLOCK * ROWS]),
) {
    let groups = len / format.group;
    assert!(len <= BLOCK, "one block at a time");
    // SAFETY: as the caller of `unpack` promises: a block is its scales and then its units.
    unsafe {
        factors.read(format, from, groups);
        let mut at = from.add(format.scale_bytes(groups));
        for u in 0..len / UNIT {
            let codes = unit.load(at);
            for line in 0..format.codes.bytes().div_ceil(64) {
                _mm_prefetch::<_MM_HINT_T0>(at.wrapping_add(AHEAD + line * 64).cast());
            }
            at = at.add(format.codes.bytes());
            let to = bytes.as_mut_ptr().add(u * UNIT * ROWS);
            for v in 0..4 {
                _mm512_storeu_si512(to.add(v * 4 * ROWS).cast(), codes[v]);
            }
        }
    }
}

/// Decodes `len` elements of a panel whose block begins at `from`, whole blocks or the end of the row, to pairs of
/// `bf16` numbers: `[len / 2][rows][2]`.
///
/// # Safety
/// The blocks must be readable at `from` and the pairs writable at `to`; the machine must have the features.
pub(super) unsafe fn decode(format: &Format, from: *const u8, len: usize, to: *mut u16) {
    // SAFETY: as the caller promises.
    unsafe { by_codes!(format, decode_units, format, (from, len), to) }
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,f16c")]
unsafe fn decode_units(unit: &impl Unit, format: &Format, (from, len): (*const u8, usize), to: *mut u16) {
    let mut factors = Factors::new();
    let (mut at, mut to) = (from, to);
    let units = format.group / UNIT;
    let mut start = 0;
    while start < len {
        let groups = (len - start).min(BLOCK) / format.group;
        // SAFETY: as the caller of `decode` promises: a block is its scales and then its units.
        unsafe {
            factors.read(format, at, groups);
            at = at.add(format.scale_bytes(groups));
            for g in 0..groups {
                let scale = _mm512_load_ps(factors.scales[g].as_ptr());
                let bias = _mm512_load_ps(factors.biases[g].as_ptr());
                for _ in 0..units {
                    let codes = unit.load(at);
                    at = at.add(format.codes.bytes());
                    for v in 0..4 {
                        store_fours(codes[v], scale, bias, to.add(v * 4 * ROWS));
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
            paired(std::mem::transmute::<__m512bh, __m512i>(_mm512_cvtne2ps_pbh(b, a))),
        );
        _mm512_storeu_si512(
            to.add(2 * ROWS).cast(),
            paired(std::mem::transmute::<__m512bh, __m512i>(_mm512_cvtne2ps_pbh(d, c))),
        );
    }
}

/// Sixteen numbers and sixteen more, one of each in turn.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn paired(halves: __m512i) -> __m512i {
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
