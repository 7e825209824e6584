//! The rules of the seam that hold for every engine: what is fed and asked for, what is kept between steps, and
//! that a row's result does not depend on its company.

use std::collections::BTreeMap;
use std::sync::Mutex;

use mlxcel_engine::{Engine, EngineError, Feeds, Program, WeightSource};
use mlxcel_ir::{Bindings, DType, HostTensor, PagedSpec, QuantFormat, ReduceOp, ScaleType, shape};
use mlxcel_weights::WeightTensor;

use super::case::{Case, Sketch};
use super::judge::{Fault, Report, compare, guarded};
use super::packed;
use super::ragged::Ragged;

type Check = fn(&dyn Engine) -> Result<(), Fault>;

const CHECKS: [(&str, Check); 14] = [
    ("outputs come in the order asked for", outputs_in_order),
    ("feeds that the graph does not declare are ignored", extra_feeds),
    ("a missing feed is an error that names it", missing_feed),
    ("a feed of the wrong type or shape is an error that names it", wrong_feed),
    ("an unknown output is an error that names it", unknown_output),
    ("a failed step leaves the state as it was", failed_step),
    ("a missing weight is an error that names it", missing_weight),
    ("a weight of the wrong type is an error that names it", wrong_weight),
    ("an unbound state is an error that names its dimension", unbound_state),
    ("weights are read once, when the graph is compiled", weights_read_once),
    ("two steps can be in flight", two_in_flight),
    ("states start at zero, follow their updates and belong to one program", states),
    ("state entries are copied on the axis named, and only there", copies),
    ("a row does not depend on its company", company),
];

pub(super) fn check(engine: &dyn Engine) -> Report {
    let mut report = Report::new(engine);
    for (name, check) in CHECKS {
        report.record(name, guarded(|| check(engine)));
    }
    report
}

fn ensure(ok: bool, reason: impl FnOnce() -> String) -> Result<(), Fault> {
    if ok { Ok(()) } else { Err(Fault::rule(reason())) }
}

fn compile(engine: &dyn Engine, case: &Case) -> Result<Box<dyn Program>, Fault> {
    engine.compile(&case.graph, &case.weights, &case.dims).map_err(Fault::refused("compiling"))
}

fn run(program: &mut dyn Program, feeds: &Feeds, outputs: &[&str]) -> Result<Vec<HostTensor>, Fault> {
    let ticket = program.submit(feeds, outputs).map_err(Fault::refused("a step"))?;
    program.collect(ticket).map_err(Fault::refused("collecting"))
}

/// The error of something that must fail, whose message must contain `name`.
fn names<T>(result: Result<T, EngineError>, name: &str) -> Result<(), Fault> {
    match result {
        Ok(_) => Err(Fault::rule(format!("succeeded, although '{name}' is wrong"))),
        Err(e) => ensure(e.to_string().contains(name), || format!("'{e}' does not name '{name}'")),
    }
}

fn feeds(pairs: &[(&str, HostTensor)]) -> Feeds {
    let mut feeds = Feeds::new();
    pairs.iter().for_each(|(name, t)| feeds.insert(name, t.clone()));
    feeds
}

fn floats(values: &[f32]) -> HostTensor {
    HostTensor::new(&[values.len()], values)
}

fn expect(got: &HostTensor, wanted: &[f32]) -> Result<(), Fault> {
    compare((0, "value"), got, &floats(wanted), 0.0)
}

/// `twice` and `thrice` what is fed, and a state that sums it up.
fn sums() -> Case {
    let s = Sketch::new("sums");
    let x = s.input_as("x", shape!["tokens"], floats(&[1.0, 2.0]));
    let total = s.b().state("total", DType::F32, shape!["slots"]);
    s.bind("slots", 1);
    s.output("twice", x * 2.0);
    s.output("thrice", x * 3.0);
    let next = total + x.reduce(ReduceOp::Sum, &[0]);
    s.output("total", next);
    s.b().update("total", next);
    s.finish()
}

fn two() -> Feeds {
    feeds(&[("x", floats(&[1.0, 2.0]))])
}

fn outputs_in_order(engine: &dyn Engine) -> Result<(), Fault> {
    let mut program = compile(engine, &sums())?;
    let got = run(&mut *program, &two(), &["thrice", "total", "twice"])?;
    ensure(got.len() == 3, || format!("three outputs asked, {} given", got.len()))?;
    expect(&got[0], &[3.0, 6.0])?;
    expect(&got[1], &[3.0])?;
    expect(&got[2], &[2.0, 4.0])?;
    let got = run(&mut *program, &two(), &["twice"])?;
    ensure(got.len() == 1, || format!("one output asked, {} given", got.len()))?;
    expect(&got[0], &[2.0, 4.0])
}

