//! Writing a GGUF file.

use std::io::{BufWriter, Write as _};

use anyhow::{Result, bail, ensure};
use mlxcel_ir::DType;
use mlxcel_models::export::{self, Origin, Recipe};
use mlxcel_weights::write::{NewTensor, write_gguf};
use mlxcel_weights::{GgufValue, Kind};

use super::kind::{self, GgufTensor};
use super::output::{FileOutput, Progress};
use super::source::{Source, read_json};
use super::{Convert, Written, vocabulary};

pub fn convert(options: &Convert, source: &Source) -> Result<Written> {
    if let Source::Stored { checkpoint, .. } = source
        && checkpoint.kind() == Kind::Gguf
    {
        return requantise(options, source);
    }
    check_pooling(source)?;
    let export = export::to_gguf(source.model())?;
    let mut notes = export.notes;
    let tensors = typed(options, source, &export.tensors, &mut notes)?;
    let mut metadata = general(options, source, export.architecture, &tensors);
    metadata.extend(export.metadata);
    let rows = source.model().built.vocab_size;
    let (vocabulary, note) = vocabulary::keys(source.text(), export.architecture, rows)?;
    metadata.extend(vocabulary);
    notes.extend(note);
    write(options, &metadata, tensors, notes)
}

/// An encoder's file says that it takes the mean of a text's tokens; a folder that says otherwise would lose it.
fn check_pooling(source: &Source) -> Result<()> {
    let path = source.path().join("1_Pooling/config.json");
    if source.model().family != "bert" || !path.is_file() {
        return Ok(());
    }
    let settings = read_json(&path)?;
    let is_mean = settings["pooling_mode_mean_tokens"] == true || settings["pooling_mode"] == "mean";
    ensure!(
        is_mean,
        "{} asks for another pooling than the mean, which is all that is written to a GGUF file of an encoder; convert it \
         to a folder instead",
        path.display()
    );
    Ok(())
}

/// A GGUF file in other types: metadata and names stay as they are.
fn requantise(options: &Convert, source: &Source) -> Result<Written> {
    let Source::Stored { checkpoint, .. } = source else { bail!("only a stored model has types to change") };
    let recipes: Vec<Recipe> = checkpoint
        .names()
        .filter_map(|name| checkpoint.info(name).map(|(_, shape)| Recipe::keep(name, name, shape)))
        .collect();
    let mut notes = Vec::new();
    let tensors = typed(options, source, &recipes, &mut notes)?;
    let mut metadata: Vec<(String, GgufValue)> = Vec::new();
    if let Some(old) = checkpoint.metadata() {
        let split = |key: &str| key.starts_with("split.");
        metadata.extend(old.iter().filter(|(key, _)| !split(key)).map(|(k, v)| (k.to_string(), v.clone())));
    }
    if let Some(wanted) = options.weight_type {
        metadata.retain(|(key, _)| key != "general.file_type" && key != "general.quantization_version");
        metadata.push(("general.file_type".to_string(), GgufValue::U32(wanted.file_type())));
        metadata.push(("general.quantization_version".to_string(), GgufValue::U32(2)));
    }
    write(options, &metadata, tensors, notes)
}

/// The tensors with their types.
fn typed(
    options: &Convert,
    source: &Source,
    recipes: &[Recipe],
    notes: &mut Vec<String>,
) -> Result<Vec<NewTensor>> {
    let has_output = recipes.iter().any(|r| r.name == "output.weight");
    let mut choices = Vec::new();
    let mut tensors = Vec::new();
    let mut requantised = 0;
    for recipe in recipes {
        let stored = stored_type(source, recipe);
        let is_output = recipe.name == "output.weight" || !has_output && recipe.name == "token_embd.weight";
        let tensor = GgufTensor { name: &recipe.name, shape: &recipe.shape, stored, is_output };
        let choice = kind::gguf_choice(tensor, options.weight_type);
        let lossy = |d: DType| d.is_quant() && d != choice.dtype && choice.dtype.is_quant();
        requantised += usize::from(stored.is_some_and(lossy));
        tensors.push(new_tensor(source, recipe, choice.dtype)?);
        choices.push((recipe.name.clone(), recipe.shape.clone(), choice));
    }
    notes.extend(kind::fallback_notes(&choices));
    if requantised > 0 {
        notes.push(format!("{requantised} tensors were quantised already and lose a little more by this"));
    }
    Ok(tensors)
}

pub fn stored_type(source: &Source, recipe: &Recipe) -> Option<DType> {
    match (&recipe.origin, source) {
        (Origin::Stored { files, .. }, Source::Stored { checkpoint, .. }) => {
            checkpoint.info(files.first()?).map(|(dtype, _)| dtype)
        }
        _ => None,
    }
}

pub fn new_tensor(source: &Source, recipe: &Recipe, dtype: DType) -> Result<NewTensor> {
    let rows = export::rows(recipe, |file| source.rows(file))?;
    Ok(NewTensor { name: recipe.name.clone(), dtype, shape: recipe.shape.clone(), rows })
}

fn general(
    options: &Convert,
    source: &Source,
    architecture: &str,
    tensors: &[NewTensor],
) -> Vec<(String, GgufValue)> {
    let text = |text: &str| GgufValue::String(text.to_string());
    let name = source.path().file_stem().and_then(|n| n.to_str()).unwrap_or("model");
    let mut out = vec![
        ("general.architecture".to_string(), text(architecture)),
        ("general.type".to_string(), text("model")),
        ("general.name".to_string(), text(name)),
    ];
    if let Some(wanted) = options.weight_type {
        out.push(("general.file_type".to_string(), GgufValue::U32(wanted.file_type())));
    }
    if tensors.iter().any(|t| t.dtype.is_quant()) {
        out.push(("general.quantization_version".to_string(), GgufValue::U32(2)));
    }
    out
}

fn write(
    options: &Convert,
    metadata: &[(String, GgufValue)],
    tensors: Vec<NewTensor>,
    notes: Vec<String>,
) -> Result<Written> {
    let written = Written::new(options, &tensors, notes)?;
    let output = FileOutput::create(&options.output, written.bytes)?;
    let mut progress = Progress::new(written.bytes)?;
    let mut file = BufWriter::with_capacity(1 << 20, output.file());
    let result = write_gguf(&mut file, metadata, &tensors, &mut progress);
    let result =
        result.and_then(|()| file.flush().map_err(|source| mlxcel_weights::WeightsError::Write { source }));
    drop(file);
    progress.finish();
    result.map_err(|error| output.explain(error))?;
    output.publish()?;
    Ok(written)
}
