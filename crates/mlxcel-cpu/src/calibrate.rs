//! What this machine can do, measured: how fast all threads together read memory, and how much arithmetic
//! their instructions do when nothing is read at all, in tiles also when they are loaded for every product. A witness
//! for benchmarks; nothing else in the engine uses it.
//!
//! Every loop runs for a while and the run in the middle counts: on a machine that others use too, the best of some
//! milliseconds is not what anybody gets for seconds.
#![allow(unsafe_code)]

use std::hint::black_box;
use std::time::{Duration, Instant};

use mlxcel_engine::EngineError;

use crate::engine::CpuEngine;
use crate::kernels::prefetch;
#[cfg(target_arch = "x86_64")]
use crate::simd::SimdLevel;
use crate::simd::{Kernel, LANES_MAX, Simd};

/// Passes over the memory, and runs of each loop of arithmetic, at least, and for how long.
const RUNS: usize = 9;
const LONG: Duration = Duration::from_millis(400);
/// Tasks of arithmetic for each thread, since cores need not be equally fast: one may have a neighbour and the other none.
const TASKS: usize = 16;
/// Bytes that a thread reads before it takes another part.
const PART: usize = 4 << 20;
/// Places at which a part is read in turn, since memory gives more that way than in one stream (28 to 33 GB/s and not 20
/// to 24 on two cores of a Xeon), and how far ahead each is asked for.
const PLACES: usize = 8;
const AHEAD: usize = 512;

/// What all threads of an engine do together.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Calibration {
    pub read_bytes_per_s: f64,
    /// Fused multiplications and additions of `f32` vectors, each two operations.
    pub f32_flop_per_s: f64,
    /// The same in tiles of `bf16` numbers, at the level that has them.
    pub bf16_flop_per_s: Option<f64>,
    /// The same where the tiles come from the second-level cache, which no product of matrices can do without.
    pub loaded_bf16_flop_per_s: Option<f64>,
}

impl CpuEngine {
    /// Measures for some seconds. `bytes` of memory are read: many times what the processor's caches hold.
    pub fn calibrate(&self, bytes: usize) -> Result<Calibration, EngineError> {
        Ok(Calibration {
            read_bytes_per_s: self.reading(bytes)?,
            f32_flop_per_s: self.arithmetic(Sums::FLOPS, || {
                black_box(self.ctx.level.dispatch(Sums { factor: black_box(0.999) }));
            }),
            bf16_flop_per_s: self.tiles(),
            loaded_bf16_flop_per_s: self.loaded_tiles()?,
        })
    }

    fn reading(&self, bytes: usize) -> Result<f64, EngineError> {
        let count = (bytes / PART).max(1) * (PART / size_of::<f32>());
        let mut memory: Vec<f32> = Vec::new();
        memory
            .try_reserve_exact(count)
            .map_err(|_| EngineError::OutOfMemory { what: "calibration".to_string(), bytes })?;
        // Memory that was never written to is one page of zeros, however much of it there is.
        memory.resize(count, 1.0);
        let (parts, _) = memory.as_chunks();
        let seconds = middle(|| {
            self.ctx.threads.each(parts.len(), |i| {
                black_box(self.ctx.level.dispatch(Read { numbers: &parts[i] }));
            });
        });
        Ok((count * size_of::<f32>()) as f64 / seconds)
    }

    /// Operations in a second when every thread runs the loop, which has so many, again and again.
    fn arithmetic(&self, flops: usize, run: impl Fn() + Sync) -> f64 {
        let tasks = TASKS * self.ctx.threads.count();
        let seconds = middle(|| self.ctx.threads.each(tasks, |_| run()));
        (tasks * flops) as f64 / seconds
    }

    #[cfg(target_arch = "x86_64")]
    fn tiles(&self) -> Option<f64> {
        // SAFETY: an engine has this level only where the machine and the system permit it.
        (self.ctx.level == SimdLevel::Amx).then(|| self.arithmetic(tiles::FLOPS, || unsafe { tiles::run() }))
    }

    #[cfg(target_arch = "x86_64")]
    fn loaded_tiles(&self) -> Result<Option<f64>, EngineError> {
        if self.ctx.level != SimdLevel::Amx {
            return Ok(None);
        }
        let operands = tiles::Operands::new(self.ctx.threads.count())?;
        // SAFETY: as for `tiles`; a thread has its operands for itself.
        let run = || operands.with(|own| unsafe { tiles::run_loaded(own) });
        Ok(Some(self.arithmetic(tiles::LOADED_FLOPS, run)))
    }

    #[cfg(not(target_arch = "x86_64"))]
    fn tiles(&self) -> Option<f64> {
        None
    }

