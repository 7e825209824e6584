//! Filters and methods whose results can be far longer than what they are given, behind a look at how long that will
//! be. What they do is minijinja's business.

use minijinja::value::{Rest, Value, ValueKind, ValueOrKwargs};
use minijinja::{Environment, Error, State, filters};

use super::meter::{self, BYTES_READ_MAX};

/// What an item of a list takes, however short its text.
const ITEM_BYTES: usize = 32;
const LIMIT: usize = BYTES_READ_MAX as usize + 1;

type Cost = fn(&[Value]) -> usize;

pub(super) fn add_filters(environment: &mut Environment<'_>) {
    environment.add_filter("__replace", filters::replace);
    environment.add_filter("__join", filters::join);
    environment.add_filter("__indent", filters::indent);
    environment.add_filter("__format", filters::format);
    environment.add_filter("__list", filters::list);
    let guarded: [(&str, &str, Cost); 5] = [
        ("replace", "__replace", replaced),
        ("join", "__join", joined),
        ("indent", "__indent", indented),
        ("format", "__format", formatted),
        ("list", "__list", listed),
    ];
    for (name, original, cost) in guarded {
        environment.add_filter(name, move |state: &mut State, args: Rest<ValueOrKwargs>| {
            let args = args.into_values();
            meter::count(state, cost(&args))?;
            state.apply_filter(original, &args)
        });
    }
}

/// Counts what a method of a text is going to make.
pub(super) fn count_method(
    state: &mut State,
    text: &Value,
    method: &str,
    args: &[Value],
) -> Result<(), Error> {
    let with_text = || [std::slice::from_ref(text), args].concat();
    let bytes = match method {
        "replace" => replaced(&with_text()),
        "format" => formatted(&with_text()),
        "join" => joined(&args.first().into_iter().chain([text]).cloned().collect::<Vec<_>>()),
        _ => return Ok(()),
    };
    meter::count(state, bytes)
}

fn text(args: &[Value], index: usize) -> &str {
    args.get(index).and_then(Value::as_str).unwrap_or_default()
}

fn replaced(args: &[Value]) -> usize {
    let (whole, from, to) = (text(args, 0), text(args, 1), text(args, 2));
    whole.len().saturating_add(whole.matches(from).count().saturating_mul(to.len()))
}

/// The list, then what goes between its items.
fn joined(args: &[Value]) -> usize {
    let between = text(args, 1).len();
    let items = args.first().filter(|list| list.kind() != ValueKind::Undefined).map(Value::try_iter);
    let mut bytes = 0usize;
    for item in items.into_iter().flatten().flatten() {
        bytes =
            bytes.saturating_add(item.as_str().map_or(0, str::len).saturating_add(between).max(ITEM_BYTES));
        if bytes >= LIMIT {
            break;
        }
    }
    bytes
}

fn indented(args: &[Value]) -> usize {
    let whole = text(args, 0);
    let named =
        args.last().and_then(|kwargs| kwargs.get_attr("width").ok()).and_then(|width| width.as_usize());
    let width = args.get(1).and_then(Value::as_usize).or(named).unwrap_or(4);
    whole.len().saturating_add(whole.lines().count().saturating_mul(width))
}

/// Widths are written in the format or given beside it.
fn formatted(args: &[Value]) -> usize {
    let format = text(args, 0);
    let numbers = format.split(|c: char| !c.is_ascii_digit()).filter(|digits| !digits.is_empty());
    let widths =
        numbers.map(|digits| digits.parse().unwrap_or(LIMIT)).fold(format.len(), usize::saturating_add);
    let given = args.iter().filter_map(Value::as_usize).max().filter(|_| format.contains(['*', '{']));
    widths.saturating_add(given.unwrap_or(0))
}

fn listed(args: &[Value]) -> usize {
    let items =
        args.first().map_or(0, |value| value.as_str().map_or_else(|| value.len().unwrap_or(0), str::len));
    items.saturating_mul(ITEM_BYTES)
}
