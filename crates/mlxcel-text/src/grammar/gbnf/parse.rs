//! GBNF text to rules.

use std::collections::HashMap;

use super::{CharSet, Count, Gbnf, Kind, Node};
use crate::tokenizer::Tokenizer;

const DEPTH_MAX: usize = 64;
const REPEAT_MAX: u32 = 100_000;
/// What is found out of rules takes as many passes over all nodes as there are rules, at worst.
const RULES_MAX: usize = 1000;
const NODES_MAX: usize = 20_000;

type Parse<T> = Result<T, String>;

pub(super) fn parse(source: &str, tokenizer: &Tokenizer) -> Parse<Gbnf> {
    let mut parser =
        Parser { source, at: 0, tokenizer, names: HashMap::new(), rules: Vec::new(), nodes: 0, depth: 0 };
    parser.rule_index("root");
    parser.skip(Newlines::Skip);
    while parser.at < source.len() {
        parser.rule()?;
        if parser.rules.len() > RULES_MAX || parser.nodes > NODES_MAX {
            return Err(format!("it has more than {RULES_MAX} rules or {NODES_MAX} characters and marks"));
        }
        parser.skip(Newlines::Skip);
    }
    parser.finish()
}

struct Parser<'s> {
    source: &'s str,
    at: usize,
    tokenizer: &'s Tokenizer,
    names: HashMap<&'s str, usize>,
    rules: Vec<Option<Node>>,
    nodes: usize,
    depth: usize,
}

/// Whether the end of a line is a blank here.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Newlines {
    Skip,
    End,
}

impl<'s> Parser<'s> {
    fn finish(self) -> Parse<Gbnf> {
        let name_of = |index: usize| {
            self.names.iter().find(|(_, found)| **found == index).map_or("?", |(name, _)| *name)
        };
        let missing = self.rules.iter().position(Option::is_none);
        if let Some(index) = missing {
            return Err(format!("there is no rule `{}`", name_of(index)));
        }
        Ok(Gbnf { rules: self.rules.into_iter().flatten().collect(), nodes: self.nodes })
    }

    fn error<T>(&self, problem: &str) -> Parse<T> {
        let line = 1 + self.source[..self.at].matches('\n').count();
        Err(format!("line {line}: {problem}"))
    }

