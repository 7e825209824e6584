//! One file per family of kernels. A kernel reads operands through their layouts and fills row-major results; it
//! neither allocates results nor knows the graph around it.

pub(crate) mod attention;
pub(crate) mod conv;
pub(crate) mod copy;
pub(crate) mod dot;
pub(crate) mod elementwise;
pub(crate) mod index;
pub(crate) mod linear;
pub(crate) mod lines;
pub(crate) mod norm;
pub(crate) mod order;
pub(crate) mod packed;
pub(crate) mod recurrent;
pub(crate) mod reduce;
pub(crate) mod rope;
