//! Calls of Llama 3: an object at the beginning of the answer, perhaps after `<|python_tag|>`. Since an answer may well
//! be JSON, an object without the tag is a call only if it begins like one and names a tool of the request.

use super::cursor::{Cursor, Read, Stop};
use super::{ToolCall, ToolSet};

pub(super) const TAG: &str = "<|python_tag|>";
const FIRST_KEYS: [&str; 4] = ["\"name\"", "\"type\"", "\"function\"", "\"id\""];

pub(super) fn parse(cursor: &mut Cursor<'_>, tools: &ToolSet) -> Read<Vec<ToolCall>> {
    let is_tagged = !cursor.rest().starts_with('{');
    if is_tagged {
        cursor.expect(TAG)?;
        cursor.skip_blanks();
    }
    begins_like_a_call(cursor.rest())?;
    let call = ToolCall::from_object(cursor.json()?).ok_or(Stop::NoCall)?;
    if !is_tagged && tools.get(&call.name).is_none() {
        return Err(Stop::NoCall);
    }
    Ok(vec![call])
}

fn begins_like_a_call(text: &str) -> Read<()> {
    let Some(inside) = text.strip_prefix('{') else {
        return Err(if text.is_empty() { Stop::Incomplete } else { Stop::NoCall });
    };
    let inside = inside.trim_start();
    if FIRST_KEYS.iter().any(|key| inside.starts_with(key)) {
        return Ok(());
    }
    match FIRST_KEYS.iter().any(|key| key.starts_with(inside)) {
        true => Err(Stop::Incomplete),
        false => Err(Stop::NoCall),
    }
}
