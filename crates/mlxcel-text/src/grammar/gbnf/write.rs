//! Rules as Lark: lexemes as terminals, the rest as rules.

use std::collections::HashSet;
use std::fmt::Write as _;

use super::lexemes::Facts;
use super::{CharSet, Count, Gbnf, Kind, Node};

pub(super) fn write(grammar: &Gbnf, facts: &Facts, split: &HashSet<usize>) -> String {
    let mut writer =
        Writer { grammar, facts, split, terminals: Vec::new(), wanted: vec![0], seen: HashSet::new() };
    let mut rules = String::from("start: rule_0\n");
    while let Some(rule) = writer.wanted.pop() {
        if writer.seen.insert(rule) {
            let body = writer.body(&grammar.rules[rule]);
            writeln!(rules, "rule_{rule}: {body}").expect("a text can be written to");
        }
    }
    for (index, expression) in writer.terminals.iter().enumerate() {
        writeln!(rules, "T{index}: {expression}").expect("a text can be written to");
    }
    rules
}

struct Writer<'g> {
    grammar: &'g Gbnf,
    facts: &'g Facts,
    split: &'g HashSet<usize>,
    /// Each expression once, however often it is used.
    terminals: Vec<String>,
    wanted: Vec<usize>,
    seen: HashSet<usize>,
}

impl Writer<'_> {
    fn body(&mut self, node: &Node) -> String {
        if self.facts.may_be_lexeme(node) && !self.split.contains(&node.id) {
            return self.terminal(node);
        }
        match &node.kind {
            Kind::Set(_) => self.terminal(node),
            Kind::Token(token) => token.clone(),
            Kind::Rule(rule) => {
                self.wanted.push(*rule);
                format!("rule_{rule}")
            }
            Kind::Sequence(parts) if parts.is_empty() => "\"\"".to_owned(),
            Kind::Sequence(parts) => {
                let parts: Vec<String> = parts.iter().map(|part| self.body(part)).collect();
                format!("({})", parts.join(" "))
            }
            Kind::Choice(parts) => {
                let parts: Vec<String> = parts.iter().map(|part| self.body(part)).collect();
                format!("({})", parts.join(" | "))
            }
            Kind::Repeat(part, count) => format!("({}){}", self.body(part), repetition(*count)),
        }
    }

    /// A terminal must not be empty, so one that could be is optional instead.
    fn terminal(&mut self, node: &Node) -> String {
        let is_nullable = self.facts.is_nullable(node);
        let more = if is_nullable { " & /(?s:.)+/" } else { "" };
        let expression = format!("/{}/{more}", self.expression(node));
        let known = self.terminals.iter().position(|other| *other == expression);
        let index = known.unwrap_or_else(|| {
            self.terminals.push(expression);
            self.terminals.len() - 1
        });
        format!("T{index}{}", if is_nullable { "?" } else { "" })
    }

    fn expression(&self, node: &Node) -> String {
        match &node.kind {
            Kind::Set(set) => class(set),
            Kind::Token(_) => unreachable!("a token is no part of a lexeme"),
            Kind::Rule(rule) => self.expression(&self.grammar.rules[*rule]),
            Kind::Sequence(parts) => {
                let parts: String = parts.iter().map(|part| self.expression(part)).collect();
                format!("(?:{parts})")
            }
            Kind::Choice(parts) => {
                let parts: Vec<String> = parts.iter().map(|part| self.expression(part)).collect();
                format!("(?:{})", parts.join("|"))
            }
            Kind::Repeat(part, count) => format!("(?:{}){}", self.expression(part), repetition(*count)),
        }
    }
}

fn repetition(count: Count) -> String {
    match (count.min, count.max) {
        (0, None) => "*".to_owned(),
        (1, None) => "+".to_owned(),
        (0, Some(1)) => "?".to_owned(),
        (min, None) => format!("{{{min},}}"),
        (min, Some(max)) => format!("{{{min},{max}}}"),
    }
}

fn class(set: &CharSet) -> String {
    let ranges = set.ranges().iter().map(|(first, last)| format!("\\u{{{first:x}}}-\\u{{{last:x}}}"));
    format!("[{}]", ranges.collect::<String>())
}
