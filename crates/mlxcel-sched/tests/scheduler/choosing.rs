//! What a request asks of its tokens: ends, lengths, constraints, probabilities, and the same draws in any company.

use std::sync::Arc;

use mlxcel_engine::sampling::SamplingParams;
use mlxcel_sched::{
    Constraint, ConstraintError, Dry, Event, Failure, Finish, Limits, Mirostat, Request, Sampling, TokenMask,
    Xtc,
};

use crate::toy::{Toy, limits};
use crate::world::{Server, World, prompt, request, warm};

/// Ways to draw that need the host.
fn fancy(seed: u32) -> Sampling {
    let plain = warm(seed).0;
    let dry = Dry {
        multiplier: 0.8,
        base: 1.75,
        allowed_length: 1,
        last_n: None,
        breakers: Arc::new([vec![3], vec![4, 5]]),
    };
    match seed % 5 {
        0 => Sampling { repetition_penalty: 1.3, penalty_last_n: Some(20), ..plain },
        1 => Sampling { frequency_penalty: 0.4, presence_penalty: 0.3, typical_p: 0.9, ..plain },
        2 => Sampling { dry: Some(dry), xtc: Some(Xtc { probability: 0.5, threshold: 0.1 }), ..plain },
        3 => Sampling { mirostat: Some(Mirostat { tau: 3.0, eta: 0.2 }), ..plain },
        _ => Sampling { top_n_sigma: 1.5, logit_bias: [(7, 2.0), (9, f32::NEG_INFINITY)].into(), ..plain },
    }
}

#[test]
fn any_way_to_draw_gives_the_same_tokens_in_any_company() {
    let ask = |seed: u32| Request {
        sampling: fancy(seed),
        min_tokens: 5,
        end_ids: Arc::new([11].into()),
        ..request(prompt(seed / 3, 10 + seed as usize % 9), 30)
    };
    let alone: Vec<_> = (0..15).map(|s| World::new(Toy::default(), limits()).answer(ask(s))).collect();
    for limits in [limits(), Limits { blocks: 25, ..limits() }, Limits { batch_tokens_max: 3, ..limits() }] {
        let mut world = World::new(Toy::default(), limits);
        for _ in 0..2 {
            let ids: Vec<_> = (0..15).map(|s| world.ask(ask(s))).collect();
            world.finish();
            for (id, alone) in ids.iter().zip(&alone) {
                assert_eq!((&world.told[id].tokens, &world.told[id].end), (&alone.tokens, &alone.end));
            }
        }
    }
}

#[test]
fn a_token_that_ends_the_answer_is_told_and_is_the_last() {
    let toy = Toy::default();
    let expected = toy.answer(&prompt(1, 9), &SamplingParams::default(), 20);
    let end = expected[7];
    let first = expected.iter().position(|t| *t == end).unwrap();
    let ask =
        |min_tokens| Request { end_ids: Arc::new([end].into()), min_tokens, ..request(prompt(1, 9), 20) };
    let told = World::new(toy, limits()).answer(ask(0));
    assert_eq!((told.tokens, told.end), (expected[..=first].to_vec(), Some(Ok(Finish::End))));
    // It may not come before there are enough.
    let later = World::new(toy, limits()).answer(ask(first + 4));
    assert_eq!(later.tokens[..first], expected[..first]);
    assert!(!later.tokens[..first + 4].contains(&end), "{:?}", later.tokens);
}

