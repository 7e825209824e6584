//! Which files of a repository are needed, by their names alone.
//!
//! A repository with `config.json` and safetensors gives those with the tokenizer; one with GGUF files gives one of
//! them. PyTorch, ONNX and other copies of the same weights are left out.

use crate::listing::{Listed, Listing};

/// The quantisations that are taken first when a repository has several and nobody chose: small and still good.
pub const GGUF_ORDER: [&str; 9] =
    ["Q4_K_M", "Q8_0", "Q4_0", "Q4_K_S", "Q5_K_M", "Q6_K", "MXFP4", "F16", "BF16"];

/// Beside safetensors, files with these ends are needed: configurations, vocabularies, templates.
const SIDE_FILES: [&str; 5] = [".json", ".txt", ".model", ".jinja", ".tiktoken"];

/// What is wanted of a repository.
#[derive(Clone, Debug, Default)]
pub(crate) struct Wanted<'a> {
    /// From the name: a quantisation, or a file name with or without `*` and `?`.
    pub(crate) pattern: Option<&'a str>,
    /// From `--include` and `--exclude`; if any is given, they replace the choice by format.
    pub(crate) include: &'a [String],
    pub(crate) exclude: &'a [String],
}

/// The chosen files, in the order of their names. Empty if nothing fits.
pub(crate) fn choose<'l>(listing: &'l Listing, wanted: &Wanted<'_>) -> Vec<&'l Listed> {
    let mut files: Vec<&Listed> = listing.files.iter().collect();
    files.sort_by(|a, b| a.path.cmp(&b.path));
    if !wanted.include.is_empty() || !wanted.exclude.is_empty() {
        let any = |patterns: &[String], path: &str| patterns.iter().any(|p| matches_path(p, path));
        files.retain(|file| wanted.include.is_empty() || any(wanted.include, &file.path));
        files.retain(|file| !any(wanted.exclude, &file.path));
        return files;
    }
    let Some(pattern) = wanted.pattern else {
        return if is_safetensors(&files) { safetensors(files) } else { gguf(&files, files.clone()) };
    };
    let matching: Vec<_> = files.iter().copied().filter(|file| fits(pattern, &file.path)).collect();
    let has_gguf = matching.iter().any(|file| is_gguf(&file.path));
    if has_gguf { gguf(&files, matching) } else { matching }
}

/// The file that a program opens: the first GGUF part, or the folder (`None`).
pub(crate) fn entry<'p>(paths: impl Iterator<Item = &'p str>) -> Option<&'p str> {
    let mut gguf: Vec<&str> = Vec::new();
    for path in paths {
        if !is_gguf(path) {
            return None;
        }
        gguf.push(path);
    }
    gguf.sort_unstable();
    let first = *gguf.first()?;
    gguf.iter().all(|path| stem(path) == stem(first)).then_some(first)
}

/// Whether the names are of a model that is all there, as far as names tell: weights, and every part of a split file.
pub(crate) fn has_all_parts(files: &[&Listed]) -> bool {
    let is_weights = |path: &str| path.ends_with(".safetensors") || is_gguf(path);
    let mut weights = files.iter().map(|file| file.path.as_str()).filter(|path| is_weights(path)).peekable();
    let has_part = |stem: &str, number: u32, count: u32, end: &str| {
        let name = format!("{stem}-{number:05}-of-{count:05}{end}");
        files.iter().any(|file| file.path == name)
    };
    let is_complete = |path: &str| match part_of(path) {
        Some((stem, count, end)) => (1..=count).all(|number| has_part(stem, number, count, end)),
        None => true,
    };
    weights.peek().is_some() && weights.all(is_complete)
}

/// The quantisation that a GGUF file's name ends in, if it has one.
pub fn quantisation(path: &str) -> Option<&str> {
    let stem = stem(path.rsplit('/').next()?);
    let tag = stem.rsplit(['-', '.']).next()?;
    let upper = tag.to_ascii_uppercase();
    let is_numbered = |prefix: &str| {
        upper.strip_prefix(prefix).is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
    };
    let is_known = ["Q", "IQ", "TQ", "F", "BF", "MXFP", "NVFP"].iter().any(|prefix| is_numbered(prefix));
    (is_known && tag.len() < stem.len()).then_some(tag)
}

fn is_gguf(path: &str) -> bool {
    path.to_ascii_lowercase().ends_with(".gguf")
}

fn is_safetensors(files: &[&Listed]) -> bool {
    let has = |test: &dyn Fn(&str) -> bool| files.iter().any(|file| test(&file.path));
    has(&|path| path == "config.json") && has(&|path| !path.contains('/') && path.ends_with(".safetensors"))
}

