//! The weights of one model: finds the files, maps them, and gives their tensors by name.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use mlxcel_ir::DType;
use serde_json::Value;

use crate::bytes::Bytes;
use crate::config::{INDEX_LIMIT, QuantConfig, read_config, read_limited};
use crate::error::{Result, WeightsError};
use crate::gguf::{Gguf, GgufMetadata, parse_gguf};
use crate::index::parse_index;
use crate::mapped::Mapping;
use crate::packed::{self, Array, Entries, Entry};
use crate::safetensors::parse_header;
use crate::tensor::{TensorInfo, WeightTensor};

const SINGLE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";

/// The file format of a checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Safetensors,
    Gguf,
}

/// An open checkpoint. Its files stay mapped as long as it or one of its tensors lives.
pub struct Checkpoint {
    kind: Kind,
    folder: PathBuf,
    shards: Vec<Arc<Mapping>>,
    entries: Entries,
    metadata: Option<GgufMetadata>,
    config: Option<Value>,
}

impl Checkpoint {
    /// Opens a folder or a file. In a folder, `model.safetensors` is preferred, then the index of its shards,
    /// then a single other `.safetensors`, then a single `.gguf` (or one set of split ones).
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let found = std::fs::metadata(path).map_err(|e| WeightsError::io(path, e))?;
        if found.is_dir() {
            return Self::open_folder(path);
        }
        let folder = parent(path);
        match path.extension().and_then(|e| e.to_str()) {
            Some("safetensors") => Self::open_safetensors(folder, vec![path.to_path_buf()]),
            Some("gguf") => Self::open_gguf(folder, path),
            _ => Err(WeightsError::UnknownKind { path: path.to_path_buf() }),
        }
    }

    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Where the weights lie, and the files that describe them.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The names of all tensors, sorted.
    pub fn names(&self) -> impl ExactSizeIterator<Item = &str> {
        self.entries.keys().map(String::as_str)
    }

    /// Type and logical shape of a tensor.
    pub fn info(&self, name: &str) -> Option<(DType, &[usize])> {
        self.entries.get(name).map(|e| (e.dtype, &e.shape[..]))
    }

    /// A tensor, without a copy unless the file puts it at an address its elements cannot have.
    pub fn tensor(&self, name: &str) -> Result<WeightTensor> {
        let missing = || WeightsError::UnknownTensor { name: name.to_string() };
        let entry = self.entries.get(name).ok_or_else(missing)?;
        let map = |part: &packed::Part| {
            Bytes::mapped(self.shards[part.shard].clone(), part.range.clone()).aligned(part.alignment)
        };
        WeightTensor::new(entry.dtype, entry.shape.clone(), entry.parts.iter().map(map).collect())
    }

    /// The metadata of a GGUF file.
    pub fn metadata(&self) -> Option<&GgufMetadata> {
        self.metadata.as_ref()
    }

    /// The `config.json` beside safetensors files.
    pub fn config(&self) -> Option<&Value> {
        self.config.as_ref()
    }

    fn open_folder(folder: &Path) -> Result<Self> {
        if folder.join(SINGLE).exists() {
            return Self::open_safetensors(folder, vec![folder.join(SINGLE)]);
        }
        if folder.join(INDEX).exists() {
            return Self::open_index(folder);
        }
        if let Some(file) = only_file(folder, "safetensors")? {
            return Self::open_safetensors(folder, vec![file]);
        }
        match only_file(folder, "gguf")? {
            Some(file) => Self::open_gguf(folder, &file),
            None => Err(WeightsError::NoWeights { folder: folder.to_path_buf() }),
        }
    }

    fn open_index(folder: &Path) -> Result<Self> {
        let path = folder.join(INDEX);
        let text = read_limited(&path, INDEX_LIMIT)?;
        let index = parse_index(&text).map_err(|e| e.in_file(&path))?;
        let files: BTreeSet<&String> = index.values().collect();
        let paths = files.iter().map(|f| folder.join(f)).collect();
        let (shards, arrays) = map_safetensors(paths)?;
        let numbers: BTreeMap<&String, usize> = files.into_iter().zip(0..).collect();
        for (tensor, file) in &index {
            if arrays.get(tensor).is_none_or(|a| a.shard != numbers[file]) {
                let missing = WeightsError::NotInShard { tensor: tensor.clone(), file: file.clone() };
                return Err(missing.in_file(&path));
            }
        }
        Self::from_arrays(folder, shards, arrays)
    }

    fn open_safetensors(folder: &Path, paths: Vec<PathBuf>) -> Result<Self> {
        let (shards, arrays) = map_safetensors(paths)?;
        Self::from_arrays(folder, shards, arrays)
    }

    fn from_arrays(
        folder: &Path,
        shards: Vec<Arc<Mapping>>,
        arrays: BTreeMap<String, Array>,
    ) -> Result<Self> {
        let config = read_config(folder)?;
        let packing = match &config {
            Some(config) => {
                QuantConfig::from_config(config).map_err(|e| e.in_file(&folder.join("config.json")))?
            }
            None => QuantConfig::default(),
        };
        let entries = packed::assemble(arrays, &packing)?;
        let (kind, folder) = (Kind::Safetensors, folder.to_path_buf());
        Ok(Checkpoint { kind, folder, shards, entries, metadata: None, config })
    }

    fn open_gguf(folder: &Path, path: &Path) -> Result<Self> {
        let (mut shards, mut entries, mut metadata) = (Vec::new(), Entries::new(), None);
        for (number, path) in split_files(path).into_iter().enumerate() {
            let mapping = Mapping::open(&path)?;
            let gguf = parse_gguf(&mapping).and_then(|g| check_split(g, &path));
            let gguf = gguf.map_err(|e| e.in_file(&path))?;
            for (name, info) in gguf.tensors {
                insert(&mut entries, name, packed::plain(&Array { shard: number, info }))
                    .map_err(|e| e.in_file(&path))?;
            }
            metadata.get_or_insert(gguf.metadata);
            shards.push(mapping);
        }
        let (kind, folder) = (Kind::Gguf, folder.to_path_buf());
        Ok(Checkpoint { kind, folder, shards, entries, metadata, config: None })
    }
}

