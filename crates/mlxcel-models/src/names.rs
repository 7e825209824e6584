//! Tensor names. A family is written with the names Hugging Face publishes; other spellings (GGUF, MLX, older
//! releases) are brought to those by tables of rules.

use std::collections::BTreeMap;

use crate::error::ModelError;

/// `from` is rewritten to `to`. A rule matches whole dotted segments at the start of a name; `{}` stands for a
/// number on both sides. The first match counts. After that, the first matching rule that begins with `*` rewrites
/// the end of the name.
pub type Rule = (&'static str, &'static str);

/// Published name to the name in the file.
#[derive(Debug, Default)]
pub struct Names(BTreeMap<String, String>);

impl Names {
    /// Applies `rules` to every name of a file.
    pub fn new<'a>(files: impl Iterator<Item = &'a str>, rules: &[Rule]) -> Result<Names, ModelError> {
        let mut map = BTreeMap::new();
        for file in files {
            let published = rules.iter().find_map(|r| apply(r, file)).unwrap_or_else(|| file.to_string());
            let published = rules.iter().find_map(|r| apply_to_end(r, &published)).unwrap_or(published);
            if let Some(first) = map.insert(published.clone(), file.to_string()) {
                return Err(ModelError::Ambiguous { name: published, first, second: file.to_string() });
            }
        }
        Ok(Names(map))
    }

    pub fn file_name(&self, published: &str) -> Option<&str> {
        self.0.get(published).map(String::as_str)
    }

    /// All pairs of published and file name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(p, f)| (p.as_str(), f.as_str()))
    }
}

/// The name with one rule applied, if it matches.
pub(crate) fn rename(rule: &(&str, &str), name: &str) -> Option<String> {
    apply(rule, name)
}

fn apply((from, to): &(&str, &str), name: &str) -> Option<String> {
    let (head, tail) = from.split_once("{}").map_or((*from, None), |(h, t)| (h, Some(t)));
    let rest = name.strip_prefix(head)?;
    let (number, rest) = match tail {
        None => ("", rest),
        Some(tail) => {
            let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
            (&rest[..digits], rest[digits..].strip_prefix(tail)?)
        }
    };
    let whole_segment = rest.is_empty() || rest.starts_with('.') || from.ends_with('.');
    let numbered = tail.is_none() || !number.is_empty();
    (whole_segment && numbered).then(|| format!("{}{rest}", to.replacen("{}", number, 1)))
}

fn apply_to_end((from, to): &Rule, name: &str) -> Option<String> {
    let head = name.strip_suffix(from.strip_prefix('*')?)?;
    Some(format!("{head}{}", to.strip_prefix('*')?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_rewrite_whole_segments_and_carry_the_layer_number() {
        let rule = ("blk.{}.attn_q", "model.layers.{}.self_attn.q_proj");
        assert_eq!(apply(&rule, "blk.12.attn_q.weight").unwrap(), "model.layers.12.self_attn.q_proj.weight");
        assert_eq!(apply(&rule, "blk.12.attn_q_norm.weight"), None);
        assert_eq!(apply(&rule, "blk.x.attn_q.weight"), None);
        assert_eq!(apply(&("output", "lm_head"), "output_norm.weight"), None);
        assert_eq!(
            apply(&("h.", "transformer.h."), "h.3.ln_1.weight").unwrap(),
            "transformer.h.3.ln_1.weight"
        );
    }

    #[test]
    fn rules_for_the_end_apply_after_those_for_the_beginning() {
        let rules: &[Rule] = &[("bert.", ""), ("*.gamma", "*.weight")];
        let names = Names::new(["bert.norm.gamma", "other.gamma.bias"].into_iter(), rules).unwrap();
        assert_eq!(names.file_name("norm.weight"), Some("bert.norm.gamma"));
        assert_eq!(names.file_name("other.gamma.bias"), Some("other.gamma.bias"));
    }

    #[test]
    fn two_files_for_one_name_are_refused() {
        let rules: &[Rule] = &[("b", "a")];
        assert!(Names::new(["a.x", "b.x"].into_iter(), rules).is_err());
    }
}
