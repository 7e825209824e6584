//! The conversation, line by line: read, do what the line says, show, again. Where lines come from and where output goes
//! is given, so that a chat can be held without a terminal.

use std::io::{self, Write};
use std::ops::ControlFlow;

use anyhow::Result;

use super::chat::{Chat, Ended};
use super::command::{self, Command};
use super::input::{self, Input};
use super::saved;
use crate::interrupt::{HOW_TO_LEAVE, Interrupt};

pub enum Line {
    Text(String),
    /// Ctrl-C was pressed instead of Enter.
    Interrupted {
        is_empty: bool,
    },
    /// No more lines come.
    End,
}

pub trait Lines {
    fn read(&mut self) -> Result<Line>;
}

/// Chats until the lines end or a command ends it. Only a failing terminal is an error.
pub fn run(chat: &mut Chat, lines: &mut dyn Lines, out: &mut dyn Write, interrupt: &Interrupt) -> Result<()> {
    loop {
        interrupt.wait_at_prompt();
        let text = match lines.read()? {
            Line::Text(text) => text,
            Line::Interrupted { is_empty: true } => {
                writeln!(out, "{HOW_TO_LEAVE}")?;
                continue;
            }
            Line::Interrupted { is_empty: false } => continue,
            Line::End => return Ok(()),
        };
        let done = match input::parse(&text) {
            Ok(Input::Nothing) => Ok(ControlFlow::Continue(())),
            Ok(Input::Message(text)) => {
                answer(chat, text, out, interrupt).map(|()| ControlFlow::Continue(()))
            }
            Ok(Input::Command(command)) => obey(chat, command, out),
            Err(error) => Err(error),
        };
        match done {
            Ok(ControlFlow::Continue(())) => {}
            Ok(ControlFlow::Break(())) => return Ok(()),
            // What cannot be shown cannot be reported, either.
            Err(error) if error.is::<io::Error>() => return Err(error),
            Err(error) => writeln!(out, "error: {error}")?,
        }
    }
}

fn answer(chat: &mut Chat, text: String, out: &mut dyn Write, interrupt: &Interrupt) -> Result<()> {
    interrupt.be_patient();
    let mut is_line_open = false;
    let ended = chat.answer(text, interrupt, &mut |text| {
        if let Some(last) = text.chars().last() {
            is_line_open = last != '\n';
        }
        out.write_all(input::printable(text).as_bytes())?;
        out.flush()
    });
    if is_line_open || matches!(ended, Ok(Ended::Dropped)) {
        writeln!(out)?;
    }
    if let Some(note) = chat.explain(ended?) {
        writeln!(out, "note: {note}")?;
    }
    writeln!(out)?;
    Ok(())
}

fn obey(chat: &mut Chat, command: Command, out: &mut dyn Write) -> Result<ControlFlow<()>> {
    let said = match command {
        Command::Bye => return Ok(ControlFlow::Break(())),
        Command::Help => command::help(),
        Command::Stats => chat.stats(),
        Command::Clear => {
            chat.conversation.messages.clear();
            "the conversation is forgotten\n".to_string()
        }
        Command::System(None) => match &chat.conversation.system {
            Some(text) => format!("{text}\n"),
            None => "there is no system message\n".to_string(),
        },
        Command::System(Some(text)) => {
            let said =
                if text.is_empty() { "the system message is gone\n" } else { "the system message is set\n" };
            chat.set_system(text)?;
            said.to_string()
        }
        Command::Set(None) => chat.settings.list()?,
        Command::Set(Some((name, value))) => {
            chat.settings.set(&name, &value)?;
            format!("{name} is set\n")
        }
        Command::Save(path) => {
            saved::save(&path, &chat.model, &chat.conversation, &chat.settings)?;
            format!("saved {} messages to '{}'\n", chat.conversation.all().len(), path.display())
        }
        Command::Load(path) => {
            let restored = saved::load(&path, &chat.settings)?;
            chat.restore(restored)?
        }
    };
    out.write_all(input::printable(&said).as_bytes())?;
    Ok(ControlFlow::Continue(()))
}
