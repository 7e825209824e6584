//! What the instructions do.
#![allow(unsafe_code)]

use std::cell::UnsafeCell;

use libc::{c_int, c_void, siginfo_t, ucontext_t};

use super::decode::{Instruction, Memory, Prefix, decode};
use super::registers::{Saved, Vector, find_places};

const ROWS: usize = 16;
const WORDS: usize = 16;
const CONFIGURATION: usize = 64;

/// The tiles of a thread.
struct Tiles {
    configuration: [u8; CONFIGURATION],
    tiles: [Tile; 8],
}

type Tile = [[u32; WORDS]; ROWS];

impl Tiles {
    const EMPTY: Self = Tiles { configuration: [0; CONFIGURATION], tiles: [[[0; WORDS]; ROWS]; 8] };

    fn rows(&self, tile: usize) -> usize {
        usize::from(self.configuration[48 + tile])
    }

    fn row_bytes(&self, tile: usize) -> usize {
        usize::from(u16::from_le_bytes([
            self.configuration[16 + 2 * tile],
            self.configuration[17 + 2 * tile],
        ]))
    }
}

thread_local! {
    static TILES: UnsafeCell<Tiles> = const { UnsafeCell::new(Tiles::EMPTY) };
}

/// Executes instructions that the processor does not know from now on.
pub(crate) fn install() {
    find_places();
    // SAFETY: the handler is of the form that is asked for, and reads and writes only what instructions do.
    let is_done = unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handle as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_NODEFER;
        libc::sigaction(libc::SIGILL, &action, std::ptr::null_mut()) == 0
    };
    assert!(is_done, "no handler for instructions that the machine lacks");
}

extern "C" fn handle(_: c_int, _: *mut siginfo_t, context: *mut c_void) {
    // SAFETY: the system calls this with what it interrupted.
    let mut saved = unsafe { Saved::new(context.cast::<ucontext_t>()) };
    let instruction = decode(&mut saved).filter(|i| match i.operation {
        0x49 | 0x4B | 0x5C | 0x5E if i.prefix == Prefix::Vex => {
            // SAFETY: a handler does not interrupt itself between the instructions that it executes.
            TILES.with(|tiles| unsafe { tile(&mut *tiles.get(), i) })
        }
        _ => vector(&mut saved, i),
    });
    match instruction {
        Some(i) => saved.go_on_at(i.end),
        None => refuse(&mut saved),
    }
}

/// Ends the process, and says at what.
fn refuse(saved: &mut Saved) {
    // SAFETY: an instruction has fifteen bytes at most, and code behind it.
    let bytes = unsafe { std::slice::from_raw_parts(saved.instruction(), 11) };
    eprintln!("an instruction that is not emulated: {bytes:02x?}");
    std::process::abort();
}

fn widened(half: u16) -> f32 {
    f32::from_bits(u32::from(half) << 16)
}

/// The nearest `bf16`; the instructions take and leave numbers below the least normal one as zeros.
fn narrowed(number: f32) -> u16 {
    const QUIET: u16 = 0x40;
    let bits = number.to_bits();
    if number.is_nan() {
        return (bits >> 16) as u16 | QUIET;
    }
    if number.is_subnormal() {
        return (bits >> 16) as u16 & 0x8000;
    }
    ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16) as u16
}

/// Instructions on vectors. Says whether it was one of them.
fn vector(saved: &mut Saved, i: &Instruction) -> bool {
    let operation = match (i.operation, i.kind) {
        (0x50, 1) => bytes,
        (0x52, 2) if i.prefix == Prefix::Evex => pairs,
        (0x72, 2 | 3) if i.prefix == Prefix::Evex => return narrow(saved, i),
        _ => return false,
    };
    let (old, second, third) = (saved.vector(i.register), saved.vector(i.second), third(saved, i));
    let (mask, mut result) = (saved.mask(i.mask), Vector::ZERO);
    for word in 0..i.bytes / 4 {
        let value = match (mask >> word & 1, i.zeroes) {
            (1, _) => operation(old.word(word), second.word(word), third.word(word)),
            (_, true) => 0,
            (_, false) => old.word(word),
        };
        result.set_word(word, value);
    }
    saved.set_vector(i.register, &result);
    true
}

/// The last operand: a register or memory.
fn third(saved: &mut Saved, i: &Instruction) -> Vector {
    let Some(Memory { base, index }) = i.memory else { return saved.vector(i.third) };
    let mut v = Vector::ZERO;
    let from = base.wrapping_add(index) as *const u8;
    let count = if i.spreads { 4 } else { i.bytes };
    // SAFETY: the instruction reads what the code that holds it may read.
    unsafe { std::ptr::copy_nonoverlapping(from, v.0.as_mut_ptr(), count) };
    if i.spreads {
        (1..i.bytes / 4).for_each(|word| v.set_word(word, v.word(0)));
    }
    v
}

/// Four products of unsigned and signed bytes, added to a number.
fn bytes(sum: u32, unsigned: u32, signed: u32) -> u32 {
    let products = unsigned.to_le_bytes().into_iter().zip(signed.to_le_bytes());
    products.fold(sum, |sum, (a, b)| sum.wrapping_add_signed(i32::from(a) * i32::from(b as i8)))
}

