//! Products of a few rows whose weights come through a ring of shared memory, on devices that have bulk copies. Which ring
//! fits is decided here; what it holds is in `kernels/stream.cu`.

use mlxcel_ir::{DType, QuantFormat, ScaleType};

use super::linear::{Job, Product, product};
use super::{Held, Lower, Result, grid};
use crate::driver::Tiles;
use crate::params::Params;
use crate::tape::{RootKind, Step};

/// How a kernel has its weight in the ring.
struct Part {
    name: &'static str,
    /// Bytes of a part, warps that share it, and elements of a row in a tile of it.
    bytes: usize,
    warps: usize,
    each: usize,
    /// Elements whose sum is kept beside the rows of `x`, or zero.
    group: usize,
}

/// Rows that a block multiplies at once.
const FEW: usize = 8;
const MORE: usize = 16;

/// Parts that a ring has at least to hide the way from memory, and at most.
const STAGES_MIN: usize = 4;
const STAGES_MAX: usize = 16;

/// What the kernels declare of shared memory themselves, and what a block of attention takes beside them.
const DECLARED: usize = 512;
const BESIDE: usize = 70 << 10;

/// What the ring is moved by at most to begin at a multiple of its pattern.
const PATTERN: usize = 1024;

/// Elements of a row in one part of packed codes.
const PACKED_WIDTH: usize = 2048;

/// Bytes of the next product's weight that are brought to the cache while one ends: what the memory gives in the time from
/// there to when the next one reads.
const AHEAD: usize = 4 << 20;

/// Ranges of memory that a product can bring: codes, scales and biases of gates and of factors.
const AHEAD_RANGES: usize = 6;
pub(super) type Ranges = [(u64, u64); AHEAD_RANGES];

/// A product that was started: its step, and where in its parameters it finds what to bring.
#[derive(Clone, Copy, Debug)]
pub(super) struct Chained {
    step: usize,
    room: usize,
}

/// What a block has in shared memory.
#[derive(Debug, PartialEq, Eq)]
struct Ring {
    stages: usize,
    bytes: usize,
    is_staged: bool,
}

