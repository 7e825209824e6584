//! `config.json` beside the weights: read whole for those above, understood here only as far as it says how
//! the tensors are packed (the `quantization` object that MLX writes). All other fields belong to the models.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::Path;

use serde_json::Value;

use crate::error::{Result, WeightsError};

/// A config of a real model has a few kilobytes.
const CONFIG_LIMIT: u64 = 16 << 20;
/// A mixed-precision checkpoint lists every module in its config, and an index lists every tensor.
pub(crate) const INDEX_LIMIT: u64 = 64 << 20;

/// How the words of one quantised module are packed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Packing {
    Affine { bits: u8, group: u16 },
    MxFp4,
}

/// The packing of every module of a checkpoint.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct QuantConfig {
    default: Option<Packing>,
    /// By module path, without `.weight`; `None` says that the module is not quantised.
    overrides: BTreeMap<String, Option<Packing>>,
}

impl QuantConfig {
    /// Reads `quantization`, or `quantization_config` where that is the MLX dialect or plain MXFP4. Any other
    /// method (gptq, awq, fp8, …) is an error, since its tensors would be taken for something they are not.
    pub fn from_config(config: &Value) -> Result<Self> {
        let present = |key| config.get(key).filter(|v| !v.is_null());
        let Some(settings) = present("quantization").or_else(|| present("quantization_config")) else {
            return Ok(QuantConfig::default());
        };
        let object =
            settings.as_object().ok_or_else(|| bad("quantization", settings, "an object of settings"))?;
        match object.get("quant_method").and_then(Value::as_str) {
            None => {}
            Some("mxfp4") => {
                return Ok(QuantConfig { default: Some(Packing::MxFp4), overrides: BTreeMap::new() });
            }
            Some(method) => return Err(WeightsError::UnsupportedQuantization { method: method.to_string() }),
        }
        let default = packing("quantization", settings)?;
        let mut overrides = BTreeMap::new();
        for (module, value) in object {
            match value {
                Value::Object(_) => overrides.insert(module.clone(), Some(packing(module, value)?)),
                Value::Bool(true) => overrides.insert(module.clone(), Some(default)),
                Value::Bool(false) => overrides.insert(module.clone(), None),
                _ => continue,
            };
        }
        Ok(QuantConfig { default: Some(default), overrides })
    }

    /// The packing of the module at `path`, if the config says that it is quantised.
    pub fn packing(&self, path: &str) -> Option<Packing> {
        self.overrides.get(path).copied().unwrap_or(self.default)
    }
}

fn packing(path: &str, settings: &Value) -> Result<Packing> {
    let field = |name: &str| format!("{path}.{name}");
    let mode = match settings.get("mode") {
        None => "affine",
        Some(mode) => mode.as_str().ok_or_else(|| bad(&field("mode"), mode, "a string"))?,
    };
    let number = |name: &str, default: u64| match settings.get(name) {
        None => Ok(default),
        Some(value) => value.as_u64().ok_or_else(|| bad(&field(name), value, "a positive integer")),
    };
    match mode {
        "affine" => {
            let (bits, group) = (number("bits", 4)?, number("group_size", 64)?);
            if !matches!(bits, 2 | 3 | 4 | 5 | 6 | 8) {
                return Err(bad(&field("bits"), &bits.into(), "2, 3, 4, 5, 6 or 8"));
            }
            if group == 0 || group % 8 != 0 || group > u16::MAX as u64 {
                return Err(bad(&field("group_size"), &group.into(), "a multiple of 8 up to 65528"));
            }
            Ok(Packing::Affine { bits: bits as u8, group: group as u16 })
        }
        "mxfp4" => {
            let (bits, group) = (number("bits", 4)?, number("group_size", 32)?);
            if (bits, group) != (4, 32) {
                return Err(bad(path, settings, "4 bits in groups of 32 for mxfp4"));
            }
            Ok(Packing::MxFp4)
        }
        other => Err(WeightsError::UnsupportedQuantization { method: other.to_string() }),
    }
}

fn bad(field: &str, found: &Value, expected: &'static str) -> WeightsError {
    let mut found = found.to_string();
    found.truncate(found.floor_char_boundary(80));
    WeightsError::BadQuantConfig { field: field.to_string(), found, expected }
}

