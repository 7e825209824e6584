//! `mlxcel embed`: texts in, vectors out, batch by batch. A text that is too long is refused unless `--truncate` is
//! given; nothing is cut silently.

use std::io::{self, Write as _};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Result, anyhow, ensure};
use clap::{Args, ValueEnum};
use mlxcel_models::{EmbedOptions, ModelError, Pooling};
use mlxcel_text::{EncodeOptions, Tokenizer};
use mlxcel_weights::Checkpoint;
use serde::Serialize;
use serde_json::Value;

use crate::cli::{FetchArgs, Precision};
use crate::embedder::Embedder;
use crate::engines::EngineArgs;
use crate::session::Loaded;
use crate::texts::{self, Source, Text};
use crate::{engines, inspect, say, vocabulary};

/// Tokens of one step: enough to use the machine. Encoders compare every token of a step with every other, so more
/// of them in one step would cost more for each.
pub const STEP_TOKENS: usize = 512;

const EXAMPLES: &str = "\
Examples:
  mlxcel embed \"A cat sits on the mat.\" \"Ein Hund schläft.\" --json
  mlxcel embed --file sentences.txt --jsonl > vectors.jsonl
  mlxcel embed --jsonl-file documents.jsonl --truncate --jsonl
  cat notes.txt | mlxcel embed -m ./bge-small-en-v1.5 --jsonl
  mlxcel embed -m ./Qwen3-Embedding-0.6B --dimensions 256 \"What is a compiler?\"";

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct Embed {
    /// Texts [default: the lines of standard input].
    #[arg(value_name = "TEXT")]
    pub texts: Vec<String>,
    /// Read texts from a file, one on each line, - for standard input.
    #[arg(long, value_name = "FILE", conflicts_with = "texts", help_heading = "Input")]
    pub file: Option<PathBuf>,
    /// Read texts from JSON lines: objects with a "text" and perhaps an "id", - for standard input.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["texts", "file"], help_heading = "Input")]
    pub jsonl_file: Option<PathBuf>,
    /// Put this before every text, as some models want it: "query: ".
    #[arg(long, value_name = "TEXT", help_heading = "Input")]
    pub prefix: Option<String>,
    /// Cut texts that are longer than the model's context; without it they are refused.
    #[arg(long, help_heading = "Input")]
    pub truncate: bool,
    /// A model folder, a .gguf file, an alias, or OWNER/NAME on the hub; fetched on first use.
    #[arg(short, long, value_name = "MODEL", default_value = "minilm", help_heading = "Model")]
    pub model: String,
    #[command(flatten)]
    pub fetching: FetchArgs,
    /// The type of activations.
    #[arg(long, value_enum, default_value_t, help_heading = "Model")]
    pub dtype: Precision,
    #[command(flatten)]
    pub engine: EngineArgs,
    /// How the vectors of tokens become one [default: what the model says].
    #[arg(long, value_enum, help_heading = "Vectors")]
    pub pooling: Option<PoolingName>,
    /// Leave vectors as long as they are, instead of bringing them to length 1.
    #[arg(long, help_heading = "Vectors")]
    pub no_normalize: bool,
    /// Keep the first N numbers of each vector, for models that were trained for it.
    #[arg(long, value_name = "N", help_heading = "Vectors")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    pub dimensions: Option<u32>,
    /// Texts that are computed together at most; it changes the speed only.
    #[arg(long, value_name = "N", default_value_t = 32, help_heading = "Output")]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=4096))]
    pub batch_size: u16,
    /// Print one JSON object with all vectors.
    #[arg(long, help_heading = "Output")]
    pub json: bool,
    /// Print one JSON object on a line for each text, as they come.
    #[arg(long, conflicts_with = "json", help_heading = "Output")]
    pub jsonl: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum PoolingName {
    Mean,
    Cls,
    Last,
}

/// A text on its way: its ids, and what is said about it.
struct Encoded {
    index: usize,
    id: Option<Value>,
    ids: Vec<u32>,
    is_truncated: bool,
}

#[derive(Debug, Serialize)]
struct Row {
    index: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<Value>,
    /// As many as were computed.
    tokens: usize,
    truncated: bool,
    embedding: Vec<f32>,
}

/// The object that `--json` prints.
#[derive(Debug, Serialize)]
struct Report<'a> {
    model: &'a str,
    dimensions: usize,
    normalized: bool,
    embeddings: &'a [Row],
}

/// What encodes, computes and prints.
struct Work<'a> {
    options: &'a Embed,
    tokenizer: Tokenizer,
    embedder: Embedder,
    /// Tokens of a text at most.
    context: usize,
    vocabulary: usize,
    /// Kept for one object at the end.
    rows: Vec<Row>,
    truncated: usize,
}

pub fn run(options: &Embed) -> Result<ExitCode> {
    let texts = texts::open(source(options))?;
    let mut work = prepare(options)?;
    let mut batch: Vec<Encoded> = Vec::new();
    for (index, text) in texts.enumerate() {
        let encoded = work.encode(index, text?)?;
        let tokens: usize = batch.iter().map(|e| e.ids.len()).sum();
        let is_full =
            batch.len() == usize::from(options.batch_size) || tokens + encoded.ids.len() > STEP_TOKENS;
        if is_full && !batch.is_empty() {
            work.compute(std::mem::take(&mut batch))?;
        }
        batch.push(encoded);
    }
    if !batch.is_empty() {
        work.compute(batch)?;
    }
    work.finish()
}

