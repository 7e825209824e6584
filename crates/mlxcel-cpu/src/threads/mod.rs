//! The engine's threads. Kernels say how many independent tasks they have; small work stays on the calling thread.
#![allow(unsafe_code)]

mod cores;
mod team;

use mlxcel_engine::EngineError;

use crate::view::Shared;
use team::Team;

/// A team of its own, so that engines do not compete for one of the process.
#[derive(Debug)]
pub(crate) struct Threads {
    team: Team,
}

impl Threads {
    /// `None` takes as many as there are cores.
    pub(crate) fn new(count: Option<usize>) -> Result<Self, EngineError> {
        let count = count.unwrap_or_else(cores::usable).max(1);
        let team = Team::new(count - 1).map_err(|source| EngineError::Threads { source })?;
        Ok(Threads { team })
    }

    /// The calling thread and its helpers.
    pub(crate) fn count(&self) -> usize {
        1 + self.team.helpers()
    }

    /// Runs a whole step with the helpers awake, so that its first ops need not wait for them.
    pub(crate) fn enter<T>(&self, step: impl FnOnce() -> T) -> T {
        self.team.wake();
        step()
    }

    /// Calls `task` with every number below `count`.
    pub(crate) fn each(&self, count: usize, task: impl Fn(usize) + Sync) {
        if count <= 1 || self.count() == 1 {
            return (0..count).for_each(task);
        }
        self.team.run(count, &task);
    }

    /// As [`Threads::each`], but every thread begins with the last of its tasks, the ones that take longest.
    pub(crate) fn each_from_the_last(&self, count: usize, task: impl Fn(usize) + Sync) {
        let threads = self.count();
        let first = |thread: usize| count * thread / threads;
        self.each(count, |i| {
            let thread =
                (0..threads).rfind(|thread| first(*thread) <= i).expect("the first has the first task");
            task(first(thread) + first(thread + 1) - 1 - i);
        });
    }

    /// Cuts `data` into runs of `run` elements and calls `task` with the number of each run and the run.
    pub(crate) fn chunks<T: Send>(&self, data: &mut [T], run: usize, task: impl Fn(usize, &mut [T]) + Sync) {
        let run = run.max(1);
        if data.len() <= run || self.count() == 1 {
            return data.chunks_mut(run).enumerate().for_each(|(i, c)| task(i, c));
        }
        let (len, base) = (data.len(), Shared(data.as_mut_ptr()));
        self.team.run(len.div_ceil(run), &|i| {
            // SAFETY: the run lies within the data, which is borrowed for the call, and belongs to this task alone.
            let part = unsafe { std::slice::from_raw_parts_mut(base.at(i * run), run.min(len - i * run)) };
            task(i, part);
        });
    }

    /// How many lines of `line` elements a task takes, so that each has work worth a thread and all threads have
    /// some.
    pub(crate) fn lines_per_task(&self, lines: usize, line: usize) -> usize {
        const ELEMENTS_MIN: usize = 16 * 1024;
        let shared = lines.div_ceil(4 * self.count());
        shared.max(ELEMENTS_MIN.div_ceil(line.max(1))).max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_cover_the_data_once_whatever_the_run() {
        let threads = Threads::new(Some(3)).unwrap();
        for (len, run) in [(0, 4), (1, 4), (7, 3), (64, 1), (100, 33), (5, 0)] {
            let mut data = vec![0; len];
            threads.chunks(&mut data, run, |i, part| part.iter_mut().for_each(|x| *x += 1 + i));
            let expected: Vec<usize> = (0..len).map(|at| 1 + at / run.max(1)).collect();
            assert_eq!(data, expected, "{len} by {run}");
        }
    }

    #[test]
    fn one_thread_starts_none() {
        assert_eq!(Threads::new(Some(1)).unwrap().team.helpers(), 0);
        assert_eq!(Threads::new(Some(4)).unwrap().count(), 4);
    }
}
