//! A team of threads that does one job at a time with little delay: helpers watch for the next job for a while after
//! each, and sleep when none comes. It knows nothing of what the tasks compute.
//!
//! Algorithm: every thread has a run of the job's tasks in a word of its own, with the job's number. It claims them from the
//! front, since neighbouring tasks read neighbouring memory; when none is left it claims others' from the back, so a thread
//! that the system stops holds up no task but the one it claimed. The calling thread takes part, and returns when all tasks are
//! finished. A job allocates nothing.
//!
//! A job begun while another runs – from within a task, or by another thread – is done by its caller alone.
#![allow(unsafe_code)]

use std::any::Any;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering};
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

/// What the threads share. A line of the cache takes as long from core to core as a few hundred instructions, so what one thread
/// writes for another lies together, and what both only read, or one only uses, lies apart from it.
#[derive(Debug)]
struct Board {
    /// One for each thread; the calling thread's is the first.
    desks: Vec<Line<Desk>>,
    callers: Line<Callers>,
    seldom: Line<Seldom>,
}

/// What a thread has to do, and what it did.
#[derive(Debug, Default)]
struct Desk {
    /// The tasks that nobody claimed.
    run: AtomicU64,
    /// The job, for those who claimed a task of it: its caller waits for them.
    job: AtomicPtr<Job<'static>>,
    /// The number of the job that the thread worked for last, and how many tasks of it the thread finished.
    done: AtomicU64,
}

/// What only threads with a job use.
#[derive(Debug, Default)]
struct Callers {
    /// Whether somebody's job is being done.
    busy: AtomicBool,
    /// The number of the last job.
    number: AtomicU32,
}

/// What is read often and hardly ever written.
#[derive(Debug)]
struct Seldom {
    stop: AtomicBool,
    /// Which helpers sleep.
    asleep: Vec<AtomicBool>,
    /// Whether a caller sleeps, and which one.
    caller_sleeps: AtomicBool,
    caller: Mutex<Option<Thread>>,
    /// Whether a task of the job panicked, and with what the first one did.
    has_panicked: AtomicBool,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

#[derive(Debug, Default)]
#[repr(align(128))]
struct Line<T>(T);

struct Job<'a> {
    task: &'a (dyn Fn(usize) + Sync),
}

/// A job that helpers may read where it lies, until all its tasks are finished.
struct Published<'a> {
    number: u32,
    count: usize,
    _job: &'a Job<'a>,
}

/// Tasks that nobody claimed, of the job of a number.
#[derive(Clone, Copy)]
struct Run {
    number: u32,
    start: u16,
    end: u16,
}

impl Run {
    /// The most tasks of a job.
    const MOST: usize = u16::MAX as usize;

    fn of_word(word: u64) -> Self {
        Run { number: (word >> 32) as u32, start: (word >> 16) as u16, end: word as u16 }
    }

    fn word(self) -> u64 {
        u64::from(self.number) << 32 | u64::from(self.start) << 16 | u64::from(self.end)
    }

    /// The first or the last task, and the others.
    fn claim(self, is_first: bool) -> Option<(u16, Self)> {
        match self {
            Run { start, end, .. } if start >= end => None,
            Run { start, .. } if is_first => Some((start, Run { start: start + 1, ..self })),
            Run { end, .. } => Some((end - 1, Run { end: end - 1, ..self })),
        }
    }
}

/// Tasks of the job of a number that a thread finished.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Done {
    number: u32,
    tasks: u32,
}

impl Done {
    fn of_word(word: u64) -> Self {
        Done { number: (word >> 32) as u32, tasks: word as u32 }
    }

    fn word(self) -> u64 {
        u64::from(self.number) << 32 | u64::from(self.tasks)
    }

    /// One more, of the same job or of the first of another.
    fn and_one(self, number: u32) -> Self {
        Done { number, tasks: 1 + self.tasks_of(number) as u32 }
    }

    fn tasks_of(self, number: u32) -> usize {
        if self.number == number { self.tasks as usize } else { 0 }
    }
}

