//! Whatever comes in whatever order – arrivals, cancellations, failures, too few blocks – nothing is lost, everyone is
//! answered, and with the tokens that they would have had alone.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use mlxcel_sched::{Failure, Finish, Limits, Request, RequestId, Speculate};
use proptest::prelude::*;
use proptest::sample::Index;

use crate::toy::{Rotation, Toy, When};
use crate::world::{Flight, Server, World, prompt, request, warm};

#[derive(Clone, Debug)]
enum Action {
    Ask(Asked),
    Steps(usize),
    Cancel(Index),
    StepsOf(usize),
    Fault(When),
}

#[derive(Clone, Debug)]
struct Asked {
    /// Prompts of one group begin alike.
    group: u32,
    len: usize,
    count: usize,
    seed: u32,
    priority: i32,
    speculate: Speculate,
    /// Tokens that end the answer.
    end_ids: Arc<BTreeSet<u32>>,
}

fn action() -> impl Strategy<Value = Action> {
    let speculate = prop_oneof![
        2 => Just(Speculate::Off),
        1 => (1..4usize, 1..6usize).prop_map(|(ngram, tokens)| Speculate::Lookup { ngram, tokens }),
    ];
    let asked = (0..3u32, 1..60usize, 0..40usize, any::<u32>(), -3..4i32, speculate, any::<bool>());
    let asked = asked.prop_map(|(group, len, count, seed, priority, speculate, ends)| {
        let end_ids = Arc::new(if ends { [7, 8].into() } else { [].into() });
        Action::Ask(Asked { group, len, count, seed, priority, speculate, end_ids })
    });
    prop_oneof![
        6 => asked,
        6 => (1..12usize).prop_map(Action::Steps),
        2 => any::<Index>().prop_map(Action::Cancel),
        1 => (1..40usize).prop_map(Action::StepsOf),
        1 => prop_oneof![Just(When::Submitting), Just(When::Collecting)].prop_map(Action::Fault),
    ]
}

fn toy() -> impl Strategy<Value = Toy> {
    let rotation = prop_oneof![Just(Rotation::Fixed), Just(Rotation::Dynamic(20)), Just(Rotation::Long(20))];
    let states = prop_oneof![3 => Just((true, false)), 1 => Just((true, true)), 1 => Just((false, true))];
    (rotation, states, any::<bool>()).prop_map(|(rotation, (keeps_cache, is_recurrent), rounds_prompts)| {
        Toy { rotation, rounds_prompts, keeps_cache, is_recurrent, ..Toy::default() }
    })
}

fn limits() -> impl Strategy<Value = Limits> {
    (20..120usize, 1..9usize, 1..9usize, 0..4usize, 1..40usize).prop_map(
        |(tokens, block_size, sequences_max, spare, batch_tokens_max)| Limits {
            blocks: tokens.max(61).div_ceil(block_size),
            block_size,
            slots: sequences_max + spare,
            batch_tokens_max,
            sequences_max,
            queue_max: 1000,
        },
    )
}

/// What happened in a world, beside what it told.
#[derive(Default)]
struct History {
    asked: BTreeMap<RequestId, Asked>,
    cancelled: BTreeSet<RequestId>,
    faults: usize,
}

impl History {
    fn act(&mut self, server: &mut dyn Server, action: Action) {
        match action {
            Action::Ask(asked) => {
                let speculate = match server.scheduler().traits().is_recurrent {
                    true => Speculate::Off,
                    false => asked.speculate,
                };
                let id = server.ask(Request {
                    sampling: warm(asked.seed).0,
                    priority: asked.priority,
                    end_ids: asked.end_ids.clone(),
                    speculate,
                    ..request(prompt(asked.group, asked.len), asked.count)
                });
                self.asked.insert(id, asked);
            }
            Action::Steps(count) => (0..count).for_each(|_| server.step()),
            Action::Cancel(index) if !self.asked.is_empty() => {
                let id = *index.get(&self.asked.keys().copied().collect::<Vec<_>>());
                server.cancel(id);
                self.cancelled.insert(id);
            }
            Action::Cancel(_) => {}
            Action::StepsOf(tokens) => server.set_batch_tokens_max(tokens),
            Action::Fault(when) => {
                server.fault().strike(when);
                self.faults += 1;
            }
        }
    }

    /// Half steps in which all can be answered if somebody gets on in every one of them.
    fn patience(&self) -> usize {
        self.asked.values().map(|asked| 4 * (asked.len + asked.count) + 4).sum()
    }

    fn check(&self, toy: &Toy, server: &dyn Server) {
        let mut failed = 0;
        let context = server.scheduler().context();
        for (id, asked) in &self.asked {
            let told = &server.ledger()[id];
            let prompt = prompt(asked.group, asked.len);
            let count = asked.count.min(context - prompt.len());
            let mut expected = toy.answer(&prompt, &warm(asked.seed).1, count);
            let end = expected.iter().position(|t| asked.end_ids.contains(t));
            expected.truncate(end.map_or(count, |end| end + 1));
            let finish = if end.is_some() { Finish::End } else { Finish::Length };
            assert!(expected.starts_with(&told.tokens), "{asked:?}: {:?} for {expected:?}", told.tokens);
            match &told.end {
                Some(Ok(found)) => assert_eq!((*found, &told.tokens), (finish, &expected), "{asked:?}"),
                Some(Err(Failure::Engine { .. })) => failed += 1,
                None => assert!(self.cancelled.contains(id), "{asked:?} was forgotten"),
                other => panic!("{asked:?}: {other:?}"),
            }
        }
        assert!(failed == 0 || self.faults > 0);
    }
}

fn serve(mut server: impl Server, toy: Toy, actions: Vec<Action>) {
    let mut history = History::default();
    actions.into_iter().for_each(|action| history.act(&mut server, action));
    let mut steps = 0;
    while !server.scheduler().is_idle() {
        server.step();
        steps += 1;
        assert!(steps <= history.patience(), "somebody starves after {steps} steps");
    }
    server.step();
    let stats = server.scheduler().stats();
    assert_eq!((stats.blocks_used, stats.slots_used), (0, 0), "somebody keeps a block");
    history.check(&toy, &server);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn nothing_is_lost_and_nobody_starves(
        toy in toy(),
        limits in limits(),
        actions in proptest::collection::vec(action(), 1..40),
    ) {
        serve(World::new(toy, limits), toy, actions);
    }

    #[test]
    fn nothing_is_lost_whatever_happens_while_a_step_is_in_flight(
        toy in toy(),
        limits in limits(),
        actions in proptest::collection::vec(action(), 1..40),
    ) {
        serve(Flight::new(toy, limits), toy, actions);
    }
}
