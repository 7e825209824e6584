//! The scheduler on a toy model whose answers show any mistake in blocks, slots or batches.

mod batching;
mod choosing;
mod speculating;
mod toy;
mod world;
