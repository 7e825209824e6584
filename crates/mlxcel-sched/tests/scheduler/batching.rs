//! The same tokens alone, in any company, on a hit of the prefix cache and after preemption.

use mlxcel_engine::sampling::SamplingParams;
use mlxcel_sched::{Failure, Finish, Limits, Refusal, Request};

use crate::toy::{Rotation, Toy, When, limits};
use crate::world::{Server, Told, World, prompt, request, warm};

/// Every kind of state a model can have.
fn kinds() -> Vec<Toy> {
    let toy = Toy::default();
    vec![
        toy,
        Toy { is_recurrent: true, ..toy },
        Toy { is_recurrent: true, keeps_cache: false, ..toy },
        Toy { rotation: Rotation::Dynamic(24), ..toy },
        Toy { rotation: Rotation::Long(24), ..toy },
        Toy { rounds_prompts: true, ..toy },
        Toy { rounds_prompts: true, is_recurrent: true, ..toy },
        Toy { rounds_prompts: true, is_recurrent: true, keeps_cache: false, ..toy },
        Toy { rounds_prompts: true, rotation: Rotation::Long(24), ..toy },
    ]
}

/// Requests of all lengths, some of which share their beginnings.
fn crowd() -> Vec<(Vec<u32>, usize, u32)> {
    let lengths = [1, 3, 4, 5, 8, 17, 31, 32, 33, 60, 8, 9];
    lengths.iter().enumerate().map(|(i, &len)| (prompt(i as u32 / 4, len), 5 + 3 * i, i as u32)).collect()
}

fn ask_all(world: &mut World) -> Vec<Told> {
    let ask = |(prompt, count, seed): (Vec<u32>, usize, u32)| Request {
        sampling: warm(seed).0,
        ..request(prompt, count)
    };
    let ids: Vec<_> = crowd().into_iter().map(|asked| world.ask(ask(asked))).collect();
    world.finish();
    ids.iter().map(|id| world.told[id].clone()).collect()
}

fn assert_answers(toy: &Toy, told: &[Told]) {
    for ((prompt, count, seed), told) in crowd().into_iter().zip(told) {
        let expected = toy.answer(&prompt, &warm(seed).1, count);
        assert_eq!(told.tokens, expected, "{toy:?}, prompt of {}", prompt.len());
        assert_eq!(told.end, Some(Ok(Finish::Length)));
    }
}

#[test]
fn a_crowd_gets_the_answers_that_each_gets_alone() {
    for toy in kinds() {
        let mut world = World::new(toy, limits());
        let told = ask_all(&mut world);
        assert_answers(&toy, &told);
        // Once more, now with everything in the cache.
        let again = ask_all(&mut world);
        assert_answers(&toy, &again);
        if toy.rotation == Rotation::Fixed {
            assert!(again.iter().any(|told| told.cached > Some(0)), "{toy:?}: nothing was found");
        }
    }
}

#[test]
fn preempted_sequences_go_on_with_the_same_tokens() {
    for toy in kinds() {
        let tight = Limits { blocks: 25, ..limits() };
        let mut world = World::new(toy, tight);
        let told = ask_all(&mut world);
        assert_answers(&toy, &told);
        assert_eq!(world.runner.stats().preemptions > 0, toy.keeps_cache, "{toy:?}");
    }
}

#[test]
fn the_smallest_steps_give_the_same_tokens() {
    for toy in kinds() {
        let narrow = Limits { batch_tokens_max: 1, sequences_max: 3, slots: 4, ..limits() };
        let told = ask_all(&mut World::new(toy, narrow));
        assert_answers(&toy, &told);
    }
}

