//! The operations. Primitives are what every engine must run; composites are named patterns that an engine may run
//! natively and that otherwise decompose (see [`crate::decompose`]). Operand order and result types are written
//! beside each op and enforced by [`crate::infer`].

use serde::{Deserialize, Serialize};

use crate::dtype::DType;
use crate::shape::{Dim, Shape};
use crate::tensor::HostTensor;

/// What a node computes. Elementwise operands broadcast as in NumPy; nothing is promoted: operands agree in type.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Op {
    // ---- leaves ----
    /// Fed at every step. `pad` fills the tail when an engine pads a symbolic axis to a bucket.
    Input {
        name: String,
        dtype: DType,
        shape: Shape,
        pad: i64,
    },
    /// A parameter: the named checkpoint tensors laid end to end along the first axis.
    Weight {
        name: String,
        dtype: DType,
        shape: Shape,
        pieces: Vec<String>,
    },
    /// What the engine keeps between steps; zero at first. Replaced by the graph's update of the same name.
    State {
        name: String,
        dtype: DType,
        shape: Shape,
    },
    Constant(HostTensor),
    /// `0, 1, 2, …` along `axis`.
    Iota {
        dtype: DType,
        shape: Shape,
        axis: usize,
    },
    /// The value of a dimension as an `i32` scalar.
    Size {
        dim: Dim,
    },

    // ---- elementwise ----
    Unary(UnaryOp),
    Binary(BinaryOp),
    /// Two operands to `bool`.
    Compare(CompareOp),
    /// `(condition, if_true, if_false)`.
    Select,
    Cast(DType),

    // ---- movement ----
    Reshape {
        shape: Shape,
    },
    Broadcast {
        shape: Shape,
    },
    Transpose {
        perm: Vec<usize>,
    },
    Slice {
        axis: usize,
        start: Dim,
        end: Dim,
        step: usize,
    },
    Concat {
        axis: usize,
    },
    /// `(x, value)`: `low[i]` and `high[i]` copies of the scalar around axis `i`.
    Pad {
        low: Vec<usize>,
        high: Vec<usize>,
    },
    /// `(x, starts i32[rank])`; starts are clamped so that the slice fits.
    DynamicSlice {
        sizes: Shape,
    },
    /// `(x, update, starts i32[rank])`; starts are clamped so that the update fits.
    UpdateSlice,
    /// `(x, indices)`: `x` taken along `axis`; indices are clamped into range.
    Gather {
        axis: usize,
    },
    /// `(x, indices)` of one rank: element by element along `axis`; indices are clamped into range.
    TakeAlong {
        axis: usize,
    },
    /// `(x, indices [n], updates [n, …])`: rows of the first axis; an index out of range drops its row, so −1 means
    /// "nowhere". With `set`, of two updates to one row the later wins.
    Scatter {
        mode: ScatterMode,
    },

    // ---- reductions and order ----
    Reduce {
        op: ReduceOp,
        axes: Vec<usize>,
    },
    Cumulative {
        op: ReduceOp,
        axis: usize,
    },
    /// To `(values, indices i32)`, stable.
    Sort {
        axis: usize,
        descending: bool,
    },

    // ---- contraction ----
    /// Batch axes, then the free axes of each side; accumulated at least in f32 and rounded once to `dtype`.
    DotGeneral {
        batch: Vec<(usize, usize)>,
        contract: Vec<(usize, usize)>,
        dtype: DType,
    },
    /// `(x [n, c_in, …], w [c_out, c_in/groups, …])` over one to three spatial axes.
    Conv {
        strides: Vec<usize>,
        padding: Vec<(usize, usize)>,
        dilation: Vec<usize>,
        groups: usize,
    },
    /// A packed weight as plain numbers.
    Dequantize {
        dtype: DType,
    },

    // ---- a group of programs that run the same graph, each with its shard of the weights ----
    /// The sum of every member's operand, the same bits on every member.
    AllReduce,
    /// The operands of all members end to end along `axis`, in the order of their ranks.
    AllGather {
        axis: usize,
        members: usize,
    },

    // ---- control flow: regions see only their own arguments ----
    /// `(condition bool, captures…)`; regions `then`, `else`.
    If,
    /// `(carried…, captures…)`; regions `condition`, `body`.
    While {
        carried: usize,
    },
    /// `(carried…, scanned…, captures…)`; the region maps carried, one slice of each scanned along axis 0, and
    /// captures to carried and outputs; results are the last carried and the stacked outputs.
    Scan {
        carried: usize,
        scanned: usize,
    },

    // ---- composites ----
    Activation(Activation),
    Softmax {
        axis: usize,
    },
    /// `(x, weight?, bias?)` over the last axis.
    LayerNorm {
        eps: f64,
        weight: bool,
        bias: bool,
    },
    /// `(x, weight?)` over the last axis, in f32.
    RmsNorm {
        eps: f64,
        weight: bool,
    },
    /// `(x, residual, weight)` to `(x + residual, rms_norm of it)`.
    AddRmsNorm {
        eps: f64,
    },
    /// `(x [n, c, …], weight [c], bias [c])`.
    GroupNorm {
        eps: f64,
        groups: usize,
    },
    /// `(x [tokens, heads, dim], positions [tokens], inv_freq [rotary/2] or [tokens, rotary/2])`: rotates the first
    /// `rotary` elements of each head; `scale` multiplies sine and cosine.
    Rope {
        interleaved: bool,
        scale: f64,
    },
    /// `(q [b, t, hq, d], k [b, l, hkv, d], v [b, l, hkv, dv], mask?, sinks?)`. Queries sit at the end of the keys.
    /// The mask broadcasts to `[b, hq, t, l]`: bool keeps, a float is added.
    Attention(AttentionSpec),
    /// `(q [t, hq, d], k [t, hkv, d], v?, k_cache, v_cache?, positions [t], seq_ids [t], slot_mapping [t],
    /// block_table [s, p], sinks?)` to `(out, k_cache, v_cache?)`: writes the new keys and values to their slots,
    /// then attends causally over everything each sequence has. With `value_dim`, values are the first elements
    /// of the keys and `v`, `v_cache` are absent. Caches are `[blocks, block, hkv, d]` of floats, or
    /// `[blocks, block, hkv, d + 1]` of `i8`: see [`CacheRow`].
    PagedAttention(PagedSpec),
    /// `(x […, k], w [n, k] of any type, bias?)` to `[…, n]` in the type of `x`.
    Linear {
        bias: bool,
    },
    /// `(w [v, h] of any type, ids […])` to `[…, h]`.
    Embedding {
        dtype: DType,
    },
    /// `(x [t, 1 or k, in], w [experts, out, in], ids [t, k], bias? [experts, out])` to `[t, k, out]`.
    ExpertLinear {
        bias: bool,
    },
    /// `(logits [t, experts], correction? [experts])` to `(weights [t, k] f32, ids [t, k] i32)`.
    MoeRoute(RouteSpec),
    /// To `(values, indices i32)` along the last axis, largest first.
    TopK {
        k: usize,
    },
    /// To `i32`, the first of equals.
    ArgMax {
        axis: usize,
    },
    /// `(logits [r, v], temperature, top_k i32, top_p, min_p, seed u32, step u32)`, all `[r]`, to `i32 [r]`.
    Sample,
    /// `(x [t, c], dt [t, c], a [c, n], b [t, n], c [t, n], d [c], state [slots, c, n], positions [t], slot_ids
    /// [t])` to `(y, state)`. Position 0 starts from zero.
    SelectiveScan,
    /// `(x [t, c], w [c, k], bias [c], state [slots, c, k-1], positions [t], slot_ids [t])` to `(y, state)`: a
    /// depthwise causal convolution per sequence. Position 0 starts from zero.
    CausalConv,
    /// Over the spatial axes of `[n, c, …]`; padding never counts towards a mean.
    Pool {
        kind: PoolKind,
        window: Vec<usize>,
        strides: Vec<usize>,
        padding: Vec<(usize, usize)>,
    },
    /// `(re, im)` to `(re, im)` along the last axis; the inverse divides by its length.
    Fft {
        inverse: bool,
    },
    /// Real to the `n/2 + 1` non-redundant `(re, im)`.
    Rfft,
    /// `(re, im)` to `n` real numbers.
    Irfft {
        n: usize,
    },
    /// An elementwise region of its operands, made by the fusion pass.
    Fused,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum UnaryOp {
    Neg,
    Abs,
    Sign,
    Exp,
    Log,
    Log1p,
    Sqrt,
    Rsqrt,
    Sin,
    Cos,
    Tanh,
    Erf,
    Sigmoid,
    Floor,
    Ceil,
    /// Half to even.
    Round,
    /// Of booleans and bits.
    Not,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BinaryOp {
    Add,
    Sub,
    Mul,
    /// Integers truncate towards zero; division by zero gives zero.
    Div,
    Rem,
    Pow,
    Max,
    Min,
    And,
    Or,
    Xor,
    Shl,
    Shr,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CompareOp {
    Eq,
    Ne,
    Lt,
    Le,
    Gt,
    Ge,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReduceOp {
    Sum,
    Prod,
    Max,
    Min,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ScatterMode {
    Set,
    Add,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Activation {
    Relu,
    Relu2,
    Silu,
    /// With the error function.
    Gelu,
    /// With the tanh approximation.
    GeluTanh,
    QuickGelu,
    Softplus,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PoolKind {
    Max,
    Min,
    Sum,
    Mean,
    Prod,
}

/// Dense attention. Scores are scaled, soft-capped, masked, and normalised with the sinks in the denominator.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AttentionSpec {
    pub scale: f64,
    pub causal: bool,
    /// A query sees at most this many keys, its own position included.
    pub window: Option<usize>,
    pub softcap: Option<f64>,
    pub mask: bool,
    pub sinks: bool,
}

/// A row of a cache of `i8`: the codes of its numbers, and then the step between two codes as a power of two in
/// eighths. A step is the least such power with which no code leaves the type.
#[derive(Clone, Copy, Debug)]
pub struct CacheRow;

impl CacheRow {
    /// Elements behind the codes.
    pub const EXTRA: usize = 1;
    /// The largest code, and minus the smallest.
    pub const MOST: f64 = 127.0;
    /// Steps that double.
    pub const EIGHTHS: f64 = 8.0;
    /// How far below a step, in eighths, numbers still take it, so that what a row held is held again: the code of
    /// the largest may be cut off by this little.
    pub const SLACK: f64 = 1.0 / 64.0;

    /// The width of a row that holds `width` numbers in a cache of this type.
    pub fn width(cache: DType, width: &Dim) -> Dim {
        if cache == DType::I8 { width.plus(&Dim::fixed(Self::EXTRA)) } else { width.clone() }
    }
}

/// Attention over the paged cache; always causal.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PagedSpec {
    pub scale: f64,
    pub window: Option<usize>,
    pub softcap: Option<f64>,
    pub sinks: bool,
    pub value_dim: Option<usize>,
}

/// How a router turns logits into experts and weights.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RouteSpec {
    pub top_k: usize,
    pub score: RouteScore,
    /// Divide the chosen weights by their sum.
    pub renormalize: bool,
    pub scale: f64,
    /// Choose only within the best groups of experts, ranked by the sum of each group's two best.
    pub groups: Option<RouteGroups>,
    /// A second operand is added to the scores for choosing, not for weighing.
    pub correction: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RouteGroups {
    pub count: usize,
    pub keep: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RouteScore {
    /// Over all experts, before choosing.
    Softmax,
    Sigmoid,
    /// Over the chosen experts' logits.
    SoftmaxOfChosen,
}

impl Op {
    /// The name in the text form and in messages.
    pub fn name(&self) -> String {
        if let Op::Constant(_) = self {
            return "constant".to_string();
        }
        match self.to_json() {
            serde_json::Value::String(name) => name,
            serde_json::Value::Object(map) => {
                map.keys().next().cloned().expect("a serialised variant has its name as the key")
            }
            other => unreachable!("an op serialises to a name or one key, not {other}"),
        }
    }

    pub(crate) fn to_json(&self) -> serde_json::Value {
        serde_json::to_value(self).expect("ops have no keys but strings and no non-finite attributes")
    }

    /// Whether the op maps elements to elements at the same place, so that it can join an elementwise region.
    pub fn is_elementwise(&self) -> bool {
        matches!(
            self,
            Op::Unary(_) | Op::Binary(_) | Op::Compare(_) | Op::Select | Op::Cast(_) | Op::Activation(_)
        )
    }

    /// Whether the op is a leaf that the engine provides rather than computes.
    pub fn is_leaf(&self) -> bool {
        matches!(self, Op::Input { .. } | Op::Weight { .. } | Op::State { .. })
    }

    /// Whether the op exchanges values with other members of a group.
    pub fn is_exchange(&self) -> bool {
        matches!(self, Op::AllReduce | Op::AllGather { .. })
    }

    /// Whether the op has a decomposition.
    pub fn is_composite(&self) -> bool {
        use Op::*;
        matches!(
            self,
            Activation(_)
                | Softmax { .. }
                | LayerNorm { .. }
                | RmsNorm { .. }
                | AddRmsNorm { .. }
                | GroupNorm { .. }
                | Rope { .. }
                | Attention(_)
                | PagedAttention(_)
                | Linear { .. }
                | Embedding { .. }
                | ExpertLinear { .. }
                | MoeRoute(_)
                | TopK { .. }
                | ArgMax { .. }
                | Sample
                | SelectiveScan
                | CausalConv
                | Pool { .. }
                | Fft { .. }
                | Rfft
                | Irfft { .. }
                | Fused
        )
    }
}
