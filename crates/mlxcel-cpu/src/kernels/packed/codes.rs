//! Reading panels: scales as `f32`, and codes as vectors of bytes.
#![allow(unsafe_code)]
// Iterators over vectors are not always compiled with the level's instructions.
#![allow(clippy::needless_range_loop)]

use mlxcel_ir::ScaleType;

use super::format::{BLOCK, Codes, Format, GROUPS, ROWS, Scales, UNIT};
use super::part::{Part, Task, at, lanes};
use crate::simd::{Simd, SimdLevel};

/// Scales and biases of a block as `f32`.
#[repr(align(64))]
pub(super) struct Factors {
    pub(super) scales: [[f32; ROWS]; GROUPS],
    pub(super) biases: [[f32; ROWS]; GROUPS],
}

impl Factors {
    pub(super) const fn new() -> Self {
        Factors { scales: [[0.0; ROWS]; GROUPS], biases: [[0.0; ROWS]; GROUPS] }
    }

    /// Reads the scales of `groups` groups.
    ///
    /// # Safety
    /// The scales of a block of that format must be readable at `from`; the machine must have the instructions.
    #[inline(always)]
    pub(super) unsafe fn read<S: Simd>(&mut self, format: &Format, from: *const u8, groups: usize) {
        assert!(groups <= GROUPS, "one block at a time");
        let each = format.scale_bytes(groups) / if format.zero.is_some() { 1 } else { 2 };
        for row in (0..ROWS).step_by(S::LANES) {
            // SAFETY: as the caller promises; arrays of a number for each row lie group after group.
            unsafe {
                Numbers::<S>::new(format.scales, from, (row, 1.0)).read(&mut self.scales[..groups], row);
                if let Some(zero) = format.zero {
                    let zero = S::splat(-(zero as f32));
                    for (scale, bias) in self.scales.iter().zip(&mut self.biases).take(groups) {
                        let scale = S::load(scale.as_ptr().add(row));
                        S::store(bias.as_mut_ptr().add(row), S::mul(scale, zero));
                    }
                    continue;
                }
                // Minima are taken away.
                let sign = if format.scales == Scales::Factored { -1.0 } else { 1.0 };
                let biases = Numbers::<S>::new(format.scales, from.add(each), (row, sign));
                biases.read(&mut self.biases[..groups], row);
            }
        }
    }
}

/// An array of scales, from a row on.
#[derive(Clone, Copy)]
enum Numbers<S: Simd> {
    F16(*const u8),
    BF16(*const u8),
    F32(*const u8),
    /// Small factors, and what they are factors of.
    Factors(*const u8, S::F),
}

impl<S: Simd> Numbers<S> {
    /// `sign` is for factors.
    ///
    /// # Safety
    /// The array must be readable at `from`; the machine must have the instructions.
    #[inline(always)]
    unsafe fn new(scales: Scales, from: *const u8, (row, sign): (usize, f32)) -> Self {
        // SAFETY: as the caller promises.
        unsafe {
            match scales {
                Scales::Direct { kind: ScaleType::F16 } => Numbers::F16(from.add(row * 2)),
                Scales::Direct { kind: ScaleType::BF16 } => Numbers::BF16(from.add(row * 2)),
                Scales::Direct { kind: ScaleType::F32 } => Numbers::F32(from.add(row * 4)),
                Scales::Factored => {
                    let whole = S::mul(S::from_f16(from.add(row * 2)), S::splat(sign));
                    Numbers::Factors(from.add(ROWS * 2 + row), whole)
                }
            }
        }
    }

    /// Reads the numbers of all groups, each group's from `row` on.
    ///
    /// # Safety
    /// The array must have the groups.
    #[inline(always)]
    unsafe fn read(self, to: &mut [[f32; ROWS]], row: usize) {
        // Each kind has a loop of its own: a step of one decides nothing.
        // SAFETY: as the caller promises.
        unsafe {
            match self {
                Numbers::F16(from) => each::<S>(to, row, |at| S::from_f16(from.add(at * 2))),
                Numbers::BF16(from) => each::<S>(to, row, |at| S::from_bf16(from.add(at * 2))),
                Numbers::F32(from) => each::<S>(to, row, |at| S::load(from.add(at * 4).cast())),
                // Factors have at most seven bits where they have no sign.
                Numbers::Factors(from, whole) => {
                    each::<S>(to, row, |at| S::mul(whole, S::from_i8(from.add(at))));
                }
            }
        }
    }
}