    fn rest(&self) -> &'s str {
        &self.source[self.at..]
    }

    fn peek(&self) -> Option<char> {
        self.rest().chars().next()
    }

    fn take(&mut self, text: &str) -> bool {
        let found = self.rest().starts_with(text);
        if found {
            self.at += text.len();
        }
        found
    }

    /// Skips blanks and comments.
    fn skip(&mut self, newlines: Newlines) {
        while let Some(c) = self.peek() {
            match c {
                '#' => self.at += self.rest().find(['\n', '\r']).unwrap_or(self.rest().len()),
                ' ' | '\t' => self.at += 1,
                '\n' | '\r' if newlines == Newlines::Skip => self.at += 1,
                _ => break,
            }
        }
    }

    fn node(&mut self, kind: Kind) -> Node {
        self.nodes += 1;
        Node { id: self.nodes - 1, kind }
    }

    fn rule_index(&mut self, name: &'s str) -> usize {
        let next = self.rules.len();
        let index = *self.names.entry(name).or_insert(next);
        if index == next {
            self.rules.push(None);
        }
        index
    }

    fn name(&mut self) -> Parse<&'s str> {
        let rest = self.rest();
        let end =
            rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '-' && c != '_').unwrap_or(rest.len());
        if end == 0 {
            return self.error("a name was expected");
        }
        self.at += end;
        Ok(&rest[..end])
    }

    fn rule(&mut self) -> Parse<()> {
        let name = self.name()?;
        let index = self.rule_index(name);
        self.skip(Newlines::End);
        if !self.take("::=") {
            return self.error("`::=` was expected");
        }
        self.skip(Newlines::Skip);
        let body = self.choice(Newlines::End)?;
        if !matches!(self.peek(), None | Some('\n' | '\r')) {
            return self.error("the end of the rule was expected");
        }
        if self.rules[index].replace(body).is_some() {
            return self.error("the rule was defined before");
        }
        Ok(())
    }

    fn choice(&mut self, newlines: Newlines) -> Parse<Node> {
        self.depth += 1;
        if self.depth > DEPTH_MAX {
            return self.error("brackets nest too deep");
        }
        let mut options = vec![self.sequence(newlines)?];
        while self.take("|") {
            self.skip(Newlines::Skip);
            options.push(self.sequence(newlines)?);
        }
        self.depth -= 1;
        Ok(match options.len() {
            1 => options.remove(0),
            _ => self.node(Kind::Choice(options)),
        })
    }

    fn sequence(&mut self, newlines: Newlines) -> Parse<Node> {
        let mut items = Vec::new();
        loop {
            self.skip(newlines);
            let Some(item) = self.item()? else { break };
            let item = self.repeated(item)?;
            items.push(item);
        }
        Ok(match items.len() {
            1 => items.remove(0),
            _ => self.node(Kind::Sequence(items)),
        })
    }

    fn item(&mut self) -> Parse<Option<Node>> {
        let Some(c) = self.peek() else { return Ok(None) };
        Ok(Some(match c {
            '"' => self.literal()?,
            '[' => self.class()?,
            '.' => {
                self.at += 1;
                self.node(Kind::Set(CharSet::default().complement()))
            }
            '(' => {
                self.at += 1;
                self.skip(Newlines::Skip);
                let inner = self.choice(Newlines::Skip)?;
                self.skip(Newlines::Skip);
                if !self.take(")") {
                    return self.error("`)` was expected");
                }
                inner
            }
            '<' | '!' => self.token()?,
            c if c.is_ascii_alphanumeric() || c == '-' || c == '_' => {
                let name = self.name()?;
                let index = self.rule_index(name);
                self.node(Kind::Rule(index))
            }
            _ => return Ok(None),
        }))
    }

    fn repeated(&mut self, mut item: Node) -> Parse<Node> {
        loop {
            let count = match self.peek() {
                Some('*') => Count { min: 0, max: None },
                Some('+') => Count { min: 1, max: None },
                Some('?') => Count { min: 0, max: Some(1) },
                Some('{') => {
                    let count = self.count()?;
                    item = self.node(Kind::Repeat(Box::new(item), count));
                    continue;
                }
                _ => return Ok(item),
            };
            self.at += 1;
            item = self.node(Kind::Repeat(Box::new(item), count));
        }
    }

    /// `{m}`, `{m,}` or `{m,n}`.
    fn count(&mut self) -> Parse<Count> {
        let inner = self.rest().split('}').next().unwrap_or_default();
        let number = |text: &str| text.trim().parse().ok().filter(|&number| number <= REPEAT_MAX);
        let numbers = inner.get(1..).unwrap_or_default();
        let count = match numbers.split_once(',') {
            None => number(numbers).map(|min| Count { min, max: Some(min) }),
            Some((min, max)) if max.trim().is_empty() => number(min).map(|min| Count { min, max: None }),
            Some((min, max)) => number(min).zip(number(max)).map(|(min, max)| Count { min, max: Some(max) }),
        };
        let is_closed = self.rest().len() > inner.len();
        match count.filter(|count| is_closed && count.max.is_none_or(|max| count.min <= max)) {
            Some(count) => {
                self.at += inner.len() + 1;
                Ok(count)
            }
            None => self.error("a repetition is {m}, {m,} or {m,n} with numbers up to 100000"),
        }
    }

    fn literal(&mut self) -> Parse<Node> {
        self.at += 1;
        let mut items = Vec::new();
        while !self.take("\"") {
            let character = self.character()?;
            let set = self.node(Kind::Set(CharSet::one(character)));
            items.push(set);
        }
        Ok(match items.len() {
            1 => items.remove(0),
            _ => self.node(Kind::Sequence(items)),
        })
    }

    fn class(&mut self) -> Parse<Node> {
        self.at += 1;
        let is_negated = self.take("^");
        let mut ranges = Vec::new();
        while !self.take("]") {
            let first = self.character()?;
            let is_range = self.rest().starts_with('-') && !self.rest().starts_with("-]");
            let last = if is_range && self.take("-") { self.character()? } else { first };
            if last < first {
                return self.error("a range of characters goes backwards");
            }
            ranges.push((first.into(), last.into()));
        }
        let set = CharSet::new(ranges);
        let set = if is_negated { set.complement() } else { set };
        if set.is_empty() {
            return self.error("a class has no character");
        }
        Ok(self.node(Kind::Set(set)))
    }

    fn character(&mut self) -> Parse<char> {
        let Some(c) = self.peek() else { return self.error("the text ends in the middle of a literal") };
        self.at += c.len_utf8();
        if c != '\\' {
            return Ok(c);
        }
        let Some(escaped) = self.peek() else { return self.error("the text ends in an escape") };
        self.at += escaped.len_utf8();
        match escaped {
            'n' => Ok('\n'),
            'r' => Ok('\r'),
            't' => Ok('\t'),
            '\\' | '"' | '[' | ']' | '-' | '^' => Ok(escaped),
            'x' => self.code_point(2),
            'u' => self.code_point(4),
            'U' => self.code_point(8),
            _ => self.error("an escape is not known"),
        }
    }

    fn code_point(&mut self, digits: usize) -> Parse<char> {
        let text = self.rest().get(..digits).filter(|text| text.bytes().all(|b| b.is_ascii_hexdigit()));
        let found = text.and_then(|text| char::from_u32(u32::from_str_radix(text, 16).ok()?));
        self.at += if found.is_some() { digits } else { 0 };
        found.map_or_else(|| self.error("an escape is no character"), Ok)
    }

    /// `<[id]>` or `<text>`, with `!` before for every other token.
    fn token(&mut self) -> Parse<Node> {
        let negation = if self.take("!") { "^" } else { "" };
        let Some(end) = self.rest().find('>').filter(|_| self.rest().starts_with('<')) else {
            return self.error("a token is <[id]> or <text>");
        };
        let written = &self.rest()[..=end];
        let by_id = written.strip_prefix("<[").and_then(|inner| inner.strip_suffix("]>"));
        let id = match by_id {
            Some(id) => id.parse::<u32>().ok(),
            None => self.tokenizer.token_id(written),
        };
        let Some(id) = id else { return self.error("the vocabulary has no such token") };
        self.at += written.len();
        Ok(self.node(Kind::Token(format!("<[{negation}{id}]>"))))
    }
}
