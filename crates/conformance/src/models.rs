//! The model suite: what Hugging Face transformers computed in f32 for tiny random checkpoints, against what an
//! engine computes. One call per engine and fixture; see `tests/models.rs`.

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

/// The folder of all golden fixtures.
pub fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/golden")
}

impl Fixture {
    pub fn open(folder: &Path) -> Fixture {
        let read = |name: &str| {
            std::fs::read(folder.join(name)).unwrap_or_else(|e| panic!("{name} in {folder:?}: {e}"))
        };
        let golden = serde_json::from_slice(&read("golden.json")).expect("golden.json is well formed");
        let open = |path: &Path| Checkpoint::open(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        Fixture {
            golden,
            checkpoint: open(&folder.join("model.safetensors")),
            expected: open(&folder.join("logits.safetensors")),
            folder: folder.to_path_buf(),
        }
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
    let got = runner.greedy(&prompts, n, usize::MAX >> 1).expect("runs");
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
