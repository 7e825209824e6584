//! The graph that every model is written in and every engine executes: element types, shapes, ops, the builder,
//! the verifier, decompositions, passes and the text form. It knows no file format, no model and no device.

mod builder;
mod cost;
mod decompose;
mod dtype;
mod error;
mod graph;
mod infer;
pub mod interp;
mod math;
mod op;
pub mod passes;
mod shape;
pub mod step;
mod tensor;
mod text;
mod verify;

pub use builder::{Builder, PagedBatch, SampleParams, Tensor};
pub use cost::Cost;
pub use decompose::{Native, decompose};
pub use dtype::{DType, GgufFormat, QuantFormat, ScaleType, UnknownDType};
pub use error::IrError;
pub use graph::{Graph, Node, Value};
pub use math::erf;
pub use op::{
    Activation, AttentionSpec, BinaryOp, CacheRow, CompareOp, Op, PagedSpec, PoolKind, ReduceOp, RouteGroups,
    RouteScore, RouteSpec, ScatterMode, UnaryOp,
};
pub use shape::{BadDim, Bindings, Dim, Shape, Type, product};
pub use tensor::{Element, HostTensor, f8};
pub use text::REGION_DEPTH_MAX;