fn extra_feeds(engine: &dyn Engine) -> Result<(), Fault> {
    let mut program = compile(engine, &sums())?;
    let mut more = two();
    more.insert("temperature", floats(&[0.5]));
    expect(&run(&mut *program, &more, &["twice"])?[0], &[2.0, 4.0])
}

fn missing_feed(engine: &dyn Engine) -> Result<(), Fault> {
    let mut program = compile(engine, &sums())?;
    names(program.submit(&Feeds::new(), &["twice"]), "x")
}

fn wrong_feed(engine: &dyn Engine) -> Result<(), Fault> {
    let mut program = compile(engine, &sums())?;
    let ints = feeds(&[("x", HostTensor::new(&[2], &[1i32, 2]))]);
    names(program.submit(&ints, &["twice"]), "x")?;
    let square = feeds(&[("x", HostTensor::new(&[2, 1], &[1f32, 2.0]))]);
    names(program.submit(&square, &["twice"]), "x")
}

fn unknown_output(engine: &dyn Engine) -> Result<(), Fault> {
    let mut program = compile(engine, &sums())?;
    names(program.submit(&two(), &["nonsense"]), "nonsense")
}

fn failed_step(engine: &dyn Engine) -> Result<(), Fault> {
    let mut program = compile(engine, &sums())?;
    expect(&run(&mut *program, &two(), &["total"])?[0], &[3.0])?;
    names(program.submit(&two(), &["nonsense"]), "nonsense")?;
    names(program.submit(&Feeds::new(), &["total"]), "x")?;
    expect(&run(&mut *program, &two(), &["total"])?[0], &[6.0])
}

/// A linear layer; `weight` and its neighbours are what a source may get wrong.
fn layer() -> Case {
    let s = Sketch::new("layer");
    let x = s.input("x", s.normal(DType::F32, &[3, 8]));
    let w = s.normal_weight("weight", DType::F32, &[5, 8]);
    let packed = DType::Quant(QuantFormat::Affine { bits: 4, group: 32, scale: ScaleType::F32 });
    let quantised = s.weight("quantised", s.random(|r| packed::weight(r, packed, &[32, 32])));
    let norm = s.normal_weight("norm", DType::F32, &[5]);
    s.output("y", x.linear(w, None).rms_norm(1e-5, Some(norm)));
    let wide = s.b().concat(&[x, x, x, x], 1);
    s.output("z", wide.linear(quantised, None));
    s.finish()
}

fn missing_weight(engine: &dyn Engine) -> Result<(), Fault> {
    let mut case = layer();
    case.weights.0.remove("norm");
    names(engine.compile(&case.graph, &case.weights, &case.dims), "norm")
}

fn wrong_weight(engine: &dyn Engine) -> Result<(), Fault> {
    for wrong in [HostTensor::new(&[5], &[0i32; 5]), HostTensor::new(&[4], &[0f32; 4])] {
        let mut case = layer();
        case.weights.0.insert("norm".to_string(), WeightTensor::from_host(wrong));
        names(engine.compile(&case.graph, &case.weights, &case.dims), "norm")?;
    }
    Ok(())
}

fn unbound_state(engine: &dyn Engine) -> Result<(), Fault> {
    let case = sums();
    names(engine.compile(&case.graph, &case.weights, &Bindings::new()), "slots")
}

/// Counts how often each tensor is asked for.
struct Counting<'a> {
    inner: &'a dyn WeightSource,
    asked: Mutex<BTreeMap<String, usize>>,
}

impl WeightSource for Counting<'_> {
    fn tensor(&self, name: &str) -> Result<WeightTensor, EngineError> {
        let mut asked = self.asked.lock().expect("nobody panics while counting");
        *asked.entry(name.to_string()).or_insert(0) += 1;
        self.inner.tensor(name)
    }
}