    #[cfg(not(target_arch = "x86_64"))]
    fn loaded_tiles(&self) -> Result<Option<f64>, EngineError> {
        Ok(None)
    }
}

/// Seconds of the run in the middle of many.
fn middle(run: impl Fn()) -> f64 {
    let begun = Instant::now();
    let mut seconds = vec![];
    while seconds.len() < RUNS || begun.elapsed() < LONG {
        let started = Instant::now();
        run();
        seconds.push(started.elapsed().as_secs_f64());
    }
    seconds.sort_by(f64::total_cmp);
    seconds[seconds.len() / 2].max(f64::MIN_POSITIVE)
}

/// Reads all numbers and adds them, in a sum for each place, which hides the latency of an addition.
struct Read<'a> {
    numbers: &'a [f32; PART / size_of::<f32>()],
}

impl Kernel for Read<'_> {
    type Output = f32;

    #[inline(always)]
    fn run<S: Simd>(self) -> f32 {
        let each = self.numbers.len() / PLACES;
        let mut sums = [S::splat(0.0); PLACES];
        for at in (0..each).step_by(S::LANES) {
            for (place, sum) in sums.iter_mut().enumerate() {
                let from = self.numbers[place * each + at..].as_ptr();
                if at.is_multiple_of(LANES_MAX) {
                    prefetch(from.cast::<u8>().wrapping_add(AHEAD), size_of::<f32>() * LANES_MAX);
                }
                // SAFETY: what each place has is whole vectors.
                *sum = S::add(*sum, unsafe { S::load(from) });
            }
        }
        let [a, b, c, d, e, f, g, h] = sums;
        let pairs = [S::add(a, b), S::add(c, d), S::add(e, f), S::add(g, h)];
        S::sums(pairs).iter().sum()
    }
}

/// Multiplies and adds in registers only. The numbers approach 1 and stay ordinary.
struct Sums {
    factor: f32,
}

impl Sums {
    /// Twelve fit the sixteen registers of AVX2 and hide the latency of two units.
    const COUNT: usize = 12;
    const STEPS: usize = 1 << 16;
    /// Of a vector of the widest level; narrower ones take more steps.
    const LANES: usize = 16;
    const FLOPS: usize = 2 * Self::COUNT * Self::LANES * Self::STEPS;
}

impl Kernel for Sums {
    type Output = f32;

    #[inline(always)]
    fn run<S: Simd>(self) -> f32 {
        let (factor, rest) = (S::splat(self.factor), S::splat(1.0 - self.factor));
        let mut sums: [S::F; Self::COUNT] = std::array::from_fn(|i| S::splat(i as f32));
        for _ in 0..Self::STEPS * Self::LANES / S::LANES {
            for sum in &mut sums {
                *sum = S::fma(*sum, factor, rest);
            }
        }
        let four = |at: usize| S::sums([sums[at], sums[at + 1], sums[at + 2], sums[at + 3]]);
        [four(0), four(4), four(8)].iter().flatten().sum()
    }
}

/// Products of tiles, which stay in their registers or are loaded for every product.
#[cfg(target_arch = "x86_64")]
mod tiles {
    use std::arch::asm;
    use std::collections::HashMap;
    use std::sync::{Mutex, MutexGuard, PoisonError};
    use std::thread::{self, ThreadId};

    use mlxcel_engine::EngineError;

    use crate::kernels::packed::tiles::{Ahead, PAIR_SUMS, Registers, STEP, TOKENS, WHOLE, Way, multiply};
    use crate::memory::Buffer;

    /// Four products in a step, each of sixteen rows and columns of 32 numbers.
    const STEP_FLOPS: usize = 4 * 2 * TOKENS * TOKENS * STEP;
    const STEPS: usize = 1 << 11;
    pub(super) const FLOPS: usize = STEPS * STEP_FLOPS;

    /// A row's steps, and pairs of panels that a pair of tiles of tokens is multiplied with: 640 KB of operands, which
    /// no first-level cache holds and the second-level ones of all processors with tiles do.
    const DEEP: usize = 64;
    const PAIRS: usize = 4;
    const TURNS: usize = STEPS / DEEP / PAIRS;
    pub(super) const LOADED_FLOPS: usize = TURNS * PAIRS * DEEP * STEP_FLOPS;

    /// Bytes of a pair of tiles at every step.
    const PAIR: usize = DEEP * 2 * TOKENS * STEP * size_of::<u16>();
    const SUMS: usize = PAIR_SUMS * size_of::<f32>();

    /// What the threads multiply. Each keeps its own, which its core has in its cache.
    pub(super) struct Operands {
        fresh: Mutex<Vec<Buffer>>,
        kept: Mutex<HashMap<ThreadId, Buffer>>,
    }

