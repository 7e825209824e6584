//! The routes of llama-server, under its names.

mod completion;
mod infill;
mod props;
mod texts;

pub use completion::COMPLETION;
pub use infill::INFILL;
pub use props::{PROPS, SLOTS};
pub use texts::{APPLY_TEMPLATE, DETOKENIZE, EMBEDDING, TOKENIZE};
