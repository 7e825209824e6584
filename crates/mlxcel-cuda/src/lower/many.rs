//! Products of many rows in tiles that a block of threads shares, where the device has the instructions for it.

use mlxcel_ir::DType;

use super::linear::{Job, Matrix, Product, product};
use super::{Held, Lower, Result, grid};
use crate::driver::Tiles;
use crate::params::Params;

/// Rows from which on tiles of both sides are shared by a block of threads.
const MANY: usize = 17;
const MANY_PACKED: usize = 65;

/// Elements of the width in one step of a tile, and the fewest steps that are worth a block.
const STEP: usize = 64;
const STEPS_MIN: usize = 4;

/// The tiles of a kernel in `kernels/gemm.cu`.
struct Tiling {
    name: &'static str,
    tokens: usize,
    features: usize,
    stages: usize,
    /// From which part of all rounds on they are left as they are: shares of large tiles cost more.
    full_enough: f64,
}

impl Tiling {
    fn of(m: usize, dtype: DType) -> Self {
        let brain = dtype == DType::BF16;
        let (names, tokens, features, stages, full_enough) = match m {
            ..=64 => (["gemm_bf16_64", "gemm_f16_64"], 64, 128, 6, 0.97),
            65..=128 => (["gemm_bf16_128", "gemm_f16_128"], 128, 128, 6, 0.9),
            // Weights come once only.
            129..=256 => (["gemm_bf16_256", "gemm_f16_256"], 256, 128, 4, 0.8),
            _ => (["gemm_bf16_many", "gemm_f16_many"], 128, 256, 4, 0.8),
        };
        Tiling { name: names[usize::from(!brain)], tokens, features, stages, full_enough }
    }
}

impl Lower<'_> {
    /// Many rows at once: packed weights are decoded first, which pays once there are rows enough. Whether it was done.
    pub(super) fn multiply_many(&mut self, job: &Job<'_>) -> Result<bool> {
        let Product::Tensor(..) = product(job) else { return Ok(false) };
        let plain = job.w.dtype == job.x.dtype;
        let enough = if plain { MANY } else { MANY_PACKED };
        if self.ctx.facts.capability != (9, 0) || job.ids.is_some() || job.m < enough {
            return Ok(false);
        }
        let decoded;
        let w = if plain {
            job.w
        } else {
            let view = self.fresh(job.x.dtype, &[job.n, job.k])?;
            self.decode(&view, job.w, None)?;
            decoded = Matrix { dtype: view.dtype, shape: view.shape.clone(), held: Held::Tensor(view) };
            &decoded
        };
        let Held::Tensor(weight) = &w.held else { return Ok(false) };
        if weight.byte_offset() % 16 != 0 {
            return Ok(false);
        }
        let tiling = Tiling::of(job.m, job.x.dtype);
        let tiles = job.m.div_ceil(tiling.tokens) * job.n.div_ceil(tiling.features);
        let steps = job.k.div_ceil(STEP);
        let blocks =
            (self.ctx.facts.multiprocessors as usize).min((tiles * steps).div_ceil(STEPS_MIN)).max(1);
        // Tiles that do not fill a round are cut, unless the round is nearly full.
        let full = tiles as f64 / tiles.next_multiple_of(blocks) as f64;
        let cut = if full < tiling.full_enough { tiles % blocks } else { 0 };
        // Two shares of sums for each block, and two counts for each tile of which there are several.
        let shares = self.fresh(DType::F32, &[2 * blocks * tiling.tokens * tiling.features])?;
        let come = self.leaves.constants.counts(self.ctx, 2 * blocks)?;
        let of = |rows: usize, stride: i64, tile: usize| Tiles {
            rank: 2,
            sizes: [job.k as u64, rows as u64, 1],
            strides: [2 * stride as u64, 0],
            tile: [STEP as u32, tile as u32, 1],
            is_swizzled: true,
        };
        let x = of(job.m, job.stride, tiling.tokens);
        let p = Params::new().tiles(job.x.root, job.x.byte_offset(), x);
        let p = p.tiles(weight.root, weight.byte_offset(), of(job.n, job.k as i64, tiling.features));
        let p = p
            .join(self.linear_params(&Job { w, ..*job }, false).end())
            .view(&shares)
            .address(come)
            .int(cut)
            .int(0);
        let shared = tiling.stages * (tiling.tokens + tiling.features) * 2 * STEP + 1024;
        self.launch(tiling.name, self.shape_for(w, grid([blocks, 1, 1], 288, shared)), p)?;
        Ok(true)
    }
}
