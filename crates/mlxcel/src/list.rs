//! `mlxcel list`: the models on this machine, and with `-v` how names are understood and where models come from.

use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::path::Path;
use std::process::ExitCode;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::Result;
use clap::Args;
use mlxcel_hub::{ALIASES, Hub, Kept, ORDER, Place, Settings};
use serde_json::{Value, json};

use crate::environment;
use crate::report::in_words;
use crate::table::{self, Align};

const EXAMPLES: &str = "\
Examples:
  mlxcel list
  mlxcel list -v
  mlxcel list --json";

/// More than any configuration has.
const CONFIG_BYTES_MAX: u64 = 4 << 20;

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct List {
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
    /// Say also how a name is understood, where models are looked for, and what the environment sets.
    #[arg(short, long)]
    verbose: bool,
}

pub fn run(options: &List) -> Result<ExitCode> {
    let hub = Hub::new(Settings::from_env()?, |_: mlxcel_hub::Event<'_>| {});
    let kept = hub.kept();
    let text = match (options.json, options.verbose) {
        (true, is_verbose) => to_json(&kept, is_verbose.then(|| hub.settings())) + "\n",
        (false, false) => to_text(&kept),
        (false, true) => format!("{}\n{}", to_text(&kept), places(hub.settings())),
    };
    let mut stdout = io::stdout().lock();
    stdout.write_all(text.as_bytes())?;
    stdout.flush()?;
    Ok(ExitCode::SUCCESS)
}

fn to_text(kept: &[Kept]) -> String {
    if kept.is_empty() {
        return "no models yet; `mlxcel download smollm2` fetches one\n".to_string();
    }
    let header = ["name", "size", "format", "where", "fetched"].map(str::to_string);
    let row = |kept: &Kept| {
        let place = if kept.is_whole { place_name(kept.place) } else { "mlxcel (not whole)" };
        let size = in_words(kept.bytes, "B");
        [kept.name.clone(), size, format(kept), place.to_string(), age(kept.fetched)]
    };
    let rows: Vec<_> = [header].into_iter().chain(kept.iter().map(row)).collect();
    table::format([Align::Left, Align::Right, Align::Left, Align::Left, Align::Left], &rows)
}

fn to_json(kept: &[Kept], settings: Option<&Settings>) -> String {
    let entry = |kept: &Kept| {
        let fetched = kept.fetched.and_then(|time| time.duration_since(UNIX_EPOCH).ok());
        json!({
            "name": kept.name,
            "path": kept.path,
            "bytes": kept.bytes,
            "format": format(kept),
            "place": place_name(kept.place),
            "revision": kept.commit,
            "whole": kept.is_whole,
            "fetched_unix_s": fetched.map(|time| time.as_secs()),
        })
    };
    let mut object = json!({ "models": kept.iter().map(entry).collect::<Vec<_>>() });
    if let Some(settings) = settings {
        object["places"] = json!({
            "cache": settings.cache,
            "huggingface_cache": settings.hf_cache,
            "endpoint": settings.endpoint,
            "offline": settings.offline,
            "token": settings.token.is_some(),
        });
        object["order"] = json!(ORDER);
    }
    object.to_string()
}

fn place_name(place: Place) -> &'static str {
    match place {
        Place::Cache => "mlxcel",
        Place::HuggingFace => "Hugging Face",
    }
}

