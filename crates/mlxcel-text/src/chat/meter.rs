//! Bounds on the memory a template may take. minijinja bounds instructions, ranges and repetitions, but `{% set ns.s =
//! ns.s ~ ns.s %}` doubles a text with a handful of instructions. What a template can hold grows only through names it
//! reads again, so each read is made to pass a filter that adds up the bytes of the texts that were read; filters and
//! methods whose results can be longer than what they were given count those.
//!
//! The rewriting knows just enough of Jinja's syntax to find reads. It never changes what a template means: a
//! published corpus is rendered with it.

use minijinja::value::{Value, ValueKind};
use minijinja::{Error, ErrorKind, State};

/// The filter every read passes through.
pub(super) const READ: &str = "__read";
/// The filter that the right side of every product passes through.
pub(super) const TIMES: &str = "__times";
/// Where a rendering keeps its count; no template can reach it.
const COUNTER: &str = "bytes read";
/// The longest context is a few megabytes of text, and templates look at each message a few dozen times.
pub(super) const BYTES_READ_MAX: u64 = 256 << 20;
/// What repeating something once is taken to cost.
const REPEATED_BYTES: usize = 64;
/// Lists of lists are written out by `~` as often as they contain each other; JSON is not nested deeper.
const DEPTH_MAX: usize = 130;

/// A template has read, or would make, more than it may.
#[derive(Debug)]
pub(super) struct Exhausted;

impl std::fmt::Display for Exhausted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "more than {BYTES_READ_MAX} bytes of text were handled")
    }
}

impl std::error::Error for Exhausted {}

fn exhausted() -> Error {
    Error::new(ErrorKind::InvalidOperation, Exhausted.to_string()).with_source(Exhausted)
}

/// The filter: counts a text and hands it on.
pub(super) fn read(state: &mut State, value: Value) -> Result<Value, Error> {
    match value.kind() {
        ValueKind::String => count(state, value.as_str().map_or(0, str::len))?,
        ValueKind::Seq if is_deeper(&value, DEPTH_MAX) => return Err(exhausted()),
        _ => {}
    }
    Ok(value)
}

/// The filter for the right side of a product: a number may be how often a text or a list is repeated.
pub(super) fn times(state: &mut State, value: Value) -> Result<Value, Error> {
    if matches!(value.kind(), ValueKind::String | ValueKind::Seq | ValueKind::Iterable) {
        let problem = "a text or list is repeated with the number on the right";
        return Err(Error::new(ErrorKind::InvalidOperation, problem));
    }
    count(state, value.as_usize().unwrap_or(0).saturating_mul(REPEATED_BYTES))?;
    Ok(value)
}

/// Counts bytes that are about to be made.
pub(super) fn count(state: &mut State, bytes: usize) -> Result<(), Error> {
    let before = state.get_temp(COUNTER).and_then(|count| u64::try_from(count).ok()).unwrap_or(0);
    let after = before.saturating_add(bytes as u64);
    if after > BYTES_READ_MAX {
        return Err(exhausted());
    }
    state.set_temp(COUNTER, Value::from(after));
    Ok(())
}

/// Whether lists lie in lists to this depth, at the first or last place: where a list is put that grows by itself.
fn is_deeper(value: &Value, depth: usize) -> bool {
    let mut ends = vec![value.clone()];
    for _ in 0..depth {
        let inner = ends.iter().flat_map(|list| {
            let last = list.len().and_then(|len| len.checked_sub(1));
            [Some(0), last].into_iter().flatten().filter_map(|at| list.get_item_by_index(at).ok())
        });
        ends = inner.filter(|value| value.kind() == ValueKind::Seq).take(2).collect();
        if ends.is_empty() {
            return false;
        }
    }
    true
}

