//! The model suite: what Hugging Face transformers computed in f32 for tiny random checkpoints, against what an
//! engine computes. One call per engine and fixture; see [`crate::models_suite`].

use std::path::{Path, PathBuf};

use mlxcel_engine::Engine;
use mlxcel_engine::weights::{Checkpoint, WeightTensor};
use mlxcel_ir::DType;
use mlxcel_models::Model;
use serde::Deserialize;

use crate::sequence::{Greedy, Runner};

/// `golden.json` of a fixture.
#[derive(Debug, Deserialize)]
pub struct Golden {
    pub family: String,
    pub cases: Vec<Case>,
}

#[derive(Debug, Deserialize)]
pub struct Case {
    pub name: String,
    pub prompt: Vec<u32>,
    pub tokens: Vec<u32>,
}

/// A fixture opened for testing.
pub struct Fixture {
    pub folder: PathBuf,
    pub golden: Golden,
    pub checkpoint: Checkpoint,
    expected: Checkpoint,
}

/// How far logits may be from the expected ones, relative to the largest of them.
pub const F32_TOLERANCE: f32 = 1e-4;

pub const BF16_TOLERANCE: f32 = 3e-2;

/// A folder of fixtures: those of `MLXCEL_FIXTURES` where tests run on another machine than the one that built them.
pub fn fixtures(kind: &str) -> PathBuf {
    let built_in = || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures");
    std::env::var_os("MLXCEL_FIXTURES").map_or_else(built_in, PathBuf::from).join(kind)
}

/// Tokens of an answer that was asked for whole, when its prompt is fed otherwise: what that leaves is read by all of them.
const AGAIN: usize = 8;

/// How thoroughly a family is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Depth {
    /// As the next, but the beginning of every answer: for tools that make each step much slower.
    Glance,
    /// Whole prompts, and all cases in one batch.
    Brief,
    /// Also prompts in chunks of five and token by token, and the older dialect of the configuration.
    Full,
}

impl Depth {
    /// Tokens of an answer that has so many.
    pub(crate) fn of(self, tokens: usize) -> usize {
        if self == Depth::Glance { tokens.min(8) } else { tokens }
    }

    /// Tokens of an answer that is asked for several times over.
    pub(crate) fn of_each(self, tokens: usize) -> usize {
        if self == Depth::Glance { tokens.min(4) } else { tokens }
    }
}

