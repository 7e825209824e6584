//! Writing a folder: `config.json`, safetensors files with an index where there are several, and the files beside them.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::BufWriter;
use std::path::Path;

use anyhow::{Result, bail};
use mlxcel_models::export::{self, Recipe};
use mlxcel_weights::write::{NewTensor, Watch, arrays, write_safetensors};
use mlxcel_weights::{GgufMetadata, Kind, WeightsError};
use serde_json::{Value, json};

use super::gguf::{new_tensor, stored_type};
use super::kind::{self, FolderType};
use super::output::{FolderOutput, Progress};
use super::source::Source;
use super::{Convert, Written, settings};
use crate::vocabulary;

pub fn convert(options: &Convert, source: &Source) -> Result<Written> {
    let wanted = match options.weight_type {
        None => FolderType::Keep,
        Some(wanted) => match (wanted.plain(), wanted.bits()) {
            (Some(dtype), _) => FolderType::Plain(dtype),
            (_, Some(bits)) => FolderType::Affine { bits, group: options.group_size },
            _ => bail!("a folder cannot hold this type"),
        },
    };
    let content = Content::of(source, wanted)?;
    let mut notes = content.notes;
    let tensors = typed(source, &content.tensors, wanted, &mut notes)?;
    let written = Written::new(options, &tensors, notes)?;
    let output = FolderOutput::create(&options.output, written.bytes)?;
    let mut progress = Progress::new(written.bytes)?;
    let result = write_shards(output.folder(), tensors, options.shard_size, &mut progress);
    progress.finish();
    result.map_err(|error| output.explain(error))?;
    if let Some(text) = source.text().filter(|text| text.kind() == Kind::Safetensors) {
        settings::copy_files(text.folder(), output.folder()).map_err(|e| output.explain_io(e))?;
    }
    for (name, json) in &content.files {
        write_json(&output.folder().join(name), json).map_err(|e| output.explain_io(e))?;
    }
    output.publish()?;
    Ok(written)
}

/// Every tensor of the source under its own name, also those that the model does not use.
fn as_stored(source: &Source) -> Vec<Recipe> {
    match source {
        Source::Stored { checkpoint, .. } => checkpoint
            .names()
            .filter_map(|name| checkpoint.info(name).map(|(_, shape)| Recipe::keep(name, name, shape)))
            .collect(),
        Source::Imagined { model, .. } => {
            model.tensors.iter().map(|(name, t)| Recipe::keep(name, &t.file, &t.shape)).collect()
        }
    }
}

fn typed(
    source: &Source,
    recipes: &[Recipe],
    wanted: FolderType,
    notes: &mut Vec<String>,
) -> Result<Vec<NewTensor>> {
    let (mut choices, mut tensors, mut requantised) = (Vec::new(), Vec::new(), 0);
    for recipe in recipes {
        let stored = stored_type(source, recipe).unwrap_or(mlxcel_ir::DType::BF16);
        let choice =
            kind::folder_choice(stored, &recipe.shape, wanted, export::is_layer(&recipe.name, &recipe.shape));
        requantised += usize::from(stored.is_quant() && choice.dtype.is_quant() && stored != choice.dtype);
        tensors.push(new_tensor(source, recipe, choice.dtype)?);
        choices.push((recipe.name.clone(), recipe.shape.clone(), choice));
    }
    notes.extend(kind::fallback_notes(&choices));
    if requantised > 0 {
        notes.push(format!("{requantised} tensors were quantised already and lose a little more by this"));
    }
    Ok(tensors)
}

/// One file, or several of at most `limit` bytes (or one tensor) with an index.
fn write_shards(
    folder: &Path,
    tensors: Vec<NewTensor>,
    limit: u64,
    watch: &mut dyn Watch,
) -> Result<(), WeightsError> {
    let shards = cut(tensors, limit)?;
    let count = shards.len();
    let name = |i: usize| match count {
        1 => "model.safetensors".to_string(),
        _ => format!("model-{:05}-of-{count:05}.safetensors", i + 1),
    };
    let (mut places, mut total) = (BTreeMap::new(), 0);
    for (i, shard) in shards.iter().enumerate() {
        for tensor in shard {
            total += tensor.bytes()?;
            places.extend(arrays(tensor)?.into_iter().map(|array| (array.name, name(i))));
        }
        let failed = |source| WeightsError::Write { source };
        let file = File::create_new(folder.join(name(i))).map_err(failed)?;
        let mut file = BufWriter::with_capacity(1 << 20, file);
        write_safetensors(&mut file, shard, watch)?;
        let file = file.into_inner().map_err(|e| failed(e.into_error()))?;
        file.sync_all().map_err(failed)?;
    }
    if count > 1 {
        let index = json!({ "metadata": { "total_size": total }, "weight_map": places });
        let text = format!("{index:#}\n");
        fs::write(folder.join("model.safetensors.index.json"), text)
            .map_err(|source| WeightsError::Write { source })?;
    }
    Ok(())
}

fn cut(tensors: Vec<NewTensor>, limit: u64) -> Result<Vec<Vec<NewTensor>>, WeightsError> {
    let (mut shards, mut used) = (vec![Vec::new()], 0);
    for tensor in tensors {
        let bytes = tensor.bytes()?;
        if used + bytes > limit && used > 0 {
            shards.push(Vec::new());
            used = 0;
        }
        used += bytes;
        shards.last_mut().expect("one at least").push(tensor);
    }
    Ok(shards)
}

/// What a folder has besides copies of files.
struct Content {
    tensors: Vec<Recipe>,
    files: Vec<(&'static str, Value)>,
    notes: Vec<String>,
}

impl Content {
    fn of(source: &Source, wanted: FolderType) -> Result<Content> {
        let mut content = match source {
            Source::Stored { checkpoint, model, .. } if checkpoint.kind() == Kind::Gguf => {
                let export = export::to_folder(checkpoint, model)?;
                let mut files = vec![("config.json", settings::config(&export.config, wanted))];
                files.extend(export.pooling.map(|pooling| ("1_Pooling/config.json", pooling)));
                Content { tensors: export.tensors, files, notes: Vec::new() }
            }
            _ => {
                let model = source.model();
                let layers = matches!(wanted, FolderType::Affine { .. }).then(|| export::to_layers(model));
                let tensors = layers.transpose()?.unwrap_or_else(|| as_stored(source));
                let files = vec![("config.json", settings::config(&model.config, wanted))];
                Content { tensors, files, notes: Vec::new() }
            }
        };
        if let Some(metadata) = source.text().and_then(|text| text.metadata()) {
            content.add_tokenizer(metadata);
        }
        Ok(content)
    }

    /// The tokenizer of a GGUF file as the files of a folder. A model without one is still of use.
    fn add_tokenizer(&mut self, metadata: &GgufMetadata) {
        let Some(vocab) = vocabulary::gguf_vocab(metadata) else { return };
        match vocab.to_files() {
            Ok(files) => {
                let mut config = files.config;
                if let Some(template) = metadata.find::<&str>("tokenizer.chat_template").ok().flatten() {
                    config["chat_template"] = template.into();
                }
                self.files.push(("tokenizer.json", files.tokenizer));
                self.files.push(("tokenizer_config.json", config));
            }
            Err(error) => self.notes.push(format!("the folder has no tokenizer: {error}")),
        }
    }
}

fn write_json(path: &Path, json: &Value) -> std::io::Result<()> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    fs::write(path, format!("{json:#}\n"))
}
