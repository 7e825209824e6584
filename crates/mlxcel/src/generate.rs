//! `mlxcel generate`: one prompt, one answer. Text goes to stdout as it comes, one line about it to stderr.

use std::collections::BTreeSet;
use std::io::{self, Write as _};
use std::ops::ControlFlow;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, ensure};
use clap::Args;
use mlxcel_engine::sampling::SamplingParams;
use mlxcel_engine::{Engine, EngineError};

use crate::answer::Answer;
use crate::capacity::{self, Needs};
use crate::cli::{EndArgs, ModelArgs, SamplingArgs};
use crate::interrupt::Interrupt;
use crate::prompt::{self, Prompt, PromptArgs};
use crate::report::{self, Progress, Report, Timings};
use crate::session::{Event, Finish, Loaded, Outcome, Request, Session, alone};
use crate::vocabulary::Vocabulary;
use crate::{budget, engines, exit, loading, memory, say};

const EXAMPLES: &str = "\
Examples:
  mlxcel generate -p \"Explain what a compiler does, in two sentences.\"
  mlxcel generate -m ./Qwen3-0.6B --prompt-file question.txt --temp 0 -n -1
  mlxcel generate -m model.gguf --prompt-tokens 1,2,3 --temp 0 --json";

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct Generate {
    #[command(flatten)]
    pub model: ModelArgs,
    #[command(flatten)]
    pub prompt: PromptArgs,
    #[command(flatten)]
    pub sampling: SamplingArgs,
    /// New tokens at most; -1 goes on to the end of the answer or of the context.
    #[arg(help_heading = "Answer")]
    #[arg(short = 'n', long, value_name = "N", default_value_t = 256, allow_negative_numbers = true)]
    #[arg(value_parser = clap::value_parser!(i64).range(-1..=i64::from(i32::MAX)))]
    pub max_tokens: i64,
    #[command(flatten)]
    pub end: EndArgs,
    /// Report the probability of each token and of the K likeliest in its place.
    #[arg(long, value_name = "K", requires = "json", help_heading = "Output")]
    pub top_logprobs: Option<usize>,
    /// Print one JSON object instead of the answer.
    #[arg(long, help_heading = "Output")]
    pub json: bool,
}

/// Everything that is known before the first step.
struct Prepared {
    engine: Box<dyn Engine>,
    session: Session,
    prompt: Vec<u32>,
    end_ids: BTreeSet<u32>,
    answer: Answer,
    sampling: SamplingParams,
    load_time: Duration,
}

pub fn run(options: &Generate, started: Instant) -> Result<ExitCode> {
    let interrupt = Interrupt::install()?;
    let mut prepared = prepare(options, started)?;
    interrupt.be_polite();
    let (outcome, first_token) = answer(options, &mut prepared, &interrupt, started)?;
    finish(options, &mut prepared, &outcome, first_token)
}

fn prepare(options: &Generate, started: Instant) -> Result<Prepared> {
    let prompt = prompt::read(&options.prompt)?;
    let engine = engines::open(&options.model.engine)?;
    let path = options.model.fetching.resolve(&options.model.model)?;
    let (loaded, vocabulary) = loading::load(&path, options.model.types, &engine.caps())?;
    let vocabulary = text_side(vocabulary, &prompt)?;
    let built = loaded.model.built;
    let prompt = prompt.encode(&options.prompt, vocabulary.as_ref())?;
    prompt::check_vocabulary(&prompt, built.vocab_size)?;
    ensure!(
        options.top_logprobs.is_none_or(|k| k <= built.vocab_size),
        "--top-logprobs {} is more than the model's {} tokens; give a smaller number",
        options.top_logprobs.unwrap_or_default(),
        built.vocab_size
    );
    let tokenizer = vocabulary.as_ref().map(|v| &v.tokenizer);
    let answer = Answer::new(tokenizer, &options.end.stop)?;
    let end_ids = options.end.ids(&loaded.model, tokenizer);
    let capacity = room(options, (&loaded, &*engine), prompt.len())?;
    let session = loaded.compile(&*engine, capacity).map_err(|error| match error.downcast_ref() {
        Some(EngineError::OutOfMemory { .. }) => anyhow!("{error}; give a smaller -n or a smaller model"),
        _ => error,
    })?;
    let sampling = options.sampling.params();
    Ok(Prepared { engine, session, prompt, end_ids, answer, sampling, load_time: started.elapsed() })
}

