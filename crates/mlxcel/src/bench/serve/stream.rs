//! What a server sends, read as it comes: [server-sent events](https://html.spec.whatwg.org/multipage/server-sent-events.html)
//! and the parts of their JSON that are measured. It has no clock and knows no connection. Lines end with LF or CRLF,
//! as every server of this interface has them.

use serde::Deserialize;
use serde_json::Value;

use super::failure::{Failure, said};

/// Bytes of one event; a server that sends more is not answering a chat.
const EVENT_BYTES_MAX: usize = 4 << 20;

/// What one event says.
#[derive(Debug, PartialEq)]
pub enum Event {
    /// Part of an answer.
    Piece(Piece),
    Done,
}

/// What is measured of a part of an answer, or of a whole one.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Piece {
    pub has_output: bool,
    pub is_last: bool,
    pub usage: Option<Usage>,
}

#[derive(Clone, Debug, Default, Deserialize, PartialEq)]
pub struct Usage {
    #[serde(default)]
    pub prompt_tokens: u64,
    #[serde(default)]
    pub completion_tokens: u64,
    #[serde(default)]
    pub prompt_tokens_details: Option<PromptDetails>,
}

#[derive(Clone, Debug, Default, Deserialize, PartialEq)]
pub struct PromptDetails {
    #[serde(default)]
    pub cached_tokens: Option<u64>,
}

/// The bytes of a stream, cut into events.
#[derive(Debug, Default)]
pub struct Events {
    /// The beginning of a line.
    line: Vec<u8>,
    /// The data of the event so far.
    data: Vec<u8>,
    is_error: bool,
}

impl Events {
    /// The events that end in these bytes.
    pub fn push(&mut self, bytes: &[u8]) -> Result<Vec<Event>, Failure> {
        let mut events = Vec::new();
        for part in bytes.split_inclusive(|&byte| byte == b'\n') {
            if self.line.len() + self.data.len() + part.len() > EVENT_BYTES_MAX {
                return Err(Failure::Malformed(format!("an event is longer than {EVENT_BYTES_MAX} bytes")));
            }
            self.line.extend_from_slice(part);
            if self.line.last() == Some(&b'\n') {
                events.extend(self.end_line()?);
            }
        }
        Ok(events)
    }

    fn end_line(&mut self) -> Result<Option<Event>, Failure> {
        let line = std::mem::take(&mut self.line);
        let line = line.strip_suffix(b"\n").unwrap_or(&line);
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        if line.is_empty() {
            return self.end_event();
        }
        let colon = line.iter().position(|&byte| byte == b':').unwrap_or(line.len());
        let value = line.get(colon + 1..).unwrap_or_default();
        let value = value.strip_prefix(b" ").unwrap_or(value);
        match &line[..colon] {
            b"data" => {
                self.data.extend_from_slice(value);
                self.data.push(b'\n');
            }
            b"event" => self.is_error = value == b"error",
            _ => {}
        }
        Ok(None)
    }

    fn end_event(&mut self) -> Result<Option<Event>, Failure> {
        let data = std::mem::take(&mut self.data);
        let is_error = std::mem::take(&mut self.is_error);
        let data = data.trim_ascii();
        if is_error {
            return Err(Failure::Reported(message(data)));
        }
        match data {
            b"" => Ok(None),
            b"[DONE]" => Ok(Some(Event::Done)),
            data => piece(data).map(|piece| Some(Event::Piece(piece))),
        }
    }
}

#[derive(Deserialize)]
struct Body {
    #[serde(default)]
    choices: Vec<Choice>,
    #[serde(default)]
    usage: Option<Usage>,
    #[serde(default)]
    error: Option<Value>,
}

#[derive(Deserialize)]
struct Choice {
    #[serde(default, alias = "message")]
    delta: Option<Delta>,
    #[serde(default)]
    finish_reason: Option<String>,
}

#[derive(Deserialize)]
struct Delta {
    #[serde(default)]
    content: Option<String>,
    #[serde(default)]
    reasoning_content: Option<String>,
    #[serde(default)]
    reasoning: Option<String>,
    #[serde(default)]
    tool_calls: Option<Vec<serde::de::IgnoredAny>>,
}

impl Delta {
    fn has_output(&self) -> bool {
        let texts = [&self.content, &self.reasoning_content, &self.reasoning];
        texts.into_iter().flatten().any(|text| !text.is_empty())
            || self.tool_calls.as_ref().is_some_and(|calls| !calls.is_empty())
    }
}

