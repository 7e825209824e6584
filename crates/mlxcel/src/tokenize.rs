//! `mlxcel tokenize`: text to token ids with their places, and back. Only the tokenizer is opened; a model's weights
//! need not even be there.

use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, IsTerminal as _, Read, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Result, anyhow, bail, ensure};
use clap::Args;
use mlxcel_text::{EncodeOptions, EncodedToken, SpecialText, SpecialTokens, Tokenizer};
use serde_json::{Value, json};

use crate::cli::FetchArgs;
use crate::prompt::check_vocabulary;
use crate::table::{self, Align};
use crate::vocabulary;

const EXAMPLES: &str = "\
Examples:
  mlxcel tokenize \"Hello, world\"
  mlxcel tokenize -m MODEL_FOLDER --file page.txt --show
  mlxcel tokenize --decode 19556,28,905
  echo \"Hello\" | mlxcel tokenize | mlxcel tokenize --decode -";

/// Any text a person looks at; a tokenizer takes much longer.
const INPUT_BYTES_MAX: u64 = 64 << 20;

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct Tokenize {
    /// The text [default: standard input, read to its end as it is].
    #[arg(value_name = "TEXT", conflicts_with_all = ["file", "decode"])]
    pub text: Option<String>,
    /// A model folder, a .gguf file, an alias, or OWNER/NAME on the hub; only its tokenizer is read.
    #[arg(short, long, value_name = "MODEL", default_value = mlxcel_hub::DEFAULT_MODEL)]
    pub model: String,
    #[command(flatten)]
    pub fetching: FetchArgs,
    /// Read the text from a file as it is, - for standard input.
    #[arg(short, long, value_name = "FILE", conflicts_with = "decode")]
    pub file: Option<PathBuf>,
    /// Print the text of these ids: 1,2,3, or - to read them from standard input.
    #[arg(long, value_name = "IDS", value_parser = parse_ids)]
    pub decode: Option<Ids>,
    /// Take control tokens that are written in the text for what they mean; show them when decoding.
    #[arg(long)]
    pub special: bool,
    /// Leave out the tokens that the model wants around every text, such as the one that begins it.
    #[arg(long, conflicts_with = "decode")]
    pub no_bos: bool,
    /// Print the ids as a list: [1, 2, 3].
    #[arg(long, conflicts_with_all = ["decode", "show", "json"])]
    pub ids: bool,
    /// Print a table of ids, their bytes in the text, and what they spell.
    #[arg(long, conflicts_with_all = ["decode", "json"])]
    pub show: bool,
    /// Print the number of tokens after them.
    #[arg(long, conflicts_with_all = ["decode", "json"])]
    pub show_count: bool,
    /// Print one JSON object.
    #[arg(long)]
    pub json: bool,
}

/// Ids on the command line, or on standard input.
#[derive(Clone, Debug)]
pub enum Ids {
    Given(Vec<u32>),
    Stdin,
}

pub fn run(options: &Tokenize) -> Result<ExitCode> {
    // Input is read first, so that what is wrong with it is said before anything is fetched.
    let output = if let Some(ids) = &options.decode {
        let ids = read_ids(ids)?;
        decode(&open(options)?, &ids, options)?
    } else {
        let text = read_text(options)?;
        encode(&open(options)?, &text, options)?
    };
    let mut stdout = io::stdout().lock();
    stdout.write_all(output.as_bytes())?;
    stdout.flush()?;
    Ok(ExitCode::SUCCESS)
}

fn open(options: &Tokenize) -> Result<Tokenizer> {
    let path = options.fetching.resolve(&options.model)?;
    match vocabulary::open_tokenizer(&path)? {
        Some(tokenizer) => Ok(tokenizer),
        None => bail!(
            "'{}' has no tokenizer; give -m a folder with a tokenizer.json or a .gguf file with a vocabulary",
            path.display()
        ),
    }
}

fn encode(tokenizer: &Tokenizer, text: &str, options: &Tokenize) -> Result<String> {
    let special_tokens = if options.special { SpecialTokens::Parse } else { SpecialTokens::AsText };
    let encode = EncodeOptions { special_tokens, add_special_tokens: !options.no_bos };
    let tokens = tokenizer.encode_with_offsets(text, encode)?;
    if options.json {
        let list: Vec<Value> = tokens.iter().map(|token| describe(tokenizer, token)).collect();
        return Ok(json!({ "count": list.len(), "tokens": list }).to_string() + "\n");
    }
    let ids = || tokens.iter().map(|token| token.id.to_string()).collect::<Vec<_>>();
    let mut output = match (options.show, options.ids) {
        (true, _) => rows(tokenizer, &tokens),
        (false, true) => format!("[{}]\n", ids().join(", ")),
        (false, false) => ids().join(",") + "\n",
    };
    if options.show_count {
        writeln!(output, "{} tokens", tokens.len())?;
    }
    Ok(output)
}