    impl Operands {
        pub(super) fn new(threads: usize) -> Result<Self, EngineError> {
            let fresh = (0..threads).map(|_| operands()).collect::<Result<_, _>>()?;
            Ok(Operands { fresh: Mutex::new(fresh), kept: Mutex::default() })
        }

        /// Calls `work` with those of this thread.
        pub(super) fn with(&self, work: impl FnOnce(&Buffer)) {
            let thread = thread::current().id();
            let own = lock(&self.kept).remove(&thread);
            let own = own.or_else(|| lock(&self.fresh).pop()).expect("there are some for every thread");
            work(&own);
            lock(&self.kept).insert(thread, own);
        }
    }

    fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
        mutex.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tokens, then pairs of panels, then sums. Memory that was never written to would be one page of zeros.
    fn operands() -> Result<Buffer, EngineError> {
        let mut buffer = Buffer::reused((1 + PAIRS) * PAIR + SUMS, "calibration")?;
        buffer.bytes_mut().fill(0x3f);
        Ok(buffer)
    }

    /// A tile of numbers.
    #[repr(align(64))]
    struct Numbers([u16; TOKENS * STEP]);

    static NUMBERS: Numbers = Numbers([0x3f3f; TOKENS * STEP]);

    /// The operands are loaded: products of tiles that were only cleared are faster, and a neighbour on the same core does not
    /// slow them, as if nothing were multiplied. Loaded zeros take as long as other numbers.
    ///
    /// # Safety
    /// The machine must have AMX with `bf16`, and the process the permission to use it.
    pub(super) unsafe fn run() {
        // SAFETY: the features are promised; tiles are filled and used while they are configured.
        unsafe {
            let _registers = Registers::configure(&WHOLE);
            asm!(
                "tilezero tmm0",
                "tilezero tmm1",
                "tilezero tmm2",
                "tilezero tmm3",
                "tileloadd tmm4, [{numbers} + {line}]",
                "tileloadd tmm5, [{numbers} + {line}]",
                "tileloadd tmm6, [{numbers} + {line}]",
                "tileloadd tmm7, [{numbers} + {line}]",
                "2:",
                "tdpbf16ps tmm0, tmm4, tmm6",
                "tdpbf16ps tmm1, tmm4, tmm7",
                "tdpbf16ps tmm2, tmm5, tmm6",
                "tdpbf16ps tmm3, tmm5, tmm7",
                "dec {steps}",
                "jnz 2b",
                steps = inout(reg) STEPS => _,
                numbers = in(reg) NUMBERS.0.as_ptr(), line = in(reg) 64usize,
                out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                options(nostack),
            );
        }
    }

    /// The loop of prompts with nothing else to do.
    ///
    /// # Safety
    /// As for [`run`]; nobody else may use the operands.
    pub(super) unsafe fn run_loaded(operands: &Buffer) {
        // SAFETY: the features are promised; every operand has its steps, and there is room for the sums.
        unsafe {
            let registers = Registers::configure(&WHOLE);
            let tokens = operands.ptr().cast_const();
            let sums = operands.ptr().add((1 + PAIRS) * PAIR).cast();
            for turn in 0..TURNS * PAIRS {
                let panel = tokens.add((1 + turn % PAIRS) * PAIR);
                let panels = [panel, panel.add(PAIR / 2)].map(|panel| panel.cast());
                let nothing = (Way::Past, [Ahead::NOTHING; 2]);
                multiply(&registers, (tokens.cast(), panels, DEEP), (sums, true), nothing, || ());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::{CpuEngine, CpuOptions, SimdLevel};

    #[test]
    fn every_level_measures_what_it_has() {
        for level in SimdLevel::available() {
            let engine =
                CpuEngine::new(CpuOptions { threads: Some(2), level: Some(level), ..CpuOptions::default() })
                    .unwrap();
            let measured = engine.calibrate(1 << 22).unwrap();
            let is_speed = |speed: f64| speed.is_finite() && speed > 0.0;
            assert!(is_speed(measured.read_bytes_per_s) && is_speed(measured.f32_flop_per_s), "{measured:?}");
            let has_tiles = level.to_string() == "amx";
            for in_tiles in [measured.bf16_flop_per_s, measured.loaded_bf16_flop_per_s] {
                assert_eq!(in_tiles.is_some_and(is_speed), has_tiles, "{level}: {measured:?}");
            }
        }
    }

    #[test]
    fn memory_that_cannot_be_had_is_refused() {
        let engine =
            CpuEngine::new(CpuOptions { threads: Some(1), level: None, ..CpuOptions::default() }).unwrap();
        assert!(engine.calibrate(usize::MAX).is_err());
    }
}
