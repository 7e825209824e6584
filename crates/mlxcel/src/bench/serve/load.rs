//! When requests are sent. Closed loop: each of a number of clients sends its next request when the last one has ended.
//! Open loop: requests arrive as in a Poisson process, whether or not earlier ones have been answered.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio::task::JoinSet;

use super::client::Client;
use super::exchange::{Exchange, Sample};
use super::prompts::{Purpose, Random};

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Load {
    Clients(u32),
    /// Requests in a second.
    Rate(f64),
}

impl fmt::Display for Load {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Load::Clients(1) => write!(f, "1 client"),
            Load::Clients(clients) => write!(f, "{clients} clients"),
            Load::Rate(rate) => write!(f, "{rate} req/s"),
        }
    }
}

/// When a run ends: nothing is sent any more, and what was sent is waited for.
#[derive(Clone, Copy, Debug)]
pub struct End {
    pub requests: Option<u64>,
    pub duration: Option<Duration>,
}

impl End {
    fn is_reached(&self, index: u64, elapsed: Duration) -> bool {
        self.requests.is_some_and(|requests| index >= requests)
            || self.duration.is_some_and(|duration| elapsed >= duration)
    }
}

/// What requests are, by their number.
pub trait Source: Send + Sync + 'static {
    fn exchange(&self, index: u64) -> Exchange;
    /// Is told of every request that has ended.
    fn ended(&self, sample: &Sample);
}

/// What a run gave.
#[derive(Debug)]
pub struct Measured {
    pub load: Load,
    pub started: Instant,
    pub wall: Duration,
    /// In the order in which they were sent.
    pub samples: Vec<Sample>,
}

pub struct Run<S> {
    pub client: Arc<Client>,
    pub source: Arc<S>,
    pub end: End,
    pub seed: u64,
}

impl<S: Source> Run<S> {
    pub async fn under(self, load: Load) -> Measured {
        let started = Instant::now();
        let mut samples = match load {
            Load::Clients(clients) => self.closed(clients, started).await,
            Load::Rate(rate) => self.open(rate, started).await,
        };
        let wall = started.elapsed();
        samples.sort_by_key(|sample| sample.started);
        Measured { load, started, wall, samples }
    }

    async fn closed(self, clients: u32, started: Instant) -> Vec<Sample> {
        let next = Arc::new(AtomicU64::new(0));
        let mut tasks = JoinSet::new();
        for _ in 0..clients {
            let (client, source, next, end) =
                (self.client.clone(), self.source.clone(), next.clone(), self.end);
            tasks.spawn(async move {
                let mut samples = Vec::new();
                loop {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    if end.is_reached(index, started.elapsed()) {
                        return samples;
                    }
                    let sample = source.exchange(index).run(&client).await;
                    source.ended(&sample);
                    samples.push(sample);
                }
            });
        }
        tasks.join_all().await.into_iter().flatten().collect()
    }

    async fn open(self, rate: f64, started: Instant) -> Vec<Sample> {
        let mut random = Random::new(self.seed, Purpose::Arrivals, 0);
        let mut tasks = JoinSet::new();
        // The times are added up before they are waited for, so that late wakings do not lower the rate.
        let mut at = Duration::ZERO;
        for index in 0.. {
            if self.end.is_reached(index, at) {
                break;
            }
            tokio::time::sleep_until((started + at).into()).await;
            let (client, source) = (self.client.clone(), self.source.clone());
            tasks.spawn(async move {
                let sample = source.exchange(index).run(&client).await;
                source.ended(&sample);
                sample
            });
            at += Duration::from_secs_f64(random.wait_s(rate));
        }
        tasks.join_all().await
    }
}
