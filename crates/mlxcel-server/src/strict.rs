//! JSON that is taken at its word: no duplicate keys, no unknown fields, a bounded depth, and errors that name the
//! place. A body becomes a typed request here or is refused; nothing of it is dropped.

use std::fmt;

use serde::de::{DeserializeOwned, DeserializeSeed, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

use crate::refusal::{Kind, Refusal};

/// Arrays and objects within each other. Schemas of tools are the deepest thing that honest requests hold.
pub const DEPTH_MAX: usize = 96;

/// Parses a body into a typed request.
pub fn parse<T: DeserializeOwned>(body: &[u8]) -> Result<T, Refusal> {
    typed(Value::Object(object(body)?))
}

/// The object that a body holds.
pub fn object(body: &[u8]) -> Result<Map<String, Value>, Refusal> {
    match value(body)? {
        Value::Object(object) => Ok(object),
        other => Err(Refusal::new(
            Kind::Invalid,
            format!("the body must be a JSON object, but is {}; send an object", kind_of(&other)),
        )),
    }
}

/// Gives a value its type; the refusal names the field.
pub fn typed<T: DeserializeOwned>(value: Value) -> Result<T, Refusal> {
    serde_path_to_error::deserialize(value).map_err(|error| {
        let (path, inner) = (error.path().to_string(), error.into_inner().to_string());
        let (param, message) = explain(&path, &inner);
        Refusal { param, ..Refusal::new(Kind::Invalid, message) }
    })
}

/// What a person reads about a field that did not fit.
fn explain(path: &str, inner: &str) -> (Option<String>, String) {
    let at = |name: &str| if path == "." { name.to_string() } else { format!("{path}.{name}") };
    if let Some(name) = quoted(inner, "unknown field `") {
        // The path already ends with the unknown field.
        let field = if path.ends_with(name) { path.to_string() } else { at(name) };
        return (Some(field.clone()), format!("the field '{field}' is not supported; leave it out"));
    }
    if let Some(name) = quoted(inner, "missing field `") {
        let field = at(name);
        return (Some(field.clone()), format!("the field '{field}' is missing"));
    }
    if path == "." {
        return (None, inner.to_string());
    }
    (Some(path.to_string()), format!("the field '{path}' is wrong: {inner}"))
}

fn quoted<'a>(text: &'a str, before: &str) -> Option<&'a str> {
    text.strip_prefix(before)?.split('`').next()
}

/// Any JSON value, strictly.
fn value(body: &[u8]) -> Result<Value, Refusal> {
    let invalid = |message: String| Refusal::new(Kind::Invalid, message);
    if body.starts_with(b"\xef\xbb\xbf") {
        return Err(invalid("the body begins with a byte order mark; send plain UTF-8".to_string()));
    }
    let text = std::str::from_utf8(body).map_err(|error| {
        invalid(format!("the body is no UTF-8 at byte {}; send JSON in UTF-8", error.valid_up_to()))
    })?;
    let mut parser = serde_json::Deserializer::from_str(text);
    let parsed = Strict { depth: 0 }.deserialize(&mut parser).and_then(|value| {
        parser.end()?;
        Ok(value)
    });
    parsed.map_err(|error| invalid(format!("the body is no valid JSON: {error}")))
}

pub fn kind_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "an array",
        Value::Object(_) => "an object",
    }
}

/// Builds a value while it refuses what `serde_json` would let pass.
#[derive(Clone, Copy)]
struct Strict {
    depth: usize,
}

impl Strict {
    fn deeper<E: serde::de::Error>(self) -> Result<Strict, E> {
        if self.depth == DEPTH_MAX {
            return Err(E::custom(format!("it is nested deeper than {DEPTH_MAX}")));
        }
        Ok(Strict { depth: self.depth + 1 })
    }
}

impl<'de> DeserializeSeed<'de> for Strict {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Strict {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E: serde::de::Error>(self, value: f64) -> Result<Value, E> {
        let number = serde_json::Number::from_f64(value);
        number.map(Value::Number).ok_or_else(|| E::custom("a number is not finite"))
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(Value::String(value.to_string()))
    }

    fn visit_string<E>(self, value: String) -> Result<Value, E> {
        Ok(Value::String(value))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let inner = self.deeper()?;
        let mut values = Vec::new();
        while let Some(value) = items.next_element_seed(inner)? {
            values.push(value);
        }
        Ok(Value::Array(values))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
        let inner = self.deeper()?;
        let mut object = Map::new();
        while let Some(name) = entries.next_key::<String>()? {
            if object.contains_key(&name) {
                return Err(A::Error::custom(format!("the key '{name}' occurs twice in one object")));
            }
            let value = entries.next_value_seed(inner)?;
            object.insert(name, value);
        }
        Ok(Value::Object(object))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, serde::Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Sample {
        #[allow(dead_code)]
        name: String,
        #[allow(dead_code)]
        inner: Option<Inner>,
    }

    #[derive(Debug, serde::Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Inner {
        #[allow(dead_code)]
        count: u32,
    }

    fn refused(body: &[u8]) -> Refusal {
        parse::<Sample>(body).expect_err("a bad body")
    }

    #[test]
    fn bytes_that_are_no_json_are_refused() {
        let utf16: Vec<u8> = "{\"name\":\"a\"}".encode_utf16().flat_map(u16::to_le_bytes).collect();
        let bodies: [&[u8]; 12] = [
            b"",
            b"{",
            b"{\"name\": \"a\"",
            b"{\"name\": \"a\"} x",
            b"name=a",
            b"\xef\xbb\xbf{\"name\": \"a\"}",
            b"{\"name\": NaN}",
            b"{\"name\": 1e400}",
            b"{\"name\": \"\\ud800\"}",
            b"{\"name\": \"\xff\"}",
            b"[]",
            &utf16,
        ];
        for body in bodies {
            assert_eq!(refused(body).kind, Kind::Invalid, "{}", String::from_utf8_lossy(body));
        }
    }

    #[test]
    fn a_key_that_occurs_twice_is_refused_by_name() {
        let refusal = refused(br#"{"name": "a", "inner": {"count": 1, "count": 2}}"#);
        assert!(refusal.message.contains("'count' occurs twice"), "{refusal}");
    }

    #[test]
    fn depth_is_bounded_whatever_it_is_made_of() {
        for (open, close) in [("[", "]"), ("{\"a\":", "}")] {
            let body = format!("{{\"name\": {}1{}}}", open.repeat(100_000), close.repeat(100_000));
            assert_eq!(refused(body.as_bytes()).kind, Kind::Invalid);
            let fits = format!("{{\"name\": {}1{}}}", open.repeat(90), close.repeat(90));
            assert!(object(fits.as_bytes()).is_ok());
        }
    }

    #[test]
    fn the_place_of_a_wrong_field_is_named() {
        let param = |body: &[u8]| refused(body).param;
        assert_eq!(param(br#"{"name": "a", "surprise": 1}"#).as_deref(), Some("surprise"));
        assert_eq!(param(br#"{}"#).as_deref(), Some("name"));
        assert_eq!(param(br#"{"name": "a", "inner": {"count": -1}}"#).as_deref(), Some("inner.count"));
        assert_eq!(param(br#"{"name": "a", "inner": {"count": 1, "x": 1}}"#).as_deref(), Some("inner.x"));
        assert_eq!(param(br#"{"name": "a", "inner": {}}"#).as_deref(), Some("inner.count"));
    }
}
