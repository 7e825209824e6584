//! Tiny models of several families through the scheduler: the tokens that transformers chose, in any company, found in
//! the cache or after preemption; and with a seed, the same tokens as alone.

use std::collections::BTreeMap;

use mlxcel_engine::{Engine, Program};
use mlxcel_ir::{Bindings, DType};
use mlxcel_sched::{Draft, Event, Limits, Request, RequestId, Runner, Sampling, Speculate, Traits};

use crate::models::{Depth, Fixture, fixtures};

/// Models of every kind.
pub const KINDS: [&str; 7] = [
    "llama/f32",
    "gemma2/f32",
    "deepseek_v3/f32",
    "gpt_oss/f32",
    "mamba/f32",
    "llama/rope-dynamic",
    "phi3/rope-longrope",
];

/// Models that are drawn from with seeds.
pub const SEEDED: [&str; 3] = ["llama/f32", "mamba/f32", "llama/rope-dynamic"];

/// Models whose answers are compared to the last bit.
pub const EXACT: [&str; 6] =
    ["qwen2/f32", "llama/bf16", "llama/q4", "mamba/bf16", "qwen3_moe/bf16", "phi3/rope-longrope"];

/// A runner with room for so many tokens.
fn runner(engine: &dyn Engine, fixture: &Fixture, capacity: usize) -> Runner {
    runner_in(engine, fixture, DType::F32, capacity)
}

fn runner_in(engine: &dyn Engine, fixture: &Fixture, dtype: DType, capacity: usize) -> Runner {
    let (program, limits, traits) = compile(engine, fixture, dtype, capacity);
    Runner::new(program, limits, traits)
}

fn compile(
    engine: &dyn Engine,
    fixture: &Fixture,
    dtype: DType,
    capacity: usize,
) -> (Box<dyn Program>, Limits, Traits) {
    let model = fixture.model_in(dtype);
    let block_size = engine.caps().block_size;
    let limits = Limits {
        blocks: capacity.div_ceil(block_size),
        block_size,
        slots: 16,
        batch_tokens_max: 48,
        sequences_max: 4,
        queue_max: 100,
    };
    let sizes = [("blocks", limits.blocks), ("block", block_size), ("slots", limits.slots)];
    let dims = Bindings::from(sizes.map(|(name, size)| (name.to_string(), size)));
    let program = engine.compile(&model.graph, &fixture.checkpoint, &dims).expect("compiles");
    let has_state = |axis: &str| {
        let mut states = model.graph.states();
        states.any(|(_, node)| node.types[0].shape.first().and_then(|d| d.as_symbol()) == Some(axis))
    };
    let traits = Traits {
        max_context: 512,
        vocab_size: model.built.vocab_size,
        is_recurrent: has_state("slots"),
        keeps_cache: has_state("blocks"),
        recompute_past: model.built.recompute_past,
        lengths_matter_past: model.built.lengths_matter_past,
    };
    (program, limits, traits)
}

/// Asks all at once and waits: the tokens of each, and how many of its prompt were found.
fn ask(runner: &mut Runner, requests: Vec<Request>) -> Vec<(Vec<u32>, usize)> {
    let ids: Vec<RequestId> = requests.into_iter().map(|r| runner.admit(r).expect("it is fine")).collect();
    let mut told: BTreeMap<RequestId, (Vec<u32>, usize)> = BTreeMap::new();
    while !runner.is_idle() {
        for event in runner.step() {
            let told = told.entry(event.id()).or_default();
            match event {
                Event::Prefilled { cached, .. } => told.1 = cached,
                Event::Token { token, .. } => told.0.push(token),
                Event::Finished { .. } => {}
                Event::Failed { error, .. } => panic!("{error}"),
            }
        }
        runner.scheduler().assert_integrity(None);
    }
    ids.iter().map(|id| told.remove(id).expect("every request is heard of")).collect()
}

/// The prompts of a fixture, twice, so that some meet in the cache.
fn requests(fixture: &Fixture, tokens_max: usize, change: impl Fn(&mut Request, u32)) -> Vec<Request> {
    let twice = fixture.golden.cases.iter().chain(&fixture.golden.cases).enumerate();
    let made = twice.map(|(n, case)| {
        let mut request = Request::new(case.prompt.clone());
        request.max_tokens = Some(case.tokens.len().min(tokens_max));
        change(&mut request, n as u32);
        request
    });
    made.collect()
}

