//! A model and what was said to it: takes a message, makes the answer, and keeps both. Only what is new in a
//! conversation is computed. It neither reads lines nor writes to a terminal.

use std::collections::BTreeSet;
use std::io::{self, IsTerminal as _};
use std::ops::ControlFlow;
use std::time::Duration;

use anyhow::{Result, anyhow, bail, ensure};
use indicatif::ProgressBar;
use mlxcel_engine::{Caps, Engine, EngineError};
use mlxcel_text::{EncodeOptions, StopMatcher};

use super::Run;
use super::conversation::{Conversation, Role};
use super::saved::Restored;
use super::settings::Settings;
use crate::answer::Answer;
use crate::capacity::{self, Needs};
use crate::interrupt::Interrupt;
use crate::report::{Progress, Timings, in_words};
use crate::session::{Event, Finish, Loaded, Outcome, Request, Session, alone};
use crate::vocabulary::Vocabulary;
use crate::{budget, engines, loading, memory, prompt, say, terminal};

pub struct Chat {
    pub model: String,
    pub conversation: Conversation,
    pub settings: Settings,
    /// Whether one message is answered and no more.
    pub is_single: bool,
    /// Whether messages go through the model's chat template; else they are one text.
    has_template: bool,
    vocabulary: Vocabulary,
    end_ids: BTreeSet<u32>,
    vocabulary_size: usize,
    /// The longest sequence that the model was made for.
    context: usize,
    session: Session,
    caps: Caps,
    last: Option<Turn>,
}

/// The numbers of one answer.
struct Turn {
    prompt: usize,
    answer: usize,
    outcome: Outcome,
}

/// How an answer came to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    Complete,
    /// As many tokens as allowed.
    AtLimit,
    /// No more room in the context.
    Full,
    Interrupted,
    /// Interrupted before the first token, so that there is no answer to keep.
    Dropped,
}

/// Shows a part of an answer.
pub type Show<'a> = dyn FnMut(&str) -> io::Result<()> + 'a;

impl Chat {
    pub fn open(options: &Run, model: &str) -> Result<Self> {
        StopMatcher::new(&options.end.stop)?;
        let engine = engines::open(&options.engine)?;
        let path = options.fetching.resolve(model)?;
        let busy = busy(&format!("loading {model}"));
        let (loaded, vocabulary) = loading::load(&path, options.types, &engine.caps())?;
        let Some(vocabulary) = vocabulary? else {
            bail!(
                "the model has no tokenizer, so it cannot chat; feed token ids with 'mlxcel generate --prompt-tokens'"
            )
        };
        let session = compile(options, &loaded, &*engine)?;
        busy.finish_and_clear();
        let has_template = !options.no_chat_template && !vocabulary.templates.is_empty();
        ensure!(
            has_template || options.system.is_none(),
            "the model has no chat template, so there is no place for --system; put it into the message"
        );
        if !has_template && !options.no_chat_template {
            say("note: the model has no chat template; it goes on from your text instead of answering it");
        }
        let Run { sampling, max_tokens, end, .. } = options;
        Ok(Chat {
            model: model.to_string(),
            conversation: Conversation { system: options.system.clone(), messages: Vec::new() },
            settings: Settings {
                sampling: sampling.clone(),
                max_tokens: *max_tokens,
                stop: end.stop.clone(),
            },
            is_single: false,
            has_template,
            end_ids: end.ids(&loaded.model, Some(&vocabulary.tokenizer)),
            vocabulary,
            vocabulary_size: loaded.model.built.vocab_size,
            context: loaded.model.built.max_context,
            session,
            caps: engine.caps(),
            last: None,
        })
    }

    /// Answers a message. If that fails, the conversation is as it was.
    pub fn answer(&mut self, text: String, interrupt: &Interrupt, show: &mut Show<'_>) -> Result<Ended> {
        self.conversation.push(Role::User, text);
        let answered = self.go_on(interrupt, show);
        match &answered {
            Ok((Ended::Dropped, _)) | Err(_) => drop(self.conversation.messages.pop()),
            Ok((_, answer)) => self.conversation.push(Role::Assistant, answer.clone()),
        }
        Ok(answered?.0)
    }

