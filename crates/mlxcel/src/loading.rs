//! From a path to a model that can be compiled: its graph, and beside it the text side. Names, memory and engines are
//! its callers' business.

use std::path::Path;

use anyhow::Result;
use mlxcel_engine::Caps;

use crate::cli::TypeArgs;
use crate::engines;
use crate::inspect;
use crate::session::Loaded;
use crate::vocabulary::{self, Vocabulary};

/// What was found of tokenizer and templates. Whether their absence matters is for the command to say.
pub type TextSide = mlxcel_text::Result<Option<Vocabulary>>;

/// Opens a checkpoint and builds its graph, for who has no use for text.
pub fn load_without_text(path: &Path, types: TypeArgs, caps: &Caps) -> Result<Loaded> {
    let checkpoint = mlxcel_weights::Checkpoint::open(path)?;
    let types = engines::types(types, caps, &checkpoint);
    let model = mlxcel_models::load(&checkpoint, types).map_err(|error| inspect::explain(path, error))?;
    Ok(Loaded { checkpoint, model })
}

/// Opens a checkpoint, and builds its graph while another thread builds its tokenizer.
pub fn load(path: &Path, types: TypeArgs, caps: &Caps) -> Result<(Loaded, TextSide)> {
    let checkpoint = mlxcel_weights::Checkpoint::open(path)?;
    let (vocabulary, model) = std::thread::scope(|scope| {
        let vocabulary = scope.spawn(|| vocabulary::open(&checkpoint));
        let model = mlxcel_models::load(&checkpoint, engines::types(types, caps, &checkpoint));
        (vocabulary.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)), model)
    });
    let model = model.map_err(|error| inspect::explain(path, error))?;
    Ok((Loaded { checkpoint, model }, vocabulary))
}
