//! A whole small model: two layers in the manner of llama.

use mlxcel_engine::sampling::SamplingParams;
use mlxcel_engine::{Batch, Engine, Logits, Program, ReferenceEngine, SequenceState};
use mlxcel_ir::step::{LOGITS, SAMPLED, StepInputs};
use mlxcel_ir::{Activation, Bindings, Builder, DType, Graph, HostTensor, Op, PagedSpec, Tensor};

use crate::support::{Random, Weights, assert_near, engines, step};

const HIDDEN: usize = 40;
const HEADS: usize = 4;
const KV_HEADS: usize = 2;
const HEAD: usize = 12;
const INNER: usize = 72;
const VOCABULARY: usize = 57;

fn layer<'g>(
    b: &'g Builder,
    index: usize,
    x: Tensor<'g>,
    inputs: &StepInputs<'g>,
    dtype: DType,
) -> Tensor<'g> {
    let name = |n: &str| format!("layers.{index}.{n}");
    let w = |n: &str, shape: &[usize]| b.weight(&name(n), dtype, shape);
    let pieces = ["q", "k", "v"].map(&name).to_vec();
    let qkv = b.weight_pieces(&name("qkv"), dtype, &[(HEADS + 2 * KV_HEADS) * HEAD, HIDDEN], pieces);
    let h = x.rms_norm(1e-5, Some(w("norm1", &[HIDDEN]))).linear(qkv, None);
    let [q, k, v] = h.cut_last([HEADS * HEAD, KV_HEADS * HEAD, KV_HEADS * HEAD]);
    let inv_freq: Vec<f32> = (0..HEAD / 2).map(|i| 10000f32.powf(-2.0 * i as f32 / HEAD as f32)).collect();
    let inv_freq = b.constant(HostTensor::new(&[HEAD / 2], &inv_freq));
    let rope =
        |t: Tensor<'g>| t.rope(inputs.positions, inv_freq, Op::Rope { interleaved: false, scale: 1.0 });
    let (q, k) = (rope(q.split_last(HEADS, HEAD)), rope(k.split_last(KV_HEADS, HEAD)));
    let v = v.split_last(KV_HEADS, HEAD);
    let window = if index == 1 { Some(7) } else { None };
    let spec =
        PagedSpec { scale: (HEAD as f64).powf(-0.5), window, softcap: None, sinks: false, value_dim: None };
    let a = b.paged_attention((q, k, Some(v)), inputs.paged(), None, index, spec).merge_last();
    let x = x + a.linear(w("o", &[HIDDEN, HEADS * HEAD]), None);
    let h = x.rms_norm(1e-5, Some(w("norm2", &[HIDDEN])));
    let gate = h.linear(w("gate", &[INNER, HIDDEN]), None).activation(Activation::Silu);
    let up = h.linear(w("up", &[INNER, HIDDEN]), None);
    x + (gate * up).linear(w("down", &[HIDDEN, INNER]), None)
}

fn graph(dtype: DType) -> Graph {
    let b = Builder::new();
    let inputs = StepInputs::declare(&b);
    let table = b.weight("embed", dtype, &[VOCABULARY, HIDDEN]);
    let mut x = table.embedding(inputs.tokens, dtype);
    for i in 0..2 {
        x = layer(&b, i, x, &inputs, dtype);
    }
    let x = x.gather(inputs.logit_rows, 0).rms_norm(1e-5, Some(b.weight("norm", dtype, &[HIDDEN])));
    let logits = x.linear(table, None).cast(DType::F32);
    b.output(LOGITS, logits);
    b.output(SAMPLED, logits.sample(inputs.sampling));
    b.finish().unwrap()
}