impl Lower<'_> {
    /// A product of a few rows, gated or not, with a weight that is stored in one of the formats that have a kernel for it.
    /// Whether it was done.
    pub(super) fn multiply_streamed(&mut self, job: &Job<'_>, gated: Option<u8>) -> Result<bool> {
        let Product::Tensor(..) = product(job) else { return Ok(false) };
        let Some(part) = part(job, gated.is_some()) else { return Ok(false) };
        let aligned = match &job.w.held {
            Held::Tensor(view) => view.byte_offset() % 16 == 0,
            Held::Packed(_) => true,
        };
        let fits = job.k.is_multiple_of(part.multiple()) && aligned && job.ids.is_none();
        if self.ctx.facts.capability < (9, 0) || !fits || !self.is_stored(job.w) {
            return Ok(false);
        }
        let sets = 1 + usize::from(gated.is_some());
        let shared = self.ctx.facts.shared_max as usize;
        // Of two packed products in a row one takes most of the shared memory and the other most of the registers.
        let beside = if self.is_beside { None } else { beside(job, &part, sets, shared) };
        self.is_beside = beside.is_some();
        let Some(ring) = beside.or_else(|| ring(job, &part, sets, shared)) else { return Ok(false) };
        let mut p = self.linear_params(job, ring.is_staged);
        if let Some(activation) = gated {
            p.set_last_int(u32::from(activation) + 1);
        }
        let mut p = self.maps(job, &part).join(p.end()).int(ring.stages).int(0);
        let first = self.first_read(job, sets);
        let room = p.bytes.len();
        p.bytes.resize(room + 16 * AHEAD_RANGES, 0);
        let blocks = job.n.div_ceil(16).min(self.ctx.facts.multiprocessors as usize);
        let mut warps = part.warps as u32 + 2;
        if self.is_beside {
            let registers = self.ctx.driver.registers(self.ctx.function(part.name, ring.bytes as u32)?)?;
            warps = warps.max(alone(registers));
        }
        self.launch(part.name, grid([blocks, 1, 1], 32 * warps, ring.bytes), p)?;
        let here = Chained { step: self.steps.len() - 1, room };
        let begin = match self.chain {
            Some((before, begin)) => {
                self.bring_ahead(before, &first);
                begin
            }
            None => first,
        };
        self.chain = Some((here, begin));
        Ok(true)
    }

    /// After the last product of a step: it brings what the first one of the next step reads.
    pub(super) fn close_chain(&mut self) {
        if let Some((last, first)) = self.chain.take() {
            self.bring_ahead(last, &first);
        }
    }

    /// Tells the product of a step what the next one reads first.
    fn bring_ahead(&mut self, before: Chained, ranges: &Ranges) {
        let Some(Step::Launch { params, .. }) = self.steps.get_mut(before.step) else { return };
        for (place, (at, bytes)) in params.bytes[before.room..].chunks_exact_mut(16).zip(ranges) {
            place[..8].copy_from_slice(&at.to_le_bytes());
            place[8..].copy_from_slice(&bytes.to_le_bytes());
        }
    }

    /// The rows of a weight that a product reads first, as ranges of memory: of every set those at its beginning.
    fn first_read(&self, job: &Job<'_>, sets: usize) -> Ranges {
        let parts = match &job.w.held {
            Held::Tensor(view) => match self.roots[view.root].kind {
                RootKind::Fixed(at) => [at + view.byte_offset(), 0, 0],
                _ => return Ranges::default(),
            },
            Held::Packed(stored) => stored.parts,
        };
        let row = match job.w.dtype {
            DType::Quant(QuantFormat::Affine { bits, group, .. }) => {
                let scales = 2 * job.k / group as usize;
                [job.k * bits as usize / 8, scales, scales]
            }
            _ => [2 * job.k, 0, 0],
        };
        // Plain weights take so long that the gap between two products does not matter.
        let limit = if job.w.dtype.is_quant() { AHEAD } else { 0 };
        let rows = (limit / row.iter().sum::<usize>() / sets).min(job.n);
        let mut ranges = Ranges::default();
        for (i, range) in ranges.iter_mut().enumerate().take(3 * sets) {
            let (set, part) = (i / 3, i % 3);
            *range = (parts[part] + (set * job.n * row[part]) as u64, (rows * row[part]) as u64 / 16 * 16);
        }
        ranges
    }

    /// Where the kernel finds codes or numbers, scales and biases.
    fn maps(&mut self, job: &Job<'_>, part: &Part) -> Params {
        let (rows, k) = (job.w.shape[0] as u64, job.k as u64);
        // A tile is 128 bytes of 16 rows, eight of them side by side, one for each warp.
        let codes = |row_bytes: u64| Tiles {
            rank: 3,
            sizes: [64, rows, row_bytes / 128],
            strides: [row_bytes, 128],
            tile: [64, 16, 8],
            is_swizzled: true,
        };
        match &job.w.held {
            Held::Tensor(view) => {
                let p = Params::new().tiles(view.root, view.byte_offset(), codes(2 * k));
                p.no_tiles().no_tiles()
            }
            Held::Packed(stored) => {
                let groups = k / part.group as u64;
                let tile = [(PACKED_WIDTH / part.group) as u32, 16, 1];
                let scales = Tiles {
                    rank: 2,
                    sizes: [groups, rows, 1],
                    strides: [2 * groups, 0],
                    tile,
                    is_swizzled: true,
                };
                let [all, a, b] = stored.parts.map(|at| self.memory(RootKind::Fixed(at), 0));
                Params::new().tiles(all, 0, codes(k / 2)).tiles(a, 0, scales).tiles(b, 0, scales)
            }
        }
    }
}

impl Part {
    /// What the width has to be a multiple of: tiles are whole, and rows of scales begin at multiples of 16 bytes.
    fn multiple(&self) -> usize {
        self.each.max(8 * self.group)
    }
}

