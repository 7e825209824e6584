//! A team of threads that does one job at a time with little delay: helpers watch for the next job for a while after
//! each, and sleep when none comes. It knows nothing of what the tasks compute.
//!
//! Algorithm: a job is published as one word, its number and how many of its tasks nobody took yet; whoever takes part
//! claims a task by counting that word down, so a thread that the system stops holds up no task but its own. The
//! calling thread takes part, and returns when all tasks are finished. A job allocates nothing.
//!
//! A job begun while another runs – from within a task, or by another thread – is done by its caller alone.
#![allow(unsafe_code)]

use std::any::Any;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle, Thread};
use std::time::{Duration, Instant};

/// How long a thread watches memory for what it waits for before it lets others run in between.
const SPIN: Duration = Duration::from_micros(50);
/// How long it waits in all before it sleeps: more than passes between the jobs of a step and between steps.
const WATCH: Duration = Duration::from_micros(200);

/// The helpers of one engine.
#[derive(Debug)]
pub(super) struct Team {
    board: Arc<Board>,
    helpers: Vec<JoinHandle<()>>,
}

/// What the threads share. Words that are written often have cache lines of their own.
#[derive(Debug)]
struct Board {
    /// The number of the job in the upper half, how many of its tasks nobody took in the lower.
    claim: Line<AtomicU64>,
    /// Tasks of the job that are done.
    finished: Line<AtomicUsize>,
    /// The job, for those who claimed a task of it: its caller waits for them.
    job: AtomicPtr<Job<'static>>,
    /// Whether somebody's job is being done.
    busy: AtomicBool,
    stop: AtomicBool,
    /// Which helpers sleep.
    asleep: Vec<AtomicBool>,
    /// Whether a caller sleeps, and which one.
    caller_sleeps: AtomicBool,
    caller: Mutex<Option<Thread>>,
    /// The first panic among the tasks of the job.
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

#[derive(Debug, Default)]
#[repr(align(128))]
struct Line<T>(T);

struct Job<'a> {
    task: &'a (dyn Fn(usize) + Sync),
    count: u32,
}

impl Team {
    /// Starts the helpers; the thread that calls [`Team::run`] comes on top.
    pub(super) fn new(helpers: usize) -> io::Result<Self> {
        let board = Arc::new(Board {
            claim: Line::default(),
            finished: Line::default(),
            job: AtomicPtr::default(),
            busy: AtomicBool::new(false),
            stop: AtomicBool::new(false),
            asleep: (0..helpers).map(|_| AtomicBool::new(false)).collect(),
            caller_sleeps: AtomicBool::new(false),
            caller: Mutex::default(),
            panic: Mutex::default(),
        });
        let mut team = Team { board, helpers: Vec::with_capacity(helpers) };
        for i in 0..helpers {
            let board = team.board.clone();
            let name = format!("mlxcel-cpu-{}", i + 1);
            team.helpers.push(thread::Builder::new().name(name).spawn(move || board.help(i))?);
        }
        Ok(team)
    }

    pub(super) fn helpers(&self) -> usize {
        self.board.asleep.len()
    }

    /// Wakes all helpers that sleep: a job is about to come.
    pub(super) fn wake(&self) {
        self.call(self.helpers.len());
    }

    /// Calls `task` with every number below `count`, on all threads. A panic in a task is the caller's once all
    /// tasks are done with.
    pub(super) fn run(&self, count: usize, task: &(dyn Fn(usize) + Sync)) {
        let board = &*self.board;
        let tasks = u32::try_from(count).ok();
        let Some(tasks) = tasks.filter(|_| !board.busy.swap(true, Ordering::Acquire)) else {
            return (0..count).for_each(task);
        };
        let job = Job { task, count: tasks };
        board.publish(&job);
        self.call(count - 1);
        board.work();
        board.wait(count);
        let panic = board.panic.lock().unwrap_or_else(PoisonError::into_inner).take();
        board.busy.store(false, Ordering::Release);
        if let Some(panic) = panic {
            resume_unwind(panic);
        }
    }

