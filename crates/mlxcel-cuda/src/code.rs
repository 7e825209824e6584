//! Elementwise regions as the short programs that the elementwise kernels interpret. The numbers of ops are those of
//! `kernels/elementwise.cu`.

use mlxcel_ir::{Activation, BinaryOp, CompareOp, DType, Graph, Node, Op, Type, UnaryOp, Value};

use crate::view::code as type_code;

/// One instruction, as the kernel reads it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Instruction {
    pub(crate) op: u8,
    pub(crate) dtype: u8,
    pub(crate) from: u8,
    pub(crate) operands: [u8; 3],
    pub(crate) to: u8,
}

/// A program over the elements of its operands.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Code {
    pub(crate) instructions: Vec<Instruction>,
    pub(crate) constants: Vec<i64>,
    /// Whether anything in it needs 64 bits.
    pub(crate) is_wide: bool,
    pub(crate) registers: usize,
}

pub(crate) const INPUTS_MAX: usize = 12;
pub(crate) const CONSTANTS_MAX: usize = 24;
pub(crate) const INSTRUCTIONS_MAX: usize = 96;
const REGISTERS_MAX: usize = 32;

const CONSTANT: u8 = 0;
const LOAD: u8 = 1;
const CAST: u8 = 2;
const SELECT: u8 = 3;
const UNARY: u8 = 10;
const BINARY: u8 = 30;
const COMPARE: u8 = 50;
const ACTIVATION: u8 = 60;

/// The number of an activation in kernels.
pub(crate) fn activation(kind: Activation) -> u8 {
    match kind {
        Activation::Relu => 0,
        Activation::Relu2 => 1,
        Activation::Silu => 2,
        Activation::Gelu => 3,
        Activation::GeluTanh => 4,
        Activation::QuickGelu => 5,
        Activation::Softplus => 6,
    }
}

fn unary(op: UnaryOp) -> u8 {
    use UnaryOp::*;
    let all =
        [Neg, Abs, Sign, Exp, Log, Log1p, Sqrt, Rsqrt, Sin, Cos, Tanh, Erf, Sigmoid, Floor, Ceil, Round, Not];
    all.iter().position(|o| *o == op).expect("every op is listed") as u8
}

fn binary(op: BinaryOp) -> u8 {
    use BinaryOp::*;
    let all = [Add, Sub, Mul, Div, Rem, Pow, Max, Min, And, Or, Xor, Shl, Shr];
    all.iter().position(|o| *o == op).expect("every op is listed") as u8
}

fn compare(op: CompareOp) -> u8 {
    use CompareOp::*;
    [Eq, Ne, Lt, Le, Gt, Ge].iter().position(|o| *o == op).expect("every op is listed") as u8
}

impl Code {
    /// The program of one elementwise node or of a fused one; `None` if it is too large for the kernel.
    pub(crate) fn compile(node: &Node, operands: &[Type]) -> Option<Code> {
        let region = node.regions.first();
        let code = match region {
            Some(region) => Self::of_region(region)?,
            None => Self::of_node(node, operands)?,
        };
        let fits = operands.len() <= INPUTS_MAX
            && code.constants.len() <= CONSTANTS_MAX
            && code.instructions.len() <= INSTRUCTIONS_MAX
            && code.registers <= REGISTERS_MAX;
        fits.then_some(code)
    }

    fn of_node(node: &Node, operands: &[Type]) -> Option<Code> {
        let mut b = Assembler::default();
        let inputs: Vec<usize> =
            operands.iter().enumerate().map(|(i, t)| b.push(LOAD, t.dtype, t.dtype, vec![], i)).collect();
        let types: Vec<DType> = operands.iter().map(|t| t.dtype).collect();
        b.node(node, &inputs, &types)?;
        Some(b.finish())
    }

    fn of_region(region: &Graph) -> Option<Code> {
        let [(_, end)] = region.outputs() else { return None };
        let mut b = Assembler::default();
        let mut values: Vec<usize> = vec![];
        let mut arguments = 0;
        for node in region.nodes() {
            let dtype = node.types[0].dtype;
            let value = match &node.op {
                Op::Input { .. } => {
                    arguments += 1;
                    b.push(LOAD, dtype, dtype, vec![], arguments - 1)
                }
                Op::Constant(t) if t.len() == 1 => {
                    let bits = if dtype.is_float() { t.to_f64()[0].to_bits() as i64 } else { t.to_i64()[0] };
                    b.constants.push(bits);
                    b.push(CONSTANT, dtype, dtype, vec![], b.constants.len() - 1)
                }
                _ => {
                    let inputs: Vec<usize> = node.inputs.iter().map(|v| values[v.node as usize]).collect();
                    let types: Vec<DType> = node.inputs.iter().map(|v| region.ty(*v).dtype).collect();
                    b.node(node, &inputs, &types)?
                }
            };
            values.push(value);
        }
        b.end(values[end.node as usize]);
        Some(b.finish())
    }
}

/// A line before registers are known.
struct Line {
    op: u8,
    dtype: DType,
    from: DType,
    uses: Vec<usize>,
    /// Which input or constant.
    number: usize,
}

