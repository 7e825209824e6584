//! Reads a text that may not be whole yet: every step says what it found, that more is needed, or that it is no call.

/// Why reading stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stop {
    Incomplete,
    NoCall,
}

/// Longer names are none.
const NAME_BYTES_MAX: usize = 256;

pub(super) type Read<T> = Result<T, Stop>;

pub(super) struct Cursor<'t> {
    text: &'t str,
    at: usize,
    /// Nothing will follow.
    is_whole: bool,
}

impl<'t> Cursor<'t> {
    pub(super) fn new(text: &'t str, is_whole: bool) -> Self {
        Self { text, at: 0, is_whole }
    }

    pub(super) fn position(&self) -> usize {
        self.at
    }

    pub(super) fn rest(&self) -> &'t str {
        &self.text[self.at..]
    }

    pub(super) fn skip_blanks(&mut self) {
        self.at = self.text.len() - self.rest().trim_start().len();
    }

    /// Whether a text comes next. It is taken if so.
    pub(super) fn take(&mut self, text: &str) -> Read<bool> {
        let rest = self.rest();
        if rest.starts_with(text) {
            self.at += text.len();
            return Ok(true);
        }
        match text.starts_with(rest) {
            true => Err(Stop::Incomplete),
            false => Ok(false),
        }
    }

    pub(super) fn expect(&mut self, text: &str) -> Read<()> {
        if self.take(text)? { Ok(()) } else { Err(Stop::NoCall) }
    }

    /// Takes the mark that closes what is already complete. Models leave it out when it is the last thing.
    pub(super) fn close(&mut self, mark: &str) -> Read<()> {
        self.skip_blanks();
        match self.expect(mark) {
            Err(Stop::Incomplete) if self.is_whole => {
                self.at = self.text.len();
                Ok(())
            }
            read => read,
        }
    }

    /// Whether everything was read and nothing will follow.
    pub(super) fn is_at_end(&self) -> bool {
        self.is_whole && self.rest().is_empty()
    }

    /// What stands before a mark. Both are taken.
    pub(super) fn until(&mut self, mark: &str) -> Read<&'t str> {
        let rest = self.rest();
        let at = rest.find(mark).ok_or(Stop::Incomplete)?;
        self.at += at + mark.len();
        Ok(&rest[..at])
    }

    /// A name before a mark, which is taken too.
    pub(super) fn name(&mut self, mark: &str) -> Read<&'t str> {
        let rest = self.rest();
        let Some(at) = rest.find(mark) else {
            let may_follow = rest.len() < NAME_BYTES_MAX + mark.len() && !rest.contains('\n');
            return Err(if may_follow { Stop::Incomplete } else { Stop::NoCall });
        };
        self.at += at + mark.len();
        if is_name(&rest[..at]) { Ok(&rest[..at]) } else { Err(Stop::NoCall) }
    }

    /// A name before one of several characters, which are left, with blanks between.
    pub(super) fn name_before(&mut self, ends: &[char]) -> Read<&'t str> {
        let rest = self.rest();
        let end = rest.find(ends);
        let name = rest[..end.unwrap_or(rest.len())].trim_end();
        match end {
            Some(end) if is_name(name) => {
                self.at += end;
                Ok(name)
            }
            None if name.is_empty() || is_name(name) => Err(Stop::Incomplete),
            _ => Err(Stop::NoCall),
        }
    }

    /// A JSON object or list: where its brackets close. Whether it is valid is for the caller to see.
    pub(super) fn json(&mut self) -> Read<&'t str> {
        let rest = self.rest();
        match rest.as_bytes().first() {
            None => return Err(Stop::Incomplete),
            Some(b'{' | b'[') => {}
            Some(_) => return Err(Stop::NoCall),
        }
        let len = json_len(rest).ok_or(Stop::Incomplete)?;
        self.at += len;
        Ok(&rest[..len])
    }
}

/// Names have no blanks and none of the characters that forms use as marks.
pub(super) fn is_name(text: &str) -> bool {
    let is_part = |c: char| !c.is_whitespace() && !c.is_control() && !"<>{}[]\"'`".contains(c);
    !text.is_empty() && text.len() <= NAME_BYTES_MAX && text.chars().all(is_part)
}

/// The length of a JSON value that begins with a bracket.
pub(super) fn json_len(text: &str) -> Option<usize> {
    let (mut depth, mut in_text, mut escaped) = (0_usize, false, false);
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if in_text => escaped = true,
            b'"' => in_text = !in_text,
            b'{' | b'[' if !in_text => depth += 1,
            b'}' | b']' if !in_text => {
                depth = depth.saturating_sub(1);
                if depth == 0 {
                    return Some(at + 1);
                }
            }
            _ => {}
        }
    }
    None
}
