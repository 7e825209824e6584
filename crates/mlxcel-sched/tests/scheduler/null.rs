//! The scheduler on the null engine, through the seam that real engines have.

use mlxcel_engine::{Engine, NoWeights, NullEngine, step};
use mlxcel_ir::{Bindings, Builder, shape};
use mlxcel_sched::{Event, Finish, Limits, Request, Runner, Traits};

#[test]
fn many_requests_on_the_null_engine_count_upwards() {
    let b = Builder::new();
    let inputs = step::StepInputs::declare(&b);
    let logits = b.scalar(0f32).broadcast(shape!["rows", 11]);
    b.output(step::LOGITS, logits);
    b.output(step::SAMPLED, logits.sample(inputs.sampling));
    let program = NullEngine.compile(&b.finish().unwrap(), &NoWeights, &Bindings::new()).unwrap();
    let limits = Limits {
        blocks: 200,
        block_size: 16,
        slots: 0,
        batch_tokens_max: 512,
        sequences_max: 64,
        queue_max: 1000,
    };
    let traits = Traits {
        max_context: 4096,
        vocab_size: 100_000,
        is_recurrent: false,
        keeps_cache: true,
        recompute_past: None,
        lengths_matter_past: None,
    };
    let mut runner = Runner::new(program, limits, traits);
    let ask = |n: u32| Request { max_tokens: Some(50), ..Request::new(vec![n * 100; 20 + n as usize]) };
    let ids: Vec<_> = (0..256).map(|n| runner.admit(ask(n)).unwrap()).collect();
    let (mut tokens, mut finished) = (vec![vec![]; ids.len()], 0);
    while !runner.is_idle() {
        for event in runner.step() {
            match event {
                Event::Token { id, token, .. } => tokens[id.0 as usize].push(token),
                Event::Finished { reason, .. } => {
                    assert_eq!(reason, Finish::Length);
                    finished += 1;
                }
                Event::Prefilled { .. } => {}
                Event::Failed { error, .. } => panic!("{error}"),
            }
        }
        runner.scheduler().assert_integrity(None);
    }
    assert_eq!(finished, 256);
    for (n, tokens) in (0..256).zip(tokens) {
        assert!(tokens.into_iter().eq(n * 100 + 1..=n * 100 + 50));
    }
    assert!(runner.stats().preemptions > 0 && runner.stats().blocks_used == 0);
}
