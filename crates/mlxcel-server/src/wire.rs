//! The forms that requests have in common, as they are written: fields of sampling, texts or lists. They say what may
//! be written; what it means for a model is `order`'s business.

mod either;
mod sampling;

pub use either::TextOr;
pub use sampling::{Bias, LogitBias, SamplingFields};

use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use crate::refusal::Refusal;
use crate::strict;

/// A request whose object holds fields of sampling beside its own.
pub fn parse_with_sampling<T: DeserializeOwned>(body: &[u8]) -> Result<(T, SamplingFields), Refusal> {
    let mut own = strict::object(body)?;
    let mut shared = Map::new();
    for key in SamplingFields::KEYS {
        if let Some(value) = own.shift_remove(*key) {
            shared.insert((*key).to_string(), value);
        }
    }
    Ok((strict::typed(Value::Object(own))?, strict::typed(Value::Object(shared))?))
}
