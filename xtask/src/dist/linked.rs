//! Which packages are linked into the programs for a target, by cargo's own word.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
};

use anyhow::{Context as _, Result};
use serde::Deserialize;

use super::tools;
use crate::shell;

#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
    resolve: Resolve,
}

/// A package that is linked.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Package {
    pub(crate) id: String,
    pub(crate) name: String,
    pub(crate) version: String,
    pub(crate) license: Option<String>,
    pub(crate) license_file: Option<PathBuf>,
    pub(crate) description: Option<String>,
    pub(crate) repository: Option<String>,
    /// The registry; none for a crate of this project.
    pub(crate) source: Option<String>,
    pub(crate) manifest_path: PathBuf,
}

#[derive(Deserialize)]
struct Resolve {
    nodes: Vec<Node>,
}

#[derive(Deserialize)]
struct Node {
    id: String,
    deps: Vec<Dependency>,
}

#[derive(Deserialize)]
struct Dependency {
    pkg: String,
    dep_kinds: Vec<DependencyKind>,
}

#[derive(Deserialize)]
struct DependencyKind {
    kind: Option<String>,
}

/// Everything that is linked, the program's own package first, with who uses whom by package id.
pub(crate) struct Linked {
    pub(crate) packages: Vec<Package>,
    pub(crate) uses: BTreeMap<String, Vec<String>>,
}

/// What the command line's package links for a target.
pub(crate) fn find(triple: &str) -> Result<Linked> {
    let mut ask =
        shell::cargo(&["metadata", "--format-version", "1", "--locked", "--filter-platform", triple]);
    let metadata: Metadata =
        serde_json::from_str(&tools::output(&mut ask)?).context("cargo's metadata is not as expected")?;
    let root = metadata.packages.iter().find(|package| package.name == "mlxcel" && package.source.is_none());
    let root = root.context("the workspace has no package mlxcel")?.id.clone();
    let nodes: BTreeMap<&str, &Node> =
        metadata.resolve.nodes.iter().map(|node| (node.id.as_str(), node)).collect();
    let (mut seen, mut waiting) = (BTreeSet::new(), vec![root.clone()]);
    let mut uses = BTreeMap::new();
    while let Some(id) = waiting.pop() {
        if !seen.insert(id.clone()) {
            continue;
        }
        let node = nodes.get(id.as_str()).context("cargo resolves every package")?;
        let linked: Vec<_> = node.deps.iter().filter(|dep| dep.is_linked()).map(|d| d.pkg.clone()).collect();
        waiting.extend(linked.iter().cloned());
        uses.insert(id, linked);
    }
    let mut packages: Vec<_> = metadata.packages.into_iter().filter(|p| seen.contains(&p.id)).collect();
    packages.sort_by(|a, b| (a.id != root, &a.name, &a.version).cmp(&(b.id != root, &b.name, &b.version)));
    Ok(Linked { packages, uses })
}

impl Dependency {
    /// Not only for tests or build scripts.
    fn is_linked(&self) -> bool {
        self.dep_kinds.iter().any(|kind| kind.kind.is_none())
    }
}

impl Package {
    /// Its licence as SPDX writes expressions; older crates separate alternatives by a slash.
    pub(crate) fn expression(&self) -> Option<String> {
        self.license.as_ref().map(|text| text.replace('/', " OR ").replace("  ", " "))
    }
}
