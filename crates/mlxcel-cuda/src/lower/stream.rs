//! Products of a few rows whose weights come through a ring of shared memory, on devices that have bulk copies. Which ring
//! fits is decided here; what it holds is in `kernels/stream.cu`.

use mlxcel_ir::{DType, QuantFormat, ScaleType};

use super::linear::{Job, Product, product};
use super::{Held, Lower, Result, grid};
use crate::driver::Tiles;
use crate::params::Params;
use crate::tape::RootKind;

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
        let Some(ring) = ring(job, &part, sets, self.ctx.facts.shared_max as usize) else { return Ok(false) };
        let mut p = self.linear_params(job, ring.is_staged);
        if let Some(activation) = gated {
            p.set_last_int(u32::from(activation) + 1);
        }
        let p = self.maps(job, &part).join(p.end()).int(ring.stages).int(0);
        let blocks = job.n.div_ceil(16).min(self.ctx.facts.multiprocessors as usize);
        self.launch(part.name, grid([blocks, 1, 1], 32 * (part.warps as u32 + 2), ring.bytes), p)?;
        Ok(true)
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
                    is_swizzled: false,
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
        Some(Part { name, bytes: (16 << 10) + 32 * (PACKED_WIDTH / group * 2), warps: 16, each: 256, group })
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
    let rows = job.m * (job.k + 32) * 2;
    let partial = 2 * part.warps * sets * 16 * job.m * 4;
    let sums = job.k.checked_div(part.group).map_or(0, |groups| groups * 32);
    let must_stage = job.norm.is_some() || part.group > 0;
    let of = |limit: usize, is_staged: bool| {
        let beside = PATTERN + partial + if is_staged { sums + rows } else { 0 };
        let stages = (limit.checked_sub(DECLARED + beside)? / part.bytes).min(STAGES_MAX);
        let bytes = (stages * part.bytes + beside).max(shared_max / 2);
        (stages >= STAGES_MIN).then_some(Ring { stages, bytes, is_staged })
    };
    let shared = shared_max.saturating_sub(BESIDE);
    let unstaged = || if must_stage { None } else { of(shared, false) };
    of(shared, true).or_else(unstaged).or_else(|| of(shared_max, true))
}
