//! How benches of single kernels measure: processor time of the thread, step after step.

use std::time::{Duration, Instant};

use mlxcel_engine::{Feeds, Program};

/// A round repeats the step until it took this long, since the system counts processor time in ticks.
const ROUND: Duration = Duration::from_millis(100);

/// What a step takes in the mean of a round.
pub fn time(program: &mut dyn Program, feeds: &Feeds) -> Duration {
    let clock = Clock::start();
    let mut steps = 0;
    while clock.elapsed() < ROUND {
        let ticket = program.submit(feeds, &["y"]).expect("the step is well formed");
        program.collect(ticket).expect("the step runs");
        steps += 1;
    }
    clock.elapsed() / steps
}

/// Processor time of this thread where the system tells it, time of the wall elsewhere.
struct Clock {
    processor: Option<Duration>,
    wall: Instant,
}

impl Clock {
    fn start() -> Self {
        Clock { processor: processor(), wall: Instant::now() }
    }

    fn elapsed(&self) -> Duration {
        match (self.processor, processor()) {
            (Some(start), Some(now)) => now - start,
            _ => self.wall.elapsed(),
        }
    }
}

/// What Linux says that this thread ran so far.
fn processor() -> Option<Duration> {
    let line = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    line.split(' ').next()?.parse().ok().map(Duration::from_nanos)
}
