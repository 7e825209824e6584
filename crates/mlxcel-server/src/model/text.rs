//! The text side of a model: tokens, templates, what ends an answer. It knows no requests.

use std::collections::BTreeSet;
use std::sync::{Arc, OnceLock};

use mlxcel_text::{
    ChatPrompt, ChatRequest, ChatTemplate, ChatTemplates, Grammar, GrammarLimits, GrammarSource, Grammars,
    TemplateChoice, Tokenizer, Vocabulary,
};

use super::LoadError;
use crate::refusal::{Kind, Refusal};

/// Texts longer than this are worked on by a thread that may block.
const INLINE_BYTES_MAX: usize = 16 << 10;

pub struct Text {
    pub tokenizer: Tokenizer,
    pub end_ids: Arc<BTreeSet<u32>>,
    templates: ChatTemplates,
    chat: Option<ChatTemplate>,
    chat_with_tools: Option<ChatTemplate>,
    /// Made beside the loading of the model, so that no request waits for it.
    grammars: Arc<LateGrammars>,
}

impl Text {
    pub fn new(
        tokenizer: Tokenizer,
        templates: ChatTemplates,
        end_ids: BTreeSet<u32>,
        vocab_size: usize,
    ) -> Result<Self, LoadError> {
        let compile = |choice| {
            let compiled = templates.compile(choice, tokenizer.template_tokens());
            compiled.map_err(|error| LoadError { reason: error.to_string() })
        };
        let has_templates = !templates.is_empty();
        let chat = has_templates.then(|| compile(TemplateChoice::Default)).transpose()?;
        let chat_with_tools = has_templates.then(|| compile(TemplateChoice::ToolUse)).transpose()?;
        let vocabulary = VocabularyOf { tokenizer: tokenizer.clone(), vocab_size, end_ids: end_ids.clone() };
        let grammars = Arc::new(LateGrammars { vocabulary, made: OnceLock::new() });
        LateGrammars::prepare(&grammars)?;
        Ok(Text { tokenizer, end_ids: Arc::new(end_ids), templates, chat, chat_with_tools, grammars })
    }

    /// The template that a chat is written with.
    pub fn template_source(&self, choice: TemplateChoice<'_>) -> Option<&str> {
        self.templates.source(choice).ok()
    }

    /// The prompt of a chat.
    pub async fn render(&self, request: ChatRequest) -> Result<ChatPrompt, Refusal> {
        let has_tools = request.tools.as_ref().is_some_and(|tools| !tools.is_empty());
        let template = if has_tools { &self.chat_with_tools } else { &self.chat };
        let template = template.clone().ok_or_else(|| {
            Refusal::new(Kind::Invalid, "the model has no chat template; ask it by /v1/completions instead")
        })?;
        let tokenizer = self.tokenizer.clone();
        let size = request.messages.iter().chain(request.tools.iter().flatten()).map(size_of).sum();
        let encoded = off_thread(size, move || template.encode(&tokenizer, &request)).await?;
        encoded.map_err(|error| Refusal::field("messages", error.to_string()))
    }

    /// A compiled grammar. One that does not compile is the client's fault; `field` is where it stood.
    pub async fn grammar(&self, source: GrammarSource, field: &str) -> Result<Arc<Grammar>, Refusal> {
        let grammars = Arc::clone(&self.grammars);
        let compiled = off_thread(usize::MAX, move || {
            let grammars = grammars.get().map_err(Refusal::internal)?;
            grammars.get(&source).map_err(|error| Refusal::new(Kind::Invalid, error.to_string()))
        });
        let compiled = compiled.await?;
        compiled.map_err(|refusal| Refusal { param: Some(field.to_string()), ..refusal })
    }

    /// The tokens of a text.
    pub async fn encode(
        &self,
        text: String,
        options: mlxcel_text::EncodeOptions,
    ) -> Result<Vec<u32>, Refusal> {
        let tokenizer = self.tokenizer.clone();
        let encoded = off_thread(text.len(), move || tokenizer.encode(&text, options)).await?;
        encoded.map_err(|error| Refusal::new(Kind::Invalid, error.to_string()))
    }
}

/// Grammars for a vocabulary, which takes a while to sort.
struct LateGrammars {
    vocabulary: VocabularyOf,
    made: OnceLock<Result<Grammars, String>>,
}

/// What a vocabulary is made of.
struct VocabularyOf {
    tokenizer: Tokenizer,
    vocab_size: usize,
    end_ids: BTreeSet<u32>,
}

impl LateGrammars {
    /// Begins to make them on a thread of its own.
    fn prepare(grammars: &Arc<Self>) -> Result<(), LoadError> {
        let grammars = Arc::clone(grammars);
        let thread = std::thread::Builder::new().name("vocabulary".to_string());
        let started = thread.spawn(move || {
            // What went wrong is told to whoever asks for a grammar.
            let _ = grammars.get();
        });
        started.map(drop).map_err(|e| LoadError { reason: format!("a thread cannot be started: {e}") })
    }

    /// Waits until they are made.
    fn get(&self) -> Result<&Grammars, &String> {
        let make = || {
            let VocabularyOf { tokenizer, vocab_size, end_ids } = &self.vocabulary;
            let end_ids: Vec<u32> = end_ids.iter().copied().collect();
            let vocabulary = Vocabulary::new(tokenizer, *vocab_size, &end_ids).map_err(|e| e.to_string())?;
            Ok(Grammars::new(Arc::new(vocabulary), GrammarLimits::default()))
        };
        self.made.get_or_init(make).as_ref()
    }
}

/// Runs what takes long on a thread where nobody else waits.
pub async fn off_thread<T: Send + 'static>(
    bytes: usize,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Refusal> {
    if bytes <= INLINE_BYTES_MAX {
        return Ok(work());
    }
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(|_| Refusal::internal("reading the text failed unexpectedly"))
}

/// About how many bytes of text a value holds.
fn size_of(value: &serde_json::Value) -> usize {
    match value {
        serde_json::Value::String(text) => text.len(),
        serde_json::Value::Array(items) => items.iter().map(size_of).sum(),
        serde_json::Value::Object(fields) => fields.values().map(size_of).sum(),
        _ => 8,
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use mlxcel_text::GgufVocab;

    use super::*;

    #[test]
    fn grammars_are_made_before_anyone_asks_for_one() {
        let letters = ('a'..='z').map(String::from).collect();
        let vocab = GgufVocab {
            model: "gpt2".to_string(),
            pre: "gpt-2".to_string(),
            tokens: letters,
            token_types: vec![1; 26],
            ..GgufVocab::default()
        };
        let tokenizer = Tokenizer::from_gguf(vocab).expect("a vocabulary");
        let templates = ChatTemplates::from_gguf(None, []);
        let text = Text::new(tokenizer, templates, BTreeSet::from([25]), 26).expect("a text side");
        let begun = Instant::now();
        while text.grammars.made.get().is_none() {
            assert!(begun.elapsed() < Duration::from_secs(20), "they are made by themselves");
            std::thread::sleep(Duration::from_millis(2));
        }
        assert!(text.grammars.get().is_ok());
    }
}
