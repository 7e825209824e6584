//! Mixed traffic for a while, in a process of its own; then memory, descriptors, blocks and series of metrics are what
//! they were. `cargo xtask soak --minutes N` does it for longer.
#![allow(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]

#[path = "../serving/client.rs"]
#[allow(dead_code, reason = "shared with tests that use all of it")]
mod client;
#[path = "../serving/engine.rs"]
#[allow(dead_code, reason = "shared with tests that use all of it")]
mod engine;
#[path = "../serving/house.rs"]
#[allow(dead_code, reason = "shared with tests that use all of it")]
mod house;
mod traffic;

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use house::{House, Plan};

/// How long it takes where nobody says so.
const SECONDS: u64 = 120;
/// Clients that ask side by side.
const CLIENTS: usize = 6;
/// What an allocator may keep for later.
const SLACK_BYTES: usize = 24 << 20;

/// What must not grow.
#[derive(Debug)]
struct Held {
    /// `None` where the system does not tell.
    descriptors: Option<usize>,
    resident_bytes: Option<usize>,
    series: usize,
}

#[test]
fn after_mixed_traffic_everything_is_where_it_was() {
    let seconds = std::env::var("MLXCEL_SOAK_SECONDS").ok().and_then(|s| s.parse().ok()).unwrap_or(SECONDS);
    let mut plan = Plan { context: 2048, ..Plan::default() };
    plan.limits.sequences_max = 4;
    plan.limits.queue_max = 8;
    // Small, so that what may be kept is full when the first look is taken.
    plan.config.limits.stored = 16;
    let house = House::build(plan);
    // A quarter of the time fills what is kept on purpose: stored answers, compiled grammars, cached blocks.
    let warm = soak(&house, Duration::from_secs(seconds) / 4, 0);
    let before = Held::now(&house);
    let asked = soak(&house, Duration::from_secs(seconds) * 3 / 4, 1);
    let after = Held::now(&house);
    println!("{warm} and {asked} requests: {before:?} became {after:?}");
    assert!(asked > 100, "{asked}");
    assert_eq!(after.descriptors, before.descriptors);
    assert_eq!(after.series, before.series);
    if let (Some(before), Some(after)) = (before.resident_bytes, after.resident_bytes) {
        assert!(after < before + before / 10 + SLACK_BYTES, "{before} bytes became {after}");
    }
}

/// Asks for so long; gives how often.
fn soak(house: &House, time: Duration, seed: u64) -> usize {
    let (is_over, asked) = (AtomicBool::new(false), AtomicUsize::new(0));
    let until = Instant::now() + time;
    thread::scope(|scope| {
        let (client, faults) = (&house.client, &house.faults);
        for number in 0..CLIENTS {
            let (is_over, asked) = (&is_over, &asked);
            scope.spawn(move || {
                let mut choice = traffic::Choice::new((seed << 32) | number as u64);
                while !is_over.load(Ordering::Relaxed) {
                    traffic::ask(client, faults, &mut choice);
                    asked.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        while Instant::now() < until {
            thread::sleep(Duration::from_millis(50));
        }
        is_over.store(true, Ordering::Relaxed);
    });
    asked.into_inner()
}

impl Held {
    /// Waits until all is quiet, then looks.
    fn now(house: &House) -> Self {
        house.assert_sound();
        house.wait_for("mlxcel_http_connections", 1.0);
        // The other end of a connection that is over may still be closing: the fewest of several looks count.
        let looks = (0..20).map(|_| {
            thread::sleep(Duration::from_millis(50));
            std::fs::read_dir("/proc/self/fd").ok().map(Iterator::count)
        });
        Held {
            descriptors: looks.min().flatten(),
            resident_bytes: resident_bytes(),
            series: series(&house.client.get("/metrics").text()),
        }
    }
}

/// Those of routes and statuses, which are from fixed lists, come when a status is first answered.
fn series(page: &str) -> usize {
    page.lines().filter(|line| !line.starts_with("mlxcel_http_requests_total{")).count()
}

/// The second field of Linux's table, in pages.
fn resident_bytes() -> Option<usize> {
    let pages = std::fs::read_to_string("/proc/self/statm").ok()?;
    Some(4096 * pages.split(' ').nth(1)?.parse::<usize>().ok()?)
}
