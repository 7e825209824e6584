//! What a device does at most: how fast its memory is copied, and how much its tensor cores multiply. Measured with this
//! engine's own means, on numbers that look random, since some devices are faster with zeros.

use std::time::Instant;

use mlxcel_engine::weights::{Bytes, WeightTensor};
use mlxcel_engine::{Engine as _, EngineError, Feeds, WeightSource};
use mlxcel_ir::{Bindings, Builder, DType, HostTensor, shape};

use crate::CudaEngine;
use crate::memory::Block;

/// What was measured.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ceilings {
    /// Bytes read and bytes written by a copy, together, in a second.
    pub bytes_per_s: f64,
    /// Of products of bf16, in a second.
    pub flop_per_s: f64,
}

/// Bytes that are copied, and how often.
const COPIED: u64 = 2 << 30;
const COPIES: u32 = 8;

/// Rows and features of a product, products of a step, and steps.
const ROWS: usize = 4096;
const WIDTH: usize = 8192;
const PRODUCTS: usize = 8;
const STEPS: u32 = 4;

impl CudaEngine {
    /// Measures the device for about a second.
    pub fn calibrate(&self) -> Result<Ceilings, EngineError> {
        Ok(Ceilings { bytes_per_s: self.copy_rate()?, flop_per_s: self.product_rate()? })
    }

    fn copy_rate(&self) -> Result<f64, EngineError> {
        let ctx = &self.ctx;
        ctx.enter()?;
        let bytes = COPIED.min(ctx.free() / 4);
        let (from, to) = (Block::zeroed(ctx, bytes, "a copy")?, Block::new(ctx, bytes, "a copy")?);
        ctx.driver.copy(to.at, from.at, bytes, ctx.stream)?;
        ctx.wait()?;
        let started = Instant::now();
        for _ in 0..COPIES {
            ctx.driver.copy(to.at, from.at, bytes, ctx.stream)?;
        }
        ctx.wait()?;
        Ok(2.0 * bytes as f64 * f64::from(COPIES) / started.elapsed().as_secs_f64().max(f64::MIN_POSITIVE))
    }

    /// Rows of a table, multiplied by one square weight again and again.
    fn product_rate(&self) -> Result<f64, EngineError> {
        let b = Builder::new();
        let ids = b.input("ids", DType::I32, shape![ROWS]);
        let mut x = b.weight("table", DType::BF16, &[ROWS, WIDTH]).embedding(ids, DType::BF16);
        for _ in 0..PRODUCTS {
            x = x.linear(b.weight("w", DType::BF16, &[WIDTH, WIDTH]), None);
        }
        b.output("y", x.slice(0, 0, 1));
        let graph = b.finish().expect("a graph of products is well formed");
        let mut program = self.compile(&graph, &Noise, &Bindings::new())?;
        let mut feeds = Feeds::new();
        feeds.insert("ids", HostTensor::new(&[ROWS], &(0..ROWS as i32).collect::<Vec<_>>()));
        let mut step = || {
            let ticket = program.submit(&feeds, &["y"])?;
            program.collect(ticket).map(drop)
        };
        // The first is laid out, the second made a graph.
        step()?;
        step()?;
        let started = Instant::now();
        for _ in 0..STEPS {
            step()?;
        }
        let flops = 2.0 * (ROWS * WIDTH * WIDTH * PRODUCTS) as f64 * f64::from(STEPS);
        Ok(flops / started.elapsed().as_secs_f64().max(f64::MIN_POSITIVE))
    }
}

/// Weights that look random, small enough that their products stay so.
struct Noise;

impl WeightSource for Noise {
    fn tensor(&self, name: &str) -> Result<WeightTensor, EngineError> {
        let rows = if name == "table" { ROWS } else { WIDTH };
        let mut state = 1u32;
        let mut bytes = Vec::with_capacity(rows * WIDTH * 2);
        for _ in 0..rows * WIDTH {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            // A sign, an exponent of 2^-7 to 2^-6, and seven bits: about what keeps sums of 8192 such products level.
            let bits = 0x3c00 | (state >> 16) as u16 & 0x80ff;
            bytes.extend_from_slice(&bits.to_le_bytes());
        }
        WeightTensor::new(DType::BF16, vec![rows, WIDTH], vec![Bytes::copied(&[&bytes])])
            .map_err(EngineError::from)
    }
}