impl Team {
    /// Starts the helpers; the thread that calls [`Team::run`] comes on top.
    pub(super) fn new(helpers: usize) -> io::Result<Self> {
        let seldom = Seldom {
            stop: AtomicBool::new(false),
            asleep: (0..helpers).map(|_| AtomicBool::new(false)).collect(),
            caller_sleeps: AtomicBool::new(false),
            caller: Mutex::default(),
            has_panicked: AtomicBool::new(false),
            panic: Mutex::default(),
        };
        let desks = (0..=helpers).map(|_| Line::default()).collect();
        let board = Arc::new(Board { desks, callers: Line::default(), seldom: Line(seldom) });
        let mut team = Team { board, helpers: Vec::with_capacity(helpers) };
        for i in 0..helpers {
            let board = team.board.clone();
            let name = format!("mlxcel-cpu-{}", i + 1);
            team.helpers.push(thread::Builder::new().name(name).spawn(move || board.help(i))?);
        }
        Ok(team)
    }

    pub(super) fn helpers(&self) -> usize {
        self.board.desks.len() - 1
    }

    /// Wakes all helpers that sleep: a job is about to come.
    pub(super) fn wake(&self) {
        self.call(self.helpers.len());
    }

    /// Calls `task` with every number below `count`, on all threads. A panic in a task is the caller's once all
    /// tasks are done with.
    pub(super) fn run(&self, count: usize, task: &(dyn Fn(usize) + Sync)) {
        let board = &*self.board;
        if count > Run::MOST {
            let each = count.div_ceil(Run::MOST);
            return self.run(count.div_ceil(each), &|i| (i * each..count.min((i + 1) * each)).for_each(task));
        }
        let busy = &board.callers.0.busy;
        if busy.swap(true, Ordering::Acquire) {
            return (0..count).for_each(task);
        }
        let job = Job { task };
        let published = board.publish(&job, count);
        self.call(count - 1);
        let mine = board.work(0);
        board.wait(published, mine);
        let panic = board.panic();
        busy.store(false, Ordering::Release);
        if let Some(panic) = panic {
            resume_unwind(panic);
        }
    }

    /// Wakes up to `count` helpers that sleep. One that falls asleep just now may be missed; others do its tasks.
    fn call(&self, count: usize) {
        for (helper, asleep) in self.helpers.iter().zip(&self.board.seldom.0.asleep).take(count) {
            if asleep.load(Ordering::SeqCst) && asleep.swap(false, Ordering::SeqCst) {
                helper.thread().unpark();
            }
        }
    }
}

impl Drop for Team {
    fn drop(&mut self) {
        self.board.seldom.0.stop.store(true, Ordering::SeqCst);
        for helper in self.helpers.drain(..) {
            helper.thread().unpark();
            // A helper catches what its tasks panic with, so there is nothing to hear from it.
            let _ = helper.join();
        }
    }
}

impl Board {
    fn publish<'a>(&self, job: &'a Job<'a>, count: usize) -> Published<'a> {
        let last = &self.callers.0.number;
        let number = last.load(Ordering::Relaxed).wrapping_add(1);
        last.store(number, Ordering::Relaxed);
        let first = |thread: usize| (count * thread / self.desks.len()) as u16;
        let at = std::ptr::from_ref(job).cast_mut().cast();
        // Helpers first, who have to hear of it.
        for (thread, Line(desk)) in self.desks.iter().enumerate().rev() {
            desk.job.store(at, Ordering::Relaxed);
            let tasks = Run { number, start: first(thread), end: first(thread + 1) };
            desk.run.store(tasks.word(), Ordering::Release);
        }
        Published { number, count, _job: job }
    }

