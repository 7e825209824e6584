//! `model.safetensors.index.json`: which shard holds which tensor. Reads bytes, opens nothing.

use std::collections::BTreeMap;
use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, Error as _, MapAccess, Visitor};

use crate::error::{Result, WeightsError};

/// The shard of every tensor, by name. Shard names are relative paths that stay inside their folder.
pub fn parse_index(text: &[u8]) -> Result<BTreeMap<String, String>> {
    let index: Index = serde_json::from_slice(text)
        .map_err(|source| WeightsError::Json { what: "the safetensors index", source })?;
    for file in index.weight_map.0.values() {
        if !is_plain_relative(file) {
            return Err(WeightsError::BadShardPath { file: file.clone() });
        }
    }
    Ok(index.weight_map.0)
}

/// Judged by the text alone and by the rules of every system at once, so that a checkpoint which is refused
/// on one is refused on all.
fn is_plain_relative(file: &str) -> bool {
    let plain = |part: &str| !part.is_empty() && part != "." && part != "..";
    let hostile = |c: char| c.is_control() || matches!(c, '\\' | ':');
    !file.contains(hostile) && file.split('/').all(plain)
}

#[derive(Deserialize)]
struct Index {
    weight_map: WeightMap,
}

/// A map that refuses duplicate names.
struct WeightMap(BTreeMap<String, String>);

impl<'de> Deserialize<'de> for WeightMap {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        deserializer.deserialize_map(WeightMapVisitor)
    }
}

struct WeightMapVisitor;

impl<'de> Visitor<'de> for WeightMapVisitor {
    type Value = WeightMap;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of shard files by tensor name")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> std::result::Result<WeightMap, A::Error> {
        let mut shards = BTreeMap::new();
        while let Some((name, file)) = map.next_entry::<String, String>()? {
            if shards.contains_key(&name) {
                return Err(A::Error::custom(format_args!("tensor '{}' occurs twice", name.escape_debug())));
            }
            shards.insert(name, file);
        }
        Ok(WeightMap(shards))
    }
}
