//! The op table: one file per group. A case feeds seeded random numbers; what is right is for judges to say.

mod attention;
mod choice;
mod contraction;
mod control;
mod elementwise;
mod integers;
mod movement;
mod norm;
mod order;
mod packed;
mod paged;
mod recurrent;
mod signals;

use mlxcel_ir::DType;

use super::Group;
use super::case::{Case, Sketch};

/// The types that models compute in.
const FLOATS: [DType; 3] = [DType::F32, DType::F16, DType::BF16];

/// Collects cases.
struct Table {
    cases: Vec<Case>,
    block_size: usize,
}

impl Table {
    fn case(&mut self, name: &str, draw: impl FnOnce(&Sketch)) {
        let sketch = Sketch::new(name);
        draw(&sketch);
        self.cases.push(sketch.finish());
    }

    /// The same case in every type that models compute in.
    fn floats(&mut self, name: &str, draw: impl Fn(&Sketch, DType)) {
        for dtype in FLOATS {
            self.case(&format!("{name} {dtype}"), |s| draw(s, dtype));
        }
    }
}

pub(super) fn cases(group: Group, block_size: usize) -> Vec<Case> {
    let mut table = Table { cases: vec![], block_size };
    let t = &mut table;
    match group {
        Group::Elementwise => {
            elementwise::add(t);
            integers::add(t);
        }
        Group::Movement => movement::add(t),
        Group::Order => order::add(t),
        Group::Norm => norm::add(t),
        Group::Contraction => contraction::add(t),
        Group::Packed => packed::add(t),
        Group::PackedHalves => packed::add_halves(t),
        Group::PackedRows => packed::add_rows(t),
        Group::Attention => attention::add(t),
        Group::Paged => paged::add(t),
        Group::Choice => choice::add(t),
        Group::Recurrent => recurrent::add(t),
        Group::Signals => signals::add(t),
        Group::Control => control::add(t),
    }
    table.cases
}