/// Stores what `number` gives of each group, which is told how many numbers lie before it.
///
/// # Safety
/// There must be a vector from `row` on.
#[inline(always)]
unsafe fn each<S: Simd>(to: &mut [[f32; ROWS]], row: usize, number: impl Fn(usize) -> S::F) {
    for (g, to) in to.iter_mut().enumerate() {
        // SAFETY: as the caller promises.
        unsafe { S::store(to.as_mut_ptr().add(row), number(g * ROWS)) };
    }
}

/// Where a block's codes go: bytes as `[len / 4][apart][rows][4]`, of which one in `apart` is this panel's, or words as
/// `[len / 4][2][apart][rows][2]`.
#[derive(Clone, Copy)]
pub(super) struct Loosely {
    pub(super) to: *mut u8,
    pub(super) apart: usize,
    pub(super) as_words: bool,
}

/// Unpacks the `len` elements of a block that begins at `from` to its scales and codes.
///
/// # Safety
/// The block must be readable and the codes writable; the machine must have the level, and it byte products, in pairs if there are
/// words.
pub(super) unsafe fn unpack(
    level: SimdLevel,
    format: &Format,
    (from, len): (*const u8, usize),
    (factors, loosely): (&mut Factors, Loosely),
) {
    assert!(len <= BLOCK, "one block at a time");
    // SAFETY: as the caller promises.
    unsafe { at(level, Unpacking { format, from, len, factors, loosely }) }
}

/// A block on its way to bytes or words.
struct Unpacking<'a> {
    format: &'a Format,
    from: *const u8,
    len: usize,
    factors: &'a mut Factors,
    loosely: Loosely,
}

impl Task for Unpacking<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<P: Part, const N: usize>(self) {
        let groups = self.len / self.format.group;
        // SAFETY: as the caller of `unpack` promises: a block is its scales and then its units.
        unsafe {
            self.factors.read::<P::Floats>(self.format, self.from, groups);
            match self.format.codes {
                Codes::Two => self.units::<P, N>(Bits::<2>),
                Codes::Three => self.units::<P, N>(Bits::<3>),
                Codes::Four => self.units::<P, N>(Bits::<4>),
                Codes::Five => self.units::<P, N>(Bits::<5>),
                Codes::Six => self.units::<P, N>(Bits::<6>),
                Codes::Eight => self.units::<P, N>(Bits::<8>),
                Codes::Table(table) => self.units::<P, N>(Table(table)),
            }
        }
    }
}

impl Unpacking<'_> {
    /// # Safety
    /// As for [`unpack`].
    #[inline(always)]
    unsafe fn units<P: Part, const N: usize>(self, unit: impl Unit) {
        let Loosely { to, apart, as_words } = self.loosely;
        let mut at = self.from.wrapping_add(self.format.scale_bytes(self.len / self.format.group));
        for u in 0..self.len / UNIT {
            // SAFETY: as the caller promises.
            unsafe {
                let codes = unit.load::<P, N>(at);
                at = at.add(unit.bytes());
                for v in 0..4 {
                    for n in 0..N {
                        let to = to.add(n * 4 * lanes::<P>());
                        if !as_words {
                            P::store(to.add((u * 4 + v) * apart * VECTOR), codes[v][n]);
                            continue;
                        }
                        for (half, words) in P::words(codes[v][n]).into_iter().enumerate() {
                            P::store(to.add(((u * 4 + v) * 2 + half) * apart * VECTOR), words);
                        }
                    }
                }
            }
        }
    }
}

/// Reads one unit of codes as four vectors of bytes, each in as many parts as a panel has.
pub(super) trait Unit: Copy {
    /// Whether all codes are below 128.
    const SMALL: bool;

    /// Bytes of a unit.
    fn bytes(self) -> usize;

    /// # Safety
    /// A unit must be readable at `from`; the machine must have the instructions.
    unsafe fn load<P: Part, const N: usize>(self, from: *const u8) -> [[P::Bytes; N]; 4];
}

