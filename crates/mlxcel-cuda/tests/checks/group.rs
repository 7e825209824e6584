//! A group of one by the real NCCL, which is as far as one GPU allows: NCCL refuses two members on the same GPU. What comes
//! back is what was sent, of every type, run by itself and as a part of a captured step.

use std::net::{Ipv4Addr, SocketAddr};

use mlxcel_cuda::{CudaEngine, CudaOptions};
use mlxcel_engine::{Engine as _, Feeds, NoWeights, Seat, Sharing as _};
use mlxcel_ir::{Bindings, Builder, DType, HostTensor, Op, shape};

const ROWS: usize = 32;
const COLUMNS: usize = 96;

/// Joins, and exchanges numbers of every type.
pub fn check_alone() {
    let engine = CudaEngine::new(CudaOptions::default()).expect("the engine opens");
    let invitation = engine.invitation().expect("NCCL is there");
    let seat = Seat { rank: 0, addresses: vec![SocketAddr::from((Ipv4Addr::LOCALHOST, 7000))] };
    engine.join(&seat, &invitation).expect("a group of one");
    for dtype in [DType::F32, DType::BF16, DType::F16, DType::I32, DType::I64, DType::U8] {
        exchange(&engine, dtype);
    }
}

/// Sums and joins what was computed before them on the same stream, four times with other numbers: the first step runs by
/// itself, the second is captured.
fn exchange(engine: &CudaEngine, dtype: DType) {
    let b = Builder::new();
    let x = b.input("x", dtype, shape![ROWS, COLUMNS]);
    let twice = x + x;
    let sum = b.apply(Op::AllReduce, &[twice])[0];
    b.output("sum", sum + x);
    let joined = [0, 1].map(|axis| b.apply(Op::AllGather { axis, members: 1 }, &[twice])[0]);
    b.output("rows", joined[0]);
    b.output("columns", joined[1]);
    let graph = b.finish().expect("a graph");
    let mut program = engine.compile(&graph, &NoWeights, &Bindings::new()).expect("a program");
    for round in 0..4 {
        // Small whole numbers: exact in every type.
        let values: Vec<f64> = (0..ROWS * COLUMNS).map(|i| ((i * 7 + round) % 31) as f64).collect();
        let mut feeds = Feeds::new();
        feeds.insert("x", HostTensor::from_f64(dtype, &[ROWS, COLUMNS], &values));
        let ticket = program.submit(&feeds, &["sum", "rows", "columns"]).expect("the step starts");
        let results = program.collect(ticket).expect("the step ends");
        for (result, factor) in results.iter().zip([3.0, 2.0, 2.0]) {
            let expected: Vec<f64> = values.iter().map(|v| v * factor).collect();
            assert_eq!(result.to_f64(), expected, "{dtype} in round {round}");
        }
    }
}
