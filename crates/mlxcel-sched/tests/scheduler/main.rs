//! The scheduler on a toy model whose answers show any mistake in blocks, slots or batches.

mod anything;
mod batching;
mod choosing;
mod null;
mod speculating;
mod toy;
mod world;
