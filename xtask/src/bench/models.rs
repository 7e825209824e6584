//! The rows of the table and the files behind them. Random weights are as fast as learnt ones.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result};
use mlxcel_hub::{Hub, SMOLLM2, Settings, Stderr};

use crate::shell;

/// The model whose shape the random files have.
const SHAPE: &str = "qwen2-1.5b";

/// One comparison.
#[derive(Debug)]
pub(crate) struct Row {
    pub(crate) name: &'static str,
    pub(crate) ours: Model,
    /// llama.cpp cannot read every file of ours, and then has another one of the same shape.
    pub(crate) theirs: Model,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Model {
    SmolLm2,
    /// A GGUF file with matrices of this type.
    Gguf(&'static str),
    /// A folder with matrices of this type in groups of 64.
    Mlx(&'static str),
}

pub(crate) const ROWS: [Row; 5] = [
    row("SmolLM2-135M Q4_1", Model::SmolLm2, Model::SmolLm2),
    row("1.5B shape Q4_K", Model::Gguf("q4_k"), Model::Gguf("q4_k")),
    row("1.5B shape Q8_0", Model::Gguf("q8_0"), Model::Gguf("q8_0")),
    row("1.5B shape bf16", Model::Gguf("bf16"), Model::Gguf("bf16")),
    row("1.5B shape MLX 4-bit, group 64 (against Q4_K)", Model::Mlx("affine4"), Model::Gguf("q4_k")),
];

const fn row(name: &'static str, ours: Model, theirs: Model) -> Row {
    Row { name, ours, theirs }
}

/// Every model that the rows need, with its path.
pub(crate) struct Files(Vec<(Model, PathBuf)>);

impl Files {
    /// Fetches and makes what is not there yet.
    pub(crate) fn make(mlxcel: &Path, rows: &[&Row]) -> Result<Self> {
        let folder = shell::target_folder("bench");
        fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
        let mut files: Vec<(Model, PathBuf)> = Vec::new();
        for model in rows.iter().flat_map(|row| [row.ours, row.theirs]) {
            if files.iter().all(|(known, _)| *known != model) {
                files.push((model, make(mlxcel, &folder, model)?));
            }
        }
        Ok(Files(files))
    }

    pub(crate) fn path(&self, model: Model) -> &Path {
        let found = self.0.iter().find(|(known, _)| *known == model);
        &found.expect("a path was made for every model of the rows").1
    }
}

fn make(mlxcel: &Path, folder: &Path, model: Model) -> Result<PathBuf> {
    let (kind, path) = match model {
        Model::SmolLm2 => return Ok(Hub::new(Settings::from_env()?, Stderr::new()).fetch_member(&SMOLLM2)?),
        Model::Gguf(kind) => (kind, folder.join(format!("{SHAPE}-{kind}.gguf"))),
        Model::Mlx(kind) => (kind, folder.join(format!("{SHAPE}-{kind}"))),
    };
    if !path.exists() {
        let shape = shell::root().join("fixtures/shapes").join(format!("{SHAPE}.json"));
        let mut convert = Command::new(mlxcel);
        convert.args(["convert", "--type", kind, "--random"]).arg(shape).arg("-o").arg(&path);
        if let Model::Mlx(_) = model {
            convert.args(["--group-size", "64"]);
        }
        shell::run(convert)?;
    }
    Ok(path)
}
