//! Weights on the device. Each is uploaded once and shared by all programs that read the same bytes of a checkpoint.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use mlxcel_engine::weights::{Bytes, WeightTensor};
use mlxcel_engine::{EngineError, WeightSource, load_pieces};
use mlxcel_ir::{DType, Node, Op};

use crate::handle::Array;
use crate::library::Api;
use crate::owner::failed;
use crate::repack::{Part, repack};

/// The arrays of one weight.
#[derive(Debug)]
pub(crate) struct Uploaded {
    pub(crate) arrays: Vec<Array>,
    /// Keeps the addresses by which the weight is known from being given to others.
    _bytes: Vec<Bytes>,
}

/// Type, shape and the places of all bytes in memory.
type Key = (DType, Vec<usize>, Vec<(usize, usize)>);

/// What is on the device already.
#[derive(Debug, Default)]
pub(crate) struct Uploads(Mutex<HashMap<Key, Weak<Uploaded>>>);

impl Uploads {
    /// The arrays of a declared weight; the same ones for the same bytes.
    pub(crate) fn get(
        &self,
        api: &Arc<Api>,
        node: &Node,
        source: &dyn WeightSource,
    ) -> Result<Arc<Uploaded>, EngineError> {
        let pieces = load_pieces(&node.op, source)?;
        let shape = fixed_shape(node);
        let places =
            |t: &WeightTensor| t.parts.iter().map(|p| (p.as_ptr().addr(), p.len())).collect::<Vec<_>>();
        let key = (node.types[0].dtype, shape.clone(), pieces.iter().flat_map(places).collect());
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(found) = known.get(&key).and_then(Weak::upgrade) {
            return Ok(found);
        }
        let arrays = upload(api, node, &shape, &pieces)?;
        let made = Arc::new(Uploaded { arrays, _bytes: pieces.into_iter().flat_map(|p| p.parts).collect() });
        known.retain(|_, weak| weak.strong_count() > 0);
        known.insert(key, Arc::downgrade(&made));
        Ok(made)
    }
}

fn fixed_shape(node: &Node) -> Vec<usize> {
    let fixed = |d: &mlxcel_ir::Dim| d.as_fixed().expect("weights have fixed shapes");
    node.types[0].shape.iter().map(fixed).collect()
}

fn upload(
    api: &Arc<Api>,
    node: &Node,
    shape: &[usize],
    pieces: &[WeightTensor],
) -> Result<Vec<Array>, EngineError> {
    let Op::Weight { name, .. } = &node.op else { unreachable!("only weights are uploaded") };
    let one = |part: &Part| {
        let array = Array::new(api, part.dtype, &part.shape, &part.bytes);
        array.map_err(failed(&format!("uploading weight '{name}'")))
    };
    joined(shape, pieces).iter().map(one).collect()
}

/// The arrays of all pieces end to end, in the declared shape but for what packing does to the last axis.
fn joined(shape: &[usize], pieces: &[WeightTensor]) -> Vec<Part> {
    let mut all: Vec<Part> = vec![];
    for piece in pieces {
        for (i, part) in repack(piece).into_iter().enumerate() {
            match all.get_mut(i) {
                Some(known) => known.bytes.extend(part.bytes),
                None => all.push(part),
            }
        }
    }
    let is_packed = pieces.first().is_some_and(|p| p.dtype.is_quant());
    for part in &mut all {
        let mut whole = shape.to_vec();
        if let (true, Some(last), Some(packed)) = (is_packed, whole.last_mut(), part.shape.last()) {
            *last = *packed;
        }
        part.shape = whole;
    }
    all
}

/// Asks for each tensor once, however many weights share it.
pub(crate) struct Once<'a> {
    source: &'a dyn WeightSource,
    known: Mutex<HashMap<String, WeightTensor>>,
}

impl<'a> Once<'a> {
    pub(crate) fn new(source: &'a dyn WeightSource) -> Self {
        Once { source, known: Mutex::default() }
    }
}

impl WeightSource for Once<'_> {
    fn tensor(&self, name: &str) -> Result<WeightTensor, EngineError> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(found) = known.get(name) {
            return Ok(found.clone());
        }
        let tensor = self.source.tensor(name)?;
        known.insert(name.to_string(), tensor.clone());
        Ok(tensor)
    }
}
