//! What `/set` can change, and what a saved conversation remembers of it. The limits are those of the arguments.

use anyhow::{Result, anyhow, bail};
use mlxcel_text::StopMatcher;
use serde::Serialize;
use serde_json::Value;

use crate::cli::SamplingArgs;
use crate::values::{parse_fraction, parse_penalty, parse_temperature};

#[derive(Clone, Debug, Serialize)]
pub struct Settings {
    #[serde(flatten)]
    pub sampling: SamplingArgs,
    /// -1 goes on to the end of the answer or of the context.
    pub max_tokens: i64,
    pub stop: Vec<String>,
}

/// Each setting with what it does.
const SETTINGS: [(&str, &str); 8] = [
    ("temp", "randomness; 0 always takes the likeliest token"),
    ("top_k", "draw from the K likeliest tokens; 0 keeps all"),
    ("top_p", "draw from the likeliest tokens that together have this probability; 1 keeps all"),
    ("min_p", "draw from tokens with at least this part of the likeliest one's probability; 0 keeps all"),
    ("seed", "makes draws reproducible; auto is another one each time"),
    ("repetition_penalty", "above 1, makes tokens less likely that occurred before"),
    ("max_tokens", "new tokens of an answer at most; -1 goes on to its end"),
    ("stop", "end an answer before this text, or before one of a JSON list of texts; nothing for no text"),
];

impl Settings {
    /// Changes one setting, or nothing.
    pub fn set(&mut self, name: &str, value: &str) -> Result<()> {
        let refused = |reason: String| anyhow!("'{value}' is no value for {name}: {reason}");
        let sampling = &mut self.sampling;
        match name {
            "temp" | "temperature" => sampling.temp = parse_temperature(value).map_err(refused)?,
            "top_k" => sampling.top_k = whole(value, 0).map_err(refused)? as u32,
            "top_p" => sampling.top_p = parse_fraction(value).map_err(refused)?,
            "min_p" => sampling.min_p = parse_fraction(value).map_err(refused)?,
            "seed" if value == "auto" => sampling.seed = None,
            "seed" => {
                let seed = value.parse().map_err(|_| format!("expected auto or a number up to {}", u32::MAX));
                sampling.seed = Some(seed.map_err(refused)?);
            }
            "repetition_penalty" => {
                sampling.repetition_penalty = parse_penalty(value).map_err(refused)?;
            }
            "max_tokens" => self.max_tokens = whole(value, -1).map_err(refused)?,
            "stop" => self.stop = stops(value).map_err(refused)?,
            _ => {
                bail!("there is no setting '{name}'; there is {}", SETTINGS.map(|(name, _)| name).join(", "))
            }
        }
        Ok(())
    }

    /// The settings that an object holds, on top of these.
    pub fn with(&self, object: &serde_json::Map<String, Value>) -> Result<Self> {
        let mut settings = self.clone();
        for (name, value) in object {
            let text = match value {
                Value::String(text) => text.clone(),
                Value::Null => "auto".to_string(),
                other => other.to_string(),
            };
            settings.set(name, &text)?;
        }
        Ok(settings)
    }

    /// The settings as a file holds them. Through text, since that has the shortest digits of each number.
    pub fn to_object(&self) -> Result<serde_json::Map<String, Value>> {
        Ok(serde_json::from_str(&serde_json::to_string(self)?)?)
    }

    /// One line for each setting: its name, its value, what it does.
    pub fn list(&self) -> Result<String> {
        let values = self.to_object()?;
        let line = |(name, what): (&str, &str)| {
            let value = if values[name].is_null() { "auto".to_string() } else { values[name].to_string() };
            format!("  {name:18} {value:8} {what}\n")
        };
        Ok(SETTINGS.map(line).concat())
    }
}

fn whole(value: &str, least: i64) -> Result<i64, String> {
    let most = i64::from(i32::MAX);
    let number = value.parse::<i64>().ok().filter(|n| (least..=most).contains(n));
    number.ok_or_else(|| format!("expected a whole number from {least} to {most}"))
}

/// A text as it is, or in JSON one text or several.
fn stops(value: &str) -> Result<Vec<String>, String> {
    let parsed = match value.chars().next() {
        None => Ok(Vec::new()),
        Some('[') => serde_json::from_str(value),
        Some('"') => serde_json::from_str(value).map(|text| vec![text]),
        Some(_) => Ok(vec![value.to_string()]),
    };
    let stops = parsed.map_err(|e| format!("not JSON, {e}"))?;
    StopMatcher::new(&stops).map_err(|e| e.to_string())?;
    Ok(stops)
}

#[cfg(test)]
pub mod tests {
    use super::*;

    pub fn settings() -> Settings {
        let sampling = SamplingArgs {
            temp: 0.0,
            top_k: 40,
            top_p: 0.95,
            min_p: 0.05,
            seed: None,
            repetition_penalty: 1.0,
        };
        Settings { sampling, max_tokens: -1, stop: Vec::new() }
    }

    #[test]
    fn every_setting_can_be_set_and_is_listed() {
        let mut settings = settings();
        assert!(settings.list().unwrap().contains(" 0.95 "));
        let values = [
            ("temp", "0.5"),
            ("top_k", "7"),
            ("top_p", "0.25"),
            ("min_p", "0.125"),
            ("seed", "42"),
            ("repetition_penalty", "1.5"),
            ("max_tokens", "99"),
            ("stop", "[\"a\",\"\\n\"]"),
        ];
        assert_eq!(values.map(|(name, _)| name), SETTINGS.map(|(name, _)| name));
        for (name, value) in values {
            settings.set(name, value).unwrap();
            let list = settings.list().unwrap();
            let line = list.lines().find(|line| line.trim_start().starts_with(name)).unwrap();
            assert!(line.contains(value), "{line}");
        }
        assert_eq!(settings.stop, ["a", "\n"]);
        settings.set("stop", "\"\\n\"").unwrap();
        assert_eq!(settings.stop, ["\n"]);
        settings.set("stop", "END of it").unwrap();
        assert_eq!(settings.stop, ["END of it"]);
        settings.set("stop", "").unwrap();
        assert!(settings.stop.is_empty());
    }

    #[test]
    fn values_out_of_range_change_nothing() {
        let mut settings = settings();
        let before = settings.list().unwrap();
        let bad = [
            ("temp", "NaN"),
            ("temp", "-1"),
            ("temp", ""),
            ("top_k", "-1"),
            ("top_k", "2147483648"),
            ("top_p", "1.5"),
            ("min_p", "inf"),
            ("seed", "4294967296"),
            ("seed", "-1"),
            ("repetition_penalty", "0"),
            ("max_tokens", "-2"),
            ("max_tokens", "9223372036854775808"),
            ("stop", "[1]"),
            ("stop", "[\"\"]"),
            ("stop", "\"open"),
        ];
        for (name, value) in bad {
            let refused = settings.set(name, value).unwrap_err().to_string();
            assert!(refused.starts_with(&format!("'{value}' is no value for {name}: ")), "{refused}");
        }
        assert!(settings.set("heat", "1").unwrap_err().to_string().contains("temp, top_k"));
        assert_eq!(settings.list().unwrap(), before);
    }
}
