//! What the modes promise: traces are counted, failures are named, caches are written where they lie; and what is said
//! when MLX is not there or not the right one.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::PathBuf;
use std::sync::Mutex;

use mlxcel_engine::sampling::SamplingParams;
use mlxcel_engine::{Batch, Engine, EngineError, Feeds, Logits, NoWeights, Program, SequenceState};
use mlxcel_ir::step::StepInputs;
use mlxcel_ir::{Bindings, Builder, DType, Graph, HostTensor, PagedSpec, ScatterMode, shape};
use mlxcel_mlx::{Device, Home, MlxEngine, MlxError, Mode, Options};

fn path(name: &str) -> PathBuf {
    let found = std::env::var_os(name);
    found.unwrap_or_else(|| panic!("{name} is not set: run `cargo xtask test -p mlxcel-mlx`")).into()
}

fn home() -> Home {
    Home::new(path("MLXCEL_MLX_HOME"), path("MLXCEL_MLX_SHIM"))
}

fn open(mode: Mode) -> MlxEngine {
    MlxEngine::open(Options { home: home(), device: Some(Device::Cpu), mode }).unwrap()
}

fn compile(engine: &MlxEngine, graph: &Graph, dims: &[(&str, usize)]) -> Box<dyn Program> {
    let dims: Bindings = dims.iter().map(|(n, s)| (n.to_string(), *s)).collect();
    engine.compile(graph, &NoWeights, &dims).unwrap()
}

fn step(program: &mut dyn Program, feeds: &[(&str, HostTensor)]) -> Result<Vec<HostTensor>, EngineError> {
    let mut all = Feeds::new();
    feeds.iter().for_each(|(name, t)| all.insert(name, t.clone()));
    let ticket = program.submit(&all, &["y"])?;
    program.collect(ticket)
}

/// `y = tanh(x) · 2 + the number of steps so far`.
fn counting() -> Graph {
    let b = Builder::new();
    let x = b.input("x", DType::F32, shape!["n"]);
    let count = b.state("count", DType::F32, shape![1]);
    let next = count + 1.0;
    b.output("y", x.tanh() * 2.0 + next);
    b.update("count", next);
    b.finish().unwrap()
}

fn numbers(n: usize) -> HostTensor {
    HostTensor::new(&[n], &vec![0f32; n])
}

#[test]
fn compiled_steps_are_traced_once_for_each_size() {
    let engine = open(Mode::Compiled);
    let mut program = compile(&engine, &counting(), &[]);
    for (i, (n, traces)) in [(3, 1), (3, 1), (5, 2), (3, 2), (5, 2)].into_iter().enumerate() {
        let y = step(&mut *program, &[("x", numbers(n))]).unwrap().remove(0);
        assert_eq!(y.to_f64(), vec![(i + 1) as f64; n]);
        assert_eq!(engine.traces(), traces, "after step {i}");
    }
}

#[test]
fn other_modes_never_trace() {
    for mode in [Mode::Lazy, Mode::Eager] {
        let engine = open(mode);
        let mut program = compile(&engine, &counting(), &[]);
        for _ in 0..3 {
            step(&mut *program, &[("x", numbers(4))]).unwrap();
        }
        assert_eq!(engine.traces(), 0, "{mode}");
        assert_eq!(engine.caps().name, "mlx");
        assert!(engine.caps().device.ends_with(&mode.to_string()));
    }
}