#[test]
fn steps_can_be_made_shorter_and_longer_at_any_time() {
    for toy in kinds() {
        let mut world = World::new(toy, limits());
        let asked = crowd()
            .into_iter()
            .map(|(prompt, count, seed)| Request { sampling: warm(seed).0, ..request(prompt, count) });
        let ids: Vec<_> = asked.map(|asked| world.ask(asked)).collect();
        for tokens in [1, 40, 8, 17].into_iter().cycle() {
            world.runner.set_batch_tokens_max(tokens);
            // What was prepared with more is computed with more, which are at most single tokens.
            (0..3).for_each(|_| world.step());
            assert!(world.runner.stats().batch_tokens <= tokens.max(8));
            if world.runner.is_idle() {
                break;
            }
        }
        assert_answers(&toy, &ids.iter().map(|id| world.told[id].clone()).collect::<Vec<_>>());
    }
}

#[test]
fn a_prompt_that_was_computed_is_found() {
    let mut world = World::new(Toy::default(), limits());
    let first = world.answer(request(prompt(1, 21), 8));
    assert_eq!(first.cached, Some(0));
    assert_eq!(world.answer(request(prompt(1, 21), 8)), Told { cached: Some(20), ..first.clone() });
    // A conversation goes on: the answer was computed too, but for its last token.
    let longer = [prompt(1, 21), first.tokens.clone(), vec![1, 2, 3]].concat();
    assert_eq!(world.answer(request(longer, 1)).cached, Some(28));
    assert_eq!(world.answer(request(prompt(1, 10), 1)).cached, Some(8));
    assert_eq!(world.answer(request(prompt(2, 21), 1)).cached, Some(0));
}

#[test]
fn a_prompt_that_fills_its_blocks_shares_all_but_its_last_token() {
    let mut world = World::new(Toy::default(), limits());
    let first = world.answer(request(prompt(1, 20), 9));
    // The last block is copied before it is written.
    assert_eq!(world.answer(request(prompt(1, 20), 9)), Told { cached: Some(19), ..first });
}

#[test]
fn what_is_rounded_inside_prompts_is_shared_by_their_insides_only() {
    let rounding = Toy { rounds_prompts: true, ..Toy::default() };
    for toy in [rounding, Toy { is_recurrent: true, ..rounding }] {
        let mut world = World::new(toy, limits());
        let ask = |world: &mut World, prompt: &[u32], count: usize| {
            let expected = toy.answer(prompt, &SamplingParams::default(), count);
            let told = world.answer(request(prompt.to_vec(), count));
            assert_eq!(told.tokens, expected, "{toy:?}, prompt of {}", prompt.len());
            (told.tokens, told.cached)
        };
        // The last block holds the token that the answer was drawn from.
        let first = prompt(1, 20);
        let (answer, _) = ask(&mut world, &first, 9);
        assert_eq!(ask(&mut world, &first, 9).1, Some(16));
        // The conversation goes on: what was drawn is computed as the inside of a prompt, once.
        let longer = [&first[..], &answer, &[1, 2, 3]].concat(); // 32 tokens
        assert_eq!(ask(&mut world, &longer, 6).1, Some(16));
        assert_eq!(ask(&mut world, &longer, 6).1, Some(28));
        // Now the inside of a longer prompt has the whole of the first one, but for its last token.
        assert_eq!(ask(&mut world, &first, 9).1, Some(if toy.is_recurrent { 16 } else { 19 }));
    }
}

#[test]
fn who_was_sent_away_does_not_take_what_it_drew_from_the_prompt_of_another() {
    let toy = Toy { rounds_prompts: true, ..Toy::default() };
    let tight = Limits { blocks: 23, ..limits() };
    let first = prompt(1, 12);
    let expected = toy.answer(&first, &SamplingParams::default(), 40);
    let mut world = World::new(toy, tight);
    world.ask(request(prompt(2, 8), 20));
    let sent_away = world.ask(request(first.clone(), 40));
    while world.told[&sent_away].tokens.len() < 14 {
        world.step();
    }
    // Somebody more urgent has the answer so far in its prompt, and goes on when room runs out.
    let theirs = [&first[..], &expected[..14], &[1, 2]].concat();
    world.ask(Request { priority: 1, ..request(theirs, 30) });
    world.finish();
    assert!(world.runner.stats().preemptions > 0);
    assert_eq!(world.told[&sent_away].tokens, expected);
}

