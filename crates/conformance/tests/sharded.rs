//! Every family shared by two and, where its heads allow it, by four reference engines; and what cannot be shared.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use conformance::models::{F32_TOLERANCE, Fixture, check_batched, check_greedy, fixtures};
use conformance::sharded::ShardedReference;
use mlxcel_engine::Engine;
use mlxcel_ir::passes::{Member, shard};
use mlxcel_ir::{Bindings, Graph};

fn fixture(family: &str, variant: &str) -> Fixture {
    Fixture::open(&fixtures("golden").join(family).join(variant))
}

macro_rules! families {
    ($($family:ident: $members:expr),* $(,)?) => {$(
        #[test]
        fn $family() {
            let fixture = fixture(stringify!($family), "f32");
            check_greedy(&ShardedReference { members: 2 }, &fixture, usize::MAX, F32_TOLERANCE);
            check_batched(&ShardedReference { members: $members }, &fixture, F32_TOLERANCE);
        }
    )*};
}

families! {
    cohere: 2,
    deepseek_v3: 2,
    gemma2: 2,
    gemma3_text: 4,
    gpt2: 4,
    gpt_neox: 4,
    gpt_oss: 4,
    granite: 4,
    llama: 2,
    mamba: 4,
    mistral: 3,
    mixtral: 2,
    olmo: 2,
    olmo2: 2,
    phi3: 2,
    qwen2: 2,
    qwen3: 4,
    qwen3_moe: 4,
    smollm3: 2,
    stablelm: 2,
    starcoder2: 4,
}

#[test]
fn packed_weights_are_shared_as_they_are() {
    let fixture = fixture("qwen3_moe", "q4");
    let refused = shard(&fixture.model().graph, Member { rank: 0, members: 4 }).unwrap_err().to_string();
    assert!(refused.contains("blocks of 32"), "{refused}");
    for family in ["qwen2", "mamba"] {
        let fixture = self::fixture(family, "q4");
        check_batched(&ShardedReference { members: 2 }, &fixture, F32_TOLERANCE);
    }
}

#[test]
fn heads_that_do_not_divide_are_refused_by_name() {
    let fixture = fixture("llama", "f32");
    let model = fixture.model();
    let dims = Bindings::from([("blocks".to_string(), 4), ("block".to_string(), 4)]);
    let refused = ShardedReference { members: 3 }.compile(&model.graph, &fixture.checkpoint, &dims);
    let Err(error) = refused else { panic!("4 heads went to 3 members") };
    assert!(error.to_string().contains("k_cache.0"), "{error}");
}

#[test]
fn most_of_a_model_is_shared() {
    for family in ["llama", "qwen3", "mixtral", "deepseek_v3", "mamba", "gpt2"] {
        let fixture = fixture(family, "f32");
        let graph = fixture.model().graph;
        // Everybody has the embeddings, and the odd vocabularies of the fixtures keep the output layer whole.
        let numbers = |graph: &Graph| {
            let layers = graph
                .weights()
                .filter(|(_, n)| ![Some(263), Some(311)].contains(&n.types[0].shape[0].as_fixed()));
            layers.map(|(_, n)| n.types[0].elements().as_fixed().unwrap()).sum::<usize>()
        };
        let share = shard(&graph, Member { rank: 1, members: 2 }).unwrap().graph;
        let (all, part) = (numbers(&graph), numbers(&share));
        assert!(part * 3 < all * 2, "{family}: {part} of {all} numbers on each of two");
    }
}