/// The JSON of an event, or of an answer that is not streamed.
pub fn piece(json: &[u8]) -> Result<Piece, Failure> {
    let body: Body = serde_json::from_slice(json).map_err(|error| {
        Failure::Malformed(format!("{error} in '{}'", said(&String::from_utf8_lossy(json))))
    })?;
    if body.error.is_some_and(|error| !error.is_null()) {
        return Err(Failure::Reported(message(json)));
    }
    let has_output = |choice: &Choice| choice.delta.as_ref().is_some_and(Delta::has_output);
    Ok(Piece {
        has_output: body.choices.iter().any(has_output),
        is_last: body.choices.iter().any(|choice| choice.finish_reason.is_some()),
        usage: body.usage,
    })
}

/// What an error's body says: the message of the interface's own shape where it has that, else its text.
pub fn message(body: &[u8]) -> String {
    let json: Value = serde_json::from_slice(body).unwrap_or_default();
    let error = json.get("error").unwrap_or(&json);
    let message = error.get("message").or_else(|| json.get("message")).unwrap_or(error);
    match message.as_str() {
        Some(text) => said(text),
        None => said(&String::from_utf8_lossy(body)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STREAM: &str = ": a comment\r\n\
        data: {\"choices\":[{\"delta\":{\"role\":\"assistant\",\"content\":\"\"},\"finish_reason\":null}]}\r\n\r\n\
        data: {\"choices\":[{\"delta\":{\"content\":\"größer\"},\"finish_reason\":null}],\"usage\":null}\n\n\
        data:{\"choices\":[{\"delta\":\ndata: {\"reasoning_content\":\"hm\"}}]}\n\n\
        id: 7\ndata: {\"choices\":[{\"delta\":{},\"finish_reason\":\"length\"}]}\n\n\
        data: {\"choices\":[],\"usage\":{\"prompt_tokens\":9,\"completion_tokens\":2,\
        \"prompt_tokens_details\":{\"cached_tokens\":4}}}\n\ndata: [DONE]\n\n";

    fn expected() -> Vec<Event> {
        let output = Piece { has_output: true, ..Piece::default() };
        let details = Some(PromptDetails { cached_tokens: Some(4) });
        let usage = Usage { prompt_tokens: 9, completion_tokens: 2, prompt_tokens_details: details };
        let pieces = [
            Piece::default(),
            output.clone(),
            output,
            Piece { is_last: true, ..Piece::default() },
            Piece { usage: Some(usage), ..Piece::default() },
        ];
        pieces.into_iter().map(Event::Piece).chain([Event::Done]).collect()
    }

    #[test]
    fn events_are_the_same_wherever_the_bytes_are_cut() {
        for size in [1, 2, 3, 7, 64, STREAM.len()] {
            let mut events = Events::default();
            let got: Vec<Event> =
                STREAM.as_bytes().chunks(size).flat_map(|part| events.push(part).unwrap()).collect();
            assert_eq!(got, expected(), "{size}");
        }
    }

    #[test]
    fn an_error_in_the_stream_is_one_in_all_its_shapes() {
        for text in [
            "data: {\"error\":{\"message\":\"out of blocks\",\"code\":500}}\n\n",
            "event: error\ndata: {\"error\":{\"message\":\"out of blocks\"}}\n\n",
            "event: error\ndata: {\"message\":\"out of blocks\"}\n\n",
            "event: error\ndata: out of blocks\n\n",
            "data: {\"error\":\"out of blocks\"}\n\n",
        ] {
            let failure = Events::default().push(text.as_bytes()).unwrap_err();
            assert_eq!(failure, Failure::Reported("out of blocks".to_string()), "{text}");
        }
    }

    #[test]
    fn what_is_no_answer_is_refused_without_a_panic() {
        for text in ["data: {\n\n", "data: [1]\n\n", "data: \u{fffd}\n\n", "data: {\"choices\":{}}\n\n"] {
            let failure = Events::default().push(text.as_bytes()).unwrap_err();
            assert_eq!(failure.kind(), "malformed answer", "{text}");
        }
        let mut events = Events::default();
        let endless = vec![b'x'; 1 << 20];
        let failure = (0..5).find_map(|_| events.push(&endless).err()).expect("it is refused");
        assert_eq!(failure.kind(), "malformed answer");
    }
}
