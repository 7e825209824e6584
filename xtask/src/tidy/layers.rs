//! Rule: the crates of the workspace depend on each other only along the edges of the architecture.

use std::collections::BTreeSet;

use anyhow::{Context as _, Result};
use serde::Deserialize;
use toml::{Table, Value};

use super::{File, Finding};

/// Which crates a crate may use, from the top of the architecture to the bottom. Development dependencies are free.
const MAY_USE: &[(&str, &[&str])] = &[
    ("mlxcel", LIBRARIES),
    ("mlxcel-server", &["mlxcel-platform", "mlxcel-sched", "mlxcel-text"]),
    ("mlxcel-sched", &["mlxcel-engine"]),
    ("mlxcel-text", &[]),
    ("mlxcel-cpu", &["mlxcel-engine", "mlxcel-ir", "mlxcel-platform"]),
    ("mlxcel-cuda", &["mlxcel-engine", "mlxcel-ir"]),
    ("mlxcel-mlx", &["mlxcel-engine", "mlxcel-ir", "mlxcel-platform"]),
    ("mlxcel-xla", &["mlxcel-engine", "mlxcel-ir"]),
    ("mlxcel-engine", &["mlxcel-ir", "mlxcel-weights"]),
    ("mlxcel-models", &["mlxcel-ir", "mlxcel-weights"]),
    ("mlxcel-weights", &["mlxcel-ir", "mlxcel-platform"]),
    ("mlxcel-hub", &["mlxcel-platform"]),
    ("mlxcel-ir", &[]),
    ("mlxcel-platform", &[]),
    ("conformance", LIBRARIES),
    ("emulator", &[]),
    ("xtask", &["mlxcel-hub"]),
];

const LIBRARIES: &[&str] = &[
    "mlxcel-server",
    "mlxcel-sched",
    "mlxcel-text",
    "mlxcel-cpu",
    "mlxcel-cuda",
    "mlxcel-mlx",
    "mlxcel-xla",
    "mlxcel-engine",
    "mlxcel-models",
    "mlxcel-weights",
    "mlxcel-hub",
    "mlxcel-ir",
    "mlxcel-platform",
];

/// The command line sits on top: not even a test of a library may reach up to it.
const TOP: &str = "mlxcel";

#[derive(Deserialize)]
struct Manifest {
    package: Package,
    #[serde(flatten)]
    rest: Table,
}

#[derive(Deserialize)]
struct Package {
    name: String,
}

/// Checks the manifests of all crates of the workspace among `files`.
pub(crate) fn check(files: &[File]) -> Result<Vec<Finding>> {
    let mut manifests = Vec::new();
    for file in files.iter().filter(|file| is_manifest(&file.path)) {
        let manifest: Manifest =
            toml::from_str(&file.text).with_context(|| format!("cannot parse {}", file.path))?;
        manifests.push((file, manifest));
    }
    let members: BTreeSet<&str> =
        manifests.iter().map(|(_, manifest)| manifest.package.name.as_str()).collect();
    Ok(manifests.iter().flat_map(|(file, manifest)| check_one(file, manifest, &members)).collect())
}

/// `crates/NAME/Cargo.toml` or `xtask/Cargo.toml`; not the root and not what lies outside the workspace.
fn is_manifest(path: &str) -> bool {
    let parts: Vec<_> = path.split('/').collect();
    matches!(parts[..], ["crates", _, "Cargo.toml"] | ["xtask", "Cargo.toml"])
}

fn check_one(file: &File, manifest: &Manifest, members: &BTreeSet<&str>) -> Vec<Finding> {
    let name = manifest.package.name.as_str();
    let Some((_, allowed)) = MAY_USE.iter().find(|(known, _)| *known == name) else {
        return vec![file.finding(0, format!("{name} has no place in the architecture (see {})", file!()))];
    };
    let mut findings = Vec::new();
    for used in dependencies(&manifest.rest, &["dependencies", "build-dependencies"]) {
        if members.contains(used.as_str()) && !allowed.contains(&used.as_str()) {
            findings.push(file.finding(0, format!("{name} may not use {used}")));
        }
    }
    if dependencies(&manifest.rest, &["dev-dependencies"]).contains(TOP) {
        findings.push(file.finding(0, format!("{name} may not use {TOP}, not even in tests")));
    }
    findings
}

/// The packages named in the given sections, for all targets. A renamed dependency counts by its real name.
fn dependencies(manifest: &Table, sections: &[&str]) -> BTreeSet<String> {
    let targets = manifest.get("target").and_then(Value::as_table).into_iter().flat_map(Table::values);
    let tables = targets.filter_map(Value::as_table).chain([manifest]);
    let mut found = BTreeSet::new();
    for table in tables {
        for section in sections.iter().filter_map(|section| table.get(*section)?.as_table()) {
            found.extend(
                section.iter().map(|(key, value)| {
                    value.get("package").and_then(Value::as_str).unwrap_or(key).to_owned()
                }),
            );
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The findings on a workspace of the given crates.
    fn findings(crates: &[(&str, &str)]) -> Vec<String> {
        let files: Vec<_> = crates
            .iter()
            .map(|(name, rest)| File {
                path: format!("crates/{name}/Cargo.toml"),
                text: format!("[package]\nname = \"{name}\"\nversion.workspace = true\n{rest}"),
            })
            .collect();
        check(&files).unwrap().iter().map(Finding::to_string).collect()
    }

    #[test]
    fn an_edge_of_the_architecture_is_fine() {
        let weights = ("mlxcel-weights", "[dependencies]\nmlxcel-ir.workspace = true\nserde = \"1\"\n");
        assert!(findings(&[weights, ("mlxcel-ir", "")]).is_empty());
    }

    #[test]
    fn any_other_edge_is_found_in_every_section() {
        let said = ["crates/mlxcel-ir/Cargo.toml: mlxcel-ir may not use mlxcel-weights"];
        for rest in [
            "[dependencies]\nmlxcel-weights.workspace = true\n",
            "[dependencies.mlxcel-weights]\nworkspace = true\n",
            "[dependencies]\nw = { package = \"mlxcel-weights\", path = \"../mlxcel-weights\" }\n",
            "[build-dependencies]\nmlxcel-weights = { path = \"../mlxcel-weights\" }\n",
            "[target.'cfg(unix)'.dependencies]\nmlxcel-weights = { path = \"../mlxcel-weights\" }\n",
        ] {
            assert_eq!(findings(&[("mlxcel-ir", rest), ("mlxcel-weights", "")]), said, "{rest}");
        }
    }

    #[test]
    fn tests_may_use_anything_but_the_command_line() {
        let conformance = ("conformance", "");
        let free = ("mlxcel-cpu", "[dev-dependencies]\nconformance.workspace = true\n");
        assert!(findings(&[free, conformance]).is_empty());
        let bound = ("mlxcel-cpu", "[dev-dependencies]\nmlxcel = { path = \"../mlxcel\" }\n");
        assert_eq!(findings(&[bound, ("mlxcel", "")]).len(), 1);
    }

    #[test]
    fn the_conformance_suite_is_for_tests_only() {
        assert_eq!(
            findings(&[("mlxcel", "[dependencies]\nconformance = \"1\"\n"), ("conformance", "")]).len(),
            1
        );
    }

    #[test]
    fn a_crate_that_is_not_in_the_table_is_found() {
        assert!(findings(&[("mlxcel-extra", "")])[0].contains("no place in the architecture"));
    }
}
