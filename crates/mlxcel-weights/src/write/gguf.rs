//! GGUF files, version 3 (<https://github.com/ggml-org/ggml/blob/master/docs/gguf.md>). What the metadata means is
//! not known here.

use std::io::Write;

use mlxcel_ir::{DType, GgufFormat, QuantFormat};

use super::stream::{Sink, stream};
use super::{NewTensor, Watch};
use crate::error::{Result, WeightsError};
use crate::gguf::{GgufArray, GgufValue};

const VERSION: u32 = 3;
/// What readers assume where the metadata does not say.
const ALIGNMENT: u64 = 32;

/// Writes one file. Metadata come in the given order, which is for people; readers do not care.
pub fn write_gguf(
    out: &mut impl Write,
    metadata: &[(String, GgufValue)],
    tensors: &[NewTensor],
    watch: &mut dyn Watch,
) -> Result<()> {
    let failed = |source| WeightsError::Write { source };
    let header = header(metadata, tensors)?;
    let padding = |length: u64| vec![0; (length.next_multiple_of(ALIGNMENT) - length) as usize];
    out.write_all(&header).map_err(failed)?;
    out.write_all(&padding(header.len() as u64)).map_err(failed)?;
    for tensor in tensors {
        stream(tensor, &mut InOrder(out), watch)?;
        out.write_all(&padding(tensor.bytes()?)).map_err(failed)?;
    }
    Ok(())
}

fn header(metadata: &[(String, GgufValue)], tensors: &[NewTensor]) -> Result<Vec<u8>> {
    let mut out = b"GGUF".to_vec();
    out.extend(VERSION.to_le_bytes());
    out.extend((tensors.len() as u64).to_le_bytes());
    out.extend((metadata.len() as u64).to_le_bytes());
    for (key, value) in metadata {
        put_string(&mut out, key);
        put_value(&mut out, value);
    }
    let mut offset = 0u64;
    for tensor in tensors {
        let refuse = || WeightsError::NotInGguf { tensor: tensor.name.clone(), dtype: tensor.dtype };
        let code = gguf_type(tensor.dtype).ok_or_else(refuse)?;
        put_string(&mut out, &tensor.name);
        out.extend((tensor.shape.len() as u32).to_le_bytes());
        // The file lists the fastest axis first.
        out.extend(tensor.shape.iter().rev().flat_map(|&d| (d as u64).to_le_bytes()));
        out.extend(code.to_le_bytes());
        out.extend(offset.to_le_bytes());
        offset += tensor.bytes()?.next_multiple_of(ALIGNMENT);
    }
    Ok(out)
}

/// The number of `ggml_type`, if GGUF has the type.
pub fn gguf_type(dtype: DType) -> Option<u32> {
    Some(match dtype {
        DType::F32 => 0,
        DType::F16 => 1,
        DType::I8 => 24,
        DType::I16 => 25,
        DType::I32 => 26,
        DType::I64 => 27,
        DType::F64 => 28,
        DType::BF16 => 30,
        DType::Quant(QuantFormat::Gguf(format)) => match format {
            GgufFormat::Q4_0 => 2,
            GgufFormat::Q4_1 => 3,
            GgufFormat::Q5_0 => 6,
            GgufFormat::Q5_1 => 7,
            GgufFormat::Q8_0 => 8,
            GgufFormat::Q2K => 10,
            GgufFormat::Q3K => 11,
            GgufFormat::Q4K => 12,
            GgufFormat::Q5K => 13,
            GgufFormat::Q6K => 14,
            GgufFormat::Iq2Xxs => 16,
            GgufFormat::Iq3Xxs => 18,
            GgufFormat::Iq4Nl => 20,
            GgufFormat::Iq4Xs => 23,
            GgufFormat::MxFp4 => 39,
        },
        _ => return None,
    })
}

fn put_string(out: &mut Vec<u8>, text: &str) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend(text.as_bytes());
}

fn put_value(out: &mut Vec<u8>, value: &GgufValue) {
    let mut number = |code: u32, bytes: &[u8]| {
        out.extend(code.to_le_bytes());
        out.extend(bytes);
    };
    match value {
        GgufValue::U8(v) => number(0, &v.to_le_bytes()),
        GgufValue::I8(v) => number(1, &v.to_le_bytes()),
        GgufValue::U16(v) => number(2, &v.to_le_bytes()),
        GgufValue::I16(v) => number(3, &v.to_le_bytes()),
        GgufValue::U32(v) => number(4, &v.to_le_bytes()),
        GgufValue::I32(v) => number(5, &v.to_le_bytes()),
        GgufValue::F32(v) => number(6, &v.to_le_bytes()),
        GgufValue::Bool(v) => number(7, &[u8::from(*v)]),
        GgufValue::U64(v) => number(10, &v.to_le_bytes()),
        GgufValue::I64(v) => number(11, &v.to_le_bytes()),
        GgufValue::F64(v) => number(12, &v.to_le_bytes()),
        GgufValue::String(text) => {
            number(8, &[]);
            put_string(out, text);
        }
        GgufValue::Array(array) => {
            number(9, &[]);
            put_array(out, array);
        }
    }
}

fn put_array(out: &mut Vec<u8>, array: &GgufArray) {
    fn numbers<const N: usize>(
        out: &mut Vec<u8>,
        code: u32,
        count: usize,
        bytes: impl Iterator<Item = [u8; N]>,
    ) {
        out.extend(code.to_le_bytes());
        out.extend((count as u64).to_le_bytes());
        out.extend(bytes.flatten());
    }
    let count = array.len();
    match array {
        GgufArray::U8(v) => numbers(out, 0, count, v.iter().map(|v| v.to_le_bytes())),
        GgufArray::I8(v) => numbers(out, 1, count, v.iter().map(|v| v.to_le_bytes())),
        GgufArray::U16(v) => numbers(out, 2, count, v.iter().map(|v| v.to_le_bytes())),
        GgufArray::I16(v) => numbers(out, 3, count, v.iter().map(|v| v.to_le_bytes())),
        GgufArray::U32(v) => numbers(out, 4, count, v.iter().map(|v| v.to_le_bytes())),
        GgufArray::I32(v) => numbers(out, 5, count, v.iter().map(|v| v.to_le_bytes())),
        GgufArray::F32(v) => numbers(out, 6, count, v.iter().map(|v| v.to_le_bytes())),
        GgufArray::Bool(v) => numbers(out, 7, count, v.iter().map(|&v| [u8::from(v)])),
        GgufArray::U64(v) => numbers(out, 10, count, v.iter().map(|v| v.to_le_bytes())),
        GgufArray::I64(v) => numbers(out, 11, count, v.iter().map(|v| v.to_le_bytes())),
        GgufArray::F64(v) => numbers(out, 12, count, v.iter().map(|v| v.to_le_bytes())),
        GgufArray::String(texts) => {
            numbers::<0>(out, 8, count, std::iter::empty());
            texts.iter().for_each(|text| put_string(out, text));
        }
        GgufArray::Array(arrays) => {
            numbers::<0>(out, 9, count, std::iter::empty());
            arrays.iter().for_each(|array| put_array(out, array));
        }
    }
}

/// One array per tensor, so the pieces simply follow each other.
struct InOrder<'a, W>(&'a mut W);

impl<W: Write> Sink for InOrder<'_, W> {
    fn put(&mut self, part: usize, bytes: &[u8]) -> std::io::Result<()> {
        debug_assert_eq!(part, 0, "GGUF formats have one array");
        self.0.write_all(bytes)
    }
}
