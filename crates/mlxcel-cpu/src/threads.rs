//! The engine's threads. Kernels say how many independent tasks they have; small work stays on the calling thread.

use mlxcel_engine::EngineError;
use rayon::prelude::*;

/// A pool of its own, so that engines do not compete for one of the process.
#[derive(Debug)]
pub(crate) struct Threads {
    pool: rayon::ThreadPool,
}

impl Threads {
    /// `None` takes as many as the machine offers.
    pub(crate) fn new(count: Option<usize>) -> Result<Self, EngineError> {
        let offered = || std::thread::available_parallelism().map_or(1, |n| n.get());
        let builder = rayon::ThreadPoolBuilder::new()
            .num_threads(count.unwrap_or_else(offered).max(1))
            .thread_name(|i| format!("mlxcel-cpu-{i}"));
        let pool = builder
            .build()
            .map_err(|e| EngineError::Threads { source: std::io::Error::other(e.to_string()) })?;
        Ok(Threads { pool })
    }

    pub(crate) fn count(&self) -> usize {
        self.pool.current_num_threads()
    }

    /// Runs a whole step inside the pool, so that its ops need not enter it one by one.
    pub(crate) fn enter<T: Send>(&self, step: impl FnOnce() -> T + Send) -> T {
        self.pool.install(step)
    }

    /// Calls `task` with every number below `count`.
    pub(crate) fn each(&self, count: usize, task: impl Fn(usize) + Sync + Send) {
        if count <= 1 || self.count() == 1 {
            return (0..count).for_each(task);
        }
        self.pool.install(|| (0..count).into_par_iter().with_max_len(1).for_each(task));
    }

    /// Cuts `data` into runs of `run` elements and calls `task` with the number of each run and the run.
    pub(crate) fn chunks<T: Send>(
        &self,
        data: &mut [T],
        run: usize,
        task: impl Fn(usize, &mut [T]) + Sync + Send,
    ) {
        let run = run.max(1);
        if data.len() <= run || self.count() == 1 {
            return data.chunks_mut(run).enumerate().for_each(|(i, c)| task(i, c));
        }
        self.pool
            .install(|| data.par_chunks_mut(run).enumerate().with_max_len(1).for_each(|(i, c)| task(i, c)));
    }

    /// Calls `task` with the number of each part and the part.
    pub(crate) fn parts<P: Send>(&self, parts: Vec<P>, task: impl Fn(usize, P) + Sync + Send) {
        if parts.len() <= 1 || self.count() == 1 {
            return parts.into_iter().enumerate().for_each(|(i, p)| task(i, p));
        }
        self.pool.install(|| parts.into_par_iter().enumerate().with_max_len(1).for_each(|(i, p)| task(i, p)));
    }

    /// How many lines of `line` elements a task takes, so that each has work worth a thread and all threads have
    /// some.
    pub(crate) fn lines_per_task(&self, lines: usize, line: usize) -> usize {
        const ELEMENTS_MIN: usize = 16 * 1024;
        let shared = lines.div_ceil(4 * self.count());
        shared.max(ELEMENTS_MIN.div_ceil(line.max(1))).max(1)
    }
}