#[test]
fn recurrent_state_is_found_at_the_end_of_a_block() {
    let toy = Toy { is_recurrent: true, keeps_cache: false, ..Toy::default() };
    let mut world = World::new(toy, limits());
    let first = world.answer(request(prompt(1, 21), 8));
    assert_eq!(world.answer(request(prompt(1, 21), 8)), Told { cached: Some(20), ..first.clone() });
    let longer = [prompt(1, 21), first.tokens.clone(), vec![1, 2, 3]].concat();
    let expected = toy.answer(&longer, &SamplingParams::default(), 5);
    let told = world.answer(request(longer, 5));
    // The last snapshot is from before the last block was whole.
    assert_eq!((told.tokens, told.cached), (expected, Some(24)));
    // Without a slot to spare there is nothing to find, and nothing goes wrong.
    let mut bare = World::new(toy, Limits { slots: 8, ..limits() });
    for _ in 0..2 {
        assert_eq!(bare.answer(request(prompt(1, 21), 8)), first);
    }
}

#[test]
fn other_adapters_and_templates_share_nothing() {
    let mut world = World::new(Toy::default(), limits());
    world.answer(request(prompt(1, 21), 1));
    let other = Request { cache_key: 7, ..request(prompt(1, 21), 1) };
    assert_eq!(world.answer(other).cached, Some(0));
}

#[test]
fn choices_of_one_prompt_compute_it_once() {
    for toy in [Toy::default(), Toy { is_recurrent: true, ..Toy::default() }] {
        let mut world = World::new(toy, limits());
        let ask = |seed| Request { sampling: warm(seed).0, ..request(prompt(5, 61), 10) };
        let ids: Vec<_> = (0..6).map(|seed| world.ask(ask(seed))).collect();
        world.finish();
        for (seed, id) in ids.iter().enumerate() {
            let told = &world.told[id];
            assert_eq!(told.tokens, toy.answer(&prompt(5, 61), &warm(seed as u32).1, 10));
            assert_eq!(told.cached, Some(if seed == 0 { 0 } else { 60 }), "{toy:?}");
        }
    }
}

#[test]
fn a_short_prompt_does_not_wait_for_long_ones() {
    let mut world = World::new(Toy::default(), Limits { blocks: 200, ..limits() });
    let long = world.ask(request(prompt(1, 150), 1));
    world.ask(request(prompt(3, 150), 1));
    world.step();
    let short = world.ask(request(prompt(2, 5), 1));
    world.step();
    assert_eq!(world.told[&short].tokens.len(), 1);
    assert!(world.told[&long].tokens.is_empty());
    world.finish();
}

#[test]
fn priority_comes_first_but_not_for_ever() {
    let one = Limits { sequences_max: 1, ..limits() };
    let mut world = World::new(Toy::default(), one);
    let patient = world.ask(request(prompt(1, 5), 1));
    let pushy = Request { priority: 1, ..request(prompt(2, 5), 1) };
    let first = world.ask(pushy);
    world.step();
    assert!(world.told[&first].end.is_some() && world.told[&patient].end.is_none());
    // However many more come, it has its turn.
    for _ in 0..mlxcel_sched::OVERTAKES {
        world.ask(Request { priority: 1, ..request(prompt(3, 5), 1) });
        world.ask(Request { priority: 1, ..request(prompt(3, 5), 1) });
        world.step();
    }
    assert!(world.told[&patient].end.is_some());
    world.finish();
}

#[test]
fn a_cancelled_request_gives_back_what_it_had() {
    let mut world = World::new(Toy::default(), limits());
    let ids: Vec<_> = (0..12).map(|i| world.ask(request(prompt(i, 40), 30))).collect();
    (0..4).for_each(|_| world.step());
    assert!(world.runner.stats().running > 0 && world.runner.stats().waiting > 0);
    ids.iter().for_each(|id| world.runner.cancel(*id));
    let before = world.told.clone();
    assert!(world.runner.is_idle());
    world.finish();
    world.step();
    assert_eq!(world.told, before, "a cancelled request is not heard of again");
}

