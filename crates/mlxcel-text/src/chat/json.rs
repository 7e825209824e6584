//! The `tojson` filter as transformers defines it: Python's `json.dumps` with its separators and number
//! formats, and without the HTML escapes of Jinja's own filter.

use std::fmt::Write;

use minijinja::value::{Kwargs, Value, ValueKind};
use minijinja::{Error, ErrorKind};

/// `tojson(ensure_ascii=false, indent=none, separators=none, sort_keys=false)`.
pub(super) fn tojson(value: &Value, kwargs: Kwargs) -> Result<Value, Error> {
    let indent: Option<Value> = kwargs.get("indent")?;
    let indent = indent
        .filter(|indent| !indent.is_none() && !indent.is_undefined())
        .map(|indent| indentation(&indent));
    let indent = indent.transpose()?;
    let separators: Option<Value> = kwargs.get("separators")?;
    let (item, key) =
        match separators.filter(|separators| !separators.is_none() && !separators.is_undefined()) {
            Some(separators) => (text_at(&separators, 0)?, text_at(&separators, 1)?),
            None if indent.is_some() => (",".to_owned(), ": ".to_owned()),
            None => (", ".to_owned(), ": ".to_owned()),
        };
    let writer = Writer {
        indent,
        item_separator: item,
        key_separator: key,
        ensure_ascii: kwargs.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false),
        sort_keys: kwargs.get::<Option<bool>>("sort_keys")?.unwrap_or(false),
    };
    kwargs.assert_all_used()?;
    let mut out = String::new();
    writer.write(value, 0, &mut out)?;
    Ok(Value::from(out))
}

/// Values nested deeper than any JSON a client can send are refused before the stack ends.
const DEPTH_MAX: usize = 200;
const INDENT_MAX: usize = 64;
const BYTES_MAX: usize = 64 << 20;

fn indentation(value: &Value) -> Result<String, Error> {
    if let Some(text) = value.as_str() {
        return Ok(text.chars().take(INDENT_MAX).collect());
    }
    let width = value.as_i64().ok_or_else(|| invalid("indent is neither a number nor a text"))?;
    // Python treats a negative indent like zero: line breaks without blanks.
    Ok(" ".repeat(usize::try_from(width).unwrap_or(0).min(INDENT_MAX)))
}

fn text_at(separators: &Value, index: usize) -> Result<String, Error> {
    let text = separators.get_item_by_index(index)?;
    text.as_str().map(str::to_owned).ok_or_else(|| invalid("separators are not two texts"))
}

fn invalid(detail: &'static str) -> Error {
    Error::new(ErrorKind::InvalidOperation, detail)
}

struct Writer {
    indent: Option<String>,
    item_separator: String,
    key_separator: String,
    ensure_ascii: bool,
    sort_keys: bool,
}

impl Writer {
    fn write(&self, value: &Value, depth: usize, out: &mut String) -> Result<(), Error> {
        if depth > DEPTH_MAX {
            return Err(invalid("the value is nested too deeply for tojson"));
        }
        // Lists that contain each other are written out each time.
        if out.len() > BYTES_MAX {
            return Err(invalid("the value is too long for tojson"));
        }
        match value.kind() {
            ValueKind::None => out.push_str("null"),
            ValueKind::Bool => out.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => out.push_str(&number(value)),
            ValueKind::String => self.write_text(value.as_str().unwrap_or_default(), out),
            ValueKind::Seq | ValueKind::Iterable => self.write_list(value, depth, out)?,
            ValueKind::Map => self.write_map(value, depth, out)?,
            kind => {
                return Err(Error::new(
                    ErrorKind::InvalidOperation,
                    format!("{kind} is not JSON serializable"),
                ));
            }
        }
        Ok(())
    }

    fn write_list(&self, list: &Value, depth: usize, out: &mut String) -> Result<(), Error> {
        out.push('[');
        let mut empty = true;
        for item in list.try_iter()?.checked() {
            self.start_item(std::mem::replace(&mut empty, false), depth + 1, out);
            self.write(&item?, depth + 1, out)?;
        }
        self.end_items(empty, depth, out);
        out.push(']');
        Ok(())
    }

    fn write_map(&self, map: &Value, depth: usize, out: &mut String) -> Result<(), Error> {
        let mut entries = Vec::new();
        for key in map.try_iter()?.checked() {
            let key = key?;
            entries.push((key_text(&key)?, map.get_item(&key)?));
        }
        if self.sort_keys {
            entries.sort_by(|a, b| a.0.cmp(&b.0));
        }
        out.push('{');
        let mut empty = true;
        for (key, value) in &entries {
            self.start_item(std::mem::replace(&mut empty, false), depth + 1, out);
            self.write_text(key, out);
            out.push_str(&self.key_separator);
            self.write(value, depth + 1, out)?;
        }
        self.end_items(empty, depth, out);
        out.push('}');
        Ok(())
    }

    fn start_item(&self, first: bool, depth: usize, out: &mut String) {
        if !first {
            out.push_str(&self.item_separator);
        }
        self.break_line(depth, out);
    }

    fn end_items(&self, empty: bool, depth: usize, out: &mut String) {
        if !empty {
            self.break_line(depth, out);
        }
    }

    fn break_line(&self, depth: usize, out: &mut String) {
        if let Some(indent) = &self.indent {
            out.push('\n');
            out.push_str(&indent.repeat(depth));
        }
    }

    fn write_text(&self, text: &str, out: &mut String) {
        out.push('"');
        for c in text.chars() {
            match c {
                '"' => out.push_str("\\\""),
                '\\' => out.push_str("\\\\"),
                '\n' => out.push_str("\\n"),
                '\r' => out.push_str("\\r"),
                '\t' => out.push_str("\\t"),
                '\u{8}' => out.push_str("\\b"),
                '\u{c}' => out.push_str("\\f"),
                c if c < ' ' || (self.ensure_ascii && !c.is_ascii()) => {
                    for unit in c.encode_utf16(&mut [0; 2]) {
                        write!(out, "\\u{unit:04x}").expect("writing to a string cannot fail");
                    }
                }
                c => out.push(c),
            }
        }
        out.push('"');
    }
}

/// JSON has text keys only; Python turns the others into text.
fn key_text(key: &Value) -> Result<String, Error> {
    match key.kind() {
        ValueKind::String => Ok(key.as_str().unwrap_or_default().to_owned()),
        ValueKind::Number => Ok(number(key)),
        ValueKind::Bool => Ok(if key.is_true() { "true" } else { "false" }.to_owned()),
        ValueKind::None => Ok("null".to_owned()),
        kind => Err(Error::new(ErrorKind::InvalidOperation, format!("{kind} cannot be a JSON key"))),
    }
}

fn number(value: &Value) -> String {
    if value.is_integer() {
        return value.to_string();
    }
    f64::try_from(value.clone()).map_or_else(|_| value.to_string(), python_float)
}

/// The shortest digits that read back as the same number, with Python's exponents: `1e-05`, `1e+16`.
fn python_float(number: f64) -> String {
    if number.is_nan() {
        return "NaN".to_owned();
    }
    if number.is_infinite() {
        return if number > 0.0 { "Infinity" } else { "-Infinity" }.to_owned();
    }
    let text = format!("{number:?}");
    let Some((digits, exponent)) = text.split_once('e') else { return text };
    let (sign, exponent) = exponent.strip_prefix('-').map_or(('+', exponent), |exponent| ('-', exponent));
    format!("{digits}e{sign}{exponent:0>2}")
}