/// The files at the root, and those of the modules that sentence-transformers numbers: `1_Pooling`, `2_Dense`.
fn safetensors(mut files: Vec<&Listed>) -> Vec<&Listed> {
    let is_needed = |path: &str| {
        let (folder, name) = path.rsplit_once('/').unwrap_or(("", path));
        let is_module = |folder: &str| {
            folder.split_once('_').is_some_and(|(n, rest)| n.parse::<u8>().is_ok() && !rest.contains('/'))
        };
        let is_side = SIDE_FILES.iter().any(|end| name.ends_with(end));
        let is_copy = name.starts_with("consolidated") || name.contains(".fp16.");
        (folder.is_empty() || is_module(folder)) && (is_side || name.ends_with(".safetensors")) && !is_copy
    };
    files.retain(|file| is_needed(&file.path));
    files
}

/// One model among the candidates, by [`GGUF_ORDER`], else the first by name; with all its parts.
fn gguf<'l>(all: &[&'l Listed], candidates: Vec<&'l Listed>) -> Vec<&'l Listed> {
    let is_model = |path: &str| {
        let name = path.rsplit('/').next().unwrap_or(path).to_ascii_lowercase();
        is_gguf(path) && !name.contains("mmproj") && !name.contains("imatrix")
    };
    let candidates: Vec<_> = candidates.into_iter().filter(|file| is_model(&file.path)).collect();
    let has = |tag: &str| candidates.iter().find(|file| has_tag(&file.path, tag));
    let Some(first) = GGUF_ORDER.iter().find_map(|tag| has(tag)).or(candidates.first()) else {
        return Vec::new();
    };
    all.iter().copied().filter(|file| is_gguf(&file.path) && stem(&file.path) == stem(&first.path)).collect()
}

/// A pattern of the name: with `*`, `?`, `.` or `/` it is a file name, else a quantisation.
fn fits(pattern: &str, path: &str) -> bool {
    if pattern.contains(['*', '?', '.', '/']) {
        return matches_path(pattern, path);
    }
    is_gguf(path) && has_tag(path, pattern)
}

/// Whether a part of the path, between `/`, `-` and `.`, is the tag.
fn has_tag(path: &str, tag: &str) -> bool {
    path.split(['/', '-', '.']).any(|part| part.eq_ignore_ascii_case(tag))
}

/// A pattern without `/` is matched against the last component, else against the whole path.
fn matches_path(pattern: &str, path: &str) -> bool {
    let target = if pattern.contains('/') { path } else { path.rsplit('/').next().unwrap_or(path) };
    is_match(pattern.as_bytes(), target.as_bytes())
}

/// `*` is any run of bytes, `?` any byte. Linear in practice: only the last `*` is ever tried again.
fn is_match(pattern: &[u8], text: &[u8]) -> bool {
    let (mut p, mut t) = (0, 0);
    let mut star: Option<(usize, usize)> = None;
    while t < text.len() {
        if pattern.get(p) == Some(&b'*') {
            star = Some((p, t));
            p += 1;
        } else if pattern.get(p).is_some_and(|&c| c == b'?' || c == text[t]) {
            (p, t) = (p + 1, t + 1);
        } else if let Some((at, from)) = star {
            star = Some((at, from + 1));
            (p, t) = (at + 1, from + 1);
        } else {
            return false;
        }
    }
    pattern[p..].iter().all(|&c| c == b'*')
}

/// The path without its extension and without the number of a part.
fn stem(path: &str) -> &str {
    match part_of(path) {
        Some((stem, ..)) => stem,
        None => path.rsplit_once('.').map_or(path, |(stem, _)| stem),
    }
}

