//! From a model to the tensors and settings of another file format. A [`Recipe`] says how one new tensor is made of
//! stored ones, as data: nothing is read or computed until its rows are asked for. Element types, files and folders
//! are for those above.

mod arrange;
mod keys;
mod random;
mod recipe;
mod rows;
mod table;
mod to_folder;
mod to_gguf;
mod to_layers;

use std::collections::BTreeMap;

use mlxcel_ir::{Builder, DType};
use mlxcel_weights::Checkpoint;
use serde_json::Value;

use crate::error::ModelError;
use crate::families::{Built, FAMILIES, Family};
use crate::names::Names;
use crate::net::{Net, Params, Used};

pub use random::random_rows;
pub use recipe::{Map, Origin, Recipe, View};
pub use rows::{StoredRows, rows};
pub use to_folder::{FolderExport, to_folder};
pub use to_gguf::{GgufExport, to_gguf};
pub use to_layers::{is_layer, to_layers};

/// A model's configuration and the tensors it uses.
#[derive(Clone, Debug)]
pub struct Inventory {
    pub family: &'static str,
    pub config: Value,
    /// By published name.
    pub tensors: BTreeMap<String, Tensor>,
    pub built: Built,
}

/// A tensor that a model uses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tensor {
    /// Its name in the checkpoint it comes from.
    pub file: String,
    pub shape: Vec<usize>,
    /// As it is stored; `None` for a tensor that does not exist yet.
    pub dtype: Option<DType>,
}

/// What the model in a checkpoint uses: what is left over, or stored twice, is not in it.
pub fn inventory(checkpoint: &Checkpoint) -> Result<Inventory, ModelError> {
    let read = crate::read(checkpoint, DType::F32.into(), None)?;
    let stored = |used: Used| {
        let dtype = checkpoint.info(&used.file).map(|(dtype, _)| dtype);
        Tensor { file: used.file, shape: used.shape, dtype }
    };
    let tensors = read.used.into_iter().map(|(name, used)| (name, stored(used))).collect();
    Ok(Inventory { family: read.model.family, config: read.config, tensors, built: read.model.built })
}

/// What a model of this configuration would use, in the layout that models are published in. There are no weights.
pub fn imagine(config: &Value) -> Result<Inventory, ModelError> {
    let family = crate::by_model_type(config)?;
    let params = Params::new(None, Names::default());
    let builder = Builder::new();
    let built = (family.build)(&Net::new(&builder, &params, DType::F32.into()), config)?;
    let wanted = |used: Used| Tensor { file: used.file, shape: used.shape, dtype: None };
    let tensors = params.finish(|_| true)?.into_iter().map(|(name, used)| (name, wanted(used))).collect();
    builder.finish()?;
    Ok(Inventory { family: family.name, config: config.clone(), tensors, built })
}

fn family(name: &str) -> &'static Family {
    FAMILIES.iter().find(|f| f.name == name).expect("an inventory is of a known family")
}
