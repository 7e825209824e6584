//! llama.cpp's GBNF, rewritten as a Lark grammar.
//!
//! GBNF describes characters; the grammar library cuts text into lexemes first and takes the longest. Rewriting each
//! character as a lexeme would be right and far too slow, so the largest parts without recursion become lexemes, as
//! long as taking the longest can never be wrong: `lexemes` finds those. The language is the same in every case.
//!
//! The syntax is that of [llama.cpp's guide](https://github.com/ggml-org/llama.cpp/tree/master/grammars).

mod charset;
mod lexemes;
mod parse;
mod write;

use charset::CharSet;

use crate::tokenizer::Tokenizer;

/// A parsed grammar. Rule 0 is the root.
struct Gbnf {
    rules: Vec<Node>,
    /// How many nodes there are; their ids are below.
    nodes: usize,
}

struct Node {
    id: usize,
    kind: Kind,
}

enum Kind {
    /// One character.
    Set(CharSet),
    /// One token: `<[id]>` or `<[^id]>`.
    Token(String),
    Rule(usize),
    Sequence(Vec<Node>),
    Choice(Vec<Node>),
    Repeat(Box<Node>, Count),
}

#[derive(Clone, Copy)]
struct Count {
    min: u32,
    max: Option<u32>,
}

impl Count {
    fn is_many(self) -> bool {
        self.max.is_none_or(|max| max > 1)
    }
}

/// The same language as a Lark grammar, or why not.
pub(super) fn to_lark(source: &str, tokenizer: &Tokenizer) -> Result<String, String> {
    let grammar = parse::parse(source, tokenizer)?;
    let facts = lexemes::Facts::of(&grammar);
    let split = lexemes::split(&grammar, &facts)?;
    Ok(write::write(&grammar, &facts, &split))
}
