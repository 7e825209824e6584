//! What turning a matrix costs: `cargo bench -p mlxcel-cpu --bench copy`. Processor time of one thread, the least of several
//! rounds, in gigabytes for each second, counted once.

mod clock;

use mlxcel_cpu::{CpuEngine, CpuOptions};
use mlxcel_engine::{Engine, Feeds, NoWeights};
use mlxcel_ir::{Bindings, Builder, DType, HostTensor, shape};

const SIZES: [[usize; 2]; 3] = [[256, 256], [4096, 4096], [49152, 576]];
const ROUNDS: usize = 4;

fn main() {
    let options = CpuOptions { threads: Some(1), ..CpuOptions::default() };
    let engine = CpuEngine::new(options).expect("one thread starts");
    let mut feeds = Feeds::default();
    feeds.insert("x", HostTensor::new(&[1], &[1f32]));
    println!("| rows | columns | ms | GB/s |");
    println!("|---:|---:|---:|---:|");
    for [rows, columns] in SIZES {
        let b = Builder::new();
        let x = b.input("x", DType::F32, shape![1]);
        let matrix = b.state("matrix", DType::F32, shape![rows, columns]);
        let turned = matrix.transpose(&[1, 0]).reshape(shape![rows * columns]);
        b.output("y", turned.slice(0, 0, 1) + x);
        let graph = b.finish().expect("the graph is well typed");
        let mut program = engine.compile(&graph, &NoWeights, &Bindings::new()).expect("the engine runs it");
        let least = (0..ROUNDS).map(|_| clock::time(&mut *program, &feeds)).min().expect("there are rounds");
        let seconds = least.as_secs_f64();
        let bytes = (rows * columns * 4) as f64;
        println!("| {rows} | {columns} | {:.2} | {:.2} |", seconds * 1e3, bytes / seconds / 1e9);
    }
}
