//! Tests of the graph as its users see it: what is ill typed, the text form, and passes on random graphs.

mod evaluate;
mod ill_typed;
mod passes;
mod random;
mod text;