fn weights(dtype: DType) -> Weights {
    let mut r = Random(7);
    let mut weights = Weights::default();
    let mut add = |name: String, shape: &[usize]| weights.add(&name, r.weight(dtype, shape));
    add("embed".into(), &[VOCABULARY, HIDDEN]);
    add("norm".into(), &[HIDDEN]);
    for i in 0..2 {
        let name = |n: &str| format!("layers.{i}.{n}");
        add(name("norm1"), &[HIDDEN]);
        add(name("norm2"), &[HIDDEN]);
        add(name("q"), &[HEADS * HEAD, HIDDEN]);
        add(name("k"), &[KV_HEADS * HEAD, HIDDEN]);
        add(name("v"), &[KV_HEADS * HEAD, HIDDEN]);
        add(name("o"), &[HIDDEN, HEADS * HEAD]);
        add(name("gate"), &[INNER, HIDDEN]);
        add(name("up"), &[INNER, HIDDEN]);
        add(name("down"), &[HIDDEN, INNER]);
    }
    weights
}

/// The chunks of two sequences in steps: a prefill, a mixed step, a decode.
fn batches(block: usize) -> Vec<Batch> {
    let a = SequenceState { blocks: vec![5, 0, 3, 7], slot: 0, known_len: 12 };
    let c = SequenceState { blocks: vec![2, 6, 1, 4], slot: 1, known_len: 9 };
    let tokens =
        |from: usize, n: usize| (from..from + n).map(|t| (t * 17 % VOCABULARY) as u32).collect::<Vec<_>>();
    let p = SamplingParams { temperature: 0.8, top_k: 20, top_p: 0.9, min_p: 0.01, seed: 3 };
    let mut steps = vec![];
    let mut batch = Batch::new(block);
    batch.push(&a, &tokens(0, 11), 0, Logits::All, &p);
    steps.push(batch);
    let mut batch = Batch::new(block);
    batch.push(&a, &tokens(11, 1), 11, Logits::Last, &p);
    batch.push(&c, &tokens(40, 9), 0, Logits::Last, &p);
    steps.push(batch);
    let mut batch = Batch::new(block);
    batch.push(&c, &tokens(50, 1), 9, Logits::Last, &p);
    batch.push(&a, &tokens(51, 1), 12, Logits::None, &p);
    steps.push(batch);
    let mut batch = Batch::new(block);
    batch.push(&a, &tokens(52, 2), 13, Logits::None, &p);
    steps.push(batch);
    steps
}

fn run(program: &mut dyn Program, block: usize) -> Vec<Vec<HostTensor>> {
    batches(block).iter().map(|b| step(program, &b.feeds(), &[LOGITS, SAMPLED])).collect()
}

#[test]
fn prefill_and_decode_give_the_logits_and_tokens_of_the_reference() {
    for dtype in [DType::F32, DType::BF16] {
        let (graph, weights) = (graph(dtype), weights(dtype));
        let dims = |block: usize| Bindings::from([("blocks".into(), 8), ("block".into(), block)]);
        let mut reference = ReferenceEngine.compile(&graph, &weights, &dims(4)).unwrap();
        let expected = run(&mut *reference, 4);
        for engine in engines() {
            let block = engine.caps().block_size;
            let mut program = engine.compile(&graph, &weights, &dims(block)).unwrap();
            let found = run(&mut *program, block);
            for (i, (f, e)) in found.iter().zip(&expected).enumerate() {
                let what = format!("step {i} in {dtype} on {}", engine.caps().device);
                assert_near(&f[0], &e[0], if dtype == DType::F32 { 5e-6 } else { 3e-2 }, &what);
                if dtype == DType::F32 {
                    assert_eq!(f[1].to_i64(), e[1].to_i64(), "{what}");
                }
            }
        }
    }
}

#[test]
fn a_step_computes_only_what_is_asked_for() {
    let (graph, weights) = (graph(DType::F32), weights(DType::F32));
    let engine = crate::support::engine();
    let block = engine.caps().block_size;
    let dims = Bindings::from([("blocks".into(), 8), ("block".into(), block)]);
    let mut both = engine.compile(&graph, &weights, &dims).unwrap();
    let mut one = engine.compile(&graph, &weights, &dims).unwrap();
    for batch in batches(block) {
        let all = step(&mut *both, &batch.feeds(), &[SAMPLED, LOGITS]);
        let sampled = step(&mut *one, &batch.feeds(), &[SAMPLED]);
        assert_eq!(sampled[0].bytes(), all[0].bytes());
    }
    let feeds = batches(block)[0].feeds();
    assert!(one.submit(&feeds, &["nothing"]).is_err());
}