/// How names are understood and where models are looked for.
fn places(settings: &Settings) -> String {
    let aliases: Vec<&str> = ALIASES.iter().map(|(alias, _)| *alias).collect();
    let mut text = String::from("How a name is understood; the first line that fits decides:\n");
    for (number, line) in (1..).zip(ORDER) {
        let _ = writeln!(text, "  {number}. {line}");
    }
    let _ = writeln!(text, "Aliases: {}", aliases.join(", "));
    text.push_str("Where a model of the hub is looked for, in this order:\n");
    let there = |path: &Path| if path.is_dir() { "" } else { " (not there)" };
    let cache = &settings.cache;
    let _ = writeln!(text, "  1. mlxcel's cache: {}{}", cache.display(), there(cache));
    let hf_cache = settings.hf_cache.as_ref();
    let hf_cache = hf_cache.map_or("none".to_string(), |path| format!("{}{}", path.display(), there(path)));
    let _ = writeln!(text, "  2. Hugging Face's cache, read only: {hf_cache}");
    let hub = if settings.offline {
        "nowhere else, since this run is offline".to_string()
    } else {
        let token = if settings.token.is_some() { "with" } else { "without" };
        format!("the hub: {}, {token} a token", without_secret(&settings.endpoint))
    };
    let _ = writeln!(text, "  3. {hub}");
    let index = settings.index.as_deref().map_or("the index that pip uses".to_string(), without_secret);
    let _ = writeln!(text, "Packages come from {index}.");
    text.push_str("Set in the environment:\n");
    text.push_str(&variables());
    text
}

/// The variables about models that are set. Secrets are not shown.
fn variables() -> String {
    let line = |name: &str| {
        let value = std::env::var(name).ok().filter(|value| !value.is_empty())?;
        let shown = if name.ends_with("_TOKEN") { "(a secret)".to_string() } else { without_secret(&value) };
        Some(format!("  {name}={shown}\n"))
    };
    let lines: String = environment::about_models().filter_map(line).collect();
    if lines.is_empty() { "  nothing\n".to_string() } else { lines }
}

/// An address without its user and password.
fn without_secret(value: &str) -> String {
    match (value.split_once("://"), value.rsplit_once('@')) {
        (Some((scheme, _)), Some((_, host))) => format!("{scheme}://…@{host}"),
        _ => value.to_string(),
    }
}

/// What kind of checkpoint it is, as far as names and the configuration tell.
fn format(kept: &Kept) -> String {
    if !kept.is_whole {
        return "-".to_string();
    }
    if let Some(name) = kept.path.to_str().filter(|_| kept.path.extension().is_some_and(|e| e == "gguf")) {
        let quantisation = mlxcel_hub::quantisation(name).unwrap_or_default();
        return format!("GGUF {quantisation}").trim_end().to_string();
    }
    let config = kept.path.join("config.json");
    let is_small = std::fs::metadata(&config).is_ok_and(|data| data.len() <= CONFIG_BYTES_MAX);
    let text = if is_small { std::fs::read(&config).unwrap_or_default() } else { Vec::new() };
    let config: Value = serde_json::from_slice(&text).unwrap_or_default();
    let bits = config["quantization"]["bits"].as_u64().map(|bits| format!("{bits}-bit"));
    let dtype = config["dtype"].as_str().or(config["torch_dtype"].as_str());
    let short = |dtype: &str| dtype.replace("bfloat", "bf").replace("float", "f");
    format!("safetensors {}", bits.or(dtype.map(short)).unwrap_or_default()).trim_end().to_string()
}

/// How long ago, in days: who looks for what to remove cares no closer.
fn age(time: Option<SystemTime>) -> String {
    let Some(elapsed) = time.and_then(|time| time.elapsed().ok()) else { return "-".to_string() };
    match elapsed.as_secs() / 86_400 {
        0 => "today".to_string(),
        1 => "yesterday".to_string(),
        days => format!("{days} days ago"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn passwords_in_addresses_are_not_shown() {
        assert_eq!(without_secret("http://me:secret@host.test/simple"), "http://…@host.test/simple");
        assert_eq!(without_secret("http://host.test/simple"), "http://host.test/simple");
    }

    #[test]
    fn ages_are_in_days() {
        let ago = |days: u64| age(SystemTime::now().checked_sub(Duration::from_secs(days * 86_400 + 60)));
        assert_eq!([ago(0), ago(1), ago(12)], ["today", "yesterday", "12 days ago"]);
        assert_eq!(age(None), "-");
    }
}
