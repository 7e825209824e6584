//! The one error type of this crate. Every variant names the file, field, id or template a person has to look
//! at.

use std::path::PathBuf;

pub type Result<T, E = Error> = std::result::Result<T, E>;

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    #[error("cannot read {}: {source}", path.display())]
    Read { path: PathBuf, source: std::io::Error },

    #[error("{} has {bytes} bytes, more than the {limit} this kind of file may have", path.display())]
    FileTooLarge { path: PathBuf, bytes: u64, limit: u64 },

    #[error("{} has no tokenizer.json; give token ids instead of text, or add the file", folder.display())]
    NoTokenizer { folder: PathBuf },

    #[error("{} is not valid JSON: {source}", path.display())]
    Json { path: PathBuf, source: serde_json::Error },

    #[error("{}: field `{field}` should be {expected}", path.display())]
    Field { path: PathBuf, field: &'static str, expected: &'static str },

    #[error("{} is not a tokenizer this version understands: {reason}", path.display())]
    TokenizerJson { path: PathBuf, reason: String },

    #[error("the GGUF vocabulary is of kind `{model}`; known kinds are gpt2, gemma4, llama and bert")]
    UnknownVocabulary { model: String },

    #[error("the GGUF vocabulary asks for the pre-tokenizer `{pre}`, which this version does not know")]
    UnknownPreTokenizer { pre: String },

    #[error("{} cannot be written as the vocabulary of a GGUF file: {reason}", path.display())]
    NoGgufForm { path: PathBuf, reason: String },

    #[error("the GGUF vocabulary cannot be written as a tokenizer.json: {reason}")]
    NoTokenizerJson { reason: String },

    #[error("the GGUF vocabulary has no tokens")]
    EmptyVocabulary,

    #[error("the GGUF vocabulary has {tokens} tokens but {found} entries in `{field}`")]
    VocabularyLength { field: &'static str, tokens: usize, found: usize },

    #[error("the GGUF vocabulary gives {id} as its {role} token, but has only {tokens} tokens")]
    SpecialIdOutOfRange { role: &'static str, id: u32, tokens: usize },

    #[error("the vocabulary wants a {role} token added to every text, but does not say which token that is")]
    MissingSpecialId { role: &'static str },

    #[error("tokens {first} and {second} of the GGUF vocabulary are both `{text}`")]
    DuplicateToken { text: String, first: u32, second: u32 },

    #[error(
        "the GGUF vocabulary has no merges, without which text cannot become tokens such as `{token}`; take a file \
         made by a converter that writes `tokenizer.ggml.merges`, or give token ids instead of text"
    )]
    NoMerges { token: String },

    #[error("merge {index} of the GGUF vocabulary, `{merge}`, {problem}")]
    BadMerge { index: usize, merge: String, problem: &'static str },

    #[error("building the tokenizer failed: {reason}")]
    Build { reason: String },

    #[error("the vocabulary has no token for {what} and no unknown token")]
    Unencodable { what: String },

    #[error("splitting the text into words failed: {reason}")]
    PreTokenize { reason: String },

    #[error("the text has a run of {chars} blank characters; at most {limit} can be split into words")]
    BlankRunTooLong { chars: usize, limit: usize },

    #[error("encoding the text failed: {reason}")]
    Encode { reason: String },

    #[error("decoding token ids failed: {reason}")]
    Decode { reason: String },

    #[error("the tokenizer library failed while {operation}; the tokenizer file is probably damaged")]
    LibraryPanic { operation: &'static str },

    #[error("stop string {index} is empty")]
    EmptyStop { index: usize },

    #[error("there is no chat template")]
    NoTemplate,

    #[error("there is no chat template named `{name}`; there is {available}")]
    UnknownTemplate { name: String, available: String },

    #[error("the chat template does not parse (line {line}): {reason}")]
    TemplateSyntax { line: usize, reason: String },

    #[error("the chat template failed (line {line}): {reason}")]
    TemplateRender { line: usize, reason: String },

    #[error("the chat template refused the messages: {message}")]
    TemplateRaised { message: String },

    #[error("the chat template did not finish within {instructions} instructions")]
    TemplateOutOfFuel { instructions: u64 },

    #[error("the chat template handled more than {bytes} bytes of text")]
    TemplateOutOfMemory { bytes: u64 },

    #[error("the chat template wrote more than {limit} bytes")]
    TemplateOutputTooLong { limit: usize },

    #[error("the last message cannot be gone on from: the chat template does not show its text as it is")]
    NothingToContinue,
    #[error("`{name}` is set by the chat itself and cannot be given as a template variable")]
    ReservedVariable { name: String },

    #[error("the messages use so many rare characters that their text cannot be marked as plain")]
    NoSpareCharacters,

    #[error("tool {index} {problem}")]
    ToolInvalid { index: usize, problem: &'static str },

    #[error("there are two tools named `{name}`")]
    DuplicateTool { name: String },

    #[error("there are {found} tools; at most {limit} are allowed")]
    TooManyTools { found: usize, limit: usize },

    #[error("there is no tool named `{name}` to call")]
    UnknownTool { name: String },

    #[error("a call was asked for, but there are no tools")]
    NoTools,

    #[error("the model writes calls of tools as plain JSON, from which such an answer cannot be told")]
    AnswerLikeCall,

    #[error("the {kind} has {found} {measure}; at most {limit} are allowed")]
    GrammarTooLarge { kind: &'static str, measure: &'static str, found: usize, limit: usize },

    #[error("the {kind} cannot be enforced: {reason}")]
    GrammarRefused { kind: &'static str, reason: String },

    #[error("the {kind} could not be compiled: the grammar library failed; simplify it")]
    GrammarCrashed { kind: &'static str },

    #[error("token {token} does not follow the grammar")]
    TokenRefused { token: u32 },

    #[error("the grammar cannot be followed further: {reason}")]
    GrammarFailed { reason: String },
}
