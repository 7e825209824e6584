//! The registers of the code that was interrupted, as the system saved them.
#![allow(unsafe_code)]

use std::arch::x86_64::__cpuid_count;
use std::sync::OnceLock;

use libc::{c_int, greg_t, ucontext_t};

/// The parts of the saved state, by the number that the processor gives them.
const SSE: usize = 1;
const AVX: usize = 2;
const MASKS: usize = 5;
const UPPER_HALVES: usize = 6;
const UPPER_REGISTERS: usize = 7;
/// What the header says is there; what is not is zero.
const PRESENT: usize = 512;
const FIRST_XMM: usize = 160;

/// A whole vector register.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub(crate) struct Vector(pub(crate) [u8; 64]);

impl Vector {
    pub(crate) const ZERO: Self = Vector([0; 64]);

    pub(crate) fn word(&self, i: usize) -> u32 {
        u32::from_le_bytes(std::array::from_fn(|b| self.0[4 * i + b]))
    }

    pub(crate) fn set_word(&mut self, i: usize, word: u32) {
        self.0[4 * i..4 * i + 4].copy_from_slice(&word.to_le_bytes());
    }

    pub(crate) fn half(&self, i: usize) -> u16 {
        u16::from_le_bytes([self.0[2 * i], self.0[2 * i + 1]])
    }

    pub(crate) fn set_half(&mut self, i: usize, half: u16) {
        self.0[2 * i..2 * i + 2].copy_from_slice(&half.to_le_bytes());
    }
}

/// Where each part of the saved state begins: asked for before anything is interrupted.
static PLACES: OnceLock<[usize; 8]> = OnceLock::new();

pub(crate) fn find_places() {
    PLACES.get_or_init(|| std::array::from_fn(|part| __cpuid_count(0xD, part as u32).ebx as usize));
}

/// What was interrupted.
pub(crate) struct Saved(*mut ucontext_t);

impl Saved {
    /// # Safety
    /// It must be what a handler of signals was called with, while it runs.
    pub(crate) unsafe fn new(context: *mut ucontext_t) -> Self {
        Saved(context)
    }

    fn general(&mut self, register: c_int) -> &mut greg_t {
        // SAFETY: the context is there, and nobody else writes it.
        unsafe { &mut (*self.0).uc_mcontext.gregs[register as usize] }
    }

    pub(crate) fn instruction(&mut self) -> *const u8 {
        *self.general(libc::REG_RIP) as *const u8
    }

    pub(crate) fn go_on_at(&mut self, instruction: *const u8) {
        *self.general(libc::REG_RIP) = instruction as greg_t;
    }

    /// A general register, by the number that instructions have for it.
    pub(crate) fn number(&mut self, register: u8) -> u64 {
        use libc::*;
        const ORDER: [c_int; 16] = [
            REG_RAX, REG_RCX, REG_RDX, REG_RBX, REG_RSP, REG_RBP, REG_RSI, REG_RDI, REG_R8, REG_R9, REG_R10,
            REG_R11, REG_R12, REG_R13, REG_R14, REG_R15,
        ];
        *self.general(ORDER[register as usize]) as u64
    }

    /// Bytes of a part of the state, which is there afterwards.
    fn part(&mut self, part: usize, (first, count): (usize, usize), whole: usize) -> &mut [u8] {
        let places = PLACES.get().expect("places are asked for before");
        let start = if part == SSE { FIRST_XMM } else { places[part] };
        // SAFETY: Linux saves the whole state where this points, in the form that the processor describes.
        unsafe {
            let state = (*self.0).uc_mcontext.fpregs.cast::<u8>();
            let present = state.add(PRESENT).cast::<u64>();
            if *present >> part & 1 == 0 {
                state.add(start).write_bytes(0, whole);
                *present |= 1 << part;
            }
            std::slice::from_raw_parts_mut(state.add(start + first), count)
        }
    }

    /// The pieces of a vector register.
    fn pieces(&mut self, register: u8, mut each: impl FnMut(&mut [u8], usize)) {
        let r = register as usize;
        if r >= 16 {
            return each(self.part(UPPER_REGISTERS, ((r - 16) * 64, 64), 1024), 0);
        }
        each(self.part(SSE, (r * 16, 16), 256), 0);
        each(self.part(AVX, (r * 16, 16), 256), 16);
        each(self.part(UPPER_HALVES, (r * 32, 32), 512), 32);
    }

    pub(crate) fn vector(&mut self, register: u8) -> Vector {
        let mut v = Vector::ZERO;
        self.pieces(register, |piece, at| v.0[at..at + piece.len()].copy_from_slice(piece));
        v
    }

    pub(crate) fn set_vector(&mut self, register: u8, v: &Vector) {
        self.pieces(register, |piece, at| piece.copy_from_slice(&v.0[at..at + piece.len()]));
    }

    /// Which elements a mask register keeps; the first register stands for all.
    pub(crate) fn mask(&mut self, register: u8) -> u64 {
        if register == 0 {
            return u64::MAX;
        }
        let bytes = self.part(MASKS, (register as usize * 8, 8), 64);
        u64::from_le_bytes(std::array::from_fn(|i| bytes[i]))
    }
}