/// The template with every read and every product passing through the filters.
pub(super) fn rewrite(source: &str) -> String {
    let mut out = String::with_capacity(source.len() * 2);
    let mut rest = source;
    while let Some(start) = rest.find('{') {
        out.push_str(&rest[..start]);
        rest = &rest[start..];
        let end = match rest.as_bytes().get(1) {
            Some(b'{') => Some("}}"),
            Some(b'%') => Some("%}"),
            Some(b'#') => Some("#}"),
            _ => None,
        };
        let length = end.map_or(1, |end| tag_length(rest, end));
        let (tag, after) = rest.split_at(length);
        match end {
            Some("}}") => rewrite_tag(tag, &mut out),
            Some("%}") if is_raw(tag) => {
                let raw = after.find("endraw").map_or(after.len(), |at| at);
                out.push_str(tag);
                out.push_str(&after[..raw]);
                rest = &after[raw..];
                continue;
            }
            Some("%}") => rewrite_tag(tag, &mut out),
            _ => out.push_str(tag),
        }
        rest = after;
    }
    out.push_str(rest);
    out
}

fn is_raw(tag: &str) -> bool {
    tag.trim_matches(['{', '}', '%', '-', '+']).trim() == "raw"
}

/// How long the tag at the beginning of `text` is; an end inside a string literal is none. Braces of dictionaries
/// count, since `}}` may close two of them.
fn tag_length(text: &str, end: &str) -> usize {
    if end == "#}" {
        return text.find(end).map_or(text.len(), |at| at + end.len());
    }
    let mut at = 2;
    let mut open = 0usize;
    while at < text.len() {
        let rest = &text[at..];
        if open == 0 && rest.starts_with(end) {
            return at + end.len();
        }
        let token = token_at(rest);
        match token {
            "{" => open += 1,
            "}" => open = open.saturating_sub(1),
            _ => {}
        }
        at += token.len();
    }
    text.len()
}

/// The token at the beginning of `text`, which is not empty: a literal, a name, a run of blanks or a sign.
fn token_at(text: &str) -> &str {
    let first = text.chars().next().unwrap_or_default();
    let run = |holds: fn(char) -> bool| text.find(|c| !holds(c)).unwrap_or(text.len());
    let length = match first {
        '"' | '\'' => literal_length(text, first),
        c if c.is_whitespace() => run(char::is_whitespace),
        c if c.is_ascii_digit() => number_length(text),
        c if is_name(c) => run(is_name),
        _ if ["==", "!=", "<=", ">=", "**", "//"].iter().any(|sign| text.starts_with(sign)) => 2,
        c => c.len_utf8(),
    };
    &text[..length]
}

fn is_name(c: char) -> bool {
    c == '_' || c.is_alphanumeric()
}

fn literal_length(text: &str, quote: char) -> usize {
    let mut escaped = false;
    for (at, c) in text.char_indices().skip(1) {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            c if c == quote => return at + c.len_utf8(),
            _ => {}
        }
    }
    text.len()
}

fn number_length(text: &str) -> usize {
    let digits = text.find(|c: char| !is_name(c)).unwrap_or(text.len());
    let fraction =
        text[digits..].strip_prefix('.').filter(|rest| rest.starts_with(|c: char| c.is_ascii_digit()));
    fraction.map_or(digits, |rest| digits + 1 + rest.find(|c: char| !is_name(c)).unwrap_or(rest.len()))
}

const KEYWORDS: &[&str] = &[
    "and",
    "or",
    "not",
    "in",
    "is",
    "if",
    "else",
    "true",
    "false",
    "none",
    "True",
    "False",
    "None",
    "recursive",
];

/// Where in a statement names are read.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Head {
    /// Everywhere.
    None,
    /// After this sign or word at the outermost level.
    Until(&'static str),
    /// Inside parentheses only: what stands outside is a name that is given, or a call that has to stay one.
    Outside,
    /// The same, and the names of parameters are given.
    Parameters,
}

fn head(statement: &str, tag: &str) -> Head {
    match statement {
        "if" | "elif" => Head::None,
        "for" => Head::Until("in"),
        "set" if assigns(tag) => Head::Until("="),
        "with" => Head::None,
        "macro" => Head::Parameters,
        _ => Head::Outside,
    }
}

/// Whether there is a `=` outside of parentheses.
fn assigns(tag: &str) -> bool {
    let mut depth = 0usize;
    tokens(tag).any(|token| {
        match token {
            "(" | "[" | "{" => depth += 1,
            ")" | "]" | "}" => depth = depth.saturating_sub(1),
            _ => {}
        }
        token == "=" && depth <= 1
    })
}