impl std::fmt::Debug for Checkpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (files, tensors) = (self.shards.len(), self.entries.len());
        write!(f, "{:?} checkpoint in {}: {files} files, {tensors} tensors", self.kind, self.folder.display())
    }
}

fn parent(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if parent != Path::new("") => parent,
        _ => Path::new("."),
    }
}

fn insert(entries: &mut Entries, name: String, entry: Entry) -> Result<()> {
    match entries.insert(name.clone(), entry) {
        None => Ok(()),
        Some(_) => Err(WeightsError::DuplicateTensor { tensor: name }),
    }
}

type Mapped = (Vec<Arc<Mapping>>, BTreeMap<String, Array>);

fn map_safetensors(paths: Vec<PathBuf>) -> Result<Mapped> {
    let (mut shards, mut arrays) = (Vec::new(), BTreeMap::new());
    for (shard, path) in paths.iter().enumerate() {
        let mapping = Mapping::open(path)?;
        let tensors: BTreeMap<String, TensorInfo> = parse_header(&mapping).map_err(|e| e.in_file(path))?;
        for (name, info) in tensors {
            if arrays.insert(name.clone(), Array { shard, info }).is_some() {
                return Err(WeightsError::DuplicateTensor { tensor: name }.in_file(path));
            }
        }
        shards.push(mapping);
    }
    Ok((shards, arrays))
}

/// The only file of a folder with this extension; the parts of one split file count as one.
fn only_file(folder: &Path, extension: &str) -> Result<Option<PathBuf>> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(|e| WeightsError::io(folder, e))? {
        let path = entry.map_err(|e| WeightsError::io(folder, e))?.path();
        let is_hidden = path.file_name().is_some_and(|n| n.as_encoded_bytes().starts_with(b"."));
        let is_later_part = split_name(&path).is_some_and(|s| s.number > 1);
        if path.extension().is_some_and(|e| e == extension) && !is_hidden && !is_later_part {
            files.push(path);
        }
    }
    if files.len() > 1 {
        files.sort();
        let name = |p: &PathBuf| p.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let files = files.iter().map(name).collect();
        return Err(WeightsError::Ambiguous { folder: folder.to_path_buf(), files });
    }
    Ok(files.pop())
}

/// `name-00002-of-00005.gguf`, taken apart.
struct SplitName<'a> {
    stem: &'a str,
    number: usize,
    count: usize,
}

fn split_name(path: &Path) -> Option<SplitName<'_>> {
    let rest = path.file_name()?.to_str()?.strip_suffix(".gguf")?;
    let (rest, count) = rest.rsplit_once("-of-")?;
    let (stem, number) = rest.rsplit_once('-')?;
    let parse = |digits: &str| digits.parse().ok().filter(|_| digits.len() == 5);
    let (number, count) = (parse(number)?, parse(count)?);
    (1 <= number && number <= count).then_some(SplitName { stem, number, count })
}

/// All parts of the split file that `path` belongs to, in order; only itself if it is not split.
fn split_files(path: &Path) -> Vec<PathBuf> {
    let Some(split) = split_name(path) else { return vec![path.to_path_buf()] };
    let part = |number| format!("{}-{number:05}-of-{:05}.gguf", split.stem, split.count);
    (1..=split.count).map(|number| path.with_file_name(part(number))).collect()
}

/// A part must be the one that its name says; a file that is one of several parts must be named so.
fn check_split(gguf: Gguf, path: &Path) -> Result<Gguf> {
    let count = gguf.metadata.find("split.count")?.unwrap_or(1u64);
    let number = gguf.metadata.find("split.no")?.unwrap_or(0u64).saturating_add(1);
    let (named, named_count) = split_name(path).map_or((1, 1), |s| (s.number, s.count));
    if (number, count.max(1)) != (named as u64, named_count as u64) {
        return Err(WeightsError::BadSplit { number, count, named, named_count });
    }
    Ok(gguf)
}