#[test]
fn loops_run_on_the_host_over_bodies_that_are_traced_once() {
    let b = Builder::new();
    let (x, limit) = (b.input("x", DType::F32, shape![2]), b.input("limit", DType::I32, shape![]));
    let start = b.scalar(0i32);
    let out = b.while_loop(&[x, start], &[limit], |_, c| c[1].lt(c[2]), |_, c| vec![c[0] * 2.0, c[1] + 1.0]);
    b.output("y", out[0]);
    let graph = b.finish().unwrap();
    let engine = open(Mode::Compiled);
    assert!(engine.remarks(&graph).iter().any(|r| r.contains("host")));
    let mut program = compile(&engine, &graph, &[]);
    for limit in [3i32, 0, 5] {
        let feeds = [("x", HostTensor::new(&[2], &[1f32, 3.0])), ("limit", HostTensor::scalar(limit))];
        let y = step(&mut *program, &feeds).unwrap().remove(0);
        assert_eq!(y.to_f64(), [2f64.powi(limit), 3.0 * 2f64.powi(limit)]);
    }
    assert_eq!(engine.traces(), 2, "the condition and the body");
}

/// The most bytes that steps with these feeds took beside what was in use after a first one.
fn taken(engine: &MlxEngine, program: &mut dyn Program, steps: &[Feeds]) -> u64 {
    let mut run = |feeds: &Feeds| {
        let ticket = program.submit(feeds, &["y"]).unwrap();
        program.collect(ticket).unwrap()
    };
    run(&steps[0]);
    engine.reset_peak();
    let (before, _) = engine.memory();
    steps[1..].iter().for_each(|feeds| drop(run(feeds)));
    engine.memory().1.saturating_sub(before)
}

/// Attention of tokens to themselves and those before them, as the output `y`.
fn attend(b: &Builder) {
    let inputs = StepInputs::declare(b);
    let numbers = inputs.tokens.cast(DType::F32).reshape(shape!["tokens", 1, 1]);
    let x = numbers.broadcast(shape!["tokens", 8, 64]) * 0.5;
    let spec = PagedSpec { scale: 1.0, window: None, softcap: None, sinks: false, value_dim: None };
    let out = b.paged_attention((x, x, Some(x)), inputs.paged(), None, 0, spec);
    b.output("y", out.gather(inputs.logit_rows, 0));
}

/// A step of one token.
fn token(block: usize, position: usize) -> Feeds {
    let mut batch = Batch::new(block);
    let sequence = SequenceState { blocks: vec![3], slot: 0, known_len: position + 1 };
    batch.push(&sequence, &[7], position, Logits::Last, &SamplingParams::default());
    batch.feeds()
}

/// Held by tests with large arrays: some measure memory, and MLX counts that of the whole process.
static LARGE: Mutex<()> = Mutex::new(());

/// Caches of 64 MiB, much more than what tests with small arrays use meanwhile.
#[test]
fn caches_are_written_where_they_lie() {
    let _alone = LARGE.lock();
    let b = Builder::new();
    attend(&b);
    let graph = b.finish().unwrap();
    for mode in [Mode::Lazy, Mode::Compiled] {
        let engine = open(mode);
        let block = engine.caps().block_size;
        let mut program = compile(&engine, &graph, &[("blocks", 1024), ("block", block), ("slots", 1)]);
        let taken = taken(&engine, &mut *program, &[0, 1, 2, 3].map(|position| token(block, position)));
        assert!(taken < 24 << 20, "{mode}: steps took {taken} bytes beside caches of {}", 64 << 20);
    }
}

/// A state that no fused layer writes, in lazy mode. Compiled code does not know whether any row is inside, keeps the first
/// one for that, and so copies: see the documentation.
#[test]
fn a_state_is_written_where_it_lies() {
    let _alone = LARGE.lock();
    let b = Builder::new();
    let (index, x) = (b.input("index", DType::I32, shape!["n"]), b.input("x", DType::F32, shape!["n", 1024]));
    let state = b.state("kv", DType::F32, shape!["blocks", 1024]);
    let next = state.scatter(index, x, ScatterMode::Set);
    b.output("y", next.gather(index, 0));
    b.update("kv", next);
    let graph = b.finish().unwrap();
    let engine = open(Mode::Lazy);
    let mut program = compile(&engine, &graph, &[("blocks", 16 << 10)]);
    let feeds = |n: i32| {
        let mut feeds = Feeds::new();
        feeds.insert("index", HostTensor::new(&[1], &[n]));
        feeds.insert("x", HostTensor::new(&[1, 1024], &[n as f32; 1024]));
        feeds
    };
    let taken = taken(&engine, &mut *program, &[1, 2, 3, 4].map(feeds));
    assert!(taken < 32 << 20, "steps took {taken} bytes beside a state of {}", 64 << 20);
    let ticket = program.submit(&feeds(9), &["y"]).unwrap();
    assert_eq!(program.collect(ticket).unwrap()[0].to_f64(), vec![9.0; 1024]);
}

