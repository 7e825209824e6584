//! Methods of Python's strings, lists and dictionaries that chat templates call: those of minijinja's Python
//! compatibility, and the few it lacks.

use minijinja::value::{Tuple, Value, ValueKind, from_args};
use minijinja::{Error, ErrorKind, State};
use minijinja_contrib::pycompat::unknown_method_callback;

use super::bounded;

pub(super) fn call(state: &mut State, value: &Value, method: &str, args: &[Value]) -> Result<Value, Error> {
    bounded::count_method(state, value, method, args)?;
    let ours = match (value.as_str(), value.kind()) {
        (Some(text), _) => string_method(text, method, args),
        (None, ValueKind::Seq | ValueKind::Iterable) => list_method(value, method, args),
        _ => None,
    };
    ours.unwrap_or_else(|| unknown_method_callback(state, value, method, args))
}

fn string_method(text: &str, method: &str, args: &[Value]) -> Option<Result<Value, Error>> {
    Some(match method {
        "removeprefix" => one_text(args).map(|prefix| Value::from(text.strip_prefix(prefix).unwrap_or(text))),
        "removesuffix" => one_text(args).map(|suffix| Value::from(text.strip_suffix(suffix).unwrap_or(text))),
        "partition" => one_text(args).map(|separator| match text.split_once(separator) {
            Some((before, after)) => three(before, separator, after),
            None => three(text, "", ""),
        }),
        "rpartition" => one_text(args).map(|separator| match text.rsplit_once(separator) {
            Some((before, after)) => three(before, separator, after),
            None => three("", "", text),
        }),
        "rsplit" => rsplit(text, args),
        "index" => one_text(args).and_then(|part| match text.find(part) {
            Some(at) => Ok(Value::from(text[..at].chars().count())),
            None => Err(Error::new(ErrorKind::InvalidOperation, "substring not found")),
        }),
        "casefold" => from_args::<()>(args).map(|()| Value::from(text.to_lowercase())),
        _ => return None,
    })
}

fn list_method(list: &Value, method: &str, args: &[Value]) -> Option<Result<Value, Error>> {
    (method == "index").then(|| {
        let (wanted,): (&Value,) = from_args(args)?;
        let at = list.try_iter()?.position(|value| value == *wanted);
        at.map(Value::from)
            .ok_or_else(|| Error::new(ErrorKind::InvalidOperation, "the value is not in the list"))
    })
}

fn one_text(args: &[Value]) -> Result<&str, Error> {
    from_args::<(&str,)>(args).map(|(text,)| text)
}

fn three(before: &str, separator: &str, after: &str) -> Value {
    Value::from(Tuple::from([before, separator, after].map(Value::from)))
}

/// `rsplit(separator, maxsplit)`; without a separator, at runs of blanks.
fn rsplit(text: &str, args: &[Value]) -> Result<Value, Error> {
    let (separator, splits): (Option<&str>, Option<i64>) = from_args(args)?;
    let splits = splits.and_then(|splits| usize::try_from(splits).ok()).unwrap_or(usize::MAX - 1);
    if separator == Some("") {
        return Err(Error::new(ErrorKind::InvalidOperation, "empty separator"));
    }
    let mut parts: Vec<Value> = match separator {
        Some(separator) => text.rsplitn(splits + 1, separator).map(Value::from).collect(),
        None => rsplit_blanks(text, splits),
    };
    parts.reverse();
    Ok(Value::from(parts))
}

/// The parts from the last to the first.
fn rsplit_blanks(text: &str, splits: usize) -> Vec<Value> {
    let mut parts = Vec::new();
    let mut rest = text.trim_end();
    while !rest.is_empty() {
        let cut = if parts.len() < splits { rest.rfind(char::is_whitespace) } else { None };
        let Some(at) = cut else {
            // Without another cut the blanks inside stay, those before the first word do not.
            parts.push(Value::from(rest.trim_start()));
            break;
        };
        let blank = rest[at..].chars().next().map_or(0, char::len_utf8);
        parts.push(Value::from(&rest[at + blank..]));
        rest = rest[..at].trim_end();
    }
    parts
}