    /// Wakes up to `count` helpers that sleep.
    fn call(&self, count: usize) {
        for (helper, asleep) in self.helpers.iter().zip(&self.board.asleep).take(count) {
            if asleep.load(Ordering::SeqCst) && asleep.swap(false, Ordering::SeqCst) {
                helper.thread().unpark();
            }
        }
    }
}

impl Drop for Team {
    fn drop(&mut self) {
        self.board.stop.store(true, Ordering::SeqCst);
        for helper in self.helpers.drain(..) {
            helper.thread().unpark();
            // A helper catches what its tasks panic with, so there is nothing to hear from it.
            let _ = helper.join();
        }
    }
}

impl Board {
    fn publish(&self, job: &Job<'_>) {
        self.finished.0.store(0, Ordering::Relaxed);
        self.job.store(std::ptr::from_ref(job).cast_mut().cast(), Ordering::Relaxed);
        let number = (self.claim.0.load(Ordering::Relaxed) >> 32).wrapping_add(1);
        // In one order with the flags of helpers that fall asleep: either they see the job, or we see them asleep.
        self.claim.0.store(number << 32 | u64::from(job.count), Ordering::SeqCst);
    }

    fn has_work(&self) -> bool {
        self.claim.0.load(Ordering::SeqCst) as u32 != 0
    }

    /// Takes tasks of the job until all are taken.
    fn work(&self) {
        let mut done = 0;
        loop {
            let claim = self.claim.0.load(Ordering::Acquire);
            let left = claim as u32;
            if left == 0 {
                break;
            }
            let job = self.job.load(Ordering::Relaxed);
            let taken = self.claim.0.compare_exchange(claim, claim - 1, Ordering::AcqRel, Ordering::Relaxed);
            if taken.is_err() {
                continue;
            }
            // SAFETY: the claim shows that the job of this number was not finished, so the pointer was read while it
            // was this job's, and its caller keeps it until this task is counted as finished.
            let Job { task, count } = unsafe { &*job };
            if let Err(panic) = catch_unwind(AssertUnwindSafe(|| task((count - left) as usize))) {
                self.panic.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(panic);
            }
            done += 1;
        }
        if done == 0 {
            return;
        }
        self.finished.0.fetch_add(done, Ordering::SeqCst);
        if self.caller_sleeps.load(Ordering::SeqCst)
            && let Some(caller) = &*self.caller.lock().unwrap_or_else(PoisonError::into_inner)
        {
            caller.unpark();
        }
    }

    /// Returns when `count` tasks are finished.
    fn wait(&self, count: usize) {
        let finished = || self.finished.0.load(Ordering::SeqCst) == count;
        if watch(finished) {
            return;
        }
        *self.caller.lock().unwrap_or_else(PoisonError::into_inner) = Some(thread::current());
        self.caller_sleeps.store(true, Ordering::SeqCst);
        while !finished() {
            thread::park();
        }
        self.caller_sleeps.store(false, Ordering::SeqCst);
    }

    /// The life of a helper.
    fn help(&self, me: usize) {
        while !self.stop.load(Ordering::SeqCst) {
            if watch(|| self.has_work()) {
                self.work();
                continue;
            }
            self.asleep[me].store(true, Ordering::SeqCst);
            while !self.has_work()
                && !self.stop.load(Ordering::SeqCst)
                && self.asleep[me].load(Ordering::SeqCst)
            {
                thread::park();
            }
            self.asleep[me].store(false, Ordering::SeqCst);
        }
    }
}