#[test]
fn logprobs_are_those_of_the_model_whatever_is_drawn() {
    let toy = Toy::default();
    let sampling = Sampling { logit_bias: [(5, 100.0)].into(), ..warm(3).0 };
    let asked = Request { logprobs: Some(3), sampling, ..request(prompt(1, 9), 2) };
    let mut world = World::new(toy, limits());
    world.runner.admit(asked).unwrap();
    let events: Vec<Event> = (0..3).flat_map(|_| world.runner.step()).collect();
    let told = events.iter().filter_map(|event| match event {
        Event::Token { token, logprobs, .. } => {
            Some((*token, logprobs.clone().expect("they were asked for")))
        }
        _ => None,
    });
    let mut tokens = prompt(1, 9);
    for (token, logprobs) in told {
        assert_eq!(token, 5, "the bias decides");
        let logits = toy.logits_after(&tokens, 9);
        let total = logits.iter().map(|l| f64::from(*l).exp()).sum::<f64>().ln();
        let expected = |t: u32| f64::from(logits[t as usize]) - total;
        assert!((f64::from(logprobs.chosen) - expected(5)).abs() < 1e-5);
        assert_eq!(logprobs.top.len(), 3);
        let mut sorted: Vec<u32> = (0..50).collect();
        sorted.sort_by(|a, b| logits[*b as usize].total_cmp(&logits[*a as usize]));
        for ((t, p), best) in logprobs.top.iter().zip(sorted) {
            assert_eq!(*t, best);
            assert!((f64::from(*p) - expected(best)).abs() < 1e-5);
        }
        tokens.push(token);
    }
    assert_eq!(tokens.len(), 11);
}

/// Allows multiples of three, then one, and fails at 42 tokens or on what it did not allow.
struct Threes {
    mask: TokenMask,
    left: usize,
}

impl Threes {
    fn boxed(left: usize) -> Option<Box<dyn Constraint>> {
        let mut mask = TokenMask::none(50);
        (0..50).step_by(3).for_each(|t| mask.allow(t));
        Some(Box::new(Threes { mask, left }))
    }
}

impl Constraint for Threes {
    fn mask(&mut self) -> Result<&TokenMask, ConstraintError> {
        match self.left {
            42 => Err(ConstraintError::TooComplex { what: "forty-two".to_string() }),
            _ => Ok(&self.mask),
        }
    }

    fn accept(&mut self, token: u32) -> Result<(), ConstraintError> {
        if !self.mask.allows(token) {
            return Err(ConstraintError::NotAllowed { token });
        }
        self.left -= 1;
        Ok(())
    }

    fn is_complete(&self) -> bool {
        self.left == 0
    }
}

#[test]
fn a_constraint_narrows_every_draw_and_ends_the_answer() {
    let ask =
        |left| Request { constraint: Threes::boxed(left), sampling: warm(4).0, ..request(prompt(1, 9), 30) };
    let alone = World::new(Toy::default(), limits()).answer(ask(12));
    assert_eq!((alone.tokens.len(), &alone.end), (12, &Some(Ok(Finish::Complete))));
    assert!(alone.tokens.iter().all(|t| t % 3 == 0), "{:?}", alone.tokens);
    // The same beside others that have none, and under pressure.
    let mut world = World::new(Toy::default(), Limits { blocks: 16, ..limits() });
    let others: Vec<_> = (0..6).map(|i| world.ask(request(prompt(i, 14), 30))).collect();
    let id = world.ask(ask(12));
    world.finish();
    assert_eq!(world.told[&id].tokens, alone.tokens);
    assert!(others.iter().all(|id| world.told[id].tokens.len() == 30));
    let failed = World::new(Toy::default(), limits()).answer(ask(45));
    let source = ConstraintError::TooComplex { what: "forty-two".to_string() };
    assert_eq!(failed.end, Some(Err(Failure::Constraint { made: 3, source })));
}

#[test]
fn where_nothing_may_be_drawn_the_request_fails_alone() {
    let everything: Vec<(u32, f32)> = (0..50).map(|t| (t, f32::NEG_INFINITY)).collect();
    let sampling = Sampling { logit_bias: everything.into(), ..Sampling::default() };
    let mut world = World::new(Toy::default(), limits());
    let id = world.ask(Request { sampling, ..request(prompt(1, 9), 5) });
    let other = world.ask(request(prompt(2, 9), 5));
    world.finish();
    assert_eq!(world.told[&id].end, Some(Err(Failure::NothingAllowed { made: 0 })));
    assert_eq!(world.told[&other].end, Some(Ok(Finish::Length)));
}
