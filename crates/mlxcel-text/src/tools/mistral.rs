//! Calls of Mistral after `[TOOL_CALLS]`: a list of objects, or a name and an object.

use super::ToolCall;
use super::cursor::{Cursor, Read, Stop, json_len};

pub(super) const MARK: &str = "[TOOL_CALLS]";
pub(super) const ARGUMENTS: &str = "[ARGS]";
const ID: &str = "[CALL_ID]";

pub(super) fn parse(cursor: &mut Cursor<'_>) -> Read<Vec<ToolCall>> {
    cursor.expect(MARK)?;
    cursor.skip_blanks();
    match cursor.rest().chars().next() {
        None => Err(Stop::Incomplete),
        Some('[') => list(cursor.json()?).ok_or(Stop::NoCall),
        Some(_) => Ok(vec![named(cursor)?]),
    }
}

/// `NAME[CALL_ID]id[ARGS]{…}`; the id, and in older models also `[ARGS]`, may be missing.
fn named(cursor: &mut Cursor<'_>) -> Read<ToolCall> {
    let name = cursor.name_before(&['[', '{'])?.to_owned();
    let mut id = None;
    if cursor.rest().starts_with('[') {
        if cursor.take(ID)? {
            id = Some(cursor.name(ARGUMENTS)?.to_owned());
        } else {
            cursor.expect(ARGUMENTS)?;
        }
    }
    cursor.skip_blanks();
    let call = ToolCall::with_arguments(name, cursor.json()?).ok_or(Stop::NoCall)?;
    Ok(ToolCall { id, ..call })
}

/// Every entry must be a call.
fn list(text: &str) -> Option<Vec<ToolCall>> {
    let mut rest = text.strip_prefix('[')?.trim_start();
    let mut calls = Vec::new();
    loop {
        let len = rest.starts_with('{').then(|| json_len(rest))??;
        calls.push(ToolCall::from_object(&rest[..len])?);
        rest = rest[len..].trim_start();
        match rest.strip_prefix(',') {
            Some(after) => rest = after.trim_start(),
            None => return (rest == "]").then_some(calls),
        }
    }
}