    /// Takes tasks of the job until all are taken: how many a thread took.
    fn work(&self, me: usize) -> Done {
        let mut done = Done::of_word(self.desks[me].0.done.load(Ordering::Relaxed));
        let before = done;
        for other in 0..self.desks.len() {
            let desk = &self.desks[(me + other) % self.desks.len()].0;
            loop {
                let word = desk.run.load(Ordering::Acquire);
                let run = Run::of_word(word);
                let Some((task, rest)) = run.claim(other == 0) else { break };
                let job = desk.job.load(Ordering::Relaxed);
                let taken = desk.run.compare_exchange(word, rest.word(), Ordering::AcqRel, Ordering::Relaxed);
                if taken.is_err() {
                    continue;
                }
                // SAFETY: the claim shows that the job of this number was not finished, so the pointer was read while it
                // was this job's, and its caller keeps it until this task is counted as finished.
                let job = unsafe { &*job };
                if let Err(panic) = catch_unwind(AssertUnwindSafe(|| (job.task)(task.into()))) {
                    self.seldom.0.panic.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(panic);
                    self.seldom.0.has_panicked.store(true, Ordering::Relaxed);
                }
                done = done.and_one(run.number);
            }
        }
        if done != before {
            self.desks[me].0.done.store(done.word(), Ordering::SeqCst);
        }
        done
    }

    /// Returns when all tasks are finished, of which the caller finished some.
    fn wait(&self, job: Published<'_>, mine: Done) {
        let finished = || {
            let others = self.desks[1..].iter().map(|desk| Done::of_word(desk.0.done.load(Ordering::SeqCst)));
            others.map(|done| done.tasks_of(job.number)).sum::<usize>() + mine.tasks_of(job.number)
                == job.count
        };
        if watch(finished) {
            return;
        }
        let seldom = &self.seldom.0;
        *seldom.caller.lock().unwrap_or_else(PoisonError::into_inner) = Some(thread::current());
        seldom.caller_sleeps.store(true, Ordering::SeqCst);
        while !finished() {
            thread::park();
        }
        seldom.caller_sleeps.store(false, Ordering::SeqCst);
    }

    /// What a task of the finished job panicked with.
    fn panic(&self) -> Option<Box<dyn Any + Send>> {
        let Seldom { has_panicked, panic, .. } = &self.seldom.0;
        // The flag was set before its task was counted as finished.
        if !has_panicked.load(Ordering::Relaxed) {
            return None;
        }
        has_panicked.store(false, Ordering::Relaxed);
        panic.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// The life of a helper.
    fn help(&self, me: usize) {
        let Seldom { stop, asleep, caller_sleeps, caller, .. } = &self.seldom.0;
        let number = || Run::of_word(self.desks[1 + me].0.run.load(Ordering::SeqCst)).number;
        let mut seen = 0;
        while !stop.load(Ordering::SeqCst) {
            if watch(|| number() != seen) {
                seen = number();
                self.work(1 + me);
                if caller_sleeps.load(Ordering::SeqCst)
                    && let Some(caller) = &*caller.lock().unwrap_or_else(PoisonError::into_inner)
                {
                    caller.unpark();
                }
                continue;
            }
            asleep[me].store(true, Ordering::SeqCst);
            while number() == seen && !stop.load(Ordering::SeqCst) && asleep[me].load(Ordering::SeqCst) {
                thread::park();
            }
            asleep[me].store(false, Ordering::SeqCst);
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
    use std::sync::atomic::AtomicUsize;

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
    fn there_may_be_more_tasks_than_a_run_counts() {
        let team = Team::new(2).unwrap();
        let counts: Vec<AtomicUsize> = (0..3 * Run::MOST - 1).map(|_| AtomicUsize::new(0)).collect();
        team.run(counts.len(), &|i| {
            counts[i].fetch_add(1, Ordering::Relaxed);
        });
        assert!(counts.iter().all(|c| c.load(Ordering::Relaxed) == 1));
    }

    #[test]
    fn tasks_of_a_thread_that_is_held_up_are_done_by_others() {
        let team = Team::new(1).unwrap();
        // The first task waits for all others, its thread's own ones among them.
        let others = AtomicUsize::new(0);
        team.run(20, &|i| {
            if i > 0 {
                others.fetch_add(1, Ordering::SeqCst);
                return;
            }
            while others.load(Ordering::SeqCst) < 19 {
                thread::yield_now();
            }
        });
        assert_eq!(others.into_inner(), 19);
    }

    #[test]
    fn helpers_that_fell_asleep_are_woken() {
        let team = Team::new(3).unwrap();
        for _ in 0..20 {
            while !team.board.seldom.0.asleep.iter().all(|a| a.load(Ordering::SeqCst)) {
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
                    while !team.board.seldom.0.caller_sleeps.load(Ordering::SeqCst) {
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
