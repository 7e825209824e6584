//! Ops on packed matrices, which are several arrays: MLX's own kernels where they hold the format, else the numbers made
//! from the codes in the step.

use mlxcel_engine::EngineError;
use mlxcel_ir::{DType, Node, Op};

use super::Instr;
use super::frame::{Frame, Slot};
use super::ops::unsupported;
use crate::handle::dtype_code;
use crate::repack::{Kernel, Stored};

impl<'a> Frame<'a> {
    /// The results of an op with a packed operand; `None` if it has none.
    pub(super) fn packed_op(&mut self, node: &'a Node) -> Result<Option<Vec<Slot>>, EngineError> {
        let packed = |v: &mlxcel_ir::Value| matches!(self.slot(*v), Slot::Packed(..));
        if !node.inputs.iter().any(packed) {
            return Ok(None);
        }
        let slots: Vec<Slot> = node.inputs.iter().map(|v| self.slot(*v).clone()).collect();
        let result = match &node.op {
            Op::Concat { axis: 0 } => self.concat(&slots),
            Op::Dequantize { dtype } => Slot::Plain(self.numbers(&slots[0], *dtype)),
            Op::Embedding { dtype } => {
                let Slot::Packed(stored, regs) = &slots[0] else {
                    return Err(unsupported(self, &node.op, node));
                };
                let ids = self.reg(node.inputs[1]);
                let rows = regs.iter().map(|r| self.one(Instr::Gather, &[*r, ids], &[0])).collect();
                Slot::Plain(self.numbers(&Slot::Packed(*stored, rows), *dtype))
            }
            Op::Linear { bias } => self.product(node, &slots, *bias, Instr::QuantizedLinear),
            Op::ExpertLinear { bias } => self.product(node, &slots, *bias, Instr::QuantizedExpertLinear),
            other => return Err(unsupported(self, other, node)),
        };
        Ok(Some(vec![result]))
    }

    /// Array by array along the first axis.
    fn concat(&mut self, slots: &[Slot]) -> Slot {
        let Slot::Packed(stored, first) = &slots[0] else {
            unreachable!("operands of a concat have one type")
        };
        let part = |i: usize| -> Vec<i64> {
            let register = |s: &Slot| match s {
                Slot::Packed(_, regs) => regs[i],
                Slot::Plain(r) => *r,
            };
            slots.iter().map(register).collect()
        };
        let regs = (0..first.len()).map(|i| self.one(Instr::Concat, &part(i), &[0])).collect();
        Slot::Packed(*stored, regs)
    }

    /// The matrix as plain numbers.
    fn numbers(&mut self, slot: &Slot, dtype: DType) -> i64 {
        match slot {
            Slot::Plain(r) => self.one(Instr::Cast, &[*r], &[dtype_code(dtype)]),
            Slot::Packed(Stored::Kernel(k), regs) => {
                self.one(Instr::Dequantize, regs, &[&k.words()[..], &[dtype_code(dtype)]].concat())
            }
            Slot::Packed(Stored::Grouped { group, .. }, regs) => {
                self.one(Instr::DequantizeGrouped, regs, &[*group as i64, dtype_code(dtype)])
            }
            Slot::Packed(Stored::Plain, _) => unreachable!("plain arrays are not packed"),
        }
    }

    /// A linear layer, or one of chosen experts, by a packed matrix; `x, w, …, bias?`.
    fn product(&mut self, node: &Node, slots: &[Slot], bias: bool, instr: Instr) -> Slot {
        let Slot::Plain(x) = slots[0] else { unreachable!("activations are plain") };
        let rest = slots[2..].iter().map(|s| match s {
            Slot::Plain(r) => *r,
            Slot::Packed(..) => unreachable!("only the matrix is packed"),
        });
        let rest: Vec<i64> = rest.collect();
        if let Slot::Packed(Stored::Kernel(k), regs) = &slots[1] {
            let inputs = [&[x], &regs[..], &rest].concat();
            return Slot::Plain(self.one(instr, &inputs, &[&k.words()[..], &[i64::from(bias)]].concat()));
        }
        let w = self.numbers(&slots[1], self.graph.ty(node.inputs[0]).dtype);
        let plain = if instr == Instr::QuantizedLinear { Instr::Linear } else { Instr::ExpertLinear };
        Slot::Plain(self.one(plain, &[&[x, w], &rest[..]].concat(), &[i64::from(bias)]))
    }
}

impl Kernel {
    fn words(self) -> [i64; 3] {
        [i64::from(self.bits), i64::from(self.group), i64::from(self.fp4)]
    }
}
