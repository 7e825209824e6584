//! Guessing ahead changes how many steps an answer takes, and nothing else.

use std::sync::Arc;

use mlxcel_sched::{Draft, Limits, Mirostat, Refusal, Request, Runner, Sampling, Speculate, Stats};

use crate::toy::{Rotation, Toy, limits};
use crate::world::{Server, Told, World, prompt, request, warm};

/// Prompts that repeat themselves, so that looking back finds something.
fn requests(speculate: impl Fn(u32) -> Speculate) -> Vec<Request> {
    let ask = |n: u32| {
        let repeating = prompt(n / 2, 6).repeat(1 + n as usize % 4);
        let sampling = match n % 4 {
            0 => Sampling::default(),
            1 => warm(n).0,
            2 => Sampling { repetition_penalty: 1.2, ..warm(n).0 },
            _ => Sampling { mirostat: Some(Mirostat { tau: 2.0, eta: 0.3 }), ..warm(n).0 },
        };
        let end_ids = Arc::new([17].into());
        let min_tokens = n as usize;
        let speculate = speculate(n);
        Request { sampling, end_ids, min_tokens, speculate, ..request(repeating, 25 + n as usize) }
    };
    (0..12).map(ask).collect()
}

fn ask_all(world: &mut World, requests: Vec<Request>) -> Vec<(Vec<u32>, Told)> {
    let ids: Vec<_> = requests.into_iter().map(|r| world.ask(r)).collect();
    world.finish();
    let told = ids.iter().map(|id| world.told[id].clone());
    told.map(|told| (told.tokens.clone(), Told { cached: None, ..told })).collect()
}

fn drafted(toy: Toy, draft: Toy, limits: Limits) -> World {
    let mut world = World::new(toy, limits);
    let (program, fault) = toy.program(&limits);
    let runner = Runner::new(program, limits, toy.traits());
    let draft = Draft { program: draft.program(&limits).0, traits: draft.traits() };
    world.runner = runner.with_draft(draft).expect("they go together");
    world.fault = fault;
    world
}

fn guessed(stats: Stats) -> (u64, u64) {
    (stats.tokens_guessed, stats.tokens_guessed_right)
}

/// A vocabulary so small that guesses are sometimes right.
fn small() -> Toy {
    Toy { vocab_size: 50, ..Toy::default() }
}

#[test]
fn looking_back_changes_no_token() {
    for toy in [
        small(),
        Toy { rotation: Rotation::Dynamic(24), ..small() },
        Toy { rotation: Rotation::Long(24), ..small() },
    ] {
        let plain = ask_all(&mut World::new(toy, limits()), requests(|_| Speculate::Off));
        for limits in
            [limits(), Limits { blocks: 25, ..limits() }, Limits { batch_tokens_max: 9, ..limits() }]
        {
            let mut world = World::new(toy, limits);
            let lookup = |n: u32| Speculate::Lookup { ngram: 1 + n as usize % 3, tokens: 1 + n as usize % 5 };
            assert_eq!(ask_all(&mut world, requests(lookup)), plain, "{toy:?} {limits:?}");
            assert!(world.runner.stats().tokens_guessed > 0);
        }
    }
}

#[test]
fn a_right_guess_saves_a_step() {
    // An answer that repeats one token: the bias makes it certain, and looking back guesses it.
    let certain = Sampling { logit_bias: [(3, 1000.0)].into(), ..Sampling::default() };
    let ask = |speculate| Request { sampling: certain.clone(), speculate, ..request(prompt(1, 5), 40) };
    let mut plain = World::new(small(), limits());
    let mut guessing = World::new(small(), limits());
    let expected = plain.answer(ask(Speculate::Off));
    assert_eq!(guessing.answer(ask(Speculate::Lookup { ngram: 1, tokens: 4 })), expected);
    let (plain, guessing) = (plain.runner.stats(), guessing.runner.stats());
    assert_eq!(plain.steps, 40);
    assert!(guessing.steps < 30 && guessing.tokens_guessed_right > 10, "{guessing:?}");
}

#[test]
fn a_perfect_draft_is_right_and_a_poor_one_harmless() {
    let toy = small();
    let plain = ask_all(&mut World::new(toy, limits()), requests(|_| Speculate::Off));
    let poor = Toy { rotation: Rotation::Dynamic(1), ..toy };
    for limits in [limits(), Limits { blocks: 25, ..limits() }, Limits { batch_tokens_max: 9, ..limits() }] {
        for (draft, is_perfect) in [(toy, true), (poor, false)] {
            let mut world = drafted(toy, draft, limits);
            // Some do without, and meet the others in no block.
            let some = |n: u32| match n % 3 {
                0 => Speculate::Off,
                _ => Speculate::Draft { tokens: 1 + n as usize % 4 },
            };
            for _ in 0..2 {
                assert_eq!(ask_all(&mut world, requests(some)), plain, "{limits:?}");
            }
            let (all, right) = guessed(world.runner.stats());
            assert!(all > 20, "{limits:?}: {all}");
            let greedy = |n: u32| if n % 4 < 2 { Speculate::Draft { tokens: 3 } } else { Speculate::Off };
            let mut world = drafted(toy, draft, limits);
            assert_eq!(ask_all(&mut world, requests(greedy)), plain);
            let (all_plain, right_plain) = guessed(world.runner.stats());
            if is_perfect {
                // What is drawn in the graph alone is guessed exactly, but for guesses after the end.
                assert!(right_plain * 10 > all_plain * 8, "{right_plain} of {all_plain}");
            } else {
                assert!(right * 2 < all, "{right} of {all}");
            }
        }
    }
}

#[test]
fn a_draft_of_a_short_context_stops_guessing() {
    let toy = small();
    let limits = limits();
    let (program, _) = toy.program(&limits);
    let draft = Draft {
        program: toy.program(&limits).0,
        traits: mlxcel_sched::Traits { max_context: 20, ..toy.traits() },
    };
    let mut world = World::new(toy, limits);
    world.runner = Runner::new(program, limits, toy.traits()).with_draft(draft).unwrap();
    let told =
        world.answer(Request { speculate: Speculate::Draft { tokens: 3 }, ..request(prompt(1, 10), 60) });
    assert_eq!(told.tokens, toy.answer(&prompt(1, 10), &Default::default(), 60));
    let guessed = world.runner.stats().tokens_guessed;
    assert!(guessed > 0 && guessed <= 10, "{guessed}");
}

#[test]
fn what_cannot_be_is_refused() {
    let recurrent = Toy { is_recurrent: true, ..small() };
    let mut world = World::new(recurrent, limits());
    let lookup = Speculate::Lookup { ngram: 2, tokens: 2 };
    let refused = world.runner.admit(Request { speculate: lookup, ..request(prompt(1, 5), 5) });
    assert!(matches!(refused, Err(Refusal::Speculation { .. })), "{refused:?}");
    let mut world = World::new(small(), limits());
    let refused =
        world.runner.admit(Request { speculate: Speculate::Draft { tokens: 2 }, ..request(prompt(1, 5), 5) });
    assert!(matches!(refused, Err(Refusal::Speculation { .. })), "{refused:?}");
    let together = |target: Toy, draft: Toy| {
        let runner = Runner::new(target.program(&limits()).0, limits(), target.traits());
        runner.with_draft(Draft { program: draft.program(&limits()).0, traits: draft.traits() }).err()
    };
    assert!(together(small(), recurrent).is_some() && together(recurrent, small()).is_some());
    assert!(together(small(), Toy { vocab_size: 51, ..small() }).is_some());
    assert!(together(small(), small()).is_none());
}
