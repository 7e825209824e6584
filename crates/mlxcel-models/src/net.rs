//! The place a family writes its graph in: the builder, the step's inputs, and parameters addressed by path. Like
//! the builder, it never fails where it is used: the first missing or misshapen tensor is reported at the end.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufReader, Read};

use mlxcel_ir::step::StepInputs;
use mlxcel_ir::{Builder, DType, PagedBatch, Tensor};
use mlxcel_weights::Checkpoint;
use serde_json::Value;

use crate::Types;
use crate::blocks::EmbedOptions;
use crate::error::ModelError;
use crate::names::Names;

/// A file of settings has a few hundred bytes.
const SMALL_FILE_MAX: u64 = 1 << 20;

/// No model has more layers; bounds what a configuration alone may claim.
const LAYERS_MAX: usize = 1 << 12;

/// Parameters of one checkpoint, and which of them were used. Without a checkpoint every parameter is there that is
/// asked for by name and shape, in the layout that models are published in.
pub(crate) struct Params<'c> {
    checkpoint: Option<&'c Checkpoint>,
    names: Names,
    used: RefCell<BTreeMap<String, Used>>,
    left_out: RefCell<BTreeSet<String>>,
    error: RefCell<Option<ModelError>>,
}

/// A tensor that a graph uses, kept under its published name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Used {
    /// Its name in the checkpoint.
    pub(crate) file: String,
    pub(crate) shape: Vec<usize>,
}

/// A path into the parameters of a model under construction.
#[derive(Clone)]
pub struct Net<'g> {
    pub b: &'g Builder,
    pub inputs: StepInputs<'g>,
    /// The type activations are kept in.
    pub dtype: DType,
    /// The type keys and values are kept in.
    cache: DType,
    /// Set if the model is to make embeddings, whatever it was made for.
    pub embed: Option<EmbedOptions>,
    params: &'g Params<'g>,
    path: String,
}

/// Whether a projection has a bias.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bias {
    No,
    Yes,
}

impl From<bool> for Bias {
    fn from(yes: bool) -> Self {
        if yes { Bias::Yes } else { Bias::No }
    }
}

impl<'c> Params<'c> {
    pub(crate) fn new(checkpoint: Option<&'c Checkpoint>, names: Names) -> Self {
        Params {
            checkpoint,
            names,
            used: RefCell::default(),
            left_out: RefCell::default(),
            error: RefCell::default(),
        }
    }

    /// The tensors that were used; or the first error, or the tensors that nothing used and no pattern of `ignore`
    /// excuses.
    pub(crate) fn finish(self, ignore: impl Fn(&str) -> bool) -> Result<BTreeMap<String, Used>, ModelError> {
        if let Some(e) = self.error.into_inner() {
            return Err(e);
        }
        let used = self.used.into_inner();
        let left_out = self.left_out.into_inner();
        let unused = self.names.iter().filter(|(published, _)| {
            !used.contains_key(*published) && !left_out.contains(*published) && !ignore(published)
        });
        let unused: Vec<&str> = unused.map(|(_, file)| file).collect();
        if unused.is_empty() {
            return Ok(used);
        }
        let examples = unused.iter().take(4).map(|s| s.to_string()).collect();
        Err(ModelError::UnusedTensors { count: unused.len(), examples })
    }

    fn uses(&self, published: &str, file: &str, shape: &[usize]) {
        let used = Used { file: file.to_string(), shape: shape.to_vec() };
        self.used.borrow_mut().insert(published.to_string(), used);
    }

    fn fail(&self, e: ModelError) {
        self.error.borrow_mut().get_or_insert(e);
    }
}

impl<'g> Net<'g> {
    pub(crate) fn new(b: &'g Builder, params: &'g Params<'g>, types: Types) -> Self {
        let Types { activations: dtype, cache } = types;
        Net { b, inputs: StepInputs::declare(b), dtype, cache, embed: None, params, path: String::new() }
    }

