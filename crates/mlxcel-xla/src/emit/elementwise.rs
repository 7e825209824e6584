//! One element at a time.

use mlxcel_ir::{BinaryOp, CompareOp, DType, Op, UnaryOp};

use super::{Emitter, Val};
use crate::error::XlaError;

impl Emitter {
    pub(super) fn elementwise(&mut self, op: &Op, x: &[&Val], out: &Val) -> Result<(), XlaError> {
        match op {
            Op::Unary(op) => self.unary(*op, x[0], out),
            Op::Cast(_) => self.cast(x[0], out),
            Op::Binary(op) => {
                let (a, b) = (self.spread(x[0], &out.sizes)?, self.spread(x[1], &out.sizes)?);
                self.binary(*op, &a, &b, out)
            }
            Op::Compare(op) => {
                let (a, b) = (self.spread(x[0], &out.sizes)?, self.spread(x[1], &out.sizes)?);
                self.compare(*op, &a, &b, out)
            }
            Op::Select => {
                let [p, a, b] = [x[0], x[1], x[2]].map(|v| self.spread(v, &out.sizes));
                self.select(&p?, (&a?, &b?), out)
            }
            other => unreachable!("{} is not elementwise", other.name()),
        }
    }

    fn unary(&mut self, op: UnaryOp, x: &Val, out: &Val) -> Result<(), XlaError> {
        let name = match op {
            UnaryOp::Neg => "negate",
            // Numbers without a sign are their own magnitude, and their sign is whether they are zero.
            UnaryOp::Abs if !x.dtype.is_signed() => return self.convert_to(x, out),
            UnaryOp::Sign if !x.dtype.is_signed() => {
                let zero = self.number(x.dtype, &x.sizes, 0.0)?;
                let some = self.compared(CompareOp::Ne, x, &zero)?;
                return self.convert_to(&some, out);
            }
            UnaryOp::Abs => "abs",
            UnaryOp::Sign => "sign",
            UnaryOp::Exp => "exponential",
            UnaryOp::Log => "log",
            UnaryOp::Log1p => "log_plus_one",
            UnaryOp::Sqrt => "sqrt",
            UnaryOp::Rsqrt => "rsqrt",
            UnaryOp::Sin => "sine",
            UnaryOp::Cos => "cosine",
            UnaryOp::Tanh => "tanh",
            UnaryOp::Sigmoid => "logistic",
            UnaryOp::Floor => "floor",
            UnaryOp::Ceil => "ceil",
            UnaryOp::Round => "round_nearest_even",
            UnaryOp::Not => "not",
            UnaryOp::Erf => {
                let ty = out.ty()?;
                self.line(format_args!("{} = chlo.erf {} : {ty} -> {ty}", out.name, x.name));
                return Ok(());
            }
        };
        self.same(name, &[x], out)
    }

    fn cast(&mut self, x: &Val, out: &Val) -> Result<(), XlaError> {
        let (from, to) = (x.dtype, out.dtype);
        // Beyond the range of a narrow integer a device may do as it likes; through 64 bits it wraps.
        let narrow = to.is_int() && to.size().is_some_and(|n| n < 8);
        if from.is_float() && narrow {
            let wide = self.convert(x, DType::I64)?;
            return self.convert_to(&wide, out);
        }
        self.convert_to(x, out)
    }

    pub(super) fn binary(&mut self, op: BinaryOp, a: &Val, b: &Val, out: &Val) -> Result<(), XlaError> {
        let signed = a.dtype.is_signed();
        let name = match op {
            BinaryOp::Add => "add",
            BinaryOp::Sub => "subtract",
            BinaryOp::Mul => "multiply",
            BinaryOp::Div | BinaryOp::Rem if a.dtype.is_int() => return self.whole_division(op, a, b, out),
            BinaryOp::Div => "divide",
            BinaryOp::Rem => "remainder",
            BinaryOp::Pow => "power",
            BinaryOp::Max => "maximum",
            BinaryOp::Min => "minimum",
            BinaryOp::And => "and",
            BinaryOp::Or => "or",
            BinaryOp::Xor => "xor",
            BinaryOp::Shl => "shift_left",
            BinaryOp::Shr if signed => "shift_right_arithmetic",
            BinaryOp::Shr => "shift_right_logical",
        };
        self.same(name, &[a, b], out)
    }

    /// Division by zero gives zero, for the quotient and for the rest.
    fn whole_division(&mut self, op: BinaryOp, a: &Val, b: &Val, out: &Val) -> Result<(), XlaError> {
        let zero = self.number(a.dtype, &a.sizes, 0.0)?;
        let one = self.number(a.dtype, &a.sizes, 1.0)?;
        let by_zero = self.compared(CompareOp::Eq, b, &zero)?;
        let safe = self.temporary(a.dtype, &a.sizes);
        self.select(&by_zero, (&one, b), &safe)?;
        let result = self.temporary(a.dtype, &a.sizes);
        self.same(if op == BinaryOp::Div { "divide" } else { "remainder" }, &[a, &safe], &result)?;
        self.select(&by_zero, (&zero, &result), out)
    }

    pub(super) fn compared(&mut self, op: CompareOp, a: &Val, b: &Val) -> Result<Val, XlaError> {
        let out = self.temporary(DType::Bool, &a.sizes);
        self.compare(op, a, b, &out)?;
        Ok(out)
    }

    fn compare(&mut self, op: CompareOp, a: &Val, b: &Val, out: &Val) -> Result<(), XlaError> {
        let direction = match op {
            CompareOp::Eq => "EQ",
            CompareOp::Ne => "NE",
            CompareOp::Lt => "LT",
            CompareOp::Le => "LE",
            CompareOp::Gt => "GT",
            CompareOp::Ge => "GE",
        };
        let kind = match a.dtype {
            d if d.is_float() => "FLOAT",
            d if d.is_signed() => "SIGNED",
            _ => "UNSIGNED",
        };
        let (left, right, to) = (a.ty()?, b.ty()?, out.ty()?);
        self.line(format_args!(
            "{} = stablehlo.compare {direction}, {}, {}, {kind} : ({left}, {right}) -> {to}",
            out.name, a.name, b.name
        ));
        Ok(())
    }

    pub(super) fn select(&mut self, p: &Val, (a, b): (&Val, &Val), out: &Val) -> Result<(), XlaError> {
        let (condition, ty) = (p.ty()?, out.ty()?);
        self.line(format_args!(
            "{} = stablehlo.select {}, {}, {} : {condition}, {ty}",
            out.name, p.name, a.name, b.name
        ));
        Ok(())
    }
}