#[test]
fn a_failed_step_fails_its_requests_only() {
    for (toy, when) in kinds().into_iter().flat_map(|toy| [(toy, When::Submitting), (toy, When::Collecting)])
    {
        let mut world = World::new(toy, limits());
        let hit: Vec<_> = (0..3).map(|i| world.ask(request(prompt(i, 20), 30))).collect();
        (0..5).for_each(|_| world.step());
        world.fault.strike(when);
        world.step();
        for id in &hit {
            let end = world.told[id].end.clone();
            assert!(matches!(end, Some(Err(Failure::Engine { .. }))), "{toy:?}: {end:?}");
        }
        // The next ones find nothing of what the failed step left behind.
        let told = ask_all(&mut world);
        assert_answers(&toy, &told);
    }
}

#[test]
fn no_snapshot_is_kept_of_a_step_that_failed() {
    let toy = Toy { is_recurrent: true, keeps_cache: false, ..Toy::default() };
    let answer = toy.answer(&prompt(1, 17), &SamplingParams::default(), 20);
    for steps in 1..24 {
        let mut world = World::new(toy, Limits { sequences_max: 1, ..limits() });
        world.ask(request(prompt(1, 17), 20));
        (0..steps).for_each(|_| world.step());
        // One who waits keeps the scheduler going after the failure.
        world.ask(request(prompt(2, 40), 3));
        world.fault.strike(When::Collecting);
        world.step();
        let longer = [prompt(1, 17), answer[..18].to_vec()].concat();
        let told = world.answer(request(longer, 2));
        assert_eq!(told.tokens, answer[18..], "{steps}");
    }
}

#[test]
fn what_is_not_a_number_fails_its_request_only() {
    for draws_no_nan in [false, true] {
        let toy = Toy { poison: Some(49), draws_no_nan, ..Toy::default() };
        let mut world = World::new(toy, limits());
        let fine = world.ask(request(prompt(1, 10), 12));
        let poisoned = world.ask(request([prompt(2, 6), vec![49]].concat(), 12));
        world.finish();
        assert_eq!(world.told[&poisoned].end, Some(Err(Failure::NotANumber)));
        assert_eq!(world.told[&fine].tokens, toy.answer(&prompt(1, 10), &SamplingParams::default(), 12));
    }
}

#[test]
fn what_cannot_be_answered_is_refused_with_the_reason() {
    let mut world = World::new(Toy::default(), Limits { queue_max: 2, blocks: 5, ..limits() });
    let refusal = |world: &mut World, request| world.runner.admit(request).unwrap_err();
    assert_eq!(refusal(&mut world, request(vec![], 1)), Refusal::PromptEmpty);
    let long = refusal(&mut world, request(prompt(1, 20), 1));
    assert_eq!(long, Refusal::PromptTooLong { prompt: 20, context: 20 });
    let unknown = refusal(&mut world, request(vec![1, 50], 1));
    assert_eq!(unknown, Refusal::UnknownToken { token: 50, vocab_size: 50 });
    let full = world.answer(request(prompt(1, 19), 9));
    // All blocks are needed for the second of these, and found: none is left for a copy of the last one.
    let empty = [(); 2].map(|_| world.answer(request(prompt(1, 20), 0)))[1].clone();
    assert_eq!(empty.cached, Some(16));
    assert_eq!((full.tokens.len(), full.end), (1, Some(Ok(Finish::Length))));
    assert_eq!((empty.tokens.len(), empty.end), (0, Some(Ok(Finish::Length))));
    world.ask(request(prompt(1, 5), 1));
    world.ask(request(prompt(1, 5), 1));
    assert_eq!(refusal(&mut world, request(prompt(1, 5), 1)), Refusal::QueueFull { waiting: 2 });
    world.finish();
}

#[test]
fn a_runner_can_be_moved_to_its_thread() {
    fn moved<T: Send>(_: &T) {}
    moved(&World::new(Toy::default(), limits()).runner);
}
