//! `cargo xtask fetch NAME`: stages a pinned, hash-checked package of an engine in the cache, where engines look.

use std::path::PathBuf;

use anyhow::{Context as _, Result, bail};
use mlxcel_hub::{Folder, Hub, IREE, MLX_BUILDS, Settings, Stderr, XLA_CPU, XLA_CUDA13};

use crate::mlx;

/// What can be fetched, and what it is on this machine.
const PACKAGES: [(&str, Option<Folder<'static>>); 3] =
    [("iree", IREE), ("xla-cpu", XLA_CPU), ("xla-cuda13", XLA_CUDA13)];

/// Stages the named package and returns its folder.
pub(crate) fn run(name: &str) -> Result<PathBuf> {
    if MLX_BUILDS.contains(&name) {
        return mlx::fetch(name);
    }
    let Some((_, package)) = PACKAGES.iter().find(|(known, _)| *known == name) else {
        let known = PACKAGES.iter().map(|(name, _)| *name).chain(MLX_BUILDS);
        bail!("there is no package '{name}'; choose of: {}", known.collect::<Vec<_>>().join(", "));
    };
    let folder = package.as_ref().with_context(|| format!("{name} is not published for this machine"))?;
    Ok(Hub::new(Settings::from_env()?, Stderr::new()).fetch_folder(folder)?)
}

/// XLA's plugin for the processor, if it is published for this machine.
pub(crate) fn xla_cpu(hub: &Hub) -> Option<mlxcel_hub::Result<PathBuf>> {
    let folder = XLA_CPU?;
    Some(hub.fetch_folder(&folder).map(|path| path.join("xla_cpu_pjrt.so")))
}
