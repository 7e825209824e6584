//! What every executor keeps: a sequence that outgrows the context its module was compiled for goes on in a larger one.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use conformance::models::{Fixture, fixtures};
use conformance::sequence::Runner;
use mlxcel_xla::XlaEngine;

/// Blocks of 16 tokens: the first module holds a prompt of 7 tokens and 9 more.
const TOKENS: usize = 20;

/// Tokens and logits are those of a module that is large enough from the start. `engine` is given the least context, in
/// blocks, that modules are compiled for.
pub fn check(engine: impl Fn(usize) -> XlaEngine) {
    let fixture = Fixture::open(&fixtures("golden").join("llama").join("f32"));
    let (model, case) = (fixture.model(), &fixture.golden.cases[0]);
    assert!(
        case.prompt.len() < 16 && case.prompt.len() + TOKENS > 16,
        "the context is outgrown in mid-stream"
    );
    let run = |blocks: usize| {
        let room = case.prompt.len() + TOKENS;
        let mut runner = Runner::new(&engine(blocks), (&model, &fixture.checkpoint), 1, room).unwrap();
        runner.greedy(&[&case.prompt], TOKENS, 1).unwrap().remove(0)
    };
    let (grown, large) = (run(1), run(16));
    assert_eq!(grown.tokens, large.tokens);
    assert_eq!(grown.tokens, case.tokens[..TOKENS]);
    for (a, b) in grown.logits.iter().flatten().zip(large.logits.iter().flatten()) {
        assert!((a - b).abs() <= 1e-4, "{a} and {b}");
    }
}
