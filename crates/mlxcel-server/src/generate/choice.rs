//! One choice on its way: ids become text, what may be the beginning of a stop string is held back, reasoning and calls
//! of tools are taken apart, and log-probabilities go with the text they belong to.

use std::collections::VecDeque;

use mlxcel_sched::{Finish, Logprobs};
use mlxcel_text::{DetokenizeOptions, Detokenizer, OutputEvent, SpecialText, StopMatcher};

use crate::model::Model;
use crate::order::Order;
use crate::reading::Reading;
use crate::refusal::Refusal;

/// A piece of one choice.
#[derive(Clone, Debug, PartialEq)]
pub struct Shown {
    pub choice: usize,
    pub piece: Piece,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Piece {
    Text {
        text: String,
        tokens: Vec<TokenInfo>,
    },
    /// What the model thinks before it answers.
    Reasoning(String),
    /// A call of a tool begins.
    ToolBegin {
        index: usize,
        id: String,
        name: String,
    },
    /// A part of its arguments, which are JSON.
    ToolArguments {
        index: usize,
        text: String,
    },
    Ended(Ended),
}

/// A token and how likely it was.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenInfo {
    pub id: u32,
    pub logprobs: Option<Logprobs>,
}

/// Why a choice ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ended {
    /// The model ended it, or the grammar did.
    Complete,
    /// A stop string of the client.
    Stop(String),
    Length,
}

pub struct Choice {
    detokenizer: Detokenizer,
    matcher: StopMatcher,
    stops: Vec<String>,
    /// `None` reads plain text.
    reading: Option<Reading>,
    end_ids: std::sync::Arc<std::collections::BTreeSet<u32>>,
    /// Tokens whose text is not shown yet, each with where its text begins.
    pending: VecDeque<(usize, TokenInfo)>,
    /// Bytes of text made, and of text shown.
    made: usize,
    shown: usize,
    is_ended: bool,
}

impl Choice {
    pub fn new(model: &Model, order: &Order) -> Result<Self, Refusal> {
        let stops = order.end.stops.clone();
        let matcher = StopMatcher::new(&stops).map_err(|error| Refusal::field("stop", error.to_string()))?;
        let reading = order.reading.clone();
        let shows_controls = reading.as_ref().is_some_and(|reading| reading.shows_controls);
        let special = if shows_controls { SpecialText::Show } else { SpecialText::Hide };
        let options = DetokenizeOptions { special, ..DetokenizeOptions::default() };
        Ok(Choice {
            detokenizer: Detokenizer::new(&model.text.tokenizer, options),
            matcher,
            stops,
            reading,
            end_ids: std::sync::Arc::clone(&order.end.ids),
            pending: VecDeque::new(),
            made: 0,
            shown: 0,
            is_ended: false,
        })
    }

    pub fn is_ended(&self) -> bool {
        self.is_ended
    }

    /// Takes a token; shows what is certain.
    pub fn push(
        &mut self,
        id: u32,
        logprobs: Option<Logprobs>,
        show: &mut impl FnMut(Piece),
    ) -> Result<(), Refusal> {
        // What ends an answer is no part of it.
        if self.end_ids.contains(&id) {
            return Ok(());
        }
        self.pending.push_back((self.made, TokenInfo { id, logprobs }));
        let text = self.detokenizer.push(id).map_err(unreadable)?;
        self.made += text.len();
        self.advance(&text, show);
        Ok(())
    }

    /// Ends the choice; shows what was held back.
    pub fn finish(&mut self, reason: Finish, show: &mut impl FnMut(Piece)) -> Result<(), Refusal> {
        let rest = self.detokenizer.finish().map_err(unreadable)?;
        self.made += rest.len();
        self.advance(&rest, show);
        if self.is_ended {
            return Ok(());
        }
        let held = self.matcher.finish();
        self.shown += held.len();
        let tokens: Vec<TokenInfo> = self.pending.drain(..).map(|(_, token)| token).collect();
        self.read(held, tokens, show);
        if self.is_ended {
            return Ok(());
        }
        let ended = match reason {
            Finish::End | Finish::Complete => Ended::Complete,
            Finish::Length => Ended::Length,
        };
        self.end(ended, show);
        Ok(())
    }

    fn advance(&mut self, text: &str, show: &mut impl FnMut(Piece)) {
        let progress = self.matcher.push(text);
        self.shown += progress.text.len();
        let ready = self.pending.iter().take_while(|(start, _)| *start < self.shown).count();
        if !progress.text.is_empty() {
            let tokens = self.pending.drain(..ready).map(|(_, token)| token).collect();
            self.read(progress.text, tokens, show);
        }
        if let Some(stop) = progress.stopped_by.filter(|_| !self.is_ended) {
            self.end(Ended::Stop(self.stops[stop].clone()), show);
        }
    }

    /// Takes text apart and shows its parts.
    fn read(&mut self, text: String, tokens: Vec<TokenInfo>, show: &mut impl FnMut(Piece)) {
        let Some(reading) = &mut self.reading else {
            if !text.is_empty() || !tokens.is_empty() {
                show(Piece::Text { text, tokens });
            }
            return;
        };
        let events = reading.parser.push(&text);
        self.tell(events, tokens, show);
    }

    fn tell(&mut self, events: Vec<OutputEvent>, tokens: Vec<TokenInfo>, show: &mut impl FnMut(Piece)) {
        let mut tokens = Some(tokens);
        for event in events {
            match event {
                OutputEvent::Content(text) => {
                    show(Piece::Text { text, tokens: tokens.take().unwrap_or_default() });
                }
                OutputEvent::Reasoning(text) => show(Piece::Reasoning(text)),
                OutputEvent::ToolCallBegin { index, id, name } => {
                    let id = id.unwrap_or_else(|| crate::ids::new("call_"));
                    show(Piece::ToolBegin { index, id, name });
                }
                OutputEvent::ToolCallArguments { index, text } => show(Piece::ToolArguments { index, text }),
                OutputEvent::ToolCallEnd { index } => {
                    let most = self.reading.as_ref().and_then(|reading| reading.calls_max);
                    if most.is_some_and(|most| index + 1 >= most) {
                        self.is_ended = true;
                        show(Piece::Ended(Ended::Complete));
                        return;
                    }
                }
            }
        }
    }

    fn end(&mut self, ended: Ended, show: &mut impl FnMut(Piece)) {
        if let Some(reading) = &mut self.reading {
            let rest = reading.parser.finish();
            self.tell(rest, Vec::new(), show);
        }
        if self.is_ended {
            return;
        }
        self.is_ended = true;
        show(Piece::Ended(ended));
    }
}

fn unreadable(error: mlxcel_text::Error) -> Refusal {
    Refusal::internal(format!("the model's tokens cannot be read: {error}"))
}
