//! How many tokens a step may have, so that it is over soon: a client that goes, or one that comes, waits for the step
//! that runs. Pure arithmetic; who has the clock is elsewhere.

use std::time::Duration;

/// What a step should take at most. Half of the second within which a client that went gives back its blocks.
const STEP: Duration = Duration::from_millis(500);

/// Before anything is known.
const FIRST: usize = 128;

/// Shorter steps would cost more than they spare.
const LEAST: usize = 16;

/// The tokens of the next step.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    tokens: usize,
    most: usize,
}

impl Pace {
    /// Steps of so many tokens at most.
    pub fn new(most: usize) -> Self {
        Pace { tokens: FIRST.min(most), most }
    }

    pub fn tokens(&self) -> usize {
        self.tokens
    }

    /// Learns what a step took. It grows slowly and shrinks at once; steps of few tokens tell nothing.
    pub fn learn(&mut self, tokens: usize, took: Duration) {
        if tokens < LEAST {
            return;
        }
        let fits = tokens as f64 * STEP.as_secs_f64() / took.as_secs_f64().max(1e-9);
        let grown = self.tokens.saturating_mul(2).min(self.most);
        self.tokens = (fits as usize).max(LEAST).min(grown);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A step of an engine that computes so many tokens in a second, with as many as the pace allows.
    fn step(pace: &mut Pace, rate: f64) -> usize {
        let tokens = pace.tokens();
        pace.learn(tokens, Duration::from_secs_f64(tokens as f64 / rate));
        tokens
    }

    #[test]
    fn a_fast_engine_gets_to_whole_steps_and_a_slow_one_to_short_ones() {
        let mut pace = Pace::new(512);
        let sizes: Vec<usize> = (0..4).map(|_| step(&mut pace, 1e6)).collect();
        assert_eq!(sizes, [128, 256, 512, 512]);
        step(&mut pace, 100.0);
        assert_eq!(pace.tokens(), 50, "half a second at a hundred tokens in a second");
        step(&mut pace, 0.5);
        assert_eq!(pace.tokens(), LEAST, "steps stay worth their while");
        let sizes: Vec<usize> = (0..3).map(|_| step(&mut pace, 1e6)).collect();
        assert_eq!(sizes, [16, 32, 64]);
    }

    #[test]
    fn steps_of_single_tokens_tell_nothing() {
        let mut pace = Pace::new(512);
        pace.learn(1, Duration::from_secs(9));
        assert_eq!(pace.tokens(), 128);
        pace.learn(400, Duration::ZERO);
        assert_eq!(pace.tokens(), 256);
        assert_eq!(Pace::new(7).tokens(), 7);
    }
}
