//! Methods and operators for primitives.

use std::ops::{Add, BitAnd, BitOr, BitXor, Div, Mul, Neg, Not, Rem, Shl, Shr, Sub};

use super::Tensor;
use crate::dtype::DType;
use crate::op::{BinaryOp, CompareOp, Op, ReduceOp, ScatterMode, UnaryOp};
use crate::shape::{Dim, Shape};

macro_rules! unary {
    ($($name:ident => $op:ident),*) => {$(
        pub fn $name(self) -> Tensor<'g> {
            self.builder.one(Op::Unary(UnaryOp::$op), &[self])
        }
    )*};
}

macro_rules! binary {
    ($($name:ident => $op:ident),*) => {$(
        pub fn $name(self, other: Tensor<'g>) -> Tensor<'g> {
            self.builder.one(Op::Binary(BinaryOp::$op), &[self, other])
        }
    )*};
}

macro_rules! compare {
    ($($name:ident => $op:ident),*) => {$(
        pub fn $name(self, other: Tensor<'g>) -> Tensor<'g> {
            self.builder.one(Op::Compare(CompareOp::$op), &[self, other])
        }
    )*};
}

macro_rules! operator {
    ($($trait:ident, $method:ident => $op:ident);*) => {$(
        impl<'g> $trait for Tensor<'g> {
            type Output = Tensor<'g>;
            fn $method(self, other: Tensor<'g>) -> Tensor<'g> {
                self.builder.one(Op::Binary(BinaryOp::$op), &[self, other])
            }
        }
        /// With a number, which takes the tensor's type.
        impl<'g> $trait<f64> for Tensor<'g> {
            type Output = Tensor<'g>;
            fn $method(self, other: f64) -> Tensor<'g> {
                let other = self.number(other);
                self.builder.one(Op::Binary(BinaryOp::$op), &[self, other])
            }
        }
    )*};
}
operator!(Add, add => Add; Sub, sub => Sub; Mul, mul => Mul; Div, div => Div; Rem, rem => Rem;
          BitAnd, bitand => And; BitOr, bitor => Or; BitXor, bitxor => Xor; Shl, shl => Shl; Shr, shr => Shr);

impl<'g> Neg for Tensor<'g> {
    type Output = Tensor<'g>;
    fn neg(self) -> Tensor<'g> {
        self.builder.one(Op::Unary(UnaryOp::Neg), &[self])
    }
}

impl<'g> Not for Tensor<'g> {
    type Output = Tensor<'g>;
    fn not(self) -> Tensor<'g> {
        self.builder.one(Op::Unary(UnaryOp::Not), &[self])
    }
}

impl<'g> Tensor<'g> {
    unary!(abs => Abs, sign => Sign, exp => Exp, log => Log, log1p => Log1p, sqrt => Sqrt, rsqrt => Rsqrt,
           sin => Sin, cos => Cos, tanh => Tanh, erf => Erf, sigmoid => Sigmoid, floor => Floor, ceil => Ceil,
           round => Round);
    binary!(pow => Pow, max => Max, min => Min);
    compare!(eq => Eq, ne => Ne, lt => Lt, le => Le, gt => Gt, ge => Ge);

