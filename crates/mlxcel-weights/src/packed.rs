//! From the arrays of a safetensors file to the tensors they make up: MLX stores a quantised matrix as
//! `X.weight`, `X.scales` and `X.biases`, and MXFP4 experts come as `X_blocks` and `X_scales`. Everything
//! else is itself.

use std::collections::BTreeMap;
use std::ops::Range;

use mlxcel_ir::{DType, QuantFormat, ScaleType};

use crate::config::{Packing, QuantConfig};
use crate::error::{Result, WeightsError};
use crate::tensor::TensorInfo;

/// MXFP4 keeps 32 codes of four bits in 16 bytes, beside one scale.
const MX_GROUP: usize = 32;
const MX_GROUP_BYTES: usize = 16;
const WORD_BITS: usize = 32;

/// An array of one of the files of a checkpoint.
#[derive(Clone, Debug)]
pub(crate) struct Array {
    pub(crate) shard: usize,
    pub(crate) info: TensorInfo,
}

/// A tensor as the checkpoint presents it.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) dtype: DType,
    pub(crate) shape: Vec<usize>,
    pub(crate) parts: Vec<Part>,
}

/// Where one array of a tensor lies, and the alignment its elements want.
#[derive(Clone, Debug)]
pub(crate) struct Part {
    pub(crate) shard: usize,
    pub(crate) range: Range<usize>,
    pub(crate) alignment: usize,
}

pub(crate) type Entries = BTreeMap<String, Entry>;

/// Joins the arrays that belong together.
pub(crate) fn assemble(arrays: BTreeMap<String, Array>, config: &QuantConfig) -> Result<Entries> {
    let mut entries = Entries::new();
    for (name, array) in &arrays {
        let (name, entry) = match role(&arrays, name) {
            Role::Plain => (name.clone(), plain(array)),
            Role::Part => continue,
            Role::Words(module) => (name.clone(), words(&arrays, module, config)?),
            Role::Blocks(stem) => (stem.to_string(), blocks(&arrays, stem)?),
        };
        if entries.insert(name.clone(), entry).is_some() {
            return Err(WeightsError::DuplicateTensor { tensor: name });
        }
    }
    Ok(entries)
}

pub(crate) fn plain(array: &Array) -> Entry {
    let (dtype, shape) = (array.info.dtype, array.info.shape.clone());
    Entry { dtype, shape, parts: vec![part(array)] }
}

fn part(array: &Array) -> Part {
    // Packed blocks of GGUF are read byte by byte.
    let alignment = array.info.dtype.size().unwrap_or(1);
    Part { shard: array.shard, range: array.info.range.clone(), alignment }
}

enum Role<'a> {
    Plain,
    /// Scales or biases, which are presented with the array that they scale.
    Part,
    /// The packed words of this module.
    Words(&'a str),
    /// The packed blocks of the tensor of this name.
    Blocks(&'a str),
}

fn role<'a>(arrays: &BTreeMap<String, Array>, name: &'a str) -> Role<'a> {
    let has = |stem: &str, suffix: &str, dtype: DType| {
        arrays.get(&format!("{stem}{suffix}")).is_some_and(|a| a.info.dtype == dtype)
    };
    let is_module =
        |module: &str| has(module, ".weight", DType::U32) && arrays.contains_key(&format!("{module}.scales"));
    let is_blocks = |stem: &str| has(stem, "_blocks", DType::U8) && has(stem, "_scales", DType::U8);
    if let Some(module) = name.strip_suffix(".weight").filter(|m| is_module(m)) {
        return Role::Words(module);
    }
    if let Some(stem) = name.strip_suffix("_blocks").filter(|s| is_blocks(s)) {
        return Role::Blocks(stem);
    }
    let scaled = name.strip_suffix(".scales").or_else(|| name.strip_suffix(".biases"));
    if scaled.is_some_and(is_module) || name.strip_suffix("_scales").is_some_and(is_blocks) {
        return Role::Part;
    }
    Role::Plain
}

