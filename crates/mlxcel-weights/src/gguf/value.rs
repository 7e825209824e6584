//! The values of GGUF metadata, and how they are read.

use super::cursor::Cursor;
use crate::error::{Result, WeightsError};

/// No writer nests arrays; a few levels are allowed because the format does.
const NESTING_LIMIT: usize = 4;
const STRING: u32 = 8;
const ARRAY: u32 = 9;

/// One metadata value.
#[derive(Clone, Debug, PartialEq)]
pub enum GgufValue {
    U8(u8),
    I8(i8),
    U16(u16),
    I16(i16),
    U32(u32),
    I32(i32),
    U64(u64),
    I64(i64),
    F32(f32),
    F64(f64),
    Bool(bool),
    String(String),
    Array(GgufArray),
}

/// An array of one element type.
#[derive(Clone, Debug, PartialEq)]
pub enum GgufArray {
    U8(Vec<u8>),
    I8(Vec<i8>),
    U16(Vec<u16>),
    I16(Vec<i16>),
    U32(Vec<u32>),
    I32(Vec<i32>),
    U64(Vec<u64>),
    I64(Vec<i64>),
    F32(Vec<f32>),
    F64(Vec<f64>),
    Bool(Vec<bool>),
    String(Vec<String>),
    Array(Vec<GgufArray>),
}

impl GgufValue {
    /// The value as an integer, if it is one that fits.
    pub fn as_i64(&self) -> Option<i64> {
        Some(match *self {
            GgufValue::U8(v) => v.into(),
            GgufValue::I8(v) => v.into(),
            GgufValue::U16(v) => v.into(),
            GgufValue::I16(v) => v.into(),
            GgufValue::U32(v) => v.into(),
            GgufValue::I32(v) => v.into(),
            GgufValue::I64(v) => v,
            GgufValue::U64(v) => v.try_into().ok()?,
            _ => return None,
        })
    }

    /// The value as a float, if it is a float of either width.
    pub fn as_f64(&self) -> Option<f64> {
        match *self {
            GgufValue::F32(v) => Some(v.into()),
            GgufValue::F64(v) => Some(v),
            _ => None,
        }
    }

    pub fn as_array(&self) -> Option<&GgufArray> {
        if let GgufValue::Array(array) = self { Some(array) } else { None }
    }

    /// The type, and the number of elements of an array, in words.
    pub fn describe(&self) -> String {
        match self {
            GgufValue::Bool(v) => format!("the boolean {v}"),
            GgufValue::String(_) => "a string".to_string(),
            GgufValue::Array(array) => format!("an array of {} elements", array.len()),
            GgufValue::F32(v) => format!("the float {v}"),
            GgufValue::F64(v) => format!("the float {v}"),
            GgufValue::U64(v) => format!("the integer {v}"),
            integer => format!("the integer {}", integer.as_i64().unwrap_or_default()),
        }
    }
}