/// The tokens of a fixture through a scheduler with room for so many, with and without guesses.
pub fn check_golden(engine: &dyn Engine, family: &str, capacity: usize, tokens_max: usize) -> Runner {
    let fixture = Fixture::open(&fixtures("golden").join(family));
    let mut runner = runner(engine, &fixture, capacity);
    for speculate in [Speculate::Off, Speculate::Lookup { ngram: 2, tokens: 4 }] {
        if speculate != Speculate::Off && family.starts_with("mamba") {
            continue;
        }
        let told = ask(&mut runner, requests(&fixture, tokens_max, |r, _| r.speculate = speculate));
        let twice = fixture.golden.cases.iter().chain(&fixture.golden.cases);
        for (case, (tokens, _)) in twice.zip(told) {
            let expected = &case.tokens[..case.tokens.len().min(tokens_max)];
            assert_eq!(tokens, expected, "{family} {} {speculate:?}", case.name);
        }
    }
    runner
}

/// A model answers as transformers does, without being preempted.
pub fn check_kind(engine: &dyn Engine, family: &str, depth: Depth) {
    let runner = check_golden(engine, family, 2000, depth.of(usize::MAX));
    let stats = runner.stats();
    let found = stats.tokens_cached > 0;
    // What is past the length from which rotations depend on it is never shared.
    assert!(found || family.contains("rope-dynamic"), "{family}: {stats:?}");
    assert_eq!(stats.preemptions, 0, "{family}");
    assert_eq!((stats.blocks_used, stats.slots_used), (0, 0));
}

/// A model whose sequences are preempted answers as transformers does.
pub fn check_preempted(engine: &dyn Engine, family: &str, depth: Depth) {
    // Short answers need less room to run out of it.
    let (capacity, tokens_max) = if depth == Depth::Glance { (160, 16) } else { (240, usize::MAX) };
    let stats = check_golden(engine, family, capacity, tokens_max).stats();
    assert!(stats.preemptions > 0 || family == "mamba/f32", "{family}: {stats:?}");
}

/// A seed draws the same tokens alone, in company and from the cache.
pub fn check_seeds(engine: &dyn Engine, family: &str, depth: Depth) {
    let tokens_max = depth.of_each(30);
    let fixture = Fixture::open(&fixtures("golden").join(family));
    let warm = |r: &mut Request, n: u32| {
        r.sampling = Sampling { temperature: 0.8, top_p: 0.9, seed: n, ..Sampling::default() };
        if n % 2 == 1 {
            r.sampling.repetition_penalty = 1.2;
        }
    };
    let company = ask(&mut runner(engine, &fixture, 240), requests(&fixture, tokens_max, warm));
    let mut kept = runner(engine, &fixture, 2000);
    for (n, request) in requests(&fixture, tokens_max, warm).into_iter().enumerate() {
        let alone = ask(&mut runner(engine, &fixture, 2000), vec![request]).remove(0).0;
        assert_eq!(company[n].0, alone, "{family} {n} in company");
        let again = requests(&fixture, tokens_max, warm).swap_remove(n);
        assert_eq!(ask(&mut kept, vec![again]).remove(0).0, alone, "{family} {n} from the cache");
    }
}

/// Guesses change no token at any temperature.
pub fn check_guesses(engine: &dyn Engine, depth: Depth) {
    let tokens_max = depth.of(40);
    let open = |name: &str| Fixture::open(&fixtures("golden").join(name));
    let (target, rounded) = (open("llama/f32"), open("llama/bf16"));
    let warm = |r: &mut Request, n: u32| {
        let temperature = [0.0, 0.7, 1.3][n as usize % 3];
        r.sampling = Sampling { temperature, seed: n, ..Sampling::default() };
    };
    let expected: Vec<_> = ask(&mut runner(engine, &target, 2000), requests(&target, tokens_max, warm));
    let (program, limits, traits) = compile(engine, &target, DType::F32, 400);
    let (draft, _, draft_traits) = compile(engine, &rounded, DType::F32, 400);
    let draft = Draft { program: draft, traits: draft_traits };
    let mut guessing = Runner::new(program, limits, traits).with_draft(draft).expect("they go together");
    let told = ask(
        &mut guessing,
        requests(&target, tokens_max, |r, n| {
            warm(r, n);
            r.speculate = match n % 2 {
                0 => Speculate::Draft { tokens: 3 },
                _ => Speculate::Lookup { ngram: 2, tokens: 3 },
            };
        }),
    );
    for (n, (told, expected)) in told.iter().zip(&expected).enumerate() {
        assert_eq!(told.0, expected.0, "request {n}");
    }
    let stats = guessing.stats();
    // The same weights, rounded, are mostly right.
    assert!(stats.tokens_guessed_right as usize > tokens_max, "{stats:?}");
    assert!((stats.steps as usize) < 10 + 7 * tokens_max / 2, "{stats:?}");
}

