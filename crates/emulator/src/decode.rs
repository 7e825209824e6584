//! The parts of an instruction: what it does, to which registers, and where its memory is.
#![allow(unsafe_code)]

use super::registers::Saved;

/// What stands before the operation's byte.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Prefix {
    /// Three bytes, as AVX has them.
    Vex,
    /// Four, as AVX-512 has them.
    Evex,
}

/// An instruction of the third table (`0F 38`).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Instruction {
    pub(crate) prefix: Prefix,
    /// 0 to 3: none, `66`, `F3`, `F2`.
    pub(crate) kind: u8,
    pub(crate) operation: u8,
    /// The register that the last byte names first, that which the prefix names, and the other one of the last byte.
    pub(crate) register: u8,
    pub(crate) second: u8,
    pub(crate) third: u8,
    /// Bytes of a vector.
    pub(crate) bytes: usize,
    /// The mask's register, and whether what it leaves out becomes zero.
    pub(crate) mask: u8,
    pub(crate) zeroes: bool,
    /// Whether one word of memory stands for all.
    pub(crate) spreads: bool,
    pub(crate) memory: Option<Memory>,
    pub(crate) end: *const u8,
}

/// An operand in memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Memory {
    /// Without the index, which tiles take for the distance of their rows.
    pub(crate) base: u64,
    pub(crate) index: u64,
}

/// Reads bytes one after the other.
struct Reader(*const u8);

impl Reader {
    fn byte(&mut self) -> u8 {
        // SAFETY: it lies within the instruction that the processor stopped at.
        unsafe {
            let byte = *self.0;
            self.0 = self.0.add(1);
            byte
        }
    }

    fn four(&mut self) -> i64 {
        i64::from(i32::from_le_bytes(std::array::from_fn(|_| self.byte())))
    }
}

/// The instruction at which the code was interrupted, if it is of a form that is known.
pub(crate) fn decode(saved: &mut Saved) -> Option<Instruction> {
    const TABLE: u8 = 2;
    let mut r = Reader(saved.instruction());
    let first = r.byte();
    let bit = |byte: u8, at: u32| byte >> at & 1;
    // Registers' upper bits are stored inverted.
    let not = |byte: u8, at: u32| 1 - bit(byte, at);
    let (prefix, p0, p1, p2) = match first {
        0xC4 => (Prefix::Vex, r.byte(), r.byte(), 0),
        0x62 => (Prefix::Evex, r.byte(), r.byte(), r.byte()),
        _ => return None,
    };
    let table = if prefix == Prefix::Vex { p0 & 0x1F } else { p0 & 7 };
    if table != TABLE {
        return None;
    }
    let operation = r.byte();
    let last = r.byte();
    let (mode, low) = (last >> 6, last & 7);
    let (x, b) = (not(p0, 6), not(p0, 5));
    let mut i = Instruction {
        prefix,
        kind: p1 & 3,
        operation,
        register: last >> 3 & 7 | not(p0, 7) << 3,
        second: !(p1 >> 3) & 15,
        third: low | b << 3,
        bytes: if bit(p1, 2) == 1 { 32 } else { 16 },
        mask: 0,
        zeroes: false,
        spreads: false,
        memory: None,
        end: r.0,
    };
    if prefix == Prefix::Evex {
        i.register |= not(p0, 4) << 4;
        i.second |= not(p2, 3) << 4;
        i.third |= x << 4;
        i.bytes = 16 << (p2 >> 5 & 3);
        (i.mask, i.zeroes, i.spreads) = (p2 & 7, bit(p2, 7) == 1, bit(p2, 4) == 1);
    }
    if mode == 3 {
        return Some(i);
    }
    // Short distances count what is read, not bytes, in the longer form.
    let scale = match (prefix, i.spreads) {
        (Prefix::Vex, _) => 1,
        (_, true) => 4,
        (_, false) => i.bytes as i64,
    };
    i.memory = Some(memory(saved, &mut r, (mode, low), (x, b), scale));
    i.end = r.0;
    Some(i)
}

/// The operand in memory, by what the last byte says of it and the upper bits of its registers.
fn memory(saved: &mut Saved, r: &mut Reader, (mode, low): (u8, u8), (x, b): (u8, u8), scale: i64) -> Memory {
    let (mut base, mut index, mut is_relative) = (0, 0, false);
    if low == 4 {
        let sib = r.byte();
        let (at, by) = (sib >> 3 & 7 | x << 3, sib & 7);
        if at != 4 {
            index = saved.number(at) << (sib >> 6);
        }
        if by == 5 && mode == 0 { base = r.four() as u64 } else { base = saved.number(by | b << 3) }
    } else if low == 5 && mode == 0 {
        (base, is_relative) = (r.four() as u64, true);
    } else {
        base += saved.number(low | b << 3);
    }
    match mode {
        1 => base = base.wrapping_add_signed(i64::from(r.byte() as i8) * scale),
        2 => base = base.wrapping_add_signed(r.four()),
        _ => {}
    }
    if is_relative {
        base = base.wrapping_add(r.0 as u64);
    }
    Memory { base, index }
}
