//! Arguments that are numbers within limits. A refusal says what is allowed; the argument's name is the parser's.

use std::ops::RangeInclusive;

/// Token ids in one argument. A name of its own keeps the parser from taking it for a repeated argument.
pub type TokenIds = std::sync::Arc<[u32]>;

pub fn parse_temperature(text: &str) -> Result<f32, String> {
    number_within(text, 0.0..=100.0)
}

pub fn parse_fraction(text: &str) -> Result<f32, String> {
    number_within(text, 0.0..=1.0)
}

pub fn parse_penalty(text: &str) -> Result<f32, String> {
    number_within(text, 0.01..=100.0)
}

/// Comma-separated ids, at least one.
pub fn parse_token_ids(text: &str) -> Result<TokenIds, String> {
    if text.trim().is_empty() {
        return Err("expected token ids separated by commas, at least one".to_string());
    }
    let id = |part: &str| {
        let part = part.trim();
        part.parse::<u32>()
            .map_err(|_| format!("'{part}' is not a token id, a number from 0 to {}", u32::MAX))
    };
    text.split(',').map(id).collect()
}

/// A number of bytes with a unit.
pub fn parse_size(text: &str) -> Result<u64, String> {
    let refuse = || format!("'{text}' is no size; give one such as 20GB, 12GiB or 800MB");
    let split = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let scale = match unit.trim().to_ascii_lowercase().as_str() {
        "" | "b" => 1.0,
        "kb" | "k" => 1e3,
        "mb" | "m" => 1e6,
        "gb" | "g" => 1e9,
        "kib" => f64::from(1 << 10),
        "mib" => f64::from(1 << 20),
        "gib" => f64::from(1 << 30),
        _ => return Err(refuse()),
    };
    let bytes = number.parse().ok().map(|number: f64| number * scale);
    // Beyond 2^53 not every number of bytes is one of these.
    let bytes = bytes.filter(|bytes| (1.0..=(1u64 << 53) as f64).contains(bytes));
    bytes.map(|bytes| bytes as u64).ok_or_else(refuse)
}

/// NaN is within nothing.
fn number_within(text: &str, range: RangeInclusive<f32>) -> Result<f32, String> {
    let number = text.parse::<f32>().ok().filter(|n| range.contains(n));
    number.ok_or_else(|| format!("expected a number from {} to {}", range.start(), range.end()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_that_are_none_or_out_of_range_are_refused() {
        for text in ["NaN", "inf", "-inf", "-0.1", "1e39", "", "x"] {
            let refused = parse_temperature(text).unwrap_err();
            assert_eq!(refused, "expected a number from 0 to 100", "{text}");
        }
        assert_eq!(parse_temperature("1.5"), Ok(1.5));
        assert!(parse_fraction("1.01").is_err());
        assert!(parse_penalty("0").is_err());
    }

    #[test]
    fn sizes_have_units() {
        assert_eq!(parse_size("20GB"), Ok(20_000_000_000));
        assert_eq!(parse_size("1.5 GiB"), Ok(1_610_612_736));
        assert_eq!(parse_size("500k"), Ok(500_000));
        for bad in ["", "GB", "-1GB", "3parsecs", "0", "0.5", "1.2.3GB", "NaN", "99999999999GB"] {
            assert!(parse_size(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn token_ids_are_separated_by_commas() {
        assert_eq!(*parse_token_ids("1, 2,4294967295").unwrap(), [1, 2, u32::MAX]);
        for text in ["", " ", "1,,2", "-1", "1.5", "4294967296", "1 2"] {
            assert!(parse_token_ids(text).is_err(), "{text}");
        }
    }
}
