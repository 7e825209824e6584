//! A text, or a list of items: a form that several fields have.

use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{Deserialize, Deserializer, SeqAccess, Visitor};

/// A text or items. A visitor rather than an untagged enum, so that an error names the item.
#[derive(Clone, Debug, PartialEq)]
pub enum TextOr<T> {
    Text(String),
    Items(Vec<T>),
}

impl TextOr<String> {
    /// One text counts as a list of one.
    pub fn into_list(self) -> Vec<String> {
        match self {
            TextOr::Text(text) => vec![text],
            TextOr::Items(items) => items,
        }
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for TextOr<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(TextOrItems(PhantomData))
    }
}

struct TextOrItems<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for TextOrItems<T> {
    type Value = TextOr<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string or an array")
    }

    fn visit_str<E>(self, text: &str) -> Result<Self::Value, E> {
        Ok(TextOr::Text(text.to_string()))
    }

    fn visit_string<E>(self, text: String) -> Result<Self::Value, E> {
        Ok(TextOr::Text(text))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut access: A) -> Result<Self::Value, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = access.next_element()? {
            items.push(item);
        }
        Ok(TextOr::Items(items))
    }
}

impl<T: JsonSchema> JsonSchema for TextOr<T> {
    fn schema_name() -> Cow<'static, str> {
        format!("TextOr_{}", T::schema_name()).into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let items = generator.subschema_for::<T>();
        json_schema!({"anyOf": [{"type": "string"}, {"type": "array", "items": items}]})
    }
}
