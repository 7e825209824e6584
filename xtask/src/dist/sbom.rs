//! The list of what is linked, as CycloneDX 1.6 writes it (<https://cyclonedx.org/docs/1.6/json/>). It has no date and no
//! serial number, so that the same programs have the same list.

use std::{collections::BTreeMap, fs};

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

use super::linked::{Linked, Package};
use crate::shell;

/// The list as text.
pub(crate) fn text(linked: &Linked) -> Result<String> {
    let lock = shell::root().join("Cargo.lock");
    let lock = fs::read_to_string(&lock).with_context(|| format!("cannot read {}", lock.display()))?;
    Ok(format!("{:#}\n", document(linked, &checksums(&lock)?)?))
}

fn document(linked: &Linked, checksums: &BTreeMap<(String, String), String>) -> Result<Value> {
    let (root, rest) = linked.packages.split_first().context("a program is at least itself")?;
    let references: BTreeMap<&str, String> =
        linked.packages.iter().map(|package| (package.id.as_str(), address(package))).collect();
    let mut dependencies: Vec<Value> = Vec::new();
    for (id, used) in &linked.uses {
        let name = |id: &String| references.get(id.as_str()).cloned().context("every package is listed");
        let mut on = used.iter().map(name).collect::<Result<Vec<_>>>()?;
        on.sort();
        on.dedup();
        dependencies.push(json!({ "ref": name(id)?, "dependsOn": on }));
    }
    Ok(json!({
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": { "component": component(root, "application", checksums) },
        "components": rest.iter().map(|p| component(p, "library", checksums)).collect::<Vec<_>>(),
        "dependencies": dependencies,
    }))
}

fn component(package: &Package, kind: &str, checksums: &BTreeMap<(String, String), String>) -> Value {
    let address = address(package);
    let mut component = json!({
        "type": kind, "bom-ref": address, "name": package.name, "version": package.version, "purl": address,
    });
    let hash = checksums.get(&(package.name.clone(), package.version.clone()));
    let optional = [
        ("description", package.description.as_ref().map(|text| json!(text.trim()))),
        ("licenses", package.expression().map(|text| json!([{ "expression": text }]))),
        ("hashes", hash.map(|hash| json!([{ "alg": "SHA-256", "content": hash }]))),
        ("externalReferences", package.repository.as_ref().map(|url| json!([{ "type": "vcs", "url": url }]))),
    ];
    for (name, value) in optional {
        if let Some(value) = value {
            component[name] = value;
        }
    }
    component
}

/// The package as <https://github.com/package-url/purl-spec> writes it.
fn address(package: &Package) -> String {
    format!("pkg:cargo/{}@{}", package.name, package.version.replace('+', "%2B"))
}

/// The digest of every package of a registry by name and version.
fn checksums(lock: &str) -> Result<BTreeMap<(String, String), String>> {
    let lock: toml::Table = toml::from_str(lock).context("Cargo.lock cannot be parsed")?;
    let packages = lock.get("package").and_then(toml::Value::as_array).cloned().unwrap_or_default();
    let field = |package: &toml::Value, name: &str| Some(package.get(name)?.as_str()?.to_string());
    Ok(packages
        .iter()
        .filter_map(|p| Some(((field(p, "name")?, field(p, "version")?), field(p, "checksum")?)))
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn package(name: &str, license: &str) -> Package {
        Package {
            id: format!("id of {name}"),
            name: name.to_string(),
            version: "1.2.3+more".to_string(),
            license: Some(license.to_string()),
            license_file: None,
            description: None,
            repository: None,
            source: None,
            manifest_path: "Cargo.toml".into(),
        }
    }

    #[test]
    fn a_list_names_every_package_once_with_licence_digest_and_users() {
        let packages = vec![package("mlxcel", "MIT"), package("old", "MIT/Apache-2.0")];
        let uses =
            [("id of mlxcel".to_string(), vec!["id of old".to_string()]), ("id of old".to_string(), vec![])];
        let lock = "[[package]]\nname = \"old\"\nversion = \"1.2.3+more\"\nchecksum = \"abc\"\n";
        let linked = Linked { packages, uses: uses.into() };
        let found = document(&linked, &checksums(lock).unwrap()).unwrap();
        assert_eq!(found["metadata"]["component"]["purl"], "pkg:cargo/mlxcel@1.2.3%2Bmore");
        let old = &found["components"][0];
        assert_eq!(old["licenses"][0]["expression"], "MIT OR Apache-2.0");
        assert_eq!(old["hashes"][0]["content"], "abc");
        assert_eq!(found["dependencies"][0]["dependsOn"][0], "pkg:cargo/old@1.2.3%2Bmore");
        assert_eq!(found["components"].as_array().unwrap().len(), 1);
    }
}