#[derive(Default)]
struct Assembler {
    lines: Vec<Line>,
    constants: Vec<i64>,
    result: usize,
}

impl Assembler {
    fn push(&mut self, op: u8, dtype: DType, from: DType, uses: Vec<usize>, number: usize) -> usize {
        self.lines.push(Line { op, dtype, from, uses, number });
        self.result = self.lines.len() - 1;
        self.result
    }

    fn end(&mut self, value: usize) {
        self.result = value;
    }

    fn node(&mut self, node: &Node, inputs: &[usize], types: &[DType]) -> Option<usize> {
        let op = match &node.op {
            Op::Unary(u) => UNARY + unary(*u),
            Op::Binary(b) => BINARY + binary(*b),
            Op::Compare(c) => COMPARE + compare(*c),
            Op::Activation(a) => ACTIVATION + activation(*a),
            Op::Select => SELECT,
            Op::Cast(_) => CAST,
            _ => return None,
        };
        Some(self.push(op, node.types[0].dtype, *types.first()?, inputs.to_vec(), 0))
    }

    /// Gives every value a register, which is free again after its last use. The result is computed last.
    fn finish(mut self) -> Code {
        // The kernel stores what the last instruction gave.
        self.lines.truncate(self.result + 1);
        let mut last: Vec<usize> = (0..self.lines.len()).collect();
        for (i, line) in self.lines.iter().enumerate() {
            line.uses.iter().for_each(|&u| last[u] = i);
        }
        let (mut free, mut registers, mut of) = (vec![], 0u8, vec![0u8; self.lines.len()]);
        let mut code = Code { constants: self.constants, ..Code::default() };
        for (i, line) in self.lines.iter().enumerate() {
            let wide = |d: DType| matches!(d, DType::F64 | DType::I64 | DType::U64);
            code.is_wide |= wide(line.dtype) || wide(line.from);
            let mut operands = [line.number as u8, 0, 0];
            for (place, &u) in operands.iter_mut().zip(&line.uses) {
                *place = of[u];
            }
            let mut done: Vec<usize> = line.uses.iter().copied().filter(|&u| last[u] == i).collect();
            done.sort_unstable();
            done.dedup();
            free.extend(done.into_iter().map(|u| of[u]));
            of[i] = free.pop().unwrap_or_else(|| {
                registers = registers.saturating_add(1);
                registers - 1
            });
            if last[i] == i {
                free.push(of[i]);
            }
            let (dtype, from) = (type_code(line.dtype) as u8, type_code(line.from) as u8);
            code.instructions.push(Instruction { op: line.op, dtype, from, operands, to: of[i] });
        }
        code.registers = registers as usize;
        code
    }
}

/// Whether a fused region is an activation of one operand times another: `(activation, gate, factor)` as operand
/// numbers.
pub(crate) fn gated(region: &Graph) -> Option<(u8, usize, usize)> {
    let [(_, end)] = region.outputs() else { return None };
    let product = region.node(*end);
    let inputs: Vec<u32> = region.inputs().map(|(i, _)| i).collect();
    if product.op != Op::Binary(BinaryOp::Mul) || inputs.len() != 2 || region.nodes().len() != 4 {
        return None;
    }
    let argument = |v: Value| inputs.iter().position(|&i| i == v.node);
    let (a, b) = (product.inputs[0], product.inputs[1]);
    [(a, b), (b, a)].into_iter().find_map(|(activated, factor)| {
        let Op::Activation(kind) = region.node(activated).op else { return None };
        Some((activation(kind), argument(region.node(activated).inputs[0])?, argument(factor)?))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use mlxcel_ir::{Builder, passes, shape};

    fn fused(build: impl Fn(&Builder)) -> Graph {
        let b = Builder::new();
        build(&b);
        passes::fuse_elementwise(&b.finish().unwrap()).unwrap()
    }

    #[test]
    fn registers_are_used_again_and_the_result_comes_last() {
        let g = fused(|b| {
            let (x, y) =
                (b.input("x", DType::F32, shape!["tokens"]), b.input("y", DType::F32, shape!["tokens"]));
            b.output("z", ((x + y) * 2.0).tanh() - x);
        });
        let node = g.nodes().iter().find(|n| n.op == Op::Fused).unwrap();
        let types: Vec<Type> = node.inputs.iter().map(|v| g.ty(*v).clone()).collect();
        let code = Code::compile(node, &types).unwrap();
        assert!(code.registers <= 3 && !code.is_wide, "{code:?}");
        let last = code.instructions.last().unwrap();
        assert_eq!(last.op, BINARY + binary(BinaryOp::Sub));
    }

    #[test]
    fn an_activated_gate_times_a_factor_is_recognised() {
        let g = fused(|b| {
            let (x, y) =
                (b.input("x", DType::BF16, shape!["tokens"]), b.input("y", DType::BF16, shape!["tokens"]));
            b.output("z", x.activation(Activation::Silu) * y);
        });
        let node = g.nodes().iter().find(|n| n.op == Op::Fused).unwrap();
        assert_eq!(gated(&node.regions[0]), Some((2, 0, 1)));
    }
}