    /// What paged attention reads, with the type of its cache.
    pub fn paged(&self) -> PagedBatch<'g> {
        PagedBatch { cache: Some(self.cache), ..self.inputs.paged() }
    }

    /// The parameters below `segment`.
    pub fn at(&self, segment: &str) -> Net<'g> {
        Net { path: self.full(segment), ..self.clone() }
    }

    /// The parameters from the top.
    pub fn root(&self) -> Net<'g> {
        Net { path: String::new(), ..self.clone() }
    }

    fn full(&self, name: &str) -> String {
        if self.path.is_empty() { name.to_string() } else { format!("{}.{name}", self.path) }
    }

    /// Whether the checkpoint has this tensor.
    pub fn has(&self, name: &str) -> bool {
        self.params.names.file_name(&self.full(name)).is_some()
    }

    /// Whether the weights come from a GGUF file, whose converter changed some of them.
    pub fn is_gguf(&self) -> bool {
        self.params.checkpoint.is_some_and(|c| c.metadata().is_some())
    }

    /// A small JSON file in the checkpoint's folder, if there is one.
    pub fn json_beside(&self, name: &str) -> Result<Option<Value>, ModelError> {
        self.params.checkpoint.map_or(Ok(None), |checkpoint| json_beside(checkpoint, name))
    }

    /// Number of tensors, a bound on the layers a configuration may claim.
    pub(crate) fn tensor_count(&self) -> usize {
        if self.params.checkpoint.is_none() { LAYERS_MAX } else { self.params.names.iter().count() }
    }

    /// A tensor of exactly this shape.
    pub fn tensor(&self, name: &str, shape: &[usize]) -> Tensor<'g> {
        self.stacked(name, &[self.full(name)], shape, shape)
    }

    /// A tensor found under one of several shapes of the same elements, seen as the last of them.
    pub fn tensor_viewed(&self, name: &str, stored: &[usize], seen: &[usize]) -> Tensor<'g> {
        self.stacked(name, &[self.full(name)], stored, seen)
    }

    /// Several tensors of one shape, stacked along a new first axis.
    pub fn stack(&self, name: &str, pieces: &[String], shape: &[usize]) -> Tensor<'g> {
        let seen = [&[pieces.len()], shape].concat();
        let pieces: Vec<String> = pieces.iter().map(|p| self.full(p)).collect();
        self.stacked(name, &pieces, shape, &seen)
    }

    fn stacked(&self, name: &str, pieces: &[String], each: &[usize], seen: &[usize]) -> Tensor<'g> {
        match self.find(pieces, each) {
            Ok((dtype, files)) => self.b.weight_pieces(&self.full(name), dtype, seen, files),
            Err(e) => {
                self.params.fail(e);
                self.b.weight_pieces(&self.full(name), self.dtype, seen, vec![])
            }
        }
    }

    fn find(&self, pieces: &[String], shape: &[usize]) -> Result<(DType, Vec<String>), ModelError> {
        let mut files = Vec::with_capacity(pieces.len());
        let mut dtype = None;
        for piece in pieces {
            let Some(checkpoint) = self.params.checkpoint else {
                self.params.uses(piece, piece, shape);
                continue;
            };
            let missing = || ModelError::MissingTensor { name: piece.clone() };
            let file = self.params.names.file_name(piece).ok_or_else(missing)?;
            let (found_type, found) = checkpoint.info(file).ok_or_else(missing)?;
            if found != shape {
                let (found, expected) = (found.to_vec(), shape.to_vec());
                return Err(ModelError::TensorShape { name: file.to_string(), found, expected });
            }
            let expected = *dtype.get_or_insert(found_type);
            if found_type != expected {
                return Err(ModelError::TensorType { name: file.to_string(), found: found_type, expected });
            }
            self.params.uses(piece, file, shape);
            files.push(file.to_string());
        }
        Ok((dtype.unwrap_or(self.dtype), files))
    }

    /// The shape of a tensor, where the configuration leaves a choice.
    pub fn shape_of(&self, name: &str) -> Option<Vec<usize>> {
        let file = self.params.names.file_name(&self.full(name))?;
        self.params.checkpoint?.info(file).map(|(_, s)| s.to_vec())
    }

    /// The type of a tensor, where it tells which of two layouts the checkpoint has.
    pub fn dtype_of(&self, name: &str) -> Option<DType> {
        let file = self.params.names.file_name(&self.full(name))?;
        self.params.checkpoint?.info(file).map(|(dtype, _)| dtype)
    }

    /// Leaves everything below this path unused: parts that a checkpoint carries beside the model.
    pub fn leave_out(&self) {
        let prefix = format!("{}.", self.path);
        let below = self.params.names.iter().filter(|(published, _)| published.starts_with(&prefix));
        self.params.left_out.borrow_mut().extend(below.map(|(published, _)| published.to_string()));
    }

    /// `name.weight [out, in]`, and `name.bias [out]` if it has one.
    pub fn linear(&self, name: &str, x: Tensor<'g>, out: usize, bias: Bias) -> Tensor<'g> {
        let here = self.at(name);
        let weight = here.tensor("weight", &[out, width(x)]);
        let bias = (bias == Bias::Yes).then(|| here.tensor("bias", &[out]));
        self.b.scope(&here.path, || x.linear(weight, bias))
    }

    /// A linear layer whose weight is stored as `name.weight [in, out]`; always with a bias.
    pub fn linear_transposed(&self, name: &str, x: Tensor<'g>, out: usize) -> Tensor<'g> {
        let here = self.at(name);
        let weight = here.tensor("weight", &[width(x), out]);
        let bias = here.tensor("bias", &[out]);
        self.b.scope(&here.path, || x.linear(weight.transpose(&[1, 0]), Some(bias)))
    }

    /// The rows of `name.weight [vocabulary, width]` for token ids.
    pub fn embedding(&self, name: &str, ids: Tensor<'g>, (vocabulary, width): (usize, usize)) -> Tensor<'g> {
        let table = self.at(name).tensor("weight", &[vocabulary, width]);
        self.b.scope(&self.full(name), || table.embedding(ids, self.dtype))
    }

    pub fn rms_norm(&self, name: &str, x: Tensor<'g>, eps: f64) -> Tensor<'g> {
        let weight = self.at(name).tensor("weight", &[width(x)]);
        self.b.scope(&self.full(name), || x.rms_norm(eps, Some(weight)))
    }

    /// An RMS norm whose stored weight is the difference from one; GGUF files store the sum.
    pub fn rms_norm_plus_one(&self, name: &str, x: Tensor<'g>, eps: f64) -> Tensor<'g> {
        if self.is_gguf() {
            return self.rms_norm(name, x, eps);
        }
        let weight = self.at(name).tensor("weight", &[width(x)]).cast(DType::F32) + 1.0;
        self.b.scope(&self.full(name), || x.rms_norm(eps, Some(weight)))
    }

    pub fn layer_norm(&self, name: &str, x: Tensor<'g>, eps: f64, bias: Bias) -> Tensor<'g> {
        let here = self.at(name);
        let weight = here.tensor("weight", &[width(x)]);
        let bias = (bias == Bias::Yes).then(|| here.tensor("bias", &[width(x)]));
        self.b.scope(&here.path, || x.layer_norm(eps, Some(weight), bias))
    }
}

/// The size of the last axis; zero once the builder has recorded an error.
pub(crate) fn width(x: Tensor<'_>) -> usize {
    x.dim(x.rank().saturating_sub(1)).as_fixed().unwrap_or(0)
}

/// A small JSON file of a checkpoint that is a folder. What lies beside a GGUF file may be another model's.
pub(crate) fn json_beside(checkpoint: &Checkpoint, name: &str) -> Result<Option<Value>, ModelError> {
    if checkpoint.metadata().is_some() {
        return Ok(None);
    }
    let bad = |e: &dyn std::fmt::Display| ModelError::field(name, e.to_string());
    let file = match std::fs::File::open(checkpoint.folder().join(name)) {
        Ok(file) => file,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(bad(&e)),
    };
    serde_json::from_reader(BufReader::new(file.take(SMALL_FILE_MAX))).map(Some).map_err(|e| bad(&e))
}
