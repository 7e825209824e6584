//! The line editor at a terminal: editing, history, lines that go on. On a dumb terminal it writes the prompt and reads
//! a line, without any escape code. What lines mean is told by `input`.

use std::borrow::Cow;
use std::cell::Cell;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Result, anyhow};
use rustyline::completion::Completer;
use rustyline::error::ReadlineError;
use rustyline::highlight::Highlighter;
use rustyline::hint::Hinter;
use rustyline::history::FileHistory;
use rustyline::validate::{ValidationContext, ValidationResult, Validator};
use rustyline::{Config, Context, Helper};

use super::repl::{Line, Lines};
use super::{history, input};
use crate::{say, terminal};

const PROMPT: &str = ">>> ";
const INVITATION: &str = "Send a message (/? for help)";

pub struct Editor {
    editor: rustyline::Editor<Guide, FileHistory>,
    /// Where lines are kept, if anywhere.
    history: Option<PathBuf>,
}

/// What the editor shows and asks while a line is typed.
struct Guide {
    has_colour: bool,
    /// Whether anything is typed, since an interrupted line is not handed over.
    is_empty: Cell<bool>,
}

impl Editor {
    pub fn open() -> Result<Self> {
        let config = Config::builder()
            .max_history_size(history::LINES_MAX)
            .and_then(|config| config.history_ignore_dups(true))
            .map(|config| config.history_ignore_space(true).build());
        let editor = config.and_then(rustyline::Editor::with_config);
        let mut editor = editor.map_err(|e| anyhow!("the terminal cannot be used: {e}"))?;
        editor.set_helper(Some(Guide { has_colour: terminal::can_colour(), is_empty: Cell::new(true) }));
        let history = history::file().filter(|file| match recall(&mut editor, file) {
            Ok(()) => true,
            Err(error) => {
                say(&format!("note: no history, since '{}' cannot be used: {error}", file.display()));
                false
            }
        });
        Ok(Editor { editor, history })
    }

    /// Keeps a line for later chats. A history that can no longer be written is no reason to end a chat.
    fn keep(&mut self, line: &str) {
        let added = self.editor.add_history_entry(line);
        let Some(file) = self.history.take_if(|_| added.is_ok()) else { return };
        match self.editor.append_history(&file) {
            Ok(()) => self.history = Some(file),
            Err(error) => say(&format!("note: no more history, since '{}' failed: {error}", file.display())),
        }
    }
}

/// Reads the lines of earlier chats, and makes sure that this one's can be added.
fn recall(editor: &mut rustyline::Editor<Guide, FileHistory>, file: &Path) -> Result<()> {
    match fs::metadata(file) {
        Ok(data) if !data.is_file() => Err(anyhow!("it is not a file")),
        Ok(data) if data.len() > history::BYTES_MAX => Err(anyhow!("it is too long")),
        Ok(_) => Ok(editor.load_history(file)?),
        Err(_) => Ok(file.parent().map_or(Ok(()), fs::create_dir_all)?),
    }
}

impl Lines for Editor {
    fn read(&mut self) -> Result<Line> {
        if let Some(guide) = self.editor.helper() {
            guide.is_empty.set(true);
        }
        match self.editor.readline(PROMPT) {
            Ok(line) => {
                if !line.trim().is_empty() {
                    self.keep(&line);
                }
                Ok(Line::Text(line))
            }
            Err(ReadlineError::Interrupted) => Ok(Line::Interrupted {
                is_empty: self.editor.helper().is_none_or(|guide| guide.is_empty.get()),
            }),
            Err(ReadlineError::Eof) => Ok(Line::End),
            // Kept as they are, so that a closed pipe is still known as one.
            Err(ReadlineError::Io(error)) => Err(error.into()),
            Err(error) => Err(anyhow!("the terminal cannot be read: {error}")),
        }
    }
}

impl Helper for Guide {}

impl Completer for Guide {
    type Candidate = String;
}

impl Hinter for Guide {
    type Hint = String;

    fn hint(&self, line: &str, _: usize, _: &Context<'_>) -> Option<String> {
        self.is_empty.set(line.is_empty());
        line.is_empty().then(|| INVITATION.to_string())
    }
}

impl Highlighter for Guide {
    fn highlight_hint<'h>(&self, hint: &'h str) -> Cow<'h, str> {
        if self.has_colour { format!("\x1b[2m{hint}\x1b[0m").into() } else { hint.into() }
    }
}

impl Validator for Guide {
    fn validate(&self, context: &mut ValidationContext<'_>) -> rustyline::Result<ValidationResult> {
        let is_complete = input::is_complete(context.input());
        Ok(if is_complete { ValidationResult::Valid(None) } else { ValidationResult::Incomplete })
    }
}