/// Without a tokenizer token ids can still be fed, and are answered by token ids.
fn text_side(vocabulary: loading::TextSide, prompt: &Prompt) -> Result<Option<Vocabulary>> {
    match (vocabulary, prompt) {
        (Err(error), Prompt::Tokens(_)) => {
            say(&format!("note: the answer has no text, since the tokenizer cannot be used: {error}"));
            Ok(None)
        }
        (vocabulary, _) => Ok(vocabulary?),
    }
}

/// Tokens that the session must hold.
fn room(options: &Generate, (loaded, engine): (&Loaded, &dyn Engine), prompt: usize) -> Result<usize> {
    let needs = Needs {
        prompt,
        max_tokens: usize::try_from(options.max_tokens).ok(),
        context: loaded.model.built.max_context,
        bytes_per_token: loaded.bytes_per_token(),
        memory: budget::cache_bytes(engine, loaded, alone(engine))?,
    };
    let capacity = capacity::choose(&needs)?;
    if capacity.is_cut {
        say(&format!(
            "note: memory is enough for {} tokens, fewer than the model's context of {}",
            capacity.tokens, needs.context
        ));
    }
    Ok(capacity.tokens)
}

/// Generates and shows the answer; returns how it went and when its first token was there.
fn answer(
    options: &Generate,
    prepared: &mut Prepared,
    interrupt: &Interrupt,
    started: Instant,
) -> Result<(Outcome, Option<Duration>)> {
    let Prepared { session, answer, prompt, end_ids, sampling, .. } = prepared;
    let request = Request {
        prompt,
        max_tokens: usize::try_from(options.max_tokens).ok(),
        end_ids,
        sampling: sampling.clone(),
        repetition_penalty: options.sampling.repetition_penalty,
        top_logprobs: options.top_logprobs,
    };
    let mut first_token = None;
    let outcome = session.generate(&request, &mut |event| {
        if let Event::Token(token) = event {
            show(options, &answer.push(token)?)?;
            first_token.get_or_insert_with(|| started.elapsed());
        }
        let is_over = answer.is_stopped() || interrupt.is_asked();
        Ok(if is_over { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
    })?;
    Ok((outcome, first_token))
}

/// Shows what is left, says how it went, and turns it into an exit code.
fn finish(
    options: &Generate,
    prepared: &mut Prepared,
    outcome: &Outcome,
    first_token: Option<Duration>,
) -> Result<ExitCode> {
    let Prepared { answer, prompt, .. } = prepared;
    show(options, &answer.finish()?)?;
    if !answer.tokens.is_empty() && !answer.text().is_some_and(|text| text.is_empty() || text.ends_with('\n'))
    {
        show(options, "\n")?;
    }
    let progress = Progress {
        prompt: prompt.len(),
        answer: answer.tokens.len(),
        load_time: prepared.load_time,
        first_token,
    };
    let timings = Timings::new(progress, outcome, memory::peak_bytes());
    let caps = prepared.engine.caps();
    let summary = timings.summary(progress, &caps);
    let finish_reason = match outcome.finish {
        Finish::End => "stop",
        _ if answer.is_stopped() => "stop",
        Finish::Length => "length",
        Finish::Ended => "interrupted",
    };
    if options.json {
        let report = Report {
            model: &options.model.model,
            engine: caps.name,
            device: &caps.device,
            seed: prepared.sampling.seed,
            prompt_tokens: prompt,
            tokens: answer.tokens.iter().map(|t| t.id).collect(),
            text: answer.text(),
            finish_reason,
            logprobs: report::logprobs(&answer.tokens, options.top_logprobs),
            timings,
        };
        writeln!(io::stdout(), "{}", serde_json::to_string(&report)?)?;
    }
    say(&summary);
    let is_interrupted = finish_reason == "interrupted";
    Ok(if is_interrupted { ExitCode::from(exit::INTERRUPTED) } else { ExitCode::SUCCESS })
}

/// Text of the answer, at once; with `--json` nothing is shown before the end.
fn show(options: &Generate, text: &str) -> io::Result<()> {
    if options.json || text.is_empty() {
        return Ok(());
    }
    let mut stdout = io::stdout().lock();
    stdout.write_all(text.as_bytes())?;
    stdout.flush()
}