/// The folders of a family's variants. Decoders only.
pub fn variants(family: &str) -> Vec<PathBuf> {
    let folder = fixtures("golden").join(family);
    let variants = std::fs::read_dir(&folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
    let mut variants: Vec<PathBuf> = variants.map(|v| v.expect("a readable entry").path()).collect();
    variants.sort();
    variants.retain(|v| v.join("model.safetensors").exists());
    variants
}

/// Every variant of a family on an engine.
pub fn check_family(engine: &dyn Engine, family: &str, depth: Depth) {
    let variants = variants(family);
    for needed in ["f32", "bf16", "q4"] {
        assert!(variants.iter().any(|v| v.ends_with(needed)), "{family} has no {needed} fixture");
    }
    variants.iter().for_each(|folder| check_variant(engine, folder, depth));
}

pub fn check_variant(engine: &dyn Engine, folder: &Path, depth: Depth) {
    let fixture = Fixture::open(folder).at(depth);
    check_greedy(engine, &fixture, usize::MAX, F32_TOLERANCE);
    check_batched(engine, &fixture, F32_TOLERANCE);
    if depth == Depth::Full {
        let fixture = Fixture::open(folder).beginning(AGAIN);
        check_greedy(engine, &fixture, 5, F32_TOLERANCE);
        check_greedy(engine, &fixture, 1, F32_TOLERANCE);
        if let Some(older) = Fixture::older(folder) {
            check_greedy(engine, &older.beginning(AGAIN), usize::MAX, F32_TOLERANCE);
        }
    }
}

/// `fixtures/gguf/<architecture>.gguf` on an engine.
pub fn check_gguf(engine: &dyn Engine, architecture: &str, depth: Depth) {
    let fixture = Fixture::open_gguf(&fixtures("gguf"), architecture).at(depth);
    check_greedy(engine, &fixture, usize::MAX, F32_TOLERANCE);
    check_batched(engine, &fixture, F32_TOLERANCE);
}

/// Logits of the first new token with activations in bf16 against transformers in bf16. Two implementations that
/// round at different places differ by several units of bf16's last place.
pub fn check_bf16(engine: &dyn Engine, family: &str) {
    let folder = fixtures("golden").join(family);
    let weights = folder.join("bf16");
    let expected = folder.join("bf16-compute");
    let files = [
        weights.join("model.safetensors"),
        expected.join("golden.json"),
        expected.join("logits.safetensors"),
    ];
    let fixture = Fixture::from_files(&expected, files);
    let model = fixture.model_in(DType::BF16);
    for case in &fixture.golden.cases {
        let mut runner =
            Runner::new(engine, (&model, &fixture.checkpoint), 1, case.prompt.len() + 1).expect("compiles");
        let got = runner.greedy(&[&case.prompt], 1, usize::MAX).expect("runs").remove(0);
        let error = relative_error(&got.logits[0], &fixture.logits(case)[0]);
        assert!(error < BF16_TOLERANCE, "{family} {} in bf16 is off by {error:e}", case.name);
        assert!(error > 0.0, "bf16 that equals transformers bit for bit was not computed in bf16");
    }
}

impl Fixture {
    /// A folder under `fixtures/golden/<family>/`.
    pub fn open(folder: &Path) -> Fixture {
        let files =
            [folder.join("model.safetensors"), folder.join("golden.json"), folder.join("logits.safetensors")];
        Self::from_files(folder, files)
    }

    /// `fixtures/gguf/<architecture>.gguf` with what transformers computed for the same weights.
    pub fn open_gguf(folder: &Path, architecture: &str) -> Fixture {
        let file = |ending: &str| folder.join(format!("{architecture}.{ending}"));
        Self::from_files(&file("gguf"), [file("gguf"), file("json"), file("safetensors")])
    }

    fn from_files(name: &Path, [model, golden, logits]: [PathBuf; 3]) -> Fixture {
        let golden = std::fs::read(&golden).unwrap_or_else(|e| panic!("{}: {e}", golden.display()));
        let open = |path: &Path| Checkpoint::open(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        Fixture {
            golden: serde_json::from_slice(&golden).expect("the golden description is well formed"),
            checkpoint: open(&model),
            expected: open(&logits),
            folder: name.to_path_buf(),
        }
    }

    /// With as much of every answer as the depth wants.
    fn at(self, depth: Depth) -> Fixture {
        self.beginning(depth.of(usize::MAX))
    }

    /// With at most so many tokens of every answer.
    fn beginning(mut self, tokens: usize) -> Fixture {
        self.golden.cases.iter_mut().for_each(|case| case.tokens.truncate(tokens));
        self
    }

    /// The same weights with the configuration in its older dialect, if the fixture has one.
    pub fn older(folder: &Path) -> Option<Fixture> {
        let config = folder.join("config-old.json");
        if !config.exists() {
            return None;
        }
        let copy = tempfile::tempdir().expect("a temporary folder can be made");
        for name in ["model.safetensors", "golden.json", "logits.safetensors"] {
            std::fs::copy(folder.join(name), copy.path().join(name)).expect("fixtures are readable");
        }
        std::fs::copy(&config, copy.path().join("config.json")).expect("fixtures are readable");
        Some(Fixture { folder: config, ..Self::open(copy.path()) })
    }

    pub fn model(&self) -> Model {
        self.model_in(DType::F32)
    }

    pub fn model_in(&self, dtype: DType) -> Model {
        mlxcel_models::load(&self.checkpoint, dtype)
            .unwrap_or_else(|e| panic!("{}: {e}", self.folder.display()))
    }

    pub fn expected(&self, name: &str) -> WeightTensor {
        self.expected.tensor(name).unwrap_or_else(|e| panic!("{name} of {}: {e}", self.folder.display()))
    }

    /// Rows of logits for a case.
    pub fn logits(&self, case: &Case) -> Vec<Vec<f32>> {
        let t = self.expected(&case.name);
        t.to_f32().chunks(t.shape[1]).map(<[f32]>::to_vec).collect()
    }
}

/// Greedy tokens equal the expected ones and logits are within `tolerance`, however the prompt is fed.
pub fn check_greedy(engine: &dyn Engine, fixture: &Fixture, chunk: usize, tolerance: f32) {
    let model = fixture.model();
    for case in &fixture.golden.cases {
        let capacity = case.prompt.len() + case.tokens.len();
        let mut runner = Runner::new(engine, (&model, &fixture.checkpoint), 1, capacity).expect("compiles");
        let got = runner.greedy(&[&case.prompt], case.tokens.len(), chunk).expect("runs").remove(0);
        let what = format!("{} {} with chunks of {chunk}", fixture.folder.display(), case.name);
        compare(&what, &got, case, &fixture.logits(case), tolerance);
    }
}

/// All cases of a fixture together in one batch equal each alone.
pub fn check_batched(engine: &dyn Engine, fixture: &Fixture, tolerance: f32) {
    let model = fixture.model();
    let cases = &fixture.golden.cases;
    let prompts: Vec<&[u32]> = cases.iter().map(|c| c.prompt.as_slice()).collect();
    let capacity = cases.iter().map(|c| c.prompt.len() + c.tokens.len()).max().expect("a fixture has cases");
    let mut runner =
        Runner::new(engine, (&model, &fixture.checkpoint), cases.len(), capacity).expect("compiles");
    let n = cases.iter().map(|c| c.tokens.len()).min().expect("a fixture has cases");
    let got = runner.greedy(&prompts, n, usize::MAX).expect("runs");
    for (case, got) in cases.iter().zip(&got) {
        let what = format!("{} {} in a batch", fixture.folder.display(), case.name);
        compare(&what, got, case, &fixture.logits(case), tolerance);
    }
}

fn compare(what: &str, got: &Greedy, case: &Case, logits: &[Vec<f32>], tolerance: f32) {
    for (i, (row, expected)) in got.logits.iter().zip(logits).enumerate() {
        let error = relative_error(row, expected);
        assert!(
            error <= tolerance,
            "{what}: logits of token {i} are off by {error:e} (allowed {tolerance:e})"
        );
    }
    let n = got.tokens.len();
    assert_eq!(got.tokens, case.tokens[..n], "{what}: greedy tokens differ");
}

/// The largest difference over the largest expected magnitude.
pub fn relative_error(got: &[f32], expected: &[f32]) -> f32 {
    assert_eq!(got.len(), expected.len(), "as many numbers as expected");
    let scale = expected.iter().fold(0f32, |m, v| m.max(v.abs())).max(1e-30);
    let worst = got.iter().zip(expected).fold(0f32, |m, (a, b)| {
        let d = (a - b).abs();
        if d.is_nan() { f32::INFINITY } else { m.max(d) }
    });
    worst / scale
}
