//! From a source to a matcher at its beginning, on a thread of its own: the grammar library descends by recursion, so
//! it gets a stack that the bounds on sources cannot exhaust, and if it should panic, only this source is refused.

use std::sync::Arc;

use llguidance::api::TopLevelGrammar;
use serde_json::{Value, json};

use super::{GrammarLimits, GrammarSource, Matcher, Vocabulary, gbnf};
use crate::error::{Error, Result};

/// Only what is used of it takes memory.
const STACK_BYTES: usize = 256 << 20;

/// Blanks between the parts of a JSON text. Without a bound a model can write them for ever.
pub(crate) const BLANKS: &str = r"[ \t\r\n]{1,64}";

pub(super) fn compile(
    vocabulary: &Arc<Vocabulary>,
    limits: &GrammarLimits,
    source: &GrammarSource,
) -> Result<Matcher> {
    let kind = source.kind();
    let grammar = top_level(source, vocabulary)?;
    let (vocabulary, limits) = (Arc::clone(vocabulary), limits.for_library());
    let work = move || Matcher::start(&vocabulary, limits, grammar);
    let worker = std::thread::Builder::new().name("grammar".to_owned()).stack_size(STACK_BYTES).spawn(work);
    let worker = worker.map_err(|error| Error::GrammarRefused { kind, reason: error.to_string() })?;
    let compiled = worker.join().map_err(|_| Error::GrammarCrashed { kind })?;
    compiled.map_err(|reason| match reason.starts_with("panic") {
        true => Error::GrammarCrashed { kind },
        false => Error::GrammarRefused { kind, reason },
    })
}

fn top_level(source: &GrammarSource, vocabulary: &Vocabulary) -> Result<TopLevelGrammar> {
    let refused = |reason| Error::GrammarRefused { kind: source.kind(), reason };
    Ok(match source {
        GrammarSource::JsonSchema(schema) => TopLevelGrammar::from_json_schema(with_blanks(schema.clone())),
        GrammarSource::JsonObject => {
            TopLevelGrammar::from_json_schema(with_blanks(json!({"type": "object"})))
        }
        GrammarSource::Regex(text)
            if text.bytes().rev().take_while(|&byte| byte == b'\\').count() % 2 == 1 =>
        {
            return Err(refused("it ends with a backslash that escapes nothing".to_owned()));
        }
        GrammarSource::Regex(text) => TopLevelGrammar::from_regex(text),
        GrammarSource::Lark(text) => TopLevelGrammar::from_lark(text.clone()),
        GrammarSource::Gbnf(text) => {
            TopLevelGrammar::from_lark(gbnf::to_lark(text, vocabulary.tokenizer()).map_err(refused)?)
        }
    })
}

/// Bounds the blanks, unless the schema says itself how it is to be written.
fn with_blanks(mut schema: Value) -> Value {
    if let Some(fields) = schema.as_object_mut() {
        fields.entry("x-guidance").or_insert_with(|| json!({"whitespace_pattern": BLANKS}));
    }
    schema
}
