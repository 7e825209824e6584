//! Element types, tensor types and constants in StableHLO's text.

use mlxcel_ir::{DType, HostTensor, Type};

use crate::error::XlaError;

/// The name of an element type. Packed weights never get here: they are unpacked by [`crate::lower`].
pub(super) fn element(dtype: DType) -> Result<&'static str, XlaError> {
    Ok(match dtype {
        DType::Bool => "i1",
        DType::U8 => "ui8",
        DType::U16 => "ui16",
        DType::U32 => "ui32",
        DType::U64 => "ui64",
        DType::I8 => "i8",
        DType::I16 => "i16",
        DType::I32 => "i32",
        DType::I64 => "i64",
        DType::F8E4M3 => "f8E4M3FN",
        DType::F8E5M2 => "f8E5M2",
        DType::F16 => "f16",
        DType::BF16 => "bf16",
        DType::F32 => "f32",
        DType::F64 => "f64",
        DType::Quant(_) => {
            return Err(XlaError::Unsupported { op: "a packed value".into(), operands: dtype.to_string() });
        }
    })
}

/// The sizes of a bound type.
pub(crate) fn sizes(ty: &Type) -> Result<Vec<usize>, XlaError> {
    let fixed = ty.shape.iter().map(|d| d.as_fixed()).collect::<Option<Vec<_>>>();
    fixed.ok_or_else(|| XlaError::Unbound { ty: ty.to_string() })
}

/// `tensor<2x3xf32>`.
pub(super) fn tensor(dtype: DType, sizes: &[usize]) -> Result<String, XlaError> {
    let dims: String = sizes.iter().map(|n| format!("{n}x")).collect();
    Ok(format!("tensor<{dims}{}>", element(dtype)?))
}

/// The value of a constant: a number if it is one, else its bytes.
pub(super) fn dense(t: &HostTensor) -> String {
    if t.dtype() == DType::Bool {
        return bools(t.bytes(), t.shape());
    }
    if t.len() == 1 {
        return format!("dense<{}>", number(t.dtype(), t.to_f64()[0]).unwrap_or_else(|| hex(t.bytes())));
    }
    if t.is_empty() {
        return "dense<>".to_string();
    }
    format!("dense<{}>", hex(t.bytes()))
}

fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    let mut text = String::with_capacity(2 * bytes.len() + 4);
    text.push_str("\"0x");
    for b in bytes {
        write!(text, "{b:02X}").expect("writing to a string does not fail");
    }
    text.push('"');
    text
}

/// A literal that reads back as the same number; `None` where decimals cannot say it.
fn number(dtype: DType, v: f64) -> Option<String> {
    if dtype.is_int() {
        let exact = v.abs() < (1u64 << 53) as f64;
        return exact.then(|| format!("{}", v as i64));
    }
    let text = if dtype == DType::F64 { format!("{v:e}") } else { format!("{:e}", v as f32) };
    let (mantissa, exponent) = text.split_once('e').filter(|_| v.is_finite())?;
    let point = if mantissa.contains('.') { "" } else { ".0" };
    Some(format!("{mantissa}{point}e{exponent}"))
}

/// Booleans are written out, since their bytes are packed to bits in the text form.
fn bools(bytes: &[u8], shape: &[usize]) -> String {
    fn nested(bytes: &[u8], shape: &[usize]) -> String {
        match shape {
            [] => (bytes[0] != 0).to_string(),
            [n, rest @ ..] => {
                let run = bytes.len() / (*n).max(1);
                let parts = (0..*n).map(|i| nested(&bytes[i * run..(i + 1) * run], rest));
                format!("[{}]", parts.collect::<Vec<_>>().join(", "))
            }
        }
    }
    format!("dense<{}>", nested(bytes, shape))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn constants_are_numbers_where_they_can_be_and_bytes_elsewhere() {
        assert_eq!(dense(&HostTensor::scalar(1e-5f32)), "dense<1.0e-5>");
        assert_eq!(dense(&HostTensor::scalar(-7i32)), "dense<-7>");
        assert_eq!(dense(&HostTensor::scalar(f32::INFINITY)), "dense<\"0x0000807F\">");
        assert_eq!(dense(&HostTensor::new(&[2], &[1u8, 255])), "dense<\"0x01FF\">");
        assert_eq!(dense(&HostTensor::new(&[2, 1], &[true, false])), "dense<[[true], [false]]>");
    }

    #[test]
    fn types_are_spelled_as_in_the_specification() {
        assert_eq!(tensor(DType::BF16, &[2, 3]).unwrap(), "tensor<2x3xbf16>");
        assert_eq!(tensor(DType::U32, &[]).unwrap(), "tensor<ui32>");
    }
}
