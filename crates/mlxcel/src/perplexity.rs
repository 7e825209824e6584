//! `mlxcel perplexity`: how well a model foretells a text: the exponential of the mean surprise of its tokens. The text
//! is cut into chunks of equal length, each read without what came before, and the second half of each is judged, as
//! llama.cpp's tool of the same name does.

use std::fs::File;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Result, anyhow, ensure};
use clap::Args;
use mlxcel_engine::sampling;
use mlxcel_text::{EncodeOptions, SpecialTokens};
use serde_json::json;

use crate::cli::ModelArgs;
use crate::session::Session;
use crate::tokenize::read;
use crate::{engines, loading, prompt};

const EXAMPLES: &str = "\
Examples:
  mlxcel perplexity --file book.txt
  mlxcel perplexity -m model.gguf --file book.txt --products exact --json";

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct Perplexity {
    #[command(flatten)]
    pub model: ModelArgs,
    /// The text, - for standard input.
    #[arg(short, long, value_name = "FILE", help_heading = "Text")]
    pub file: PathBuf,
    /// Tokens of a chunk; what is left at the end of the text is not judged.
    #[arg(short, long, value_name = "N", default_value_t = 512, help_heading = "Text")]
    #[arg(value_parser = clap::value_parser!(u32).range(4..=1 << 20))]
    pub chunk: u32,
    /// Print one JSON object.
    #[arg(long, help_heading = "Output")]
    pub json: bool,
}

/// What was judged.
struct Judged {
    tokens: usize,
    /// The sum of the tokens' surprises.
    surprise: f64,
}

pub fn run(options: &Perplexity) -> Result<ExitCode> {
    let text = text(&options.file)?;
    let engine = engines::open(&options.model.engine)?;
    let path = options.model.fetching.resolve(&options.model.model)?;
    let (loaded, vocabulary) = loading::load(&path, options.model.types, &engine.caps())?;
    let vocabulary = vocabulary?
        .ok_or_else(|| anyhow!("'{}' has no tokenizer; give -m a model that has one", path.display()))?;
    let chunk = options.chunk as usize;
    let context = loaded.model.built.max_context;
    ensure!(
        chunk <= context,
        "a chunk of {chunk} tokens is more than the model's {context}; give a smaller --chunk"
    );
    let encode = EncodeOptions { special_tokens: SpecialTokens::AsText, add_special_tokens: true };
    let tokens = vocabulary.tokenizer.encode(&text, encode)?;
    prompt::check_vocabulary(&tokens, loaded.model.built.vocab_size)?;
    ensure!(
        tokens.len() >= chunk,
        "the text has {} tokens, fewer than a chunk of {chunk}; give a longer text or a smaller --chunk",
        tokens.len()
    );
    let mut session = loaded.compile(&*engine, chunk)?;
    let mut judged = Judged { tokens: 0, surprise: 0.0 };
    for chunk in tokens.chunks_exact(chunk) {
        judge(&mut session, chunk, &mut judged)?;
    }
    print(options, &judged)
}

/// Adds the surprises of the second half of a chunk.
fn judge(session: &mut Session, chunk: &[u32], judged: &mut Judged) -> Result<()> {
    let first = chunk.len() / 2;
    session.score(chunk, &mut |at, logits| {
        if let Some(&next) = chunk.get(at + 1).filter(|_| at + 1 > first) {
            judged.surprise -= f64::from(sampling::top_logprobs(logits, next, 0).0);
            judged.tokens += 1;
        }
    })
}

fn print(options: &Perplexity, judged: &Judged) -> Result<ExitCode> {
    let perplexity = (judged.surprise / judged.tokens as f64).exp();
    let mut stdout = io::stdout().lock();
    match options.json {
        true => writeln!(stdout, "{}", json!({ "perplexity": perplexity, "tokens": judged.tokens }))?,
        false => writeln!(stdout, "{perplexity:.4} over {} tokens", judged.tokens)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn text(path: &Path) -> Result<String> {
    if path == Path::new("-") {
        return read(io::stdin(), "standard input");
    }
    let name = format!("'{}'", path.display());
    let file =
        File::open(path).map_err(|e| anyhow!("cannot read {name}: {e}; give --file a readable text file"))?;
    read(file, &name)
}