fn tokens(text: &str) -> impl Iterator<Item = &str> {
    let mut at = 0;
    std::iter::from_fn(move || {
        let rest = text.get(at..).filter(|rest| !rest.is_empty())?;
        let token = token_at(rest);
        at += token.len();
        Some(token)
    })
}

fn rewrite_tag(tag: &str, out: &mut String) {
    let words: Vec<&str> = tokens(tag).collect();
    let is_statement = tag.starts_with("{%");
    let first = words.iter().position(|word| word.starts_with(is_name));
    let (begin, head) = match first {
        Some(first) if is_statement => (first + 1, head(words[first], tag)),
        _ => (2, Head::None),
    };
    // The first two tokens of an expression tag are its braces.
    let begin = begin.min(words.len());
    words[..begin].iter().for_each(|word| out.push_str(word));
    let mut rewriter = Rewriter { words: &words, at: begin, out, head };
    rewriter.all();
}

struct Rewriter<'a> {
    words: &'a [&'a str],
    at: usize,
    out: &'a mut String,
    head: Head,
}

impl<'a> Rewriter<'a> {
    fn all(&mut self) {
        while self.at < self.words.len() {
            self.item(0);
        }
    }

    fn peek(&self) -> Option<&'a str> {
        self.words.get(self.at).copied()
    }

    fn copy(&mut self) {
        self.out.push_str(self.words[self.at]);
        self.at += 1;
    }

    /// The next word that is no blank, from `at` on.
    fn next_word(&self, mut at: usize) -> &'a str {
        while self.words.get(at).is_some_and(|word| word.starts_with(char::is_whitespace)) {
            at += 1;
        }
        self.words.get(at).copied().unwrap_or_default()
    }

    fn word_before(&self) -> (&'a str, &'a str) {
        let mut words =
            self.words[..self.at].iter().rev().filter(|word| !word.starts_with(char::is_whitespace));
        let last = words.next().copied().unwrap_or_default();
        (last, words.next().copied().unwrap_or_default())
    }

    /// One token, or one group with what is in it.
    fn item(&mut self, depth: usize) {
        let word = self.words[self.at];
        match word {
            "(" | "[" | "{" => self.group(depth),
            "*" if !matches!(self.word_before().0, "(" | ",") => self.product(depth),
            _ if self.is_read(depth) => self.chain(depth),
            _ => {
                if depth == 0 && matches!(self.head, Head::Until(end) if end == word) {
                    self.head = Head::None;
                }
                self.copy();
            }
        }
    }

    fn group(&mut self, depth: usize) {
        self.copy();
        while let Some(word) = self.peek() {
            if matches!(word, ")" | "]" | "}") {
                self.copy();
                return;
            }
            self.item(depth + 1);
        }
    }

    /// Whether the word at hand is a name that is read.
    fn is_read(&self, depth: usize) -> bool {
        let word = self.words[self.at];
        let is_given = match self.head {
            Head::None => false,
            Head::Until(_) => true,
            Head::Outside => depth == 0,
            Head::Parameters => depth == 0 || depth == 1 && matches!(self.word_before().0, "(" | ","),
        };
        let is_name = word.starts_with(|c: char| is_name(c) && !c.is_ascii_digit());
        if is_given || !is_name || KEYWORDS.contains(&word) {
            return false;
        }
        let (last, before) = self.word_before();
        let is_test = last == "is" || (last == "not" && before == "is");
        let is_keyword_argument = self.next_word(self.at + 1) == "=";
        !is_test && !is_keyword_argument && last != "|" && last != "."
    }

    /// A name with its attributes, subscripts and calls.
    fn chain(&mut self, depth: usize) {
        self.out.push('(');
        self.copy();
        loop {
            match self.next_word(self.at) {
                "." => {
                    self.copy_until(".");
                    self.blanks();
                    if self.at < self.words.len() {
                        self.copy();
                    }
                }
                "(" | "[" => {
                    self.blanks();
                    self.group(depth);
                }
                _ => break,
            }
        }
        self.filter(READ);
    }

    /// The right side of a product: one operand, with what binds tighter than `*`.
    fn product(&mut self, depth: usize) {
        self.copy();
        self.blanks();
        self.out.push_str("((");
        while matches!(self.peek(), Some("-" | "+")) {
            self.copy();
            self.blanks();
        }
        if self.at < self.words.len() {
            self.item(depth);
        }
        loop {
            match self.next_word(self.at) {
                "(" | "[" => {
                    self.blanks();
                    self.group(depth);
                }
                "." | "|" | "**" => {
                    self.blanks();
                    self.copy();
                    self.blanks();
                    if self.at < self.words.len() {
                        self.item(depth);
                    }
                }
                _ => break,
            }
        }
        self.out.push(')');
        self.filter(TIMES);
    }

    fn filter(&mut self, name: &str) {
        self.out.push('|');
        self.out.push_str(name);
        self.out.push(')');
    }

    fn blanks(&mut self) {
        while self.peek().is_some_and(|word| word.starts_with(char::is_whitespace)) {
            self.copy();
        }
    }

    fn copy_until(&mut self, word: &str) {
        self.blanks();
        debug_assert_eq!(self.peek(), Some(word));
        self.copy();
    }
}

