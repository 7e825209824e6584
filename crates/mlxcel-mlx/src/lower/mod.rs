//! A step of a graph as the stream of words that the shim decodes (`shim/code.h` describes it). All sizes are numbers
//! here: a step is encoded for the sizes it is fed, and kept for the next step of those sizes.

mod frame;
mod ops;
mod packed;

use std::collections::HashMap;

use mlxcel_engine::EngineError;
use mlxcel_ir::{Bindings, Graph, HostTensor, Op, Value};

use crate::repack::Stored;
use frame::{Frame, Slot};

macro_rules! instructions {
    ($($name:ident = $text:literal),* $(,)?) => {
        /// The instructions of the shim, in its order, which is compared by name when it is loaded.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum Instr { $($name),* }

        impl Instr {
            pub(crate) const ALL: &[Instr] = &[$(Instr::$name),*];

            pub(crate) fn name(self) -> &'static str {
                match self { $(Instr::$name => $text),* }
            }
        }
    };
}

instructions!(
    Integer = "integer",
    Zeros = "zeros",
    Iota = "iota",
    Unary = "unary",
    Binary = "binary",
    Compare = "compare",
    Select = "select",
    Cast = "cast",
    DecodeF8 = "decode_f8",
    EncodeF8 = "encode_f8",
    Reshape = "reshape",
    Broadcast = "broadcast",
    Transpose = "transpose",
    Slice = "slice",
    Concat = "concat",
    Pad = "pad",
    DynamicSlice = "dynamic_slice",
    UpdateSlice = "update_slice",
    Gather = "gather",
    TakeAlong = "take_along",
    Scatter = "scatter",
    Reduce = "reduce",
    Cumulative = "cumulative",
    Sort = "sort",
    ArgMax = "argmax",
    Dot = "dot",
    Conv = "conv",
    Linear = "linear",
    QuantizedLinear = "quantized_linear",
    ExpertLinear = "expert_linear",
    QuantizedExpertLinear = "quantized_expert_linear",
    Dequantize = "dequantize",
    DequantizeGrouped = "dequantize_grouped",
    Activation = "activation",
    Softmax = "softmax",
    RmsNorm = "rms_norm",
    LayerNorm = "layer_norm",
    Rope = "rope",
    Attention = "attention",
    PagedAttention = "paged_attention",
    Sample = "sample",
    SelectiveScan = "selective_scan",
    CausalConv = "causal_conv",
    Fft = "fft",
    Rfft = "rfft",
    Irfft = "irfft",
    Branch = "branch",
    Loop = "loop",
    Scan = "scan",
    AllReduce = "all_reduce",
    AllGather = "all_gather",
);

/// How the tokens of a step belong to its sequences.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Layout {
    /// The shim finds out by reading the inputs.
    Ragged,
    /// One token for each sequence.
    Decode,
    /// Tokens of one sequence.
    One,
}

/// What differs between two encodings of one graph.
#[derive(Clone, Debug)]
pub(crate) struct StepShape<'a> {
    pub(crate) sizes: &'a Bindings,
    pub(crate) outputs: &'a [Value],
    pub(crate) layout: Layout,
    /// Every row takes its likeliest token.
    pub(crate) greedy: bool,
}

/// Weights and constants by their numbers among the program's statics.
#[derive(Clone, Debug, Default)]
pub(crate) struct Statics {
    pub(crate) count: usize,
    /// By node of the graph: how a weight is kept, and the number of its first array.
    weights: HashMap<u32, (Stored, usize)>,
    /// Constants of the graph and its regions, by the place of their tensor, which does not move.
    constants: HashMap<usize, usize>,
}

impl Statics {
    pub(crate) fn add_weight(&mut self, node: u32, stored: Stored) {
        self.weights.insert(node, (stored, self.count));
        self.count += stored.arrays();
    }

    pub(crate) fn add_constant(&mut self, tensor: &HostTensor) {
        self.constants.insert(std::ptr::from_ref(tensor).addr(), self.count);
        self.count += 1;
    }
}

/// Every constant of a graph and its regions.
pub(crate) fn constants(graph: &Graph) -> Vec<&HostTensor> {
    let mut found = vec![];
    for node in graph.nodes() {
        if let Op::Constant(t) = &node.op {
            found.push(t);
        }
        found.extend(node.regions.iter().flat_map(constants));
    }
    found
}

/// An encoded step.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Lowered {
    pub(crate) words: Vec<i64>,
    /// Each ends in zero.
    pub(crate) labels: String,
    /// How each output is kept.
    pub(crate) outputs: Vec<Stored>,
}

/// Encodes a step. Its arguments are the statics, the states and the inputs of the graph; its results the new states and
/// the outputs.
pub(crate) fn lower(graph: &Graph, statics: &Statics, step: &StepShape<'_>) -> Result<Lowered, EngineError> {
    let mut frame = Frame::new(graph, statics, step);
    frame.take_arguments();
    let updates: Vec<Value> = graph.states().map(|(node, n)| new_state(graph, node, &n.op)).collect();
    let wanted: Vec<Value> = updates.iter().chain(step.outputs).copied().collect();
    frame.compute(&wanted)?;
    let mut results = vec![];
    let mut outputs = vec![];
    for (i, v) in wanted.iter().enumerate() {
        let slot = frame.slot(*v).clone();
        if i >= updates.len() {
            outputs.push(slot.stored());
        }
        results.extend(slot.registers());
    }
    let labels = frame.labels();
    Ok(Lowered { words: frame.finish(&results), labels, outputs })
}

/// The value that a state takes after the step: its update, or itself.
fn new_state(graph: &Graph, node: u32, op: &Op) -> Value {
    let Op::State { name, .. } = op else { unreachable!("{} is not a state", op.name()) };
    let update = graph.updates().iter().find(|(n, _)| n == name).map(|(_, v)| *v);
    update.unwrap_or(Value { node, result: 0 })
}

impl Slot {
    fn registers(&self) -> Vec<i64> {
        match self {
            Slot::Plain(r) => vec![*r],
            Slot::Packed(_, regs) => regs.clone(),
        }
    }

    fn stored(&self) -> Stored {
        match self {
            Slot::Plain(_) => Stored::Plain,
            Slot::Packed(stored, _) => *stored,
        }
    }
}
