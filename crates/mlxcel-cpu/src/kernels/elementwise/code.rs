//! From an elementwise node or a fused region to straight-line code.

use mlxcel_engine::EngineError;
use mlxcel_ir::{Activation, BinaryOp, CompareOp, DType, Graph, Node, Op, Type, UnaryOp, Value};

use super::gated::Gated;
use crate::lanes::Class;
use crate::stored::Stored;
use crate::view::View;

/// A block of numbers: which class, and which of its registers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Reg {
    pub(super) class: Class,
    pub(super) index: usize,
}

/// What an instruction does. Its operands have the class that its result or its kind implies.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Kind {
    Unary(UnaryOp),
    Binary(BinaryOp),
    Compare(CompareOp),
    Select,
    Cast,
    Activation(Activation),
}

#[derive(Clone, Debug)]
pub(super) struct Instruction {
    pub(super) kind: Kind,
    pub(super) inputs: Vec<Reg>,
    pub(super) output: Reg,
    /// The type that the result is rounded or wrapped to.
    pub(super) dtype: DType,
    /// Whether operands are 64-bit unsigned numbers, which lie in `i64` registers but are ordered otherwise.
    pub(super) unsigned: bool,
}

/// A compiled region with one result.
#[derive(Debug)]
pub(crate) struct Code {
    /// Where each operand is loaded, constants last.
    pub(super) loads: Vec<Reg>,
    constants: Vec<Stored>,
    pub(super) instructions: Vec<Instruction>,
    pub(super) result: Reg,
    /// How many registers of each class: `f32`, `f64`, `i64`.
    pub(super) counts: [usize; 3],
    /// The faster way to the same results, where there is one.
    pub(super) gated: Option<Gated>,
}

impl Code {
    /// Code for a node that is elementwise or fused.
    pub(crate) fn compile(node: &Node, operands: &[Type]) -> Result<Code, EngineError> {
        let mut c = Compiler::default();
        let inputs: Vec<Reg> = operands.iter().map(|t| c.register(t.dtype)).collect();
        let mut code = Code {
            loads: inputs.clone(),
            constants: vec![],
            instructions: vec![],
            result: Reg { class: Class::F32, index: 0 },
            counts: [0; 3],
            gated: None,
        };
        code.result = match node.regions.first() {
            Some(region) => c.region(region, &inputs, &mut code)?,
            None => c.node(node, inputs, operands)?,
        };
        code.instructions = c.instructions;
        code.counts = c.counts;
        code.gated = Gated::of(&code, operands);
        Ok(code)
    }

    /// The activation, and the number of the operand that it is of, where the other operand multiplies it.
    pub(crate) fn as_gated(&self) -> Option<(Activation, usize)> {
        self.gated.map(|gated| (gated.kind, gated.gate))
    }

    /// The operands and then the constants.
    pub(crate) fn operands<'a>(&'a self, given: &[View<'a>]) -> impl Iterator<Item = View<'a>> {
        given.iter().copied().chain(self.constants.iter().map(|c| c.view()))
    }

    /// A rough measure of the work per element.
    pub(crate) fn cost(&self) -> usize {
        self.instructions.len().max(1)
    }
}

#[derive(Default)]
struct Compiler {
    instructions: Vec<Instruction>,
    counts: [usize; 3],
}

impl Compiler {
    fn register(&mut self, dtype: DType) -> Reg {
        let class = Class::of(dtype);
        let count = &mut self.counts[class as usize];
        *count += 1;
        Reg { class, index: *count - 1 }
    }

    fn region(&mut self, region: &Graph, inputs: &[Reg], code: &mut Code) -> Result<Reg, EngineError> {
        let mut given = inputs.iter();
        let mut registers: Vec<Reg> = Vec::with_capacity(region.nodes().len());
        for node in region.nodes() {
            let find = |v: &Value| registers[v.node as usize];
            let r = match &node.op {
                Op::Input { .. } => *given.next().expect("the verifier counted the arguments"),
                Op::Constant(t) => {
                    let r = self.register(t.dtype());
                    code.loads.push(r);
                    code.constants.push(Stored::of_host(t)?);
                    r
                }
                _ => {
                    let operands: Vec<Type> = node.inputs.iter().map(|v| region.ty(*v).clone()).collect();
                    self.node(node, node.inputs.iter().map(find).collect(), &operands)?
                }
            };
            registers.push(r);
        }
        let (_, result) = &region.outputs()[0];
        Ok(registers[result.node as usize])
    }

    fn node(&mut self, node: &Node, inputs: Vec<Reg>, operands: &[Type]) -> Result<Reg, EngineError> {
        let kind = match &node.op {
            Op::Unary(u) => Kind::Unary(*u),
            Op::Binary(b) => Kind::Binary(*b),
            Op::Compare(c) => Kind::Compare(*c),
            Op::Select => Kind::Select,
            Op::Cast(_) => Kind::Cast,
            Op::Activation(a) => Kind::Activation(*a),
            other => unreachable!("{} is not elementwise", other.name()),
        };
        if operands.iter().any(|t| t.dtype.is_quant()) {
            return Err(crate::unsupported(&node.op, operands));
        }
        let dtype = node.types[0].dtype;
        let output = self.register(dtype);
        let unsigned = operands.last().is_some_and(|t| t.dtype == DType::U64);
        self.instructions.push(Instruction { kind, inputs, output, dtype, unsigned });
        Ok(output)
    }
}
