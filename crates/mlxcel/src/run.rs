//! `mlxcel run`: a chat. With a prompt, or with standard input that is no terminal, one answer; else a conversation, line
//! by line. Loading and generating are shared with `generate`.

mod chat;
mod command;
mod conversation;
mod editor;
mod history;
mod input;
mod repl;
mod saved;
mod settings;

use std::io::{self, IsTerminal as _, Write as _};
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Result, ensure};
use clap::Args;

use crate::cli::{EndArgs, FetchArgs, SamplingArgs, TypeArgs};
use crate::engines::EngineArgs;
use crate::interrupt::Interrupt;
use crate::{exit, prompt, terminal};
use chat::{Chat, Ended};
use editor::Editor;

const EXAMPLES: &str = "\
Examples:
  mlxcel run
  mlxcel run model.gguf --system \"Answer in one sentence.\"
  mlxcel run smollm2 \"Why is the sky blue?\"
  mlxcel run smollm2 \"Summarise this:\" < notes.txt";

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct Run {
    /// A model folder, a .gguf file, an alias, or OWNER/NAME on the hub [default: smollm2]; after -m, the beginning of the prompt.
    #[arg(value_name = "MODEL")]
    pub place: Option<String>,
    /// Answer this once instead of chatting; what standard input holds is put after it.
    #[arg(value_name = "PROMPT")]
    pub prompt: Vec<String>,
    /// The model, as an option.
    #[arg(short, long, value_name = "MODEL", help_heading = "Model")]
    pub model: Option<String>,
    #[command(flatten)]
    pub fetching: FetchArgs,
    /// A system message for the chat template.
    #[arg(long, value_name = "TEXT", conflicts_with = "no_chat_template", help_heading = "Chat")]
    pub system: Option<String>,
    /// Feed texts as they are, without the model's chat template.
    #[arg(long, help_heading = "Chat")]
    pub no_chat_template: bool,
    /// Tokens that the conversation may have [default: 8192, or the model's context if that is less].
    #[arg(short, long, value_name = "N", help_heading = "Chat")]
    #[arg(value_parser = clap::value_parser!(u32).range(2..))]
    pub ctx_size: Option<u32>,
    /// New tokens of an answer at most; -1 goes on to the end of the answer or of the context.
    #[arg(help_heading = "Answer")]
    #[arg(short = 'n', long, value_name = "N", default_value_t = -1, allow_negative_numbers = true)]
    #[arg(value_parser = clap::value_parser!(i64).range(-1..=i64::from(i32::MAX)))]
    pub max_tokens: i64,
    #[command(flatten)]
    pub sampling: SamplingArgs,
    #[command(flatten)]
    pub end: EndArgs,
    #[command(flatten)]
    pub types: TypeArgs,
    #[command(flatten)]
    pub engine: EngineArgs,
}

impl Run {
    /// The model, and the words of the prompt.
    fn model_and_prompt(&self) -> (&str, Vec<&str>) {
        let prompt = self.prompt.iter().map(String::as_str);
        match (&self.model, &self.place) {
            (Some(model), place) => (model, place.as_deref().into_iter().chain(prompt).collect()),
            (None, Some(place)) => (place, prompt.collect()),
            (None, None) => (mlxcel_hub::DEFAULT_MODEL, Vec::new()),
        }
    }
}

pub fn run(options: &Run) -> Result<ExitCode> {
    let interrupt = Interrupt::install()?;
    let (model, words) = options.model_and_prompt();
    let question = question(&words)?;
    let mut chat = Chat::open(options, model)?;
    match question {
        Some(text) => answer_once(&mut chat, text, &interrupt),
        None => {
            let mut editor = Editor::open()?;
            repl::run(&mut chat, &mut editor, &mut io::stdout(), &interrupt)?;
            Ok(ExitCode::SUCCESS)
        }
    }
}

/// What is asked without a conversation; `None` at a terminal.
fn question(words: &[&str]) -> Result<Option<String>> {
    let words = words.join(" ");
    let is_terminal = io::stdin().is_terminal();
    if is_terminal && words.is_empty() {
        return Ok(None);
    }
    let read = if is_terminal { String::new() } else { prompt::read_file(Path::new("-"))? };
    let parts: Vec<&str> = [words.as_str(), &read].into_iter().filter(|part| !part.is_empty()).collect();
    ensure!(!parts.is_empty(), "the prompt is empty; give some text after the model, or on standard input");
    Ok(Some(parts.join("\n\n")))
}

fn answer_once(chat: &mut Chat, text: String, interrupt: &Interrupt) -> Result<ExitCode> {
    interrupt.be_polite();
    chat.is_single = true;
    let mut stdout = io::stdout();
    let mut show = |text: &str| {
        let text = if terminal::can_draw() { input::printable(text) } else { text.into() };
        stdout.write_all(text.as_bytes())?;
        stdout.flush()
    };
    let ended = chat.answer(text, interrupt, &mut show)?;
    if !chat.conversation.is_at_line_start() {
        show("\n")?;
    }
    if let Some(note) = chat.explain(ended) {
        crate::say(&format!("note: {note}"));
    }
    let is_interrupted = matches!(ended, Ended::Interrupted | Ended::Dropped);
    Ok(if is_interrupted { ExitCode::from(exit::INTERRUPTED) } else { ExitCode::SUCCESS })
}