fn source(options: &Embed) -> Source {
    match (&options.jsonl_file, &options.file) {
        (Some(path), _) => Source::JsonLines(path.clone()),
        (None, Some(path)) => Source::Lines(path.clone()),
        (None, None) if options.texts.is_empty() => Source::Lines("-".into()),
        (None, None) => Source::Arguments(options.texts.clone()),
    }
}

fn prepare(options: &Embed) -> Result<Work<'_>> {
    let engine = engines::open(&options.engine)?;
    let path = options.fetching.resolve(&options.model)?;
    let checkpoint = Checkpoint::open(&path)?;
    let pooling = options.pooling.map(|name| match name {
        PoolingName::Mean => Pooling::Mean,
        PoolingName::Cls => Pooling::Cls,
        PoolingName::Last => Pooling::Last,
    });
    let embed = EmbedOptions { pooling, normalize: !options.no_normalize };
    let model = mlxcel_models::load_embedder(
        &checkpoint,
        engines::activation_type(options.dtype, &engine.caps(), &checkpoint),
        embed,
    );
    let model = model.map_err(|error| match error {
        ModelError::NoPooling { .. } => anyhow!("{error} with --pooling, or give -m an embedding model"),
        error => inspect::explain(&path, error),
    })?;
    let vocabulary = vocabulary::open(&checkpoint)?.ok_or_else(|| {
        anyhow!("{} has no tokenizer, so it cannot read text; put tokenizer.json beside it", path.display())
    })?;
    let built = model.built;
    Ok(Work {
        options,
        tokenizer: vocabulary.tokenizer,
        embedder: Embedder::new(engine, Loaded { checkpoint, model }),
        context: built.max_context,
        vocabulary: built.vocab_size,
        rows: Vec::new(),
        truncated: 0,
    })
}

impl Work<'_> {
    fn encode(&mut self, index: usize, text: Text) -> Result<Encoded> {
        let Text { text, id, place } = text;
        let text =
            self.options.prefix.as_ref().map_or_else(|| text.clone(), |prefix| format!("{prefix}{text}"));
        let mut ids = self.tokenizer.encode(&text, EncodeOptions::default())?;
        ensure!(!ids.is_empty(), "{place} is empty and the model adds no tokens of its own; leave it out");
        let is_truncated = ids.len() > self.context;
        if is_truncated {
            ensure!(
                self.options.truncate,
                "{place} has {} tokens, but the model's context has {}; shorten it or give --truncate",
                ids.len(),
                self.context
            );
            ids = self.cut(&text, &ids)?;
            self.truncated += 1;
        }
        crate::prompt::check_vocabulary(&ids, self.vocabulary)?;
        Ok(Encoded { index, id, ids, is_truncated })
    }

    /// The first tokens of a text, within those that the model expects around every text.
    fn cut(&self, text: &str, ids: &[u32]) -> Result<Vec<u32>> {
        let bare = EncodeOptions { add_special_tokens: false, ..EncodeOptions::default() };
        let around = self.tokenizer.encode("", EncodeOptions::default())?;
        let inner = self.tokenizer.encode(text, bare)?;
        let before = around.iter().zip(ids).take_while(|(a, b)| a == b).count();
        let room = self.context.saturating_sub(around.len()).min(inner.len());
        Ok([&around[..before], &inner[..room], &around[before..]].concat())
    }

    /// Computes a batch, and prints it unless all is printed in the end.
    fn compute(&mut self, batch: Vec<Encoded>) -> Result<()> {
        let sequences: Vec<&[u32]> = batch.iter().map(|e| e.ids.as_slice()).collect();
        let vectors = self.embedder.embed(&sequences)?;
        for (encoded, vector) in batch.into_iter().zip(vectors) {
            let Encoded { index, id, ids, is_truncated } = encoded;
            let embedding = shorten(vector, self.options)?;
            self.rows.push(Row { index, id, tokens: ids.len(), truncated: is_truncated, embedding });
        }
        if self.options.json {
            return Ok(());
        }
        let mut stdout = io::stdout().lock();
        for row in self.rows.drain(..) {
            let line = if self.options.jsonl { serde_json::to_string(&row)? } else { plain(&row.embedding) };
            writeln!(stdout, "{line}")?;
        }
        Ok(stdout.flush()?)
    }

    fn finish(self) -> Result<ExitCode> {
        if self.options.json {
            let report = Report {
                model: &self.options.model,
                dimensions: self.rows.first().map_or(0, |row| row.embedding.len()),
                normalized: !self.options.no_normalize,
                embeddings: &self.rows,
            };
            let mut stdout = io::stdout().lock();
            writeln!(stdout, "{}", serde_json::to_string(&report)?)?;
            stdout.flush()?;
        }
        if self.truncated > 0 {
            let texts = if self.truncated == 1 { "text was" } else { "texts were" };
            say(&format!("note: {} {texts} cut to {} tokens", self.truncated, self.context));
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// The first numbers of a vector, brought to length 1 again.
fn shorten(mut vector: Vec<f32>, options: &Embed) -> Result<Vec<f32>> {
    let Some(wanted) = options.dimensions.map(|n| n as usize) else { return Ok(vector) };
    ensure!(
        wanted <= vector.len(),
        "--dimensions {wanted} is more than the {} that the model makes; give a smaller number",
        vector.len()
    );
    vector.truncate(wanted);
    if !options.no_normalize {
        let length = vector.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>().sqrt().max(1e-12);
        vector.iter_mut().for_each(|x| *x = (f64::from(*x) / length) as f32);
    }
    Ok(vector)
}

/// Numbers with blanks between them, each as short as it can be read back.
fn plain(vector: &[f32]) -> String {
    vector.iter().map(f32::to_string).collect::<Vec<_>>().join(" ")
}