fn weights_read_once(engine: &dyn Engine) -> Result<(), Fault> {
    let case = layer();
    let source = Counting { inner: &case.weights, asked: Mutex::default() };
    let mut program =
        engine.compile(&case.graph, &source, &case.dims).map_err(Fault::refused("compiling"))?;
    let first = run(&mut *program, &case.steps[0].feeds, &["y", "z"])?;
    let second = run(&mut *program, &case.steps[0].feeds, &["y", "z"])?;
    ensure(first == second, || "the same step gave different numbers".to_string())?;
    let asked = source.asked.into_inner().expect("nobody panics while counting");
    let again = asked.iter().find(|(_, times)| **times != 1);
    ensure(again.is_none() && asked.len() == 3, || format!("weights were asked for {asked:?} times"))
}

fn two_in_flight(engine: &dyn Engine) -> Result<(), Fault> {
    let mut program = compile(engine, &sums())?;
    let mut submit = |values: &[f32]| {
        program.submit(&feeds(&[("x", floats(values))]), &["total"]).map_err(Fault::refused("a step"))
    };
    let (first, second) = (submit(&[1.0])?, submit(&[10.0, 20.0])?);
    ensure(first != second, || "two steps share a ticket".to_string())?;
    let unknown = mlxcel_engine::Ticket(u64::MAX);
    ensure(program.collect(unknown).is_err(), || "a ticket that was never given was collected".to_string())?;
    let got = program.collect(first).map_err(Fault::refused("collecting the first"))?;
    expect(&got[0], &[1.0])?;
    let got = program.collect(second).map_err(Fault::refused("collecting the second"))?;
    expect(&got[0], &[31.0])
}

fn states(engine: &dyn Engine) -> Result<(), Fault> {
    let case = sums();
    let (mut one, mut other) = (compile(engine, &case)?, compile(engine, &case)?);
    expect(&run(&mut *one, &two(), &["total"])?[0], &[3.0])?;
    // Nothing is asked for, or something else: the state moves on all the same.
    run(&mut *one, &two(), &[])?;
    run(&mut *one, &two(), &["twice"])?;
    expect(&run(&mut *one, &two(), &["total"])?[0], &[12.0])?;
    expect(&run(&mut *other, &two(), &["total"])?[0], &[3.0])
}

/// Two states of three entries each, which are read and, by `index`, written.
fn entries() -> Case {
    let s = Sketch::new("entries");
    let index = s.input("index", HostTensor::new(&[3], &[0i32, 1, 2]));
    let x = s.input("x", HostTensor::new(&[3, 2], &[0f32; 6]));
    for (name, axis) in [("kv", "blocks"), ("recurrent", "slots")] {
        s.bind(axis, 3);
        let state = s.b().state(name, DType::F32, shape![axis, 2]);
        let next = state.scatter(index, x, mlxcel_ir::ScatterMode::Set);
        s.output(name, next);
        s.b().update(name, next);
    }
    s.finish()
}

fn copies(engine: &dyn Engine) -> Result<(), Fault> {
    let mut program = compile(engine, &entries())?;
    let step = |index: [i32; 3], x: [f32; 6]| {
        feeds(&[("index", HostTensor::new(&[3], &index)), ("x", HostTensor::new(&[3, 2], &x))])
    };
    let nothing = step([-1; 3], [0.0; 6]);
    run(&mut *program, &step([0, 1, 2], [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]), &["kv"])?;
    program.copy_state("blocks", &[(0, 2)]).map_err(Fault::refused("copying blocks"))?;
    let got = run(&mut *program, &nothing, &["kv", "recurrent"])?;
    let table =
        |t: &HostTensor, wanted: [f32; 6]| compare((0, "state"), t, &HostTensor::new(&[3, 2], &wanted), 0.0);
    table(&got[0], [1.0, 2.0, 3.0, 4.0, 1.0, 2.0])?;
    table(&got[1], [1.0, 2.0, 3.0, 4.0, 5.0, 6.0])?;
    program.copy_state("slots", &[(2, 1), (1, 0)]).map_err(Fault::refused("copying slots"))?;
    let got = run(&mut *program, &nothing, &["kv", "recurrent"])?;
    table(&got[0], [1.0, 2.0, 3.0, 4.0, 1.0, 2.0])?;
    // Pairs are copied one after the other.
    table(&got[1], [5.0, 6.0, 5.0, 6.0, 5.0, 6.0])?;
    ensure(program.copy_state("blocks", &[(0, 3)]).is_err(), || "block 3 of 3 was copied to".to_string())?;
    ensure(program.copy_state("blocks", &[(7, 0)]).is_err(), || "block 7 of 3 was copied".to_string())
}

/// The most rows that a row is tried beside.
const CROWD: usize = 64;
const WIDTH: usize = 96;
const RESULTS: [&str; 3] = ["logits", "softmax", "largest"];