fn refused(home: Home, device: Option<Device>) -> MlxError {
    MlxEngine::open(Options { home, device, mode: Mode::Lazy }).unwrap_err()
}

#[test]
fn a_missing_library_says_what_to_run() {
    let error = refused(Home::new("/nowhere", "/nowhere/shim.so"), None).to_string();
    assert!(error.contains("/nowhere") && error.contains("mlxcel engine install mlx-cpu"), "{error}");
    let error = refused(Home { shim: "/nowhere/shim.so".into(), ..home() }, None).to_string();
    assert!(error.contains("/nowhere/shim.so") && error.contains("cargo xtask shim mlx"), "{error}");
}

#[test]
fn a_library_that_is_none_is_refused_by_its_name() {
    let shim = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(shim.path(), b"not a library").unwrap();
    let error = refused(Home { shim: shim.path().to_path_buf(), ..home() }, None);
    assert!(matches!(&error, MlxError::Load { path, .. } if path == shim.path()), "{error}");
    let needs = vec![PathBuf::from("/nowhere/libcudnn.so.9")];
    let error = refused(Home { needs, ..home() }, None).to_string();
    assert!(error.contains("libcudnn.so.9"), "{error}");
}

#[test]
fn a_gpu_that_is_not_there_is_refused() {
    let engine = open(Mode::Lazy);
    assert_eq!(engine.device(), Device::Cpu);
    assert!(matches!(refused(home(), Some(Device::Gpu)), MlxError::NoGpu { .. }));
}

#[test]
fn an_eager_failure_names_its_node_and_the_program_goes_on() {
    let _alone = LARGE.lock();
    let b = Builder::new();
    let x = b.input("x", DType::F32, shape!["n"]);
    // More memory than any machine has, for n of sixteen million: a square of them has no address.
    let square = x.reshape(shape!["n", 1]) * (x + 1.0).reshape(shape![1, "n"]);
    b.output("y", (square + 1.0).reduce(mlxcel_ir::ReduceOp::Sum, &[0, 1]));
    let graph = b.finish().unwrap();
    let mut program = compile(&open(Mode::Eager), &graph, &[]);
    let error = step(&mut *program, &[("x", numbers(1 << 24))]).unwrap_err().to_string();
    assert!(error.contains("(node "), "{error}");
    let y = step(&mut *program, &[("x", numbers(2))]).unwrap().remove(0);
    assert_eq!(y.to_f64(), [4.0]);
}

/// A step that fails behind its attention has used up its caches, unless every op waits for the one before.
#[test]
fn states_are_lost_with_a_step_that_had_begun() {
    let _alone = LARGE.lock();
    let b = Builder::new();
    attend(&b);
    let x = b.input("x", DType::F32, shape!["n"]);
    let square = x.reshape(shape!["n", 1]) * (x + 1.0).reshape(shape![1, "n"]);
    b.output("sum", (square + 1.0).reduce(mlxcel_ir::ReduceOp::Sum, &[0, 1]));
    let graph = b.finish().unwrap();
    for (mode, loses) in [(Mode::Lazy, true), (Mode::Eager, false)] {
        let engine = open(mode);
        let block = engine.caps().block_size;
        let mut program = compile(&engine, &graph, &[("blocks", 8), ("block", block), ("slots", 1)]);
        let run = |program: &mut dyn Program, n: usize| {
            let mut feeds = token(block, 0);
            feeds.insert("x", numbers(n));
            let ticket = program.submit(&feeds, &["y", "sum"])?;
            program.collect(ticket)
        };
        run(&mut *program, 2).unwrap();
        assert!(!program.is_lost(), "{mode}");
        run(&mut *program, 1 << 24).unwrap_err();
        assert_eq!(program.is_lost(), loses, "{mode}");
        let results = [run(&mut *program, 2).map(drop), program.copy_state("blocks", &[(3, 4)])];
        for result in results {
            let reason = result.err().and_then(|e| std::error::Error::source(&e).map(ToString::to_string));
            assert_eq!(reason.is_some_and(|text| text.contains("the states were lost")), loses, "{mode}");
        }
    }
}