/// Two products of `bf16` numbers, added to a number.
fn pairs(sum: u32, a: u32, b: u32) -> u32 {
    let product =
        |sum: f32, shift: u32| widened((a >> shift) as u16).mul_add(widened((b >> shift) as u16), sum);
    product(product(f32::from_bits(sum), 16), 0).to_bits()
}

/// Numbers of one vector or of two that become `bf16`.
fn narrow(saved: &mut Saved, i: &Instruction) -> bool {
    let (old, second, third) = (saved.vector(i.register), saved.vector(i.second), third(saved, i));
    let (mask, words, mut result) = (saved.mask(i.mask), i.bytes / 4, Vector::ZERO);
    let sources = [third, second];
    for half in 0..words * if i.kind == 3 { 2 } else { 1 } {
        let number = sources[half / words].word(half % words);
        let value = match (mask >> half & 1, i.zeroes) {
            (1, _) => narrowed(f32::from_bits(number)),
            (_, true) => 0,
            (_, false) => old.half(half),
        };
        result.set_half(half, value);
    }
    saved.set_vector(i.register, &result);
    true
}

/// Instructions on tiles. Says whether it was one of them.
fn tile(tiles: &mut Tiles, i: &Instruction) -> bool {
    let (a, b, sum) = (i.third as usize & 7, i.second as usize & 7, i.register as usize & 7);
    match (i.operation, i.kind, i.memory) {
        (0x49, 0, Some(memory)) => {
            *tiles = Tiles::EMPTY;
            // SAFETY: the instruction reads what the code that holds it may read.
            tiles.configuration =
                unsafe { *(memory.base.wrapping_add(memory.index) as *const [u8; CONFIGURATION]) };
        }
        (0x49, 0, None) => *tiles = Tiles::EMPTY,
        (0x49, 3, None) => tiles.tiles[sum] = [[0; WORDS]; ROWS],
        (0x4B, 1 | 3, Some(memory)) => load(tiles, sum, memory),
        (0x4B, 2, Some(memory)) => store(tiles, sum, memory),
        // SAFETY: only machines with AVX-512 get here.
        (0x5C, 2, None) => unsafe { multiply(tiles, [sum, a, b], pairs_in_order) },
        // SAFETY: as above.
        (0x5E, 2, None) => unsafe { multiply(tiles, [sum, a, b], |sum, a, b| bytes(sum, b, a)) },
        _ => return false,
    }
    true
}

/// As tiles add them: the even numbers first.
fn pairs_in_order(sum: u32, a: u32, b: u32) -> u32 {
    pairs(sum, a.rotate_left(16), b.rotate_left(16))
}

fn load(tiles: &mut Tiles, tile: usize, memory: Memory) {
    let (rows, bytes) = (tiles.rows(tile), tiles.row_bytes(tile));
    assert!((1..=ROWS).contains(&rows) && bytes <= 4 * WORDS, "tile {tile} is configured");
    tiles.tiles[tile] = [[0; WORDS]; ROWS];
    for (row, to) in tiles.tiles[tile].iter_mut().enumerate().take(rows) {
        let from = memory.base.wrapping_add(memory.index.wrapping_mul(row as u64)) as *const u8;
        // SAFETY: the instruction reads what the code that holds it may read.
        unsafe { std::ptr::copy_nonoverlapping(from, to.as_mut_ptr().cast(), bytes) };
    }
}

fn store(tiles: &Tiles, tile: usize, memory: Memory) {
    let (rows, bytes) = (tiles.rows(tile), tiles.row_bytes(tile));
    for (row, from) in tiles.tiles[tile].iter().enumerate().take(rows) {
        let to = memory.base.wrapping_add(memory.index.wrapping_mul(row as u64)) as *mut u8;
        // SAFETY: the instruction writes what the code that holds it may write.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr().cast(), to, bytes) };
    }
}

/// Adds products of the words of two tiles to a third.
///
/// # Safety
/// The machine must have the features, with which the loop becomes one over vectors.
#[target_feature(enable = "avx512f,fma")]
unsafe fn multiply(tiles: &mut Tiles, [sum, a, b]: [usize; 3], product: impl Fn(u32, u32, u32) -> u32) {
    let (rows, depth) = (tiles.rows(sum), tiles.row_bytes(a) / 4);
    let fits = tiles.rows(a) == rows && tiles.rows(b) == depth && tiles.row_bytes(b) == tiles.row_bytes(sum);
    assert!(fits && sum != a && sum != b && a != b, "tiles {sum}, {a} and {b} fit each other");
    for row in 0..rows {
        let mut sums = tiles.tiles[sum][row];
        for k in 0..depth {
            let of_a = tiles.tiles[a][row][k];
            for (sum, of_b) in sums.iter_mut().zip(&tiles.tiles[b][k]) {
                *sum = product(*sum, of_a, *of_b);
            }
        }
        tiles.tiles[sum][row] = sums;
    }
}