/// The kernel for a product, if there is one.
fn part(job: &Job<'_>, gated: bool) -> Option<Part> {
    let plain = |name| Some(Part { name, bytes: 16 << 10, warps: 8, each: 64, group: 0 });
    let affine = |name, group| {
        Some(Part { name, bytes: (16 << 10) + 32 * (PACKED_WIDTH / group * 2), warps: 8, each: 256, group })
    };
    let few = (1..=FEW).contains(&job.m);
    match (job.x.dtype, job.w.dtype) {
        (DType::BF16, DType::BF16) if gated => plain("stream_bf16_gated_8").filter(|_| few),
        (DType::BF16, DType::BF16) if few => plain("stream_bf16_8"),
        (DType::BF16, DType::BF16) if job.m <= MORE => plain("stream_bf16_16"),
        (DType::F16, DType::F16) if gated => None,
        (DType::F16, DType::F16) if few => plain("stream_f16_8"),
        (DType::F16, DType::F16) if job.m <= MORE => plain("stream_f16_16"),
        (DType::BF16, DType::Quant(QuantFormat::Affine { bits: 4, group, scale }))
            if few && scale == ScaleType::BF16 =>
        {
            match (group, gated) {
                (32, false) => affine("stream_bf16_affine4_32_8", 32),
                (64, false) => affine("stream_bf16_affine4_64_8", 64),
                (128, false) => affine("stream_bf16_affine4_128_8", 128),
                (32, true) => affine("stream_bf16_affine4_32_gated_8", 32),
                (64, true) => affine("stream_bf16_affine4_64_gated_8", 64),
                (128, true) => affine("stream_bf16_affine4_128_gated_8", 128),
                _ => None,
            }
        }
        _ => None,
    }
}

/// The ring for a product. It is large enough that no two blocks of a kernel meet on a multiprocessor, which would leave
/// another one idle, and leaves room for attention beside it if it can. Rows of `x` stay where they are if they do not fit
/// and nothing has to be done to them first.
fn ring(job: &Job<'_>, part: &Part, sets: usize, shared_max: usize) -> Option<Ring> {
    let must_stage = job.norm.is_some() || part.group > 0;
    let of = |limit: usize, is_staged: bool| {
        let ring = within(job, (part, sets), limit, is_staged)?;
        Some(Ring { bytes: ring.bytes.max(shared_max / 2), ..ring })
    };
    let shared = if part.group > 0 { large(shared_max) } else { shared_max.saturating_sub(BESIDE) };
    let unstaged = || if must_stage { None } else { of(shared, false) };
    of(shared, true).or_else(unstaged).or_else(|| of(shared_max, true))
}

/// The ring for a product that comes beside one with such a ring, from what that leaves.
fn beside(job: &Job<'_>, part: &Part, sets: usize, shared_max: usize) -> Option<Ring> {
    // Each block takes a little that it did not ask for.
    let limit = shared_max.checked_sub(large(shared_max) + PATTERN)?;
    if part.group > 0 { within(job, (part, sets), limit, true) } else { None }
}

/// What a ring takes that another one is to come beside of: more than half, so that no two such meet.
fn large(shared_max: usize) -> usize {
    shared_max * 6 / 10
}

/// The ring of as many parts as fit, if these are enough.
fn within(job: &Job<'_>, (part, sets): (&Part, usize), limit: usize, is_staged: bool) -> Option<Ring> {
    let rows = job.m * (job.k + 32) * 2;
    let partial = 2 * part.warps * sets * 16 * job.m * 4;
    let sums = job.k.checked_div(part.group).map_or(0, |groups| groups * 32);
    let beside = PATTERN + partial + if is_staged { sums + rows } else { 0 };
    let stages = (limit.checked_sub(DECLARED + beside)? / part.bytes).min(STAGES_MAX);
    (stages >= STAGES_MIN).then_some(Ring { stages, bytes: stages * part.bytes + beside, is_staged })
}

/// Warps of a block that takes more than half of a multiprocessor's registers, of which warps take 256 at a time.
fn alone(registers: u32) -> u32 {
    const HALF: u32 = 32 << 10;
    HALF / (registers * 32).next_multiple_of(256).max(256) + 1
}
