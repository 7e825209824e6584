//! What is converted: a model's checkpoint, or a configuration for which weights are imagined.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use mlxcel_models::export::{self, Inventory, StoredRows};
use mlxcel_weights::Checkpoint;
use mlxcel_weights::write::Rows;
use serde_json::Value;

use super::Convert;
use crate::inspect::explain;

/// A configuration has a few kilobytes.
const CONFIG_LIMIT: u64 = 16 << 20;

pub enum Source {
    Stored { path: PathBuf, checkpoint: Checkpoint, model: Inventory },
    Imagined { config: PathBuf, seed: u64, model: Inventory, tokenizer: Option<Checkpoint> },
}

impl Source {
    pub fn open(options: &Convert) -> Result<Source> {
        match (&options.model, &options.random) {
            (Some(model), _) => Self::stored(model),
            (None, Some(config)) => Self::imagined(config, options),
            (None, None) => bail!("name a model with -m, or a configuration with --random"),
        }
    }

    fn stored(model: &str) -> Result<Source> {
        let path = mlxcel_hub::resolve(model)?;
        let checkpoint = Checkpoint::open(&path)?;
        let model = export::inventory(&checkpoint).map_err(|error| explain(&path, error))?;
        Ok(Source::Stored { path, checkpoint, model })
    }

    fn imagined(path: &Path, options: &Convert) -> Result<Source> {
        let config = read_json(path)?;
        let model = export::imagine(&config).map_err(|error| explain(path, error))?;
        let tokenizer = match &options.tokenizer {
            Some(name) => Some(Checkpoint::open(mlxcel_hub::resolve(name)?)?),
            None => None,
        };
        Ok(Source::Imagined { config: path.to_path_buf(), seed: options.seed, model, tokenizer })
    }

    pub fn path(&self) -> &Path {
        match self {
            Source::Stored { path, .. } => path,
            Source::Imagined { config, .. } => config,
        }
    }

    pub fn model(&self) -> &Inventory {
        match self {
            Source::Stored { model, .. } | Source::Imagined { model, .. } => model,
        }
    }

    /// The checkpoint that has the tokenizer.
    pub fn text(&self) -> Option<&Checkpoint> {
        match self {
            Source::Stored { checkpoint, .. } => Some(checkpoint),
            Source::Imagined { tokenizer, .. } => tokenizer.as_ref(),
        }
    }

    /// The rows of a tensor by its name in the source.
    pub fn rows(&self, file: &str) -> Result<Box<dyn Rows>> {
        Ok(match self {
            Source::Stored { checkpoint, .. } => Box::new(StoredRows(checkpoint.tensor(file)?)),
            Source::Imagined { seed, model, .. } => {
                let tensor = model.tensors.get(file).with_context(|| format!("no tensor '{file}'"))?;
                Box::new(export::random_rows(model.family, *seed, file, &tensor.shape))
            }
        })
    }
}

/// A file of settings, if it is no longer than such a file is.
pub fn read_json(path: &Path) -> Result<Value> {
    let unreadable = || format!("the configuration {} cannot be read", path.display());
    let size = std::fs::metadata(path).with_context(unreadable)?.len();
    if size > CONFIG_LIMIT {
        bail!("{} has {size} bytes, which is too much for a configuration", path.display());
    }
    let text = std::fs::read(path).with_context(unreadable)?;
    serde_json::from_slice(&text).with_context(|| format!("{} is not valid JSON", path.display()))
}
