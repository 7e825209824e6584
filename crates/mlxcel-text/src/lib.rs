//! Text in, token ids out, and back: tokenizers, incremental detokenising, stop strings, chat templates, grammars, and
//! the forms in which models call tools.
//!
//! A [`Tokenizer`] comes from a checkpoint folder (`tokenizer.json`) or from the vocabulary of a GGUF file
//! that the caller has already read ([`GgufVocab`]). A [`ChatTemplate`] turns messages into a prompt the way
//! Hugging Face transformers does, and encodes it so that nothing a user wrote can become a control token.
//!
//! Ids equal those of Hugging Face `tokenizers` for a `tokenizer.json` and those of llama.cpp for a GGUF vocabulary;
//! [`Tokenizer::encode_with_offsets`] also says which bytes each token was made from. Templates render as Python's
//! Jinja2 does in the environment of transformers, within bounds on instructions, on what they write and on the text
//! they handle. Where Python stops at a loop over `none`, they go on.
//!
//! [`Grammars`] say which tokens may come next so that a text follows a schema or a grammar; an [`OutputParser`] takes
//! apart what a model wrote into text, reasoning and calls of tools, and [`ForcedCalls`] makes a grammar of a call.
//!
//! This crate knows no tensors, no models and no file formats besides the JSON and Jinja files of a
//! checkpoint folder: it does not parse GGUF, and it never opens a network connection.

mod chat;
mod detokenizer;
mod error;
mod files;
mod grammar;
mod lark;
mod output;
mod reasoning;
mod stop;
mod tokenizer;
mod tools;

pub use chat::{ChatPrompt, ChatRequest, ChatTemplate, ChatTemplates, TemplateChoice};
pub use detokenizer::{DetokenizeOptions, Detokenizer, TextPosition};
pub use error::{Error, Result};
pub use grammar::{Grammar, GrammarLimits, GrammarSource, Grammars, Matcher, Vocabulary};
pub use output::{OutputEvent, OutputFormat, OutputParser};
pub use reasoning::ReasoningStyle;
pub use stop::{StopMatcher, StopProgress};
pub use tokenizer::{
    EncodeOptions, EncodedToken, GgufVocab, SpecialText, SpecialTokens, Tokenizer, TokenizerFiles,
};
pub use tools::{ForcedCalls, Tool, ToolChoice, ToolSet, ToolSyntax};
