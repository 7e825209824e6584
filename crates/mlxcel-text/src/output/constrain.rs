//! A grammar for the answer of a model that reasons first: the grammar is for what comes after.

use super::OutputFormat;
use crate::grammar::GrammarSource;
use crate::lark::Lark;
use crate::reasoning::ReasoningStyle;
use crate::tokenizer::Tokenizer;

impl OutputFormat {
    /// A grammar in which the model reasons before what `source` describes, in its own form, where `prompt` (the rendered
    /// prompt or its end) has opened the reasoning; and in which an answer of gpt-oss is on its channel. Anything else
    /// stays as it is: a model that may choose not to reason does not, and a source that is a grammar itself describes
    /// the whole of what is written.
    pub fn constrain(&self, source: GrammarSource, prompt: &str, tokenizer: &Tokenizer) -> GrammarSource {
        let reasons =
            |style: &ReasoningStyle| *style == ReasoningStyle::Harmony || style.is_open_at_end(prompt);
        let Some(style) = self.reasoning.filter(reasons) else { return source };
        let mut lark = Lark::new(tokenizer);
        if lark.answer("answer", &source).is_none() {
            return source;
        }
        let start = lark.reasoning(Some(style), prompt) + &lark.before_answer(Some(style));
        lark.rule("start", &format!("{start}answer"));
        GrammarSource::Lark(lark.text)
    }
}