    /// Goes on from the messages as they are.
    fn go_on(&mut self, interrupt: &Interrupt, show: &mut Show<'_>) -> Result<(Ended, String)> {
        let prompt = self.encode()?;
        let Settings { sampling, max_tokens, stop } = &self.settings;
        let mut answer = Answer::new(Some(&self.vocabulary.tokenizer), stop)?;
        let request = Request {
            prompt: &prompt,
            max_tokens: usize::try_from(*max_tokens).ok(),
            end_ids: &self.end_ids,
            sampling: sampling.params(),
            repetition_penalty: sampling.repetition_penalty,
            top_logprobs: None,
        };
        let outcome = self.session.generate(&request, &mut |event| {
            if let Event::Token(token) = event {
                show(&answer.push(token)?)?;
            }
            let is_over = answer.is_stopped() || interrupt.is_asked();
            Ok(if is_over { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
        })?;
        show(&answer.finish()?)?;
        let made = answer.tokens.len();
        self.last = Some(Turn { prompt: prompt.len(), answer: made, outcome });
        let ended = match outcome.finish {
            Finish::End => Ended::Complete,
            _ if answer.is_stopped() => Ended::Complete,
            Finish::Length if prompt.len() + made >= self.session.capacity() => Ended::Full,
            Finish::Length => Ended::AtLimit,
            Finish::Ended if made == 0 => Ended::Dropped,
            Finish::Ended => Ended::Interrupted,
        };
        Ok((ended, answer.text().unwrap_or_default().to_string()))
    }

    /// The conversation's ids, which leave room for an answer.
    fn encode(&self) -> Result<Vec<u32>> {
        let ids = if self.has_template {
            prompt::encode_chat(self.conversation.for_template(), &self.vocabulary)?
        } else {
            self.vocabulary.tokenizer.encode(&self.conversation.as_text(), EncodeOptions::default())?
        };
        ensure!(!ids.is_empty(), "the message has no tokens; write some text");
        prompt::check_vocabulary(&ids, self.vocabulary_size)?;
        let capacity = self.session.capacity();
        ensure!(
            ids.len() < capacity,
            "with this message the conversation has {} tokens, but there is room for {capacity} with the answer; {}",
            ids.len(),
            self.how_to_get_room()
        );
        Ok(ids)
    }

    /// What a person should know of how an answer ended, if anything.
    pub fn explain(&self, ended: Ended) -> Option<String> {
        match ended {
            Ended::Complete | Ended::Interrupted => None,
            Ended::Dropped => Some("stopped before the answer began; the message is dropped".to_string()),
            Ended::AtLimit => {
                let n = self.settings.max_tokens;
                let more = if self.is_single { "-n -1" } else { "/set max_tokens -1" };
                Some(format!("the answer is cut after {n} tokens; {more} lets answers go on to their end"))
            }
            Ended::Full => Some(format!(
                "the answer is cut, since the {} tokens of the context are full; {}",
                self.session.capacity(),
                self.how_to_get_room()
            )),
        }
    }

    fn how_to_get_room(&self) -> String {
        let shorter = if self.is_single { "shorten the message" } else { "/clear forgets what was said" };
        if self.session.capacity() == self.context {
            return shorter.to_string();
        }
        format!("{shorter}, or start with a larger -c (this model: up to {})", self.context)
    }

    pub fn set_system(&mut self, text: String) -> Result<()> {
        ensure!(
            self.has_template,
            "without a chat template there is no place for a system message; put it into your text"
        );
        self.conversation.system = (!text.is_empty()).then_some(text);
        Ok(())
    }

    /// Goes on with what a file held, and says so.
    pub fn restore(&mut self, restored: Restored) -> Result<String> {
        let Restored { model, conversation, settings } = restored;
        ensure!(
            self.has_template || conversation.system.is_none(),
            "the file has a system message, but without a chat template there is no place for it"
        );
        (self.conversation, self.settings) = (conversation, settings);
        let other = model.filter(|model| *model != self.model);
        let other = other.map_or(String::new(), |model| format!(", which were said to the model '{model}'"));
        Ok(format!("loaded {} messages{other}\n", self.conversation.all().len()))
    }

    /// How the last answer went.
    pub fn stats(&self) -> String {
        let Some(Turn { prompt, answer, outcome }) = &self.last else {
            return "nothing was answered yet\n".to_string();
        };
        let computed = prompt - outcome.reused;
        let progress =
            Progress { prompt: computed, answer: *answer, load_time: Duration::ZERO, first_token: None };
        let timings = Timings::new(progress, outcome, memory::peak_bytes());
        let speed = |s: Option<f64>| s.map_or(String::new(), |s| format!(" at {s:.1} tok/s"));
        let peak = timings.peak_memory_bytes.map_or("unknown".to_string(), |bytes| in_words(bytes, "B"));
        format!(
            "prompt   reused {} of {prompt} tokens, computed {computed}{}\n\
             answer   {answer} tokens{}\n\
             context  {} of {} tokens\n\
             memory   {peak} at most\n\
             engine   {} on {}\n",
            outcome.reused,
            speed(timings.prompt_tok_per_s),
            speed(timings.decode_tok_per_s),
            prompt + answer,
            self.session.capacity(),
            self.caps.name,
            self.caps.device,
        )
    }
}

fn compile(options: &Run, loaded: &Loaded, engine: &dyn Engine) -> Result<Session> {
    let needs = Needs {
        prompt: 0,
        max_tokens: None,
        context: loaded.model.built.max_context,
        bytes_per_token: loaded.bytes_per_token(),
        memory: budget::cache_bytes(engine, loaded, alone(engine))?,
    };
    let capacity = capacity::choose_for_chat(options.ctx_size.map(|n| n as usize), &needs)?;
    if capacity.is_cut {
        say(&format!("note: memory is enough for a conversation of {} tokens", capacity.tokens));
    }
    loaded.compile(engine, capacity.tokens).map_err(|error| match error.downcast_ref() {
        Some(EngineError::OutOfMemory { .. }) => anyhow!("{error}; give a smaller -c or a smaller model"),
        _ => error,
    })
}

/// A sign of life on stderr while nothing else can be shown.
fn busy(what: &str) -> ProgressBar {
    if !terminal::can_draw() || !io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::new_spinner().with_message(what.to_string());
    bar.enable_steady_tick(Duration::from_millis(100));
    bar
}