    /// A scalar of this tensor's type.
    pub fn number(self, v: f64) -> Tensor<'g> {
        self.builder.scalar_of(self.dtype(), v)
    }

    /// `self` is the condition.
    pub fn select(self, if_true: Tensor<'g>, if_false: Tensor<'g>) -> Tensor<'g> {
        self.builder.one(Op::Select, &[self, if_true, if_false])
    }

    /// A cast; nothing if the type is right already.
    pub fn cast(self, dtype: DType) -> Tensor<'g> {
        if self.dtype() == dtype { self } else { self.builder.one(Op::Cast(dtype), &[self]) }
    }

    pub fn reshape(self, shape: Shape) -> Tensor<'g> {
        if self.shape() == shape { self } else { self.builder.one(Op::Reshape { shape }, &[self]) }
    }

    pub fn broadcast(self, shape: Shape) -> Tensor<'g> {
        if self.shape() == shape { self } else { self.builder.one(Op::Broadcast { shape }, &[self]) }
    }

    pub fn transpose(self, perm: &[usize]) -> Tensor<'g> {
        self.builder.one(Op::Transpose { perm: perm.to_vec() }, &[self])
    }

    /// Inserts an axis of length 1.
    pub fn unsqueeze(self, axis: usize) -> Tensor<'g> {
        let mut shape = self.shape();
        shape.insert(axis.min(shape.len()), Dim::fixed(1));
        self.reshape(shape)
    }

    /// Splits the last axis in two.
    pub fn split_last(self, outer: usize, inner: usize) -> Tensor<'g> {
        let mut shape = self.shape();
        shape.pop();
        shape.extend([Dim::fixed(outer), Dim::fixed(inner)]);
        self.reshape(shape)
    }

    /// Merges the last two axes.
    pub fn merge_last(self) -> Tensor<'g> {
        let mut shape = self.shape();
        if let (Some(inner), Some(outer)) = (shape.pop(), shape.pop()) {
            shape.push(outer.times(&inner));
        }
        self.reshape(shape)
    }

    pub fn slice(self, axis: usize, start: impl Into<Dim>, end: impl Into<Dim>) -> Tensor<'g> {
        let op = Op::Slice { axis, start: start.into(), end: end.into(), step: 1 };
        self.builder.one(op, &[self])
    }

    pub fn slice_step(self, axis: usize, start: usize, end: usize, step: usize) -> Tensor<'g> {
        let op = Op::Slice { axis, start: Dim::fixed(start), end: Dim::fixed(end), step };
        self.builder.one(op, &[self])
    }

    /// Cuts the last axis into pieces of the given widths.
    pub fn cut_last<const N: usize>(self, widths: [usize; N]) -> [Tensor<'g>; N] {
        let axis = self.rank().saturating_sub(1);
        let mut start = 0;
        widths.map(|w| {
            start += w;
            self.slice(axis, start - w, start)
        })
    }

    pub fn pad(self, low: &[usize], high: &[usize], value: Tensor<'g>) -> Tensor<'g> {
        self.builder.one(Op::Pad { low: low.to_vec(), high: high.to_vec() }, &[self, value])
    }

    pub fn dynamic_slice(self, starts: Tensor<'g>, sizes: Shape) -> Tensor<'g> {
        self.builder.one(Op::DynamicSlice { sizes }, &[self, starts])
    }

    pub fn update_slice(self, update: Tensor<'g>, starts: Tensor<'g>) -> Tensor<'g> {
        self.builder.one(Op::UpdateSlice, &[self, update, starts])
    }

    pub fn gather(self, indices: Tensor<'g>, axis: usize) -> Tensor<'g> {
        self.builder.one(Op::Gather { axis }, &[self, indices])
    }

    pub fn take_along(self, indices: Tensor<'g>, axis: usize) -> Tensor<'g> {
        self.builder.one(Op::TakeAlong { axis }, &[self, indices])
    }

    pub fn scatter(self, indices: Tensor<'g>, updates: Tensor<'g>, mode: ScatterMode) -> Tensor<'g> {
        self.builder.one(Op::Scatter { mode }, &[self, indices, updates])
    }

    pub fn reduce(self, op: ReduceOp, axes: &[usize]) -> Tensor<'g> {
        self.builder.one(Op::Reduce { op, axes: axes.to_vec() }, &[self])
    }

    /// A reduction that leaves an axis of length 1, ready to broadcast.
    pub fn reduce_keep(self, op: ReduceOp, axis: usize) -> Tensor<'g> {
        self.reduce(op, &[axis]).unsqueeze(axis)
    }

    /// The mean along `axis`, which stays with length 1.
    pub fn mean_keep(self, axis: usize) -> Tensor<'g> {
        let count = match self.dim(axis).as_fixed() {
            Some(n) => self.number(n as f64),
            None => self.builder.size(&self.dim(axis)).cast(self.dtype()),
        };
        self.reduce_keep(ReduceOp::Sum, axis) / count
    }

    pub fn cumulative(self, op: ReduceOp, axis: usize) -> Tensor<'g> {
        self.builder.one(Op::Cumulative { op, axis }, &[self])
    }

    /// Sorted values and where they were.
    pub fn sort_descending(self, axis: usize) -> [Tensor<'g>; 2] {
        self.builder.results(Op::Sort { axis, descending: true }, &[self])
    }

    pub fn sort_ascending(self, axis: usize) -> [Tensor<'g>; 2] {
        self.builder.results(Op::Sort { axis, descending: false }, &[self])
    }

    /// Contraction over any axes, in the type of the operands.
    pub fn dot_general(
        self,
        other: Tensor<'g>,
        batch: &[(usize, usize)],
        contract: &[(usize, usize)],
    ) -> Tensor<'g> {
        let op = Op::DotGeneral { batch: batch.to_vec(), contract: contract.to_vec(), dtype: self.dtype() };
        self.builder.one(op, &[self, other])
    }

    pub fn dequantize(self, dtype: DType) -> Tensor<'g> {
        if self.dtype().is_quant() {
            self.builder.one(Op::Dequantize { dtype }, &[self])
        } else {
            self.cast(dtype)
        }
    }
}