/// A piece that is no UTF-8 is a list of bytes, as in the answers of llama.cpp's server.
fn describe(tokenizer: &Tokenizer, token: &EncodedToken) -> Value {
    let bytes = tokenizer.token_bytes(token.id).unwrap_or_default();
    let piece = String::from_utf8(bytes).map_or_else(|error| json!(error.into_bytes()), Value::from);
    json!({ "id": token.id, "piece": piece, "start": token.start, "end": token.end })
}

fn rows(tokenizer: &Tokenizer, tokens: &[EncodedToken]) -> String {
    let header = ["id", "start", "end", "piece"].map(str::to_string);
    let row = |token: &EncodedToken| {
        let [id, start, end] = [token.id as usize, token.start, token.end].map(|n| n.to_string());
        [id, start, end, spelled(&tokenizer.token_bytes(token.id).unwrap_or_default())]
    };
    let rows: Vec<_> = [header].into_iter().chain(tokens.iter().map(row)).collect();
    table::format([Align::Right, Align::Right, Align::Right, Align::Left], &rows)
}

/// In quotes, with what a terminal would obey and what is no UTF-8 written out.
fn spelled(bytes: &[u8]) -> String {
    let mut quoted = String::from("\"");
    for chunk in bytes.utf8_chunks() {
        quoted.extend(chunk.valid().chars().flat_map(char::escape_debug));
        quoted.extend(
            chunk.invalid().iter().flat_map(|byte| format!("\\x{byte:02x}").into_bytes()).map(char::from),
        );
    }
    quoted + "\""
}

fn decode(tokenizer: &Tokenizer, ids: &[u32], options: &Tokenize) -> Result<String> {
    check_vocabulary(ids, tokenizer.vocab_size())?;
    let special = if options.special { SpecialText::Show } else { SpecialText::Hide };
    let text = tokenizer.decode(ids, special)?;
    Ok(if options.json { json!({ "ids": ids, "text": text }).to_string() + "\n" } else { text + "\n" })
}

fn read_text(options: &Tokenize) -> Result<String> {
    match (&options.text, &options.file) {
        (Some(text), _) => Ok(text.clone()),
        (None, Some(path)) if path != Path::new("-") => {
            let name = format!("'{}'", path.display());
            let file = File::open(path)
                .map_err(|e| anyhow!("cannot read {name}: {e}; give --file a readable text file"))?;
            read(file, &name)
        }
        (None, file) => {
            ensure!(
                file.is_some() || !io::stdin().is_terminal(),
                "there is no text; give it as an argument, with --file, or pipe it in"
            );
            read(io::stdin(), "standard input")
        }
    }
}

/// A text of bounded length, in UTF-8.
pub fn read(source: impl Read, name: &str) -> Result<String> {
    let mut bytes = Vec::new();
    let limit = INPUT_BYTES_MAX;
    source
        .take(limit + 1)
        .read_to_end(&mut bytes)
        .map_err(|e| anyhow!("cannot read {name}: {e}; give a readable text"))?;
    ensure!(bytes.len() as u64 <= limit, "{name} is longer than {} MB; give a part of it", limit >> 20);
    String::from_utf8(bytes).map_err(|e| {
        let at = e.utf8_error().valid_up_to();
        anyhow!("{name} is not UTF-8: byte {at} begins no character; save the text as UTF-8")
    })
}

fn read_ids(ids: &Ids) -> Result<Vec<u32>> {
    match ids {
        Ids::Given(ids) => Ok(ids.clone()),
        Ids::Stdin => {
            let text = read(io::stdin(), "standard input")?;
            listed_ids(&text).map_err(|problem| anyhow!("standard input: {problem}; give ids such as 1,2,3"))
        }
    }
}

fn parse_ids(text: &str) -> Result<Ids, String> {
    if text == "-" { Ok(Ids::Stdin) } else { listed_ids(text).map(Ids::Given) }
}

/// Ids between commas or blanks, in brackets or not: whatever this command or another prints. None is fine too.
fn listed_ids(text: &str) -> Result<Vec<u32>, String> {
    let text = text.trim();
    let inner = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')).unwrap_or(text);
    let parts = inner.split(|c: char| c == ',' || c.is_whitespace()).filter(|part| !part.is_empty());
    parts
        .map(|part| {
            let shown: String = part.chars().take(40).flat_map(char::escape_debug).collect();
            part.parse().map_err(|_| format!("'{shown}' is not a token id, a number from 0 to {}", u32::MAX))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_read_however_they_were_printed() {
        for text in ["1,2,3", "[1, 2, 3]", " 1 2\n3\n", "1,2,3,"] {
            assert_eq!(listed_ids(text), Ok(vec![1, 2, 3]), "{text}");
        }
        assert_eq!(listed_ids("[]\n"), Ok(Vec::new()));
        for text in ["-1", "1.5", "4294967296", "a", "[1", "1;2"] {
            assert!(listed_ids(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_piece_shows_what_a_terminal_would_hide() {
        assert_eq!(spelled(b" a\n\x1b[2J\"\0"), r#"" a\n\u{1b}[2J\"\0""#);
        assert_eq!(spelled("字".as_bytes()), "\"字\"");
        assert_eq!(spelled(&"字".as_bytes()[..2]), r#""\xe5\xad""#);
    }
}
