//! The op suite. Two judges: the table compares an engine with the reference engine at shapes that real models
//! have as well as at odd ones; the fixtures compare it with what torch computed, so that a graph that is wrong
//! everywhere in the same way does not pass. A third part checks the rules of the seam itself.
//!
//! An engine is added by one line in `tests/ops.rs`. Nothing here knows a concrete engine except the reference.

mod case;
mod golden;
mod judge;
mod packed;
mod ragged;
mod random;
mod seam;
mod table;

use mlxcel_engine::Engine;

pub use case::{Case, Step, Weights};
pub use judge::{Failure, Fault, Number, Report};

/// Ops that belong together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Group {
    Elementwise,
    Movement,
    /// Reductions, sorting, top-k and argmax.
    Order,
    /// Softmax, norms and rope.
    Norm,
    Contraction,
    /// Products of f32 with matrices in packed formats.
    Packed,
    /// Products of 16-bit numbers with them.
    PackedHalves,
    /// Their rows, and experts that are packed.
    PackedRows,
    Attention,
    Paged,
    /// Routing and sampling.
    Choice,
    Recurrent,
    /// Pooling and Fourier transforms.
    Signals,
    Control,
}

impl Group {
    pub const ALL: [Group; 14] = [
        Group::Elementwise,
        Group::Movement,
        Group::Order,
        Group::Norm,
        Group::Contraction,
        Group::Packed,
        Group::PackedHalves,
        Group::PackedRows,
        Group::Attention,
        Group::Paged,
        Group::Choice,
        Group::Recurrent,
        Group::Signals,
        Group::Control,
    ];
}

/// Everything: the fixtures, the table and the seam.
pub fn run(engine: &dyn Engine) -> Report {
    let mut report = against_torch(engine);
    for group in Group::ALL {
        report.merge(against_reference(engine, group));
    }
    report.merge(seam(engine));
    report
}

/// The fixtures: what torch and numpy computed.
pub fn against_torch(engine: &dyn Engine) -> Report {
    judge_all(engine, &golden::cases(engine.caps().block_size))
}

/// The table, judged by the reference engine.
pub fn against_reference(engine: &dyn Engine, group: Group) -> Report {
    judge_all(engine, &table(group, engine.caps().block_size))
}

/// The rules that every program keeps: feeds, outputs, states, and rows that do not depend on their company.
pub fn seam(engine: &dyn Engine) -> Report {
    seam::check(engine)
}

/// The cases of a group, for KV blocks of `block_size` tokens.
pub fn table(group: Group, block_size: usize) -> Vec<Case> {
    table::cases(group, block_size)
}

fn judge_all(engine: &dyn Engine, cases: &[Case]) -> Report {
    let mut report = Report::new(engine);
    for case in cases {
        report.record(&case.name, judge::judge(engine, case));
    }
    report
}