/// A layer of a decoder: norm, projection, attention over a cache, packed projection and choice.
fn decoder(block_size: usize, dtype: DType, plan: &[&[usize]]) -> Case {
    let s = Sketch::new(&format!("decoder {dtype}"));
    let ragged = Ragged::new(plan, block_size);
    let batch = ragged.declare_paged(&s);
    let norm = s.normal_weight("norm", dtype, &[WIDTH]);
    let qkv = s.normal_weight("qkv", dtype, &[WIDTH + 32 + 32, WIDTH]);
    let packed = DType::Quant(QuantFormat::Affine { bits: 4, group: 32, scale: ScaleType::F32 });
    let out = s.weight("out", s.random(|r| packed::weight(r, packed, &[160, WIDTH])));
    // Drawn for the largest batch, so that each smaller one is its beginning.
    let rows = |step: usize| {
        let (all, n) = (s.normal(dtype, &[CROWD, WIDTH]).to_f64(), ragged.tokens(step));
        HostTensor::from_f64(dtype, &[n, WIDTH], &all[..n * WIDTH])
    };
    let x = s.input_as("x", shape!["tokens", WIDTH], rows(0));
    let [q, k, v] = x.rms_norm(1e-5, Some(norm)).linear(qkv, None).cut_last([WIDTH, 32, 32]);
    let spec = PagedSpec { scale: 0.25, window: None, softcap: None, sinks: false, value_dim: None };
    let heads = (q.split_last(6, 16), k.split_last(2, 16), Some(v.split_last(2, 16)));
    // Of the size that a model's have: where they reach hundreds, their own last bit is more than a softmax may be off by.
    let logits = s.b().paged_attention(heads, batch, None, 0, spec).merge_last().linear(out, None) * 0.0625;
    s.output(RESULTS[0], logits);
    s.output(RESULTS[1], logits.softmax(1));
    s.output(RESULTS[2], logits.argmax(1));
    for step in 1..plan.len() {
        let mut feeds = ragged.named(step);
        feeds.push(("x", rows(step)));
        s.step(feeds);
    }
    s.finish()
}

fn company(engine: &dyn Engine) -> Result<(), Fault> {
    // Tokens of each step for the first sequence, and how many sequences do the same beside it.
    let decode = (&[1usize][..], vec![1, 2, 7, 33, CROWD]);
    let prompt = (&[20usize, 1, 1][..], vec![1, 2, 3]);
    let is_exact = engine.caps().exact_rows;
    let slack = if is_exact { 0.0 } else { 1.0 };
    for (tokens, crowds) in [decode, prompt] {
        for dtype in [DType::F32, DType::BF16] {
            let of = |crowd: usize| first_sequence(engine, dtype, tokens, crowd);
            let alone = of(1)?;
            for &crowd in &crowds[1..] {
                for (i, (with, alone)) in of(crowd)?.iter().zip(&alone).enumerate() {
                    let name = RESULTS[i % RESULTS.len()];
                    // Of two numbers that are nearly the same, the last bits say which is larger.
                    if name == "largest" && !is_exact {
                        continue;
                    }
                    let output = format!("{name} of {dtype} in a batch of {crowd}");
                    compare((i / RESULTS.len(), &output), with, alone, slack)?;
                }
            }
        }
    }
    Ok(())
}

/// The rows of the first of `crowd` sequences in every output of every step.
fn first_sequence(
    engine: &dyn Engine,
    dtype: DType,
    tokens: &[usize],
    crowd: usize,
) -> Result<Vec<HostTensor>, Fault> {
    let steps: Vec<Vec<usize>> = tokens.iter().map(|&n| vec![n; crowd]).collect();
    let plan: Vec<&[usize]> = steps.iter().map(|s| &s[..]).collect();
    let case = decoder(engine.caps().block_size, dtype, &plan);
    let mut program = compile(engine, &case)?;
    let mut rows = vec![];
    for (step, &n) in case.steps.iter().zip(tokens) {
        for t in run(&mut *program, &step.feeds, &RESULTS)? {
            let mut shape = t.shape().to_vec();
            shape[0] = n;
            let bytes = t.bytes()[..t.bytes().len() / crowd].to_vec();
            let first = HostTensor::from_bytes(t.dtype(), shape, bytes);
            rows.push(first.ok_or_else(|| Fault::rule("an output has not one row per token"))?);
        }
    }
    Ok(rows)
}
