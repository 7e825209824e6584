//! The texts that are embedded, one after the other: from arguments, from lines, from JSON lines. Nothing is read
//! ahead, so that input may be longer than memory.

use std::fs::File;
use std::io::{self, BufRead, BufReader, IsTerminal as _, Read as _};
use std::path::{Path, PathBuf};

use anyhow::{Result, anyhow, bail, ensure};
use serde_json::Value;

/// More text than any context holds.
const LINE_BYTES_MAX: u64 = 16 << 20;

/// Where texts come from.
pub enum Source {
    Arguments(Vec<String>),
    /// One text on each line of a file; `-` is standard input.
    Lines(PathBuf),
    /// One object on each line, with the text under `text` and perhaps something under `id`.
    JsonLines(PathBuf),
}

#[derive(Debug, PartialEq)]
pub struct Text {
    pub text: String,
    /// What the input calls it.
    pub id: Option<Value>,
    /// Where it stands, for messages.
    pub place: String,
}

/// The texts of a source in order.
pub fn open(source: Source) -> Result<Box<dyn Iterator<Item = Result<Text>>>> {
    match source {
        Source::Arguments(texts) => Ok(Box::new(
            (1..)
                .zip(texts)
                .map(|(number, text)| Ok(Text { text, id: None, place: format!("text {number}") })),
        )),
        Source::Lines(path) => {
            let lines = Lines::open(&path)?;
            Ok(Box::new(lines.map(|line| line.map(|(place, text)| Text { text, id: None, place }))))
        }
        Source::JsonLines(path) => {
            let lines = Lines::open(&path)?;
            // An empty line separates nothing and means nothing.
            let filled = lines.filter(|line| !line.as_ref().is_ok_and(|(_, text)| text.trim().is_empty()));
            Ok(Box::new(filled.map(|line| line.and_then(|(place, line)| from_json(&line, place)))))
        }
    }
}

fn from_json(line: &str, place: String) -> Result<Text> {
    let mut object: Value = serde_json::from_str(line)
        .map_err(|e| anyhow!("{place} is not JSON ({e}); give one object per line"))?;
    match object.get_mut("text").map(Value::take) {
        Some(Value::String(text)) => Ok(Text { text, id: object.get_mut("id").map(Value::take), place }),
        _ => bail!("{place} has no text; give objects like {{\"text\": \"…\", \"id\": 1}}"),
    }
}

/// Lines of a file with their places, without their ends.
struct Lines {
    reader: Box<dyn BufRead>,
    name: String,
    number: usize,
}

impl Lines {
    fn open(path: &Path) -> Result<Self> {
        let is_stdin = path == Path::new("-");
        ensure!(
            !is_stdin || !io::stdin().is_terminal(),
            "there are no texts: give some as arguments, with --file, or through a pipe"
        );
        let name = if is_stdin { "standard input".to_string() } else { format!("'{}'", path.display()) };
        let cannot = |e| anyhow!("cannot read texts from {name}: {e}; give a readable file");
        let reader: Box<dyn BufRead> = if is_stdin {
            Box::new(BufReader::new(io::stdin()))
        } else {
            Box::new(BufReader::new(File::open(path).map_err(cannot)?))
        };
        Ok(Lines { reader, name, number: 0 })
    }

    fn read(&mut self) -> Result<Option<(String, String)>> {
        let mut line = Vec::new();
        self.number += 1;
        let place = format!("line {} of {}", self.number, self.name);
        let read = (&mut self.reader).take(LINE_BYTES_MAX + 1).read_until(b'\n', &mut line);
        read.map_err(|e| anyhow!("cannot read {place}: {e}"))?;
        if line.is_empty() {
            return Ok(None);
        }
        ensure!(line.len() as u64 <= LINE_BYTES_MAX, "{place} is longer than {} MB", LINE_BYTES_MAX >> 20);
        if line.ends_with(b"\n") {
            line.pop();
            line.pop_if(|byte| *byte == b'\r');
        }
        let text =
            String::from_utf8(line).map_err(|e| anyhow!("{place} is not UTF-8 ({e}); save it as UTF-8"))?;
        Ok(Some((place, text)))
    }
}

impl Iterator for Lines {
    type Item = Result<(String, String)>;

    fn next(&mut self) -> Option<Self::Item> {
        self.read().transpose()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(source: fn(PathBuf) -> Source, content: &[u8]) -> Result<Vec<Text>> {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), content).unwrap();
        open(source(file.path().to_path_buf()))?.collect()
    }

    #[test]
    fn each_line_is_a_text_even_if_it_is_empty() {
        let texts = |content: &[u8]| -> Vec<String> {
            read(Source::Lines, content).unwrap().into_iter().map(|t| t.text).collect()
        };
        assert_eq!(texts(b"one\r\n\n zwei \nlast"), ["one", "", " zwei ", "last"]);
        assert_eq!(texts(b""), [""; 0]);
        assert_eq!(texts(b"\n"), [""]);
    }

    #[test]
    fn json_lines_have_a_text_and_perhaps_a_name() {
        let texts =
            read(Source::JsonLines, b"{\"text\":\"a\",\"id\":[1]}\n\n{\"text\":\"\",\"more\":2}\n").unwrap();
        let got: Vec<_> = texts.iter().map(|t| (t.text.as_str(), t.id.clone())).collect();
        assert_eq!(got, [("a", Some(serde_json::json!([1]))), ("", None)]);
    }

    #[test]
    fn what_is_no_text_is_refused_with_its_line() {
        let refused =
            |source: fn(PathBuf) -> Source, content: &[u8]| read(source, content).unwrap_err().to_string();
        assert!(refused(Source::Lines, b"a\n\xff\n").contains("line 2"));
        for line in ["{", "[]", "{\"text\":1}", "{\"texts\":\"a\"}", "\"a\"", "null"] {
            let content = format!("{{\"text\":\"a\"}}\n{line}\n");
            assert!(refused(Source::JsonLines, content.as_bytes()).contains("line 2"), "{line}");
        }
    }
}
