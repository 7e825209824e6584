//! How large a grammar may be and how much work it may cause, in counts. What is checked here is checked before the
//! grammar library sees a source; the rest are budgets that the library spends.

use llguidance::api::ParserLimits;
use serde_json::Value;

use super::GrammarSource;
use crate::error::{Error, Result};

/// Bounds on sources and on the work they cause. The default suits schemas of some thousand fields.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GrammarLimits {
    /// Bytes of a source; of a schema, those of its texts.
    pub source_bytes_max: usize,
    /// Values in a schema.
    pub schema_values_max: usize,
    /// Fields of one object in a schema. Compiling takes time by the square of it.
    pub fields_max: usize,
    /// Levels of a schema, or of brackets in a grammar.
    pub depth_max: usize,
    /// Steps spent on the automaton of the source when it is compiled.
    pub compile_fuel: u64,
    /// Steps spent on the automaton for one mask.
    pub mask_fuel: u64,
    /// Rules considered for one mask.
    pub mask_items_max: usize,
    /// States of the automaton that one generation may visit.
    pub states_max: usize,
    /// Compiled sources that are kept.
    pub kept_max: usize,
}

impl Default for GrammarLimits {
    fn default() -> Self {
        Self {
            source_bytes_max: 256 << 10,
            schema_values_max: 20_000,
            fields_max: 1000,
            depth_max: 64,
            compile_fuel: 1_000_000,
            mask_fuel: 200_000,
            mask_items_max: 50_000,
            states_max: 50_000,
            kept_max: 32,
        }
    }
}

impl GrammarLimits {
    pub(super) fn check(&self, source: &GrammarSource) -> Result<()> {
        let size = match source {
            GrammarSource::JsonObject => return Ok(()),
            GrammarSource::JsonSchema(schema) => self.schema_size(schema),
            GrammarSource::Regex(text) | GrammarSource::Gbnf(text) => {
                Size { bytes: text.len(), ..Size::default() }
            }
            GrammarSource::Lark(text) => self.lark_size(text),
        };
        let measured = [
            ("bytes", size.bytes, self.source_bytes_max),
            ("values", size.values, self.schema_values_max),
            ("fields in one object", size.fields, self.fields_max),
            ("steps in `multipleOf`", size.steps, STEPS_MAX),
            ("schemas", size.schemas, SCHEMAS_MAX),
            ("levels", size.depth, self.depth_max),
        ];
        match measured.into_iter().find(|(_, found, limit)| found > limit) {
            Some((measure, found, limit)) => {
                Err(Error::GrammarTooLarge { kind: source.kind(), measure, found, limit })
            }
            None => Ok(()),
        }
    }

    /// Walks with a list instead of recursion, and no further than the bounds.
    fn schema_size(&self, schema: &Value) -> Size {
        let (mut size, mut open) = (Size::default(), vec![(schema, 1)]);
        while let Some((value, depth)) = open.pop() {
            size.values += 1;
            size.depth = size.depth.max(depth);
            if size.values > self.schema_values_max || size.depth > self.depth_max {
                break;
            }
            match value {
                Value::String(text) => size.bytes += text.len(),
                Value::Array(items) => open.extend(items.iter().map(|item| (item, depth + 1))),
                Value::Object(fields) => {
                    size.bytes += fields.keys().map(String::len).sum::<usize>();
                    size.fields = size.fields.max(fields.len());
                    size.steps = size.steps.max(fields.get("multipleOf").map_or(0, steps));
                    open.extend(fields.values().map(|value| (value, depth + 1)));
                }
                Value::Null | Value::Bool(_) | Value::Number(_) => {}
            }
        }
        size
    }

    /// With the largest of what the schemas within have.
    fn lark_size(&self, text: &str) -> Size {
        const MARK: &str = "%json";
        let mut size = Size { bytes: text.len(), depth: bracket_depth(text), ..Size::default() };
        let mut rest = text;
        while let Some(at) = rest.find(MARK).filter(|_| size.schemas <= SCHEMAS_MAX) {
            rest = &rest[at + MARK.len()..];
            size.schemas += 1;
            let mut values = serde_json::Deserializer::from_str(rest).into_iter::<Value>();
            let Some(Ok(schema)) = values.next() else { continue };
            rest = &rest[values.byte_offset()..];
            let within = self.schema_size(&schema);
            size.values = size.values.max(within.values);
            size.fields = size.fields.max(within.fields);
            size.steps = size.steps.max(within.steps);
        }
        size
    }

    pub(super) fn for_library(&self) -> ParserLimits {
        ParserLimits {
            initial_lexer_fuel: self.compile_fuel,
            step_lexer_fuel: self.mask_fuel,
            step_max_items: self.mask_items_max,
            max_lexer_states: self.states_max,
            // An optional field takes a few, and an alternative one.
            max_items_in_row: 10 * self.fields_max,
            verbose_errors: false,
            ..ParserLimits::default()
        }
    }
}

#[derive(Default)]
struct Size {
    bytes: usize,
    values: usize,
    fields: usize,
    steps: usize,
    schemas: usize,
    depth: usize,
}

/// Schemas within one grammar, which are looked at one by one.
const SCHEMAS_MAX: usize = 4000;

/// The automaton of `multipleOf` has a state for each remainder.
const STEPS_MAX: usize = 10_000;

/// How many remainders there are by a number: its digits without the point.
fn steps(number: &Value) -> usize {
    let Some(number) = number.as_f64() else { return 0 };
    let mut scaled = number.abs();
    while scaled.fract() != 0.0 && scaled < STEPS_MAX as f64 {
        scaled *= 10.0;
    }
    // Out of range becomes the largest number.
    scaled as usize
}

/// How deep brackets nest outside of texts, expressions and comments.
fn bracket_depth(lark: &str) -> usize {
    lark.lines().fold((0, 0), |(depth, deepest), line| line_depth(line, depth, deepest)).1
}

fn line_depth(line: &str, mut depth: usize, mut deepest: usize) -> (usize, usize) {
    let (mut quote, mut escaped) = (None, false);
    let mut characters = line.chars().peekable();
    while let Some(c) = characters.next() {
        match (quote, c) {
            (Some(_), _) if escaped => escaped = false,
            (Some(_), '\\') => escaped = true,
            (Some(open), _) if c == open => quote = None,
            (Some(_), _) => {}
            (None, '/') if characters.peek() == Some(&'/') => break,
            (None, '#') => break,
            (None, '"' | '/') => quote = Some(c),
            (None, '(' | '[' | '{') => depth += 1,
            (None, ')' | ']' | '}') => depth = depth.saturating_sub(1),
            (None, _) => {}
        }
        deepest = deepest.max(depth);
    }
    (depth, deepest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn brackets_count_only_where_they_are_brackets() {
        assert_eq!(bracket_depth("start: (\"((((\" | [/[(]/])  // (((\nb: {"), 2);
        assert_eq!(bracket_depth("start: \"a\\\"((\" (b)"), 1);
    }
}
