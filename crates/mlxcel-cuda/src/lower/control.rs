//! Regions. A scan has a known number of rounds and is laid out round by round; both sides of an `if` are computed; only
//! `while` asks the host to look.

use mlxcel_ir::{DType, Node, Op, Value};

use super::{Frame, Lower, Result};
use crate::code::{Code, Instruction};
use crate::tape::Step;
use crate::view::{View, code, size};

impl Lower<'_> {
    pub(super) fn control(&mut self, frame: &Frame<'_>, node: &Node) -> Result<Vec<View>> {
        let x = node.inputs.iter().map(|v: &Value| self.tensor(frame, *v)).collect::<Result<Vec<_>>>()?;
        match node.op {
            Op::If => {
                let yes = self.region(&node.regions[0], &x[1..])?;
                let no = self.region(&node.regions[1], &x[1..])?;
                yes.iter().zip(&no).map(|(a, b)| self.select(&x[0], a, b)).collect()
            }
            Op::While { carried } => self.repeat(node, &x, carried),
            Op::Scan { carried, scanned } => self.scan(node, &x, carried, scanned),
            _ => Err(crate::unsupported(&node.op, &node.types)),
        }
    }

    fn select(&mut self, condition: &View, yes: &View, no: &View) -> Result<View> {
        let out = self.fresh(yes.dtype, &yes.shape)?;
        let (flag, dtype) = (code(DType::Bool) as u8, code(yes.dtype) as u8);
        let load = |number: u8, dtype: u8| Instruction {
            op: 1,
            dtype,
            from: dtype,
            operands: [number, 0, 0],
            to: number,
        };
        let pick = Instruction { op: 3, dtype, from: flag, operands: [0, 1, 2], to: 0 };
        let program = Code {
            instructions: vec![load(0, flag), load(1, dtype), load(2, dtype), pick],
            constants: vec![],
            is_wide: size(yes.dtype) == 8,
            registers: 3,
        };
        self.interpret(&program, &out, &[condition.clone(), yes.clone(), no.clone()])?;
        Ok(out)
    }

    fn repeat(&mut self, node: &Node, x: &[View], carried: usize) -> Result<Vec<View>> {
        let state = x[..carried].iter().map(|v| self.copied(v)).collect::<Result<Vec<_>>>()?;
        let arguments: Vec<View> = state.iter().chain(&x[carried..]).cloned().collect();
        // The state stays in use for as long as the loop runs, so nothing is written over it in place.
        state.iter().for_each(|v| self.roots[v.root].uses += 1);
        let begin = self.steps.len();
        let flag = self.region(&node.regions[0], &arguments)?.remove(0);
        let test = self.steps.len();
        self.steps.push(Step::Test { flag: (flag.root, flag.byte_offset()), otherwise: 0 });
        let next = self.region(&node.regions[1], &arguments)?;
        // All of them aside first: one may be what another was.
        let next = next.iter().map(|v| self.copied(v)).collect::<Result<Vec<_>>>()?;
        for (to, from) in state.iter().zip(&next) {
            self.copy(to, from)?;
        }
        self.steps.push(Step::Jump { to: begin });
        let end = self.steps.len();
        if let Step::Test { otherwise, .. } = &mut self.steps[test] {
            *otherwise = end;
        }
        state.iter().for_each(|v| self.roots[v.root].uses -= 1);
        Ok(state)
    }

    fn scan(&mut self, node: &Node, x: &[View], carried: usize, scanned: usize) -> Result<Vec<View>> {
        let length = x[carried].shape[0];
        let mut state = x[..carried].to_vec();
        let outputs = node.types[carried..].iter().map(|t| self.fresh_like(t)).collect::<Result<Vec<_>>>()?;
        for i in 0..length {
            let slices = x[carried..carried + scanned].iter().map(|v| row(v, i));
            let arguments: Vec<View> =
                state.iter().cloned().chain(slices).chain(x[carried + scanned..].iter().cloned()).collect();
            let mut results = self.region(&node.regions[0], &arguments)?;
            let made = results.split_off(carried);
            for (out, v) in outputs.iter().zip(&made) {
                self.copy(&row(out, i), v)?;
            }
            state = results;
        }
        Ok(state.into_iter().chain(outputs).collect())
    }
}

/// Slice `i` of the first axis.
fn row(v: &View, i: usize) -> View {
    let offset = v.offset + i as i64 * v.strides[0];
    View { shape: v.shape[1..].to_vec(), strides: v.strides[1..].to_vec(), offset, ..v.clone() }
}
