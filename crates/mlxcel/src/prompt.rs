//! From arguments to the token ids of a prompt: read, put into the model's chat template, encoded, checked.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use anyhow::{Result, anyhow, bail, ensure};
use clap::Args;
use mlxcel_text::{ChatRequest, EncodeOptions, TemplateChoice};
use serde_json::{Value, json};

use crate::values::{TokenIds, parse_token_ids};
use crate::vocabulary::Vocabulary;

/// More text than any context holds.
const FILE_BYTES_MAX: u64 = 64 << 20;

/// Where the prompt comes from.
#[derive(Debug, Args)]
#[group(skip)]
#[command(next_help_heading = "Prompt")]
pub struct PromptArgs {
    /// The prompt.
    #[arg(short, long, value_name = "TEXT")]
    #[arg(required_unless_present_any = ["prompt_file", "prompt_tokens"])]
    pub prompt: Option<String>,
    /// Read the prompt from a file, - for standard input; one line break at its end is left out.
    #[arg(long, value_name = "FILE", conflicts_with = "prompt")]
    pub prompt_file: Option<PathBuf>,
    /// The prompt as token ids, fed as they are: 1,2,3.
    #[arg(long, value_name = "IDS", value_parser = parse_token_ids, conflicts_with_all = ["prompt", "prompt_file"])]
    pub prompt_tokens: Option<TokenIds>,
    /// A system message for the chat template.
    #[arg(long, value_name = "TEXT", conflicts_with_all = ["prompt_tokens", "no_chat_template"])]
    pub system: Option<String>,
    /// Feed the prompt as it is, without the model's chat template.
    #[arg(long)]
    pub no_chat_template: bool,
}

pub enum Prompt {
    Text(String),
    Tokens(Vec<u32>),
}

/// Reads the prompt, from a file or standard input if the arguments say so.
pub fn read(arguments: &PromptArgs) -> Result<Prompt> {
    let text = match (&arguments.prompt_tokens, &arguments.prompt_file) {
        (Some(ids), _) => return Ok(Prompt::Tokens(ids.to_vec())),
        (None, Some(path)) => read_file(path)?,
        (None, None) => arguments.prompt.clone().unwrap_or_default(),
    };
    ensure!(!text.is_empty(), "the prompt is empty; give some text with -p or --prompt-file");
    Ok(Prompt::Text(text))
}

/// The text of a file, `-` for standard input, without the line break at its end.
pub fn read_file(path: &Path) -> Result<String> {
    let is_stdin = path == Path::new("-");
    let name = if is_stdin { "standard input".to_string() } else { format!("'{}'", path.display()) };
    let cannot = |e: io::Error| anyhow!("cannot read the prompt from {name}: {e}; give a readable text file");
    let source: Box<dyn Read> =
        if is_stdin { Box::new(io::stdin()) } else { Box::new(File::open(path).map_err(cannot)?) };
    let mut bytes = Vec::new();
    source.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(cannot)?;
    ensure!(
        bytes.len() as u64 <= FILE_BYTES_MAX,
        "the prompt in {name} is longer than {} MB; shorten it",
        FILE_BYTES_MAX >> 20
    );
    let mut text = String::from_utf8(bytes)
        .map_err(|e| anyhow!("the prompt in {name} is not UTF-8 ({e}); save the file as UTF-8"))?;
    if text.ends_with('\n') {
        text.truncate(text.len() - if text.ends_with("\r\n") { 2 } else { 1 });
    }
    Ok(text)
}

impl Prompt {
    /// The ids that are fed to the model. A text becomes the user's message of a chat where the model has a template.
    pub fn encode(&self, arguments: &PromptArgs, vocabulary: Option<&Vocabulary>) -> Result<Vec<u32>> {
        let (text, vocabulary) = match (self, vocabulary) {
            (Prompt::Tokens(ids), _) => return Ok(ids.clone()),
            (Prompt::Text(text), Some(vocabulary)) => (text, vocabulary),
            (Prompt::Text(_), None) => {
                bail!(
                    "the model has no tokenizer, so it cannot read text; give token ids with --prompt-tokens"
                )
            }
        };
        let ids = if arguments.no_chat_template || vocabulary.templates.is_empty() {
            ensure!(
                arguments.system.is_none(),
                "the model has no chat template, so there is no place for --system; put it into the prompt"
            );
            vocabulary.tokenizer.encode(text, EncodeOptions::default())?
        } else {
            let system = arguments.system.as_deref().map(|content| message("system", content));
            encode_chat(system.into_iter().chain([message("user", text)]).collect(), vocabulary)?
        };
        ensure!(!ids.is_empty(), "the prompt has no tokens; give some text with -p or --prompt-file");
        Ok(ids)
    }
}

/// A message as templates expect it.
pub fn message(role: &str, content: &str) -> Value {
    json!({ "role": role, "content": content })
}

/// The ids of a conversation in the model's chat template, up to where the assistant's answer begins.
pub fn encode_chat(messages: Vec<Value>, vocabulary: &Vocabulary) -> Result<Vec<u32>> {
    let Vocabulary { tokenizer, templates } = vocabulary;
    let template = templates.compile(TemplateChoice::Default, tokenizer.template_tokens());
    let request = ChatRequest { messages, add_generation_prompt: true, ..ChatRequest::default() };
    let prompt = template.and_then(|template| template.encode(tokenizer, &request));
    let prompt = prompt.map_err(|e| anyhow!("{e}; --no-chat-template feeds the prompt as it is"))?;
    Ok(prompt.tokens)
}

/// Refuses ids that the model does not have.
pub fn check_vocabulary(ids: &[u32], vocab_size: usize) -> Result<()> {
    match ids.iter().find(|&&id| id as usize >= vocab_size) {
        None => Ok(()),
        Some(id) => bail!(
            "token {id} is not in the model's vocabulary of {vocab_size} tokens; give ids from 0 to {}",
            vocab_size.saturating_sub(1)
        ),
    }
}
