//! The text form of a graph: one node a line, regions nested in braces, then outputs and state updates. What is
//! printed parses back to an equal graph; what is parsed is typed like any other graph.
//!
//! ```text
//! %0 = input {"name":"x","dtype":"f32","shape":["tokens",64],"pad":0} : f32[tokens, 64]
//! %1 = constant {"dtype":"f32","shape":[],"hex":"00000040"} : f32[] // 2
//! %2 = binary "mul" (%0, %1) : f32[tokens, 64] @ layers.0
//! %3 = top_k {"k":2} (%2) : (f32[tokens, 2], i32[tokens, 2])
//! output "best" = %3.1
//! ```
//!
//! Attributes are the JSON of the op. A label follows `@`, quoted when it is not a plain path. `//` starts a comment.

mod parse;
mod print;

/// How deep regions may nest in a text; deeper ones are refused rather than risking the stack.
pub const REGION_DEPTH_MAX: usize = 64;

/// Whether a label can stand in the text without quotes.
fn is_plain(label: &str) -> bool {
    label.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'.' | b'-'))
}
