//! Drawing tokens on the host, for requests that ask for more than the graph does by itself.

mod params;

pub use params::{Dry, Mirostat, Sampling, Xtc};