/// Whether something comes true while it is worth staying awake for it.
fn watch(is_true: impl Fn() -> bool) -> bool {
    let looks = |n: usize| {
        (0..n).any(|_| {
            std::hint::spin_loop();
            is_true()
        })
    };
    if is_true() || looks(64) {
        return true;
    }
    let started = Instant::now();
    loop {
        let waited = started.elapsed();
        if waited >= WATCH {
            return false;
        }
        if waited >= SPIN {
            // Whoever is to make it true may be waiting for this core.
            thread::yield_now();
        }
        if looks(16) {
            return true;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Counts how often each task of each job ran, over jobs of changing size.
    fn rounds(team: &Team, rounds: usize) {
        let counts: Vec<AtomicUsize> = (0..23).map(|_| AtomicUsize::new(0)).collect();
        for round in 0..rounds {
            let tasks = 1 + round % counts.len();
            team.run(tasks, &|i| {
                counts[i].fetch_add(1, Ordering::Relaxed);
            });
            for (i, c) in counts.iter().enumerate() {
                assert_eq!(c.swap(0, Ordering::Relaxed), (i < tasks) as usize, "task {i} of round {round}");
            }
        }
    }

    #[test]
    fn every_task_of_every_job_runs_once() {
        for helpers in [1, 2, 7] {
            rounds(&Team::new(helpers).unwrap(), 20_000);
        }
    }

    #[test]
    fn helpers_that_fell_asleep_are_woken() {
        let team = Team::new(3).unwrap();
        for _ in 0..20 {
            while !team.board.asleep.iter().all(|a| a.load(Ordering::SeqCst)) {
                thread::yield_now();
            }
            // Each task waits for the other: both run only if a helper wakes up.
            let arrived = AtomicUsize::new(0);
            team.run(2, &|_| {
                arrived.fetch_add(1, Ordering::SeqCst);
                while arrived.load(Ordering::SeqCst) < 2 {
                    thread::yield_now();
                }
            });
        }
    }

    #[test]
    fn a_caller_sleeps_through_long_tasks() {
        let team = Team::new(1).unwrap();
        let caller = thread::current().id();
        for _ in 0..5 {
            let both = AtomicUsize::new(0);
            team.run(2, &|_| {
                both.fetch_add(1, Ordering::SeqCst);
                while both.load(Ordering::SeqCst) < 2 {
                    thread::yield_now();
                }
                if thread::current().id() != caller {
                    while !team.board.caller_sleeps.load(Ordering::SeqCst) {
                        thread::yield_now();
                    }
                }
            });
        }
    }

    #[test]
    fn a_job_within_a_task_is_done_by_its_thread() {
        let team = Team::new(2).unwrap();
        let total = AtomicUsize::new(0);
        team.run(50, &|_| {
            let me = thread::current().id();
            team.run(10, &|i| {
                assert_eq!(thread::current().id(), me);
                total.fetch_add(i, Ordering::Relaxed);
            });
        });
        assert_eq!(total.into_inner(), 50 * 45);
    }

    #[test]
    fn threads_may_share_a_team() {
        let team = Team::new(1).unwrap();
        thread::scope(|s| {
            for _ in 0..3 {
                s.spawn(|| rounds(&team, 3000));
            }
        });
    }

    #[test]
    fn a_panic_reaches_the_caller_and_the_team_goes_on() {
        let team = Team::new(2).unwrap();
        for round in 0..100 {
            let ran = AtomicUsize::new(0);
            let outcome = catch_unwind(AssertUnwindSafe(|| {
                team.run(20, &|i| {
                    ran.fetch_add(1, Ordering::Relaxed);
                    if i == round % 20 {
                        resume_unwind(Box::new(i));
                    }
                });
            }));
            let payload = outcome.unwrap_err().downcast::<usize>().unwrap();
            assert_eq!((*payload, ran.into_inner()), (round % 20, 20));
        }
        rounds(&team, 500);
    }

    #[test]
    fn dropping_a_team_ends_its_threads() {
        let team = Team::new(4).unwrap();
        team.run(8, &|_| {});
        let board = Arc::downgrade(&team.board);
        drop(team);
        assert_eq!(board.strong_count(), 0);
    }
}