impl GgufArray {
    pub fn len(&self) -> usize {
        match self {
            GgufArray::U8(v) => v.len(),
            GgufArray::I8(v) => v.len(),
            GgufArray::U16(v) => v.len(),
            GgufArray::I16(v) => v.len(),
            GgufArray::U32(v) => v.len(),
            GgufArray::I32(v) => v.len(),
            GgufArray::U64(v) => v.len(),
            GgufArray::I64(v) => v.len(),
            GgufArray::F32(v) => v.len(),
            GgufArray::F64(v) => v.len(),
            GgufArray::Bool(v) => v.len(),
            GgufArray::String(v) => v.len(),
            GgufArray::Array(v) => v.len(),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The elements as integers, if they are integers that fit.
    pub fn to_i64s(&self) -> Option<Vec<i64>> {
        fn widen<T: Copy + Into<i64>>(values: &[T]) -> Vec<i64> {
            values.iter().map(|&v| v.into()).collect()
        }
        Some(match self {
            GgufArray::U8(v) => widen(v),
            GgufArray::I8(v) => widen(v),
            GgufArray::U16(v) => widen(v),
            GgufArray::I16(v) => widen(v),
            GgufArray::U32(v) => widen(v),
            GgufArray::I32(v) => widen(v),
            GgufArray::I64(v) => v.clone(),
            GgufArray::U64(v) => v.iter().map(|&v| v.try_into().ok()).collect::<Option<_>>()?,
            _ => return None,
        })
    }

    /// The elements as `f32`, if they are floats.
    pub fn to_f32s(&self) -> Option<Vec<f32>> {
        match self {
            GgufArray::F32(v) => Some(v.clone()),
            GgufArray::F64(v) => Some(v.iter().map(|&v| v as f32).collect()),
            _ => None,
        }
    }
}

/// The value of `key`, beginning with its type.
pub(super) fn read(cursor: &mut Cursor<'_>, key: &str) -> Result<GgufValue> {
    const WHAT: &str = "a metadata value";
    Ok(match cursor.u32("a metadata type")? {
        0 => GgufValue::U8(u8::from_le_bytes(cursor.array(WHAT)?)),
        1 => GgufValue::I8(i8::from_le_bytes(cursor.array(WHAT)?)),
        2 => GgufValue::U16(u16::from_le_bytes(cursor.array(WHAT)?)),
        3 => GgufValue::I16(i16::from_le_bytes(cursor.array(WHAT)?)),
        4 => GgufValue::U32(u32::from_le_bytes(cursor.array(WHAT)?)),
        5 => GgufValue::I32(i32::from_le_bytes(cursor.array(WHAT)?)),
        6 => GgufValue::F32(f32::from_le_bytes(cursor.array(WHAT)?)),
        7 => GgufValue::Bool(cursor.array::<1>(WHAT)? != [0]),
        STRING => GgufValue::String(cursor.string("a metadata string")?),
        ARRAY => GgufValue::Array(read_array(cursor, key, 1)?),
        10 => GgufValue::U64(u64::from_le_bytes(cursor.array(WHAT)?)),
        11 => GgufValue::I64(i64::from_le_bytes(cursor.array(WHAT)?)),
        12 => GgufValue::F64(f64::from_le_bytes(cursor.array(WHAT)?)),
        code => return Err(WeightsError::UnknownValueType { key: key.to_string(), code }),
    })
}

fn read_array(cursor: &mut Cursor<'_>, key: &str, depth: usize) -> Result<GgufArray> {
    if depth > NESTING_LIMIT {
        return Err(WeightsError::NestedTooDeep { key: key.to_string(), limit: NESTING_LIMIT });
    }
    let element = cursor.u32("an array type")?;
    let declared = cursor.u64("an array length")?;
    Ok(match element {
        0 => GgufArray::U8(read_numbers(cursor, declared, u8::from_le_bytes)?),
        1 => GgufArray::I8(read_numbers(cursor, declared, i8::from_le_bytes)?),
        2 => GgufArray::U16(read_numbers(cursor, declared, u16::from_le_bytes)?),
        3 => GgufArray::I16(read_numbers(cursor, declared, i16::from_le_bytes)?),
        4 => GgufArray::U32(read_numbers(cursor, declared, u32::from_le_bytes)?),
        5 => GgufArray::I32(read_numbers(cursor, declared, i32::from_le_bytes)?),
        6 => GgufArray::F32(read_numbers(cursor, declared, f32::from_le_bytes)?),
        7 => GgufArray::Bool(read_numbers(cursor, declared, |b: [u8; 1]| b != [0])?),
        STRING => {
            let count = cursor.count(declared, 8, "strings in an array")?;
            let strings = (0..count).map(|_| cursor.string("a string in an array"));
            GgufArray::String(strings.collect::<Result<_>>()?)
        }
        ARRAY => {
            let count = cursor.count(declared, 12, "arrays in an array")?;
            let arrays = (0..count).map(|_| read_array(cursor, key, depth + 1));
            GgufArray::Array(arrays.collect::<Result<_>>()?)
        }
        10 => GgufArray::U64(read_numbers(cursor, declared, u64::from_le_bytes)?),
        11 => GgufArray::I64(read_numbers(cursor, declared, i64::from_le_bytes)?),
        12 => GgufArray::F64(read_numbers(cursor, declared, f64::from_le_bytes)?),
        code => return Err(WeightsError::UnknownValueType { key: key.to_string(), code }),
    })
}

fn read_numbers<T, const N: usize>(
    cursor: &mut Cursor<'_>,
    declared: u64,
    convert: impl Fn([u8; N]) -> T,
) -> Result<Vec<T>> {
    let count = cursor.count(declared, N, "elements in an array")?;
    let bytes = cursor.take(count * N, "an array")?;
    let (elements, _) = bytes.as_chunks::<N>();
    Ok(elements.iter().map(|&b| convert(b)).collect())
}
