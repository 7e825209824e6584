//! Calls between `<tool_call>` and `</tool_call>`: an object, or a name with marked arguments. What stands first tells
//! which, whatever the template showed the model.

use serde_json::{Map, Value};

use super::cursor::{Cursor, Read, Stop};
use super::{ToolCall, ToolSet};

pub(super) const OPEN: &str = "<tool_call>";
pub(super) const CLOSE: &str = "</tool_call>";
const FUNCTION: &str = "<function=";

pub(super) fn parse(cursor: &mut Cursor<'_>, tools: &ToolSet) -> Read<Vec<ToolCall>> {
    cursor.expect(OPEN)?;
    cursor.skip_blanks();
    if cursor.rest().starts_with('{') {
        let call = ToolCall::from_object(cursor.json()?).ok_or(Stop::NoCall)?;
        cursor.close(CLOSE)?;
        return Ok(vec![call]);
    }
    let call = if cursor.take(FUNCTION)? { xml(cursor, tools)? } else { pairs(cursor, tools)? };
    Ok(vec![call])
}

/// `<function=NAME><parameter=KEY>value</parameter>…</function></tool_call>`
fn xml(cursor: &mut Cursor<'_>, tools: &ToolSet) -> Read<ToolCall> {
    let name = cursor.name(">")?;
    let mut arguments = Map::new();
    loop {
        cursor.skip_blanks();
        if cursor.take("</function>")? {
            break;
        }
        cursor.expect("<parameter=")?;
        let key = cursor.name(">")?;
        let value = cursor.until("</parameter>")?;
        let value = value.strip_prefix('\n').unwrap_or(value);
        let value = value.strip_suffix('\n').unwrap_or(value);
        arguments.insert(key.to_owned(), tools.typed(name, key, value));
    }
    cursor.close(CLOSE)?;
    Ok(finished(name, arguments))
}

/// `NAME<arg_key>KEY</arg_key><arg_value>value</arg_value>…</tool_call>`, with blanks between.
fn pairs(cursor: &mut Cursor<'_>, tools: &ToolSet) -> Read<ToolCall> {
    let name = cursor.name_before(&['\n', '<'])?;
    let mut arguments = Map::new();
    loop {
        cursor.skip_blanks();
        if cursor.take(CLOSE)? {
            return Ok(finished(name, arguments));
        }
        cursor.expect("<arg_key>")?;
        let key = cursor.until("</arg_key>")?.trim();
        cursor.skip_blanks();
        cursor.expect("<arg_value>")?;
        let value = cursor.until("</arg_value>")?;
        arguments.insert(key.to_owned(), tools.typed(name, key, value));
    }
}

fn finished(name: &str, arguments: Map<String, Value>) -> ToolCall {
    ToolCall { id: None, name: name.to_owned(), arguments: Value::Object(arguments).to_string() }
}