/// An answer to the last bit: tokens, their log-probabilities and those of the likeliest others.
type Exactly = Vec<(u32, u32, Vec<(u32, u32)>)>;

/// Asks at once and waits: the answers to the last bit, and how many tokens of each prompt were found.
fn ask_exactly(runner: &mut Runner, prompts: &[Vec<u32>], tokens_max: usize) -> Vec<(Exactly, usize)> {
    let mut ids = vec![];
    for (n, prompt) in prompts.iter().enumerate() {
        let sampling = Sampling { temperature: 0.8, seed: 3, ..Sampling::default() };
        let request = Request {
            max_tokens: Some(tokens_max),
            logprobs: Some(5),
            sampling,
            ..Request::new(prompt.clone())
        };
        // Later ones come first, so that it is the first ones that give up their blocks.
        ids.push(runner.admit(Request { priority: n as i32, ..request }).expect("it is fine"));
    }
    let mut told: BTreeMap<RequestId, (Exactly, usize)> = BTreeMap::new();
    while !runner.is_idle() {
        for event in runner.step() {
            let told = told.entry(event.id()).or_default();
            match event {
                Event::Prefilled { cached, .. } => told.1 = cached,
                Event::Token { token, logprobs, .. } => {
                    let logprobs = logprobs.expect("they were asked for");
                    let top = logprobs.top.iter().map(|(t, l)| (*t, l.to_bits())).collect();
                    told.0.push((token, logprobs.chosen.to_bits(), top));
                }
                Event::Finished { .. } => {}
                Event::Failed { error, .. } => panic!("{error}"),
            }
        }
    }
    ids.iter().map(|id| told.remove(id).expect("every request is heard of")).collect()
}

/// An answer is the same to the last bit alone, in company, from the cache, after preemption, and as a turn of a
/// conversation whose earlier turns were answered before, with activations of a type.
pub fn check_bits(engine: &dyn Engine, dtype: DType, family: &str, depth: Depth) {
    let tokens_max = depth.of_each(40);
    let fixture = Fixture::open(&fixtures("golden").join(family));
    let vocabulary = fixture.model().built.vocab_size as u32;
    let make = |seed: u32, len: u32| (0..len).map(|i| (i * i + 7 * i + 31 * seed) % vocabulary).collect();
    let alone = |prompt: &Vec<u32>| {
        ask_exactly(&mut runner_in(engine, &fixture, dtype, 2000), std::slice::from_ref(prompt), tokens_max)
            .remove(0)
            .0
    };
    // A prompt in the middle of a block, one at its end, and short ones for company.
    let mut prompts: Vec<Vec<u32>> = vec![make(1, 37), make(2, 48), make(3, 5), make(4, 70)];
    let mut expected: Vec<Exactly> = prompts.iter().map(alone).collect();
    // The next turn: what was asked, what was answered, and a question.
    for turn in 0..2 {
        let answer = expected[turn].iter().map(|(token, ..)| *token);
        let next = prompts[turn].iter().copied().chain(answer).chain(make(9, 12)).collect();
        expected.push(alone(&next));
        prompts.push(next);
    }
    let mut kept = runner_in(engine, &fixture, dtype, 4000);
    for round in ["new", "from the cache"] {
        for (n, prompt) in prompts.iter().enumerate() {
            let (told, cached) = ask_exactly(&mut kept, std::slice::from_ref(prompt), tokens_max).remove(0);
            assert_eq!(told, expected[n], "{family}: {n} {round}, {cached} tokens found");
            assert!(
                round == "new" || cached > 0 || prompt.len() < 17 || !shares(&fixture, prompt),
                "{family}: {n}"
            );
        }
    }
    for (what, capacity) in [("in company", 2000), ("with little room", 240)] {
        let mut runner = runner_in(engine, &fixture, dtype, capacity);
        for _ in 0..2 {
            for (n, (told, _)) in ask_exactly(&mut runner, &prompts, tokens_max).into_iter().enumerate() {
                assert_eq!(told, expected[n], "{family}: {n} {what}");
            }
        }
        // Beginnings of answers may have room.
        if depth != Depth::Glance {
            let is_preempted = runner.stats().preemptions > 0;
            assert_eq!(is_preempted, capacity == 240 && family != "mamba/bf16", "{family} {what}");
        }
    }
}

/// Whether what was computed for a prompt may serve another at all.
fn shares(fixture: &Fixture, prompt: &[u32]) -> bool {
    fixture.model().built.lengths_matter_past.is_none_or(|n| prompt.len() <= n)
}