/// `X.weight`, `X.scales` and perhaps `X.biases`, packed as the config says.
fn words(arrays: &BTreeMap<String, Array>, module: &str, config: &QuantConfig) -> Result<Entry> {
    let name = |suffix: &str| format!("{module}.{suffix}");
    let find = |suffix: &str| {
        let missing = || WeightsError::MissingPart { tensor: name("weight"), part: name(suffix) };
        arrays.get(&name(suffix)).ok_or_else(missing)
    };
    let (codes, scales) = (find("weight")?, find("scales")?);
    let packing = config.packing(module);
    let packing = packing.ok_or_else(|| WeightsError::NoQuantConfig { tensor: name("weight") })?;
    let refuse = |suffix: &str, array: &Array| bad_part(&name(suffix), array);
    match packing {
        Packing::Affine { bits, group } => {
            let biases = find("biases")?;
            let scale = scale_type(scales).ok_or_else(|| refuse("scales", scales))?;
            if (biases.info.dtype, &biases.info.shape) != (scales.info.dtype, &scales.info.shape) {
                return Err(refuse("biases", biases));
            }
            let shape = widen(&scales.info.shape, group as usize).ok_or_else(|| refuse("scales", scales))?;
            check_words(&shape, bits, &codes.info.shape).ok_or_else(|| refuse("weight", codes))?;
            let dtype = DType::Quant(QuantFormat::Affine { bits, group, scale });
            Ok(Entry { dtype, shape, parts: vec![part(codes), part(scales), part(biases)] })
        }
        Packing::MxFp4 => {
            if let Some(biases) = arrays.get(&name("biases")) {
                return Err(refuse("biases", biases));
            }
            let is_byte = scales.info.dtype == DType::U8;
            let shape = widen(&scales.info.shape, MX_GROUP).filter(|_| is_byte);
            let shape = shape.ok_or_else(|| refuse("scales", scales))?;
            check_words(&shape, 4, &codes.info.shape).ok_or_else(|| refuse("weight", codes))?;
            let dtype = DType::Quant(QuantFormat::MxFp4);
            Ok(Entry { dtype, shape, parts: vec![part(codes), part(scales)] })
        }
    }
}

/// `X_blocks` with 16 bytes and `X_scales` with one per group of 32.
fn blocks(arrays: &BTreeMap<String, Array>, stem: &str) -> Result<Entry> {
    let (blocks, scales) = (&arrays[&format!("{stem}_blocks")], &arrays[&format!("{stem}_scales")]);
    let (groups, bytes) = (&scales.info.shape, &blocks.info.shape);
    let shape = widen(groups, MX_GROUP).filter(|_| {
        bytes.split_last().is_some_and(|(&last, lead)| last == MX_GROUP_BYTES && lead == &groups[..])
    });
    let shape = shape.ok_or_else(|| bad_part(&format!("{stem}_blocks"), blocks))?;
    Ok(Entry { dtype: DType::Quant(QuantFormat::MxFp4), shape, parts: vec![part(blocks), part(scales)] })
}

fn scale_type(scales: &Array) -> Option<ScaleType> {
    match scales.info.dtype {
        DType::F16 => Some(ScaleType::F16),
        DType::BF16 => Some(ScaleType::BF16),
        DType::F32 => Some(ScaleType::F32),
        _ => None,
    }
}

/// The logical shape of a tensor whose scales have the shape `groups`.
fn widen(groups: &[usize], group: usize) -> Option<Vec<usize>> {
    let (&last, lead) = groups.split_last()?;
    let mut shape = lead.to_vec();
    shape.push(last.checked_mul(group)?);
    Some(shape)
}

/// Whether `words` is the shape of 32-bit words that hold `bits` for every element of `shape`.
fn check_words(shape: &[usize], bits: u8, words: &[usize]) -> Option<()> {
    let (&cols, lead) = shape.split_last()?;
    let (&count, words_lead) = words.split_last()?;
    let fits = words_lead == lead && cols.checked_mul(bits as usize)? == count.checked_mul(WORD_BITS)?;
    fits.then_some(())
}

fn bad_part(name: &str, array: &Array) -> WeightsError {
    let (dtype, shape) = (array.info.dtype, array.info.shape.clone());
    WeightsError::BadPart { part: name.to_string(), dtype, shape }
}