/// A library of C that is made for a test.
#[cfg(target_os = "linux")]
fn library(folder: &std::path::Path, name: &str, source: &str, flags: &[&str]) -> PathBuf {
    let (code, made) = (folder.join(name).with_extension("c"), folder.join(name));
    std::fs::write(&code, source).unwrap();
    let mut compiler = std::process::Command::new("cc");
    compiler.args(["-shared", "-fPIC", "-o"]).arg(&made).arg(&code).arg("-L").arg(folder).args(flags);
    assert!(compiler.status().unwrap().success());
    made
}

#[cfg(target_os = "linux")]
#[test]
fn a_missing_library_of_cuda_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let cudnn = library(folder.path(), "libcudnn_of_a_test.so", "int cudnn(void) { return 9; }", &[]);
    let source = "int cudnn(void); int mlx(void) { return cudnn(); }";
    let needs = library(folder.path(), "libneeds.so", source, &["-lcudnn_of_a_test"]);
    std::fs::remove_file(cudnn).unwrap();
    let error = refused(Home { needs: vec![needs], ..home() }, None);
    assert!(
        matches!(&error, MlxError::Needs { library, .. } if library == "libcudnn_of_a_test.so"),
        "{error}"
    );
    assert!(error.to_string().contains("mlxcel engine install mlx-cuda13"), "{error}");
}

/// Every entry of the shim, of which only the first few are called before the rest is trusted.
#[cfg(target_os = "linux")]
fn imitation(abi: u32, built: &str) -> String {
    const OTHERS: [&str; 21] = [
        "op_name",
        "error",
        "device_count",
        "device_info",
        "memory",
        "reset_peak",
        "group_join",
        "context_new",
        "context_free",
        "array_new",
        "array_read",
        "array_free",
        "program_new",
        "program_add_state",
        "program_copy_state",
        "program_is_broken",
        "program_free",
        "code_new",
        "code_traces",
        "code_free",
        "run",
    ];
    let others: String = OTHERS.iter().map(|name| format!("void mlxcel_{name}(void) {{}}\n")).collect();
    format!(
        "unsigned mlxcel_abi(void) {{ return {abi}; }}\n\
         const char* mlxcel_built_version(void) {{ return \"{built}\"; }}\n\
         const char* mlxcel_loaded_version(void) {{ return \"0.32.4\"; }}\n{others}"
    )
}

#[cfg(target_os = "linux")]
#[test]
fn a_shim_for_another_version_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let other = library(folder.path(), "libother.so", &imitation(3, "0.31.0"), &[]);
    let error = refused(Home { shim: other, ..home() }, None);
    assert!(
        matches!(&error, MlxError::Version { built, loaded, .. } if built == "0.31.0" && loaded == "0.32.4")
    );
    assert!(error.to_string().contains("cargo xtask shim mlx"), "{error}");
    let older = library(folder.path(), "libolder.so", &imitation(1, "0.32.4"), &[]);
    let error = refused(Home { shim: older, ..home() }, None);
    assert!(matches!(error, MlxError::Abi { found: 1, wanted: 3, .. }), "{error}");
}