/// `name-00002-of-00005.ext` taken apart: `name`, 5, `.ext`.
fn part_of(path: &str) -> Option<(&str, u32, &str)> {
    let dot = path.rfind('.')?;
    let (rest, count) = path[..dot].rsplit_once("-of-")?;
    let (stem, number) = rest.rsplit_once('-')?;
    let parse = |digits: &str| digits.parse::<u32>().ok().filter(|_| digits.len() == 5);
    parse(number)?;
    Some((stem, parse(count).filter(|count| (1..=10_000).contains(count))?, &path[dot..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listing(paths: &[&str]) -> Listing {
        let file = |path: &&str| Listed { path: path.to_string(), size: 1, digest: None };
        Listing { commit: "c".into(), files: paths.iter().map(file).collect() }
    }

    fn chosen(paths: &[&str], pattern: Option<&str>) -> Vec<String> {
        let listing = listing(paths);
        let wanted = Wanted { pattern, ..Wanted::default() };
        choose(&listing, &wanted).iter().map(|file| file.path.clone()).collect()
    }

    #[test]
    fn a_safetensors_repository_gives_weights_configuration_and_tokenizer() {
        let paths = [
            ".gitattributes",
            "1_Pooling/config.json",
            "README.md",
            "config.json",
            "consolidated.safetensors",
            "merges.txt",
            "model-00001-of-00002.safetensors",
            "model-00002-of-00002.safetensors",
            "model.safetensors.index.json",
            "onnx/model.onnx",
            "onnx/config.json",
            "original/consolidated.00.pth",
            "pytorch_model.bin",
            "tf_model.h5",
            "tokenizer.json",
            "tokenizer.model",
            "chat_template.jinja",
            "openvino/openvino_model.bin",
            "model.fp16.safetensors",
        ];
        let expected = [
            "1_Pooling/config.json",
            "chat_template.jinja",
            "config.json",
            "merges.txt",
            "model-00001-of-00002.safetensors",
            "model-00002-of-00002.safetensors",
            "model.safetensors.index.json",
            "tokenizer.json",
            "tokenizer.model",
        ];
        assert_eq!(chosen(&paths, None), expected);
    }

    const QUANTS: [&str; 7] = [
        "README.md",
        "m-BF16.gguf",
        "m-Q2_K.gguf",
        "m-Q4_K_M.gguf",
        "m-Q4_K_S.gguf",
        "m-Q8_0.gguf",
        "mmproj-F16.gguf",
    ];

    #[test]
    fn among_several_quantisations_the_default_or_the_named_one_is_taken() {
        assert_eq!(chosen(&QUANTS, None), ["m-Q4_K_M.gguf"]);
        assert_eq!(chosen(&QUANTS, Some("q8_0")), ["m-Q8_0.gguf"]);
        assert_eq!(chosen(&QUANTS, Some("*Q2*")), ["m-Q2_K.gguf"]);
        assert_eq!(chosen(&QUANTS, Some("*.gguf")), ["m-Q4_K_M.gguf"]);
        assert_eq!(chosen(&QUANTS, Some("m-BF16.gguf")), ["m-BF16.gguf"]);
        assert!(chosen(&QUANTS, Some("Q4_K")).is_empty(), "Q4_K is not Q4_K_M");
        assert!(chosen(&["README.md"], None).is_empty());
        assert_eq!(chosen(&["x.gguf", "y.gguf"], None), ["x.gguf"]);
    }

    #[test]
    fn every_part_of_a_split_file_is_taken() {
        let paths = [
            "Q4_K_M/m-00001-of-00002.gguf",
            "Q4_K_M/m-00002-of-00002.gguf",
            "Q8_0/m-00001-of-00002.gguf",
            "Q8_0/m-00002-of-00002.gguf",
        ];
        assert_eq!(chosen(&paths, None), paths[..2]);
        assert_eq!(chosen(&paths, Some("Q8_0")), paths[2..]);
        assert_eq!(entry(paths[2..].iter().copied()), Some(paths[2]));
        assert_eq!(entry(paths.iter().copied()), None);
        assert_eq!(entry(["config.json", "m.gguf"].into_iter()), None);
        let all = listing(&paths);
        assert!(has_all_parts(&all.files.iter().collect::<Vec<_>>()));
        assert!(!has_all_parts(&all.files[..1].iter().collect::<Vec<_>>()));
        assert!(!has_all_parts(&[]));
    }

    #[test]
    fn include_and_exclude_replace_the_choice_by_format() {
        let listing = listing(&["config.json", "a/config.json", "m.bin", "m.safetensors"]);
        let strings = |list: &[&str]| list.iter().map(|s| s.to_string()).collect::<Vec<_>>();
        let (include, exclude) = (strings(&["*.json", "m.bin"]), strings(&["a/*"]));
        let wanted = Wanted { pattern: None, include: &include, exclude: &exclude };
        let paths: Vec<_> = choose(&listing, &wanted).iter().map(|file| file.path.as_str()).collect();
        assert_eq!(paths, ["config.json", "m.bin"]);
    }

    #[test]
    fn patterns_match_as_in_a_shell() {
        for (pattern, text, expected) in [
            ("*", "", true),
            ("a*c", "abbc", true),
            ("a*c", "ab", false),
            ("?", "", false),
            ("??", "ab", true),
            ("*a*a*a*b", &"a".repeat(200), false),
            ("a.b", "aXb", false),
        ] {
            assert_eq!(is_match(pattern.as_bytes(), text.as_bytes()), expected, "{pattern} {text}");
        }
    }

    #[test]
    fn the_quantisation_is_read_off_the_name() {
        assert_eq!(quantisation("a/m-Q4_K_M.gguf"), Some("Q4_K_M"));
        assert_eq!(quantisation("SmolLM2-135M-Instruct.Q4_1.gguf"), Some("Q4_1"));
        assert_eq!(quantisation("m-IQ3_XXS-00001-of-00003.gguf"), Some("IQ3_XXS"));
        assert_eq!(quantisation("m-bf16.gguf"), Some("bf16"));
        assert_eq!(quantisation("qwen3.gguf"), None);
    }
}