/// The parsed `config.json` of a folder, if it has one.
pub(crate) fn read_config(folder: &Path) -> Result<Option<Value>> {
    let path = folder.join("config.json");
    if !path.exists() {
        return Ok(None);
    }
    let text = read_limited(&path, CONFIG_LIMIT)?;
    let parsed =
        serde_json::from_slice(&text).map_err(|source| WeightsError::Json { what: "the JSON text", source });
    parsed.map(Some).map_err(|e| e.in_file(&path))
}

/// A whole text file, refused before it is read if it is larger than `limit`.
pub(crate) fn read_limited(path: &Path, limit: u64) -> Result<Vec<u8>> {
    let found = std::fs::metadata(path).map_err(|e| WeightsError::io(path, e))?;
    if !found.is_file() {
        return Err(WeightsError::NotAFile { path: path.to_path_buf() });
    }
    if found.len() > limit {
        return Err(WeightsError::TooLarge { bytes: found.len(), limit }.in_file(path));
    }
    let mut text = Vec::with_capacity(found.len() as usize);
    let file = File::open(path).map_err(|e| WeightsError::io(path, e))?;
    // The file may have grown since its size was asked for.
    file.take(limit).read_to_end(&mut text).map_err(|e| WeightsError::io(path, e))?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn parse(settings: Value) -> Result<QuantConfig> {
        QuantConfig::from_config(&json!({ "quantization": settings }))
    }

    #[test]
    fn modules_override_the_default_packing() {
        let config = parse(json!({
            "group_size": 64, "bits": 4,
            "model.embed_tokens": {"group_size": 32, "bits": 8},
            "lm_head": false,
            "model.experts": {"group_size": 32, "bits": 4, "mode": "mxfp4"},
        }))
        .unwrap();
        assert_eq!(config.packing("model.layers.0.mlp"), Some(Packing::Affine { bits: 4, group: 64 }));
        assert_eq!(config.packing("model.embed_tokens"), Some(Packing::Affine { bits: 8, group: 32 }));
        assert_eq!(config.packing("lm_head"), None);
        assert_eq!(config.packing("model.experts"), Some(Packing::MxFp4));
    }

    #[test]
    fn a_config_without_quantisation_packs_nothing() {
        for config in [json!({}), json!({"quantization": null}), json!([1]), json!(7)] {
            assert_eq!(QuantConfig::from_config(&config).unwrap().packing("lm_head"), None);
        }
    }

    #[test]
    fn other_quantisation_methods_are_refused_by_name() {
        let config = json!({"quantization_config": {"quant_method": "gptq", "bits": 4, "group_size": 128}});
        let error = QuantConfig::from_config(&config).unwrap_err();
        assert!(matches!(&error, WeightsError::UnsupportedQuantization { method } if method == "gptq"));
        let error = parse(json!({"mode": "nvfp4"})).unwrap_err();
        assert!(matches!(&error, WeightsError::UnsupportedQuantization { method } if method == "nvfp4"));
    }

    #[test]
    fn the_mlx_dialect_of_quantization_config_and_plain_mxfp4_are_read() {
        let mlx = json!({"quantization_config": {"group_size": 32, "bits": 6}});
        let expected = Some(Packing::Affine { bits: 6, group: 32 });
        assert_eq!(QuantConfig::from_config(&mlx).unwrap().packing("x"), expected);
        let mx = json!({"quantization_config": {"quant_method": "mxfp4", "modules_to_not_convert": ["a"]}});
        assert_eq!(QuantConfig::from_config(&mx).unwrap().packing("x"), Some(Packing::MxFp4));
    }

    #[test]
    fn impossible_bits_and_groups_are_refused_naming_the_field() {
        for (settings, field) in [
            (json!({"bits": 7}), "quantization.bits"),
            (json!({"bits": -4}), "quantization.bits"),
            (json!({"group_size": 0}), "quantization.group_size"),
            (json!({"group_size": 12}), "quantization.group_size"),
            (json!({"group_size": 1u64 << 40}), "quantization.group_size"),
            (json!({"group_size": "64"}), "quantization.group_size"),
            (json!({"lm_head": {"bits": 1e9}}), "lm_head.bits"),
            (json!({"mode": 3}), "quantization.mode"),
            (json!({"mode": "mxfp4", "group_size": 64}), "quantization"),
            (json!("4bit"), "quantization"),
        ] {
            let error = parse(settings.clone()).unwrap_err();
            let named = matches!(&error, WeightsError::BadQuantConfig { field: f, .. } if f == field);
            assert!(named, "{settings}: {error}");
        }
    }
}
