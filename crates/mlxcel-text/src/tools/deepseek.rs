//! Calls of DeepSeek: a block of calls, each a name and JSON arguments, fenced in V3 and R1 and bare in V3.1.

use super::ToolCall;
use super::cursor::{Cursor, Read, Stop};

pub(super) const BLOCK: &str = "<｜tool▁calls▁begin｜>";
pub(super) const BLOCK_END: &str = "<｜tool▁calls▁end｜>";
pub(super) const CALL: &str = "<｜tool▁call▁begin｜>";
pub(super) const CALL_END: &str = "<｜tool▁call▁end｜>";
pub(super) const SEPARATOR: &str = "<｜tool▁sep｜>";

/// A block, or one call without a block around it.
pub(super) fn parse(cursor: &mut Cursor<'_>) -> Read<Vec<ToolCall>> {
    if !cursor.take(BLOCK)? {
        return Ok(vec![call(cursor)?]);
    }
    let mut calls = Vec::new();
    loop {
        cursor.skip_blanks();
        let is_cut = cursor.is_at_end() && !calls.is_empty();
        if is_cut || cursor.take(BLOCK_END)? {
            return Ok(calls);
        }
        calls.push(call(cursor)?);
    }
}

fn call(cursor: &mut Cursor<'_>) -> Read<ToolCall> {
    cursor.expect(CALL)?;
    let head = cursor.name(SEPARATOR)?;
    let (name, arguments) = match cursor.rest().trim_start().chars().next() {
        None => return Err(Stop::Incomplete),
        Some('{') => {
            cursor.skip_blanks();
            (head, cursor.json()?)
        }
        Some(_) => (cursor.name("\n")?, fenced(cursor)?),
    };
    let call = ToolCall::with_arguments(name.to_owned(), arguments).ok_or(Stop::NoCall)?;
    cursor.close(CALL_END)?;
    Ok(call)
}

fn fenced<'t>(cursor: &mut Cursor<'t>) -> Read<&'t str> {
    cursor.skip_blanks();
    cursor.expect("```json")?;
    cursor.skip_blanks();
    let arguments = cursor.json()?;
    cursor.close("```")?;
    Ok(arguments)
}
