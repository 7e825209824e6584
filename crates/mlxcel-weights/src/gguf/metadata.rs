//! Typed access to GGUF metadata. A value of the wrong type is an error that names the key; integers are
//! accepted in any width that holds them, since writers differ.

use std::collections::BTreeMap;

use super::value::{GgufArray, GgufValue};
use crate::error::{Result, WeightsError};

/// The metadata of a GGUF file, by key.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GgufMetadata {
    pairs: BTreeMap<String, GgufValue>,
}

/// A type that metadata can be asked for.
pub trait FromGguf<'a>: Sized {
    /// What a person reads when the value is something else.
    const EXPECTED: &'static str;
    fn from_gguf(value: &'a GgufValue) -> Option<Self>;
}

impl GgufMetadata {
    pub fn new(pairs: BTreeMap<String, GgufValue>) -> Self {
        GgufMetadata { pairs }
    }

    pub fn get(&self, key: &str) -> Option<&GgufValue> {
        self.pairs.get(key)
    }

    pub fn iter(&self) -> impl Iterator<Item = (&str, &GgufValue)> {
        self.pairs.iter().map(|(key, value)| (key.as_str(), value))
    }

    /// The value of `key`, `None` if there is none, an error if it is of another type.
    pub fn find<'a, T: FromGguf<'a>>(&'a self, key: &str) -> Result<Option<T>> {
        let Some(value) = self.pairs.get(key) else { return Ok(None) };
        let wrong =
            || WeightsError::KeyType { key: key.to_string(), found: value.describe(), expected: T::EXPECTED };
        T::from_gguf(value).map(Some).ok_or_else(wrong)
    }

    /// The value of `key`, which must be there.
    pub fn require<'a, T: FromGguf<'a>>(&'a self, key: &str) -> Result<T> {
        self.find(key)?.ok_or_else(|| WeightsError::MissingKey { key: key.to_string() })
    }

    pub fn u32(&self, key: &str) -> Result<u32> {
        self.require(key)
    }

    pub fn u64(&self, key: &str) -> Result<u64> {
        self.require(key)
    }

    pub fn i64(&self, key: &str) -> Result<i64> {
        self.require(key)
    }

    pub fn f32(&self, key: &str) -> Result<f32> {
        self.require(key)
    }

    pub fn bool(&self, key: &str) -> Result<bool> {
        self.require(key)
    }

    pub fn str(&self, key: &str) -> Result<&str> {
        self.require(key)
    }

    pub fn strings(&self, key: &str) -> Result<&[String]> {
        self.require(key)
    }

    pub fn f32s(&self, key: &str) -> Result<Vec<f32>> {
        self.require(key)
    }

    pub fn i64s(&self, key: &str) -> Result<Vec<i64>> {
        self.require(key)
    }
}

macro_rules! from_gguf {
    ($($t:ty, $expected:literal, $value:ident => $body:expr;)*) => {$(
        impl<'a> FromGguf<'a> for $t {
            const EXPECTED: &'static str = $expected;
            fn from_gguf($value: &'a GgufValue) -> Option<Self> {
                $body
            }
        }
    )*};
}

from_gguf! {
    u32, "an integer that fits in 32 bits", value => value.as_i64()?.try_into().ok();
    usize, "an integer that is not negative", value => value.as_i64()?.try_into().ok();
    i64, "an integer", value => value.as_i64();
    f32, "a float", value => value.as_f64().map(|v| v as f32);
    f64, "a float", value => value.as_f64();
    Vec<f32>, "an array of floats", value => value.as_array()?.to_f32s();
    Vec<i64>, "an array of integers", value => value.as_array()?.to_i64s();
}

impl<'a> FromGguf<'a> for u64 {
    const EXPECTED: &'static str = "an integer that is not negative";
    fn from_gguf(value: &'a GgufValue) -> Option<Self> {
        if let GgufValue::U64(v) = value { Some(*v) } else { value.as_i64()?.try_into().ok() }
    }
}

impl<'a> FromGguf<'a> for bool {
    const EXPECTED: &'static str = "a boolean";
    fn from_gguf(value: &'a GgufValue) -> Option<Self> {
        if let GgufValue::Bool(v) = value { Some(*v) } else { None }
    }
}

impl<'a> FromGguf<'a> for &'a str {
    const EXPECTED: &'static str = "a string";
    fn from_gguf(value: &'a GgufValue) -> Option<Self> {
        if let GgufValue::String(v) = value { Some(v) } else { None }
    }
}

impl<'a> FromGguf<'a> for &'a [String] {
    const EXPECTED: &'static str = "an array of strings";
    fn from_gguf(value: &'a GgufValue) -> Option<Self> {
        if let GgufArray::String(v) = value.as_array()? { Some(v) } else { None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(value: GgufValue) -> GgufMetadata {
        GgufMetadata::new(BTreeMap::from([("key".to_string(), value)]))
    }

    #[test]
    fn integers_are_read_from_any_width_that_fits() {
        for value in [GgufValue::U8(7), GgufValue::I32(7), GgufValue::U64(7), GgufValue::I64(7)] {
            assert_eq!(one(value).u32("key").unwrap(), 7);
        }
        assert_eq!(one(GgufValue::U64(u64::MAX)).u64("key").unwrap(), u64::MAX);
        for value in [GgufValue::I8(-1), GgufValue::U64(1 << 32), GgufValue::U64(u64::MAX)] {
            assert!(matches!(one(value).u32("key"), Err(WeightsError::KeyType { .. })));
        }
    }

    #[test]
    fn a_wrong_type_is_an_error_and_an_absent_key_is_not() {
        let metadata = one(GgufValue::String("x".into()));
        assert_eq!(metadata.str("key").unwrap(), "x");
        assert!(matches!(metadata.f32("key"), Err(WeightsError::KeyType { .. })));
        assert!(matches!(metadata.find::<f32>("key"), Err(WeightsError::KeyType { .. })));
        assert_eq!(metadata.find::<f32>("other").unwrap(), None);
        assert!(matches!(metadata.f32("other"), Err(WeightsError::MissingKey { key }) if key == "other"));
    }

    #[test]
    fn arrays_are_read_by_element_kind() {
        let strings = one(GgufValue::Array(GgufArray::String(vec!["a".into(), "b".into()])));
        assert_eq!(strings.strings("key").unwrap(), ["a", "b"]);
        assert!(strings.f32s("key").is_err());
        let integers = one(GgufValue::Array(GgufArray::I32(vec![-1, 2])));
        assert_eq!(integers.i64s("key").unwrap(), [-1, 2]);
        let floats = one(GgufValue::Array(GgufArray::F64(vec![0.5])));
        assert_eq!(floats.f32s("key").unwrap(), [0.5]);
    }
}
