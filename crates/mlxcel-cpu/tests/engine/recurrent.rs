//! Selective scan and causal convolution over ragged steps with state.

use mlxcel_engine::{Engine, Feeds, ReferenceEngine};
use mlxcel_ir::{Bindings, Builder, DType, Graph, HostTensor, Op, shape};

use crate::support::{Random, Weights, assert_close, engines, step};

const CHANNELS: usize = 70;
const N: usize = 5;
const K: usize = 4;

fn graph(d: DType) -> Graph {
    let b = Builder::new();
    let x = b.input("x", d, shape!["tokens", CHANNELS]);
    let dt = b.input("dt", d, shape!["tokens", CHANNELS]);
    let (p, c) = (b.input("p", d, shape!["tokens", N]), b.input("c", d, shape!["tokens", N]));
    let (a, skip) = (b.weight("a", d, &[CHANNELS, N]), b.weight("skip", d, &[CHANNELS]));
    let (w, bias) = (b.weight("w", d, &[CHANNELS, K]), b.weight("bias", d, &[CHANNELS]));
    let at = b.input("at", DType::I32, shape!["tokens"]);
    let slots = b.input("slots", DType::I32, shape!["tokens"]);
    let past = b.state("past", d, shape!["slots", CHANNELS, K - 1]);
    let conv = b.apply(Op::CausalConv, &[x, w, bias, past, at, slots]);
    b.update("past", conv[1]);
    let h = b.state("h", d, shape!["slots", CHANNELS, N]);
    let scan = b.apply(Op::SelectiveScan, &[conv[0], dt.abs() * 0.1, -a.abs(), p, c, skip, h, at, slots]);
    b.update("h", scan[1]);
    b.output("conv", conv[0]);
    b.output("scan", scan[0]);
    b.output("state", scan[1]);
    b.finish().unwrap()
}

#[test]
fn recurrent_layers_carry_each_sequence_in_its_slot() {
    let mut r = Random(71);
    // Slot and position of each token; a slot of −1 keeps nothing.
    let steps: [&[(i32, i32)]; 4] = [
        &[(1, 0), (1, 1), (1, 2), (2, 0), (2, 1)],
        &[(2, 2), (1, 3), (-1, 4)],
        &[],
        &[(0, 0), (1, 4), (1, 5), (2, 0)],
    ];
    for d in [DType::F32, DType::F64, DType::BF16] {
        let graph = graph(d);
        let mut weights = Weights::default();
        for (name, shape) in [
            ("a", vec![CHANNELS, N]),
            ("skip", vec![CHANNELS]),
            ("w", vec![CHANNELS, K]),
            ("bias", vec![CHANNELS]),
        ] {
            weights.add(name, r.weight(d, &shape));
        }
        let dims = Bindings::from([("slots".into(), 3)]);
        let fed: Vec<Feeds> = steps
            .iter()
            .map(|s| {
                let mut feeds = Feeds::new();
                for (name, width) in [("x", CHANNELS), ("dt", CHANNELS), ("p", N), ("c", N)] {
                    feeds.insert(name, r.tensor(d, &[s.len(), width]));
                }
                feeds.insert("at", HostTensor::new(&[s.len()], &s.iter().map(|t| t.1).collect::<Vec<_>>()));
                feeds
                    .insert("slots", HostTensor::new(&[s.len()], &s.iter().map(|t| t.0).collect::<Vec<_>>()));
                feeds
            })
            .collect();
        let names = ["conv", "scan", "state"];
        let mut reference = ReferenceEngine.compile(&graph, &weights, &dims).unwrap();
        let expected: Vec<_> = fed.iter().map(|f| step(&mut *reference, f, &names)).collect();
        for engine in engines() {
            let mut program = engine.compile(&graph, &weights, &dims).unwrap();
            for (n, (f, e)) in fed.iter().zip(&expected).enumerate() {
                for ((found, e), name) in step(&mut *program, f, &names).iter().zip(e).zip(names) {
                    assert_close(found, e, &format!("{name} in {d}, step {n}, {}", engine.caps().device));
                }
            }
        }
    }
}