#[derive(Clone, Copy)]
pub(super) struct Bits<const B: usize>;
/// Any codes below 128, told apart at every unit: not every width is worth a kernel of its own.
#[derive(Clone, Copy)]
pub(super) struct Rare(pub(super) Codes);
/// Four bits that number an entry.
#[derive(Clone, Copy)]
pub(super) struct Table(pub(super) &'static [u8; 16]);

impl<const B: usize> Unit for Bits<B> {
    const SMALL: bool = B < 8;

    #[inline(always)]
    fn bytes(self) -> usize {
        ROWS * UNIT / 8 * B
    }

    #[inline(always)]
    unsafe fn load<P: Part, const N: usize>(self, from: *const u8) -> [[P::Bytes; N]; 4] {
        // SAFETY: as the caller promises.
        unsafe {
            match B {
                2 => twos::<P, N>(from),
                3 => with_bit::<P, N>(twos::<P, N>(from), from.add(VECTOR), 2),
                4 => fours::<P, N>(from),
                5 => with_bit::<P, N>(fours::<P, N>(from), from.add(2 * VECTOR), 4),
                6 => {
                    let five = with_bit::<P, N>(fours::<P, N>(from), from.add(2 * VECTOR), 4);
                    with_bit::<P, N>(five, from.add(2 * VECTOR + VECTOR / 2), 5)
                }
                _ => eights::<P, N>(from),
            }
        }
    }
}

impl Unit for Rare {
    const SMALL: bool = true;

    #[inline(always)]
    fn bytes(self) -> usize {
        self.0.bytes()
    }

    #[inline(always)]
    unsafe fn load<P: Part, const N: usize>(self, from: *const u8) -> [[P::Bytes; N]; 4] {
        // SAFETY: as the caller promises.
        unsafe {
            match self.0 {
                Codes::Two => Bits::<2>.load::<P, N>(from),
                Codes::Three => Bits::<3>.load::<P, N>(from),
                Codes::Five => Bits::<5>.load::<P, N>(from),
                Codes::Table(table) => Table(table).load::<P, N>(from),
                Codes::Four | Codes::Six | Codes::Eight => unreachable!("has a kernel of its own"),
            }
        }
    }
}

impl Unit for Table {
    const SMALL: bool = false;

    #[inline(always)]
    fn bytes(self) -> usize {
        Codes::Table(self.0).bytes()
    }

    #[inline(always)]
    unsafe fn load<P: Part, const N: usize>(self, from: *const u8) -> [[P::Bytes; N]; 4] {
        // SAFETY: as the caller promises.
        unsafe {
            let mut codes = fours::<P, N>(from);
            for v in 0..4 {
                for n in 0..N {
                    codes[v][n] = P::lookup(self.0, codes[v][n]);
                }
            }
            codes
        }
    }
}

/// Bytes of a vector of codes: four for each row.
const VECTOR: usize = 4 * ROWS;

#[inline(always)]
unsafe fn eights<P: Part, const N: usize>(from: *const u8) -> [[P::Bytes; N]; 4] {
    // SAFETY: as the caller of `Unit::load` promises.
    unsafe {
        let mut codes = [[P::load(from); N]; 4];
        for v in 0..4 {
            for n in 0..N {
                codes[v][n] = P::load(from.add(v * VECTOR + n * 4 * lanes::<P>()));
            }
        }
        codes
    }
}

#[inline(always)]
unsafe fn twos<P: Part, const N: usize>(from: *const u8) -> [[P::Bytes; N]; 4] {
    // SAFETY: as the caller of `Unit::load` promises.
    unsafe {
        let mut codes = [[P::load(from); N]; 4];
        for n in 0..N {
            let all = P::load(from.add(n * 4 * lanes::<P>()));
            for v in 0..4 {
                codes[v][n] = P::bits(all, 2 * v as u32, 3);
            }
        }
        codes
    }
}

#[inline(always)]
unsafe fn fours<P: Part, const N: usize>(from: *const u8) -> [[P::Bytes; N]; 4] {
    // SAFETY: as the caller of `Unit::load` promises.
    unsafe {
        let mut codes = [[P::load(from); N]; 4];
        for v in 0..4 {
            for n in 0..N {
                let both = P::load(from.add(v / 2 * VECTOR + n * 4 * lanes::<P>()));
                codes[v][n] = P::bits(both, v as u32 % 2 * 4, 15);
            }
        }
        codes
    }
}

/// Adds a bit of the codes from four masks.
#[inline(always)]
unsafe fn with_bit<P: Part, const N: usize>(
    mut codes: [[P::Bytes; N]; 4],
    masks: *const u8,
    bit: u8,
) -> [[P::Bytes; N]; 4] {
    for v in 0..4 {
        for n in 0..N {
            // SAFETY: as the caller of `Unit::load` promises.
            codes[v][n] = unsafe {
                P::with_bit(codes[v][n], masks.add(v * VECTOR / 8 + n * lanes::<P>() / 2), 1 << bit)
            };
        }
    }
    codes
}
