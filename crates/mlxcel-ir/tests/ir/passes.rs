//! Passes keep the meaning of random graphs, to the bit, and leave them well formed.

use mlxcel_ir::passes::*;
use mlxcel_ir::{Graph, IrError};
use proptest::prelude::*;

use crate::evaluate::{evaluate, same};
use crate::random::{Purpose, graphs};

fn keeps_meaning(
    pass: fn(&Graph) -> Result<Graph, IrError>,
    g: &Graph,
    seed: u64,
) -> Result<(), TestCaseError> {
    let after = pass(g).expect("passes do not fail on well-typed graphs");
    prop_assert_eq!(after.verify(), Ok(()), "{}", after);
    let (a, b) = (evaluate(g, seed, &[]), evaluate(&after, seed, &[]));
    prop_assert!(same(&a, &b), "before:\n{g}\nafter:\n{after}\n{a:?}\n{b:?}");
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn removing_dead_code_keeps_the_meaning(g in graphs(Purpose::Evaluation), seed in any::<u64>()) {
        keeps_meaning(dead_code, &g, seed)?;
    }

    #[test]
    fn sharing_subexpressions_keeps_the_meaning(g in graphs(Purpose::Evaluation), seed in any::<u64>()) {
        keeps_meaning(common_subexpressions, &g, seed)?;
    }

    #[test]
    fn folding_constants_keeps_the_meaning(g in graphs(Purpose::Evaluation), seed in any::<u64>()) {
        keeps_meaning(fold_constants, &g, seed)?;
    }

    #[test]
    fn fusing_residual_norms_keeps_the_meaning(g in graphs(Purpose::Evaluation), seed in any::<u64>()) {
        keeps_meaning(fuse_residual_norm, &g, seed)?;
    }

    #[test]
    fn fusing_elementwise_regions_keeps_the_meaning(g in graphs(Purpose::Evaluation), seed in any::<u64>()) {
        keeps_meaning(fuse_elementwise, &g, seed)?;
    }

    #[test]
    fn the_pipeline_and_fusion_after_it_keep_the_meaning(
        g in graphs(Purpose::Evaluation), seed in any::<u64>(),
    ) {
        keeps_meaning(|g| fuse_elementwise(&optimize(g)?), &g, seed)?;
    }

    #[test]
    fn the_pipeline_finds_nothing_more_in_what_it_made(g in graphs(Purpose::Evaluation)) {
        let once = optimize(&g).unwrap();
        let twice = optimize(&once).unwrap();
        prop_assert!(twice.nodes().len() <= once.nodes().len());
    }

    #[test]
    fn loading_folded_weights_and_then_stepping_keeps_the_meaning(
        g in graphs(Purpose::Evaluation), seed in any::<u64>(),
    ) {
        let folded = fold_weights(&g).unwrap();
        prop_assert_eq!((folded.graph.verify(), folded.load.verify()), (Ok(()), Ok(())));
        let loaded = evaluate(&folded.load, seed, &[]).outputs;
        let (a, b) = (evaluate(&g, seed, &[]), evaluate(&folded.graph, seed, &loaded));
        prop_assert!(same(&a, &b), "before:\n{g}\nafter:\n{}\nload:\n{}", folded.graph, folded.load);
    }
}
