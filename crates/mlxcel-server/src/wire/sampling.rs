//! The fields by which a client says how tokens are drawn: those of OpenAI, and those that llama-server and vLLM add,
//! under their names. Every one is honoured, or refused where its value makes no sense.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Deserialize;

use super::TextOr;

/// Declares the fields once, for parsing and for telling them from others.
macro_rules! fields {
    ($(#[$about:meta])* pub struct $name:ident { $($(#[$doc:meta])* pub $field:ident: $kind:ty,)* }) => {
        $(#[$about])*
        pub struct $name { $($(#[$doc])* pub $field: Option<$kind>,)* }

        impl $name {
            /// The names of all fields.
            pub const KEYS: &[&str] = &[$(stringify!($field)),*];
        }
    };
}

fields! {
    /// How tokens are drawn, and what ends the answer.
    #[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
    #[serde(deny_unknown_fields)]
    pub struct SamplingFields {
        /// 0 takes the likeliest token.
        #[schemars(range(min = 0, max = 100))]
        pub temperature: f64,
        /// Draw from the likeliest tokens that together have this probability.
        #[schemars(range(min = 0, max = 1))]
        pub top_p: f64,
        /// Draw from so many of the likeliest tokens; 0 keeps all.
        #[schemars(range(min = 0, max = 2147483647))]
        pub top_k: i64,
        /// Draw from tokens with at least this part of the likeliest one's probability.
        #[schemars(range(min = 0, max = 1))]
        pub min_p: f64,
        /// Draw from tokens whose surprise is typical; 1 keeps all.
        #[schemars(range(min = 0, max = 1))]
        pub typical_p: f64,
        /// Draw from tokens within so many standard deviations of the best logit; 0 keeps all, and so does less.
        pub top_n_sigma: f64,
        /// With this probability the likeliest tokens but the last of them are left out.
        #[schemars(range(min = 0, max = 1))]
        pub xtc_probability: f64,
        #[schemars(range(min = 0, max = 1))]
        pub xtc_threshold: f64,
        /// Above 0, what would repeat a passage is made less likely.
        #[schemars(range(min = 0))]
        pub dry_multiplier: f64,
        #[schemars(range(min = 1))]
        pub dry_base: f64,
        #[schemars(range(min = 0, max = 2147483647))]
        pub dry_allowed_length: i64,
        /// How many of the last tokens are searched; -1 searches all.
        #[schemars(range(min = -1, max = 2147483647))]
        pub dry_penalty_last_n: i64,
        #[schemars(length(max = 64))]
        pub dry_sequence_breakers: Vec<String>,
        /// 2 for mirostat 2, 0 for none.
        #[schemars(extend("enum" = [0, 2, null]))]
        pub mirostat: i64,
        #[schemars(range(min = 0))]
        pub mirostat_tau: f64,
        #[schemars(range(min = 0))]
        pub mirostat_eta: f64,
        /// Above 1, makes tokens less likely that occurred before.
        #[schemars(range(min = 0.01, max = 100))]
        pub repeat_penalty: f64,
        /// The same by another name.
        #[schemars(range(min = 0.01, max = 100))]
        pub repetition_penalty: f64,
        /// How many of the last tokens count for penalties; -1 counts all.
        #[schemars(range(min = -1, max = 2147483647))]
        pub repeat_last_n: i64,
        #[schemars(range(min = -2, max = 2))]
        pub frequency_penalty: f64,
        #[schemars(range(min = -2, max = 2))]
        pub presence_penalty: f64,
        /// Added to the logits of tokens, by id.
        pub logit_bias: LogitBias,
        /// The same seed draws the same tokens; -1 is another one each time.
        pub seed: i64,
        /// Texts that end the answer; they are no part of it.
        pub stop: TextOr<String>,
        /// Tokens that end the answer, beside the model's own.
        #[schemars(length(max = 64))]
        pub stop_token_ids: Vec<u32>,
        /// The answer does not end before it has so many tokens.
        pub min_tokens: u64,
        /// The answer does not end where the model wants it to.
        pub ignore_eos: bool,
        /// Higher is sooner, within -16 and 16.
        #[schemars(range(min = -16, max = 16))]
        pub priority: i32,
    }
}

/// An object of biases by token id, or llama-server's list of pairs, where `false` forbids a token.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq)]
#[serde(
    untagged,
    expecting = "expected an object of numbers by token id, or a list of pairs of id and number"
)]
pub enum LogitBias {
    ById(BTreeMap<String, f64>),
    Pairs(Vec<(u32, Bias)>),
}

#[derive(Clone, Copy, Debug, Deserialize, JsonSchema, PartialEq)]
#[serde(untagged, expecting = "expected a number or false")]
pub enum Bias {
    Number(f64),
    Allowed(bool),
}