#[cfg(test)]
mod tests {
    use super::rewrite;

    /// The rewritten template with the filter written as `@`.
    fn reads(source: &str) -> String {
        rewrite(source).replace("|__read", "@")
    }

    #[test]
    fn every_read_passes_the_filter() {
        assert_eq!(
            reads("a {{ b }} {{- c.d['e'](f) ~ 'g' -}}"),
            "a {{ (b@) }} {{- (c.d['e']((f@))@) ~ 'g' -}}"
        );
        assert_eq!(
            reads("{% if a is not none and b[1:] == 2.5 %}"),
            "{% if (a@) is not none and (b[1:]@) == 2.5 %}"
        );
        assert_eq!(reads("{% for a, b in c.items() if b %}"), "{% for a, b in (c.items()@) if (b@) %}");
        assert_eq!(reads("{{ {'a': {'b': c}} }}"), "{{ {'a': {'b': (c@)}} }}");
    }

    #[test]
    fn the_right_side_of_a_product_passes_its_filter() {
        let products = |source: &str| reads(source).replace("|__times", "#");
        assert_eq!(products("{{ 'x' * 10**8 }}"), "{{ 'x' * ((10**8)#) }}");
        assert_eq!(products("{{ a * b.c|int ~ 'd' }}"), "{{ (a@) * (((b.c@)|int)#) ~ 'd' }}");
        assert_eq!(products("{{ a * (1 + b) * -2 }}"), "{{ (a@) * (((1 + (b@)))#) * ((-2)#) }}");
        assert_eq!(products("{{ f(*a) }}"), "{{ (f(*(a@))@) }}");
    }

    #[test]
    fn names_that_are_given_stay() {
        assert_eq!(reads("{% set ns.a = ns.a ~ b %}"), "{% set ns.a = (ns.a@) ~ (b@) %}");
        assert_eq!(reads("{%- set a | f(b) -%}"), "{%- set a | f((b@)) -%}");
        assert_eq!(reads("{% macro m(a, b=c) %}"), "{% macro m(a, b=(c@)) %}");
        assert_eq!(
            reads("{% call m(a ~ a, k=b) %}{% endcall %}"),
            "{% call m((a@) ~ (a@), k=(b@)) %}{% endcall %}"
        );
        assert_eq!(reads("{{ a | tojson(indent=b) }}"), "{{ (a@) | tojson(indent=(b@)) }}");
        assert_eq!(reads("{{ a is divisibleby b }}"), "{{ (a@) is divisibleby (b@) }}");
        assert_eq!(reads("{% break %}{% else %}{% endif %}"), "{% break %}{% else %}{% endif %}");
    }

    #[test]
    fn what_is_no_code_stays() {
        for source in [
            "{# {{ a }} #}",
            "{% raw %}{{ a }}{% endraw %}",
            "a { b } %} }}",
            "{{ '}} {{ a' }}",
            "{",
            "{{",
            "{%",
        ] {
            assert_eq!(rewrite(source), source);
        }
    }
}
