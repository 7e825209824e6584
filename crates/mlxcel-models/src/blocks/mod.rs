//! Parts that families share. They branch on data, never on a family's name.

mod attention;
mod decoder;
mod head;
mod latent;
mod mlp;
mod moe;
mod pooling;
mod recurrent;

pub use attention::{Attention, HeadNorm, attend, attention, split_heads};
pub use decoder::{Decoder, decoder};
pub use head::{Head, logits, wanted};
pub use latent::{Latent, latent_attention};
pub use mlp::{Mlp, gated_mlp, mlp};
pub use moe::{Experts, Moe, expert_mlp, expert_weights, moe};
pub use pooling::{EmbedOptions, Pooling};
pub use recurrent::recurrent;
