//! `{% generation %}` … `{% endgeneration %}`: tags with which training marks the assistant's words. They
//! print their content as it is, so they are rewritten to a condition that always holds.

use std::borrow::Cow;

/// The template with its generation tags rewritten; the blanks they trim stay trimmed.
pub(super) fn rewrite(source: &str) -> Cow<'_, str> {
    if !source.contains("generation") {
        return Cow::Borrowed(source);
    }
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(start) = rest.find("{%") {
        let (before, tag) = rest.split_at(start);
        out.push_str(before);
        match tag.find("%}").and_then(|end| replacement(&tag[2..end]).map(|new| (new, end))) {
            Some((new, end)) => {
                out.push_str(&new);
                rest = &tag[end + 2..];
            }
            None => {
                out.push_str("{%");
                rest = &tag[2..];
            }
        }
    }
    out.push_str(rest);
    Cow::Owned(out)
}

fn replacement(inner: &str) -> Option<String> {
    let signs: &[_] = &['-', '+'];
    let body = inner.trim_start_matches(signs).trim_end_matches(signs);
    let new = match body.trim() {
        "generation" => "if true",
        "endgeneration" => "endif",
        _ => return None,
    };
    let open = if inner.starts_with(signs) { &inner[..1] } else { "" };
    let close = if inner.ends_with(signs) { &inner[inner.len() - 1..] } else { "" };
    Some(format!("{{%{open} {new} {close}%}}"))
}

#[cfg(test)]
mod tests {
    use super::rewrite;

    #[test]
    fn generation_tags_become_conditions_and_keep_their_trimming() {
        assert_eq!(
            rewrite("a {%- generation %}b{% endgeneration -%} c {%generation+%}"),
            "a {%- if true %}b{% endif -%} c {% if true +%}"
        );
    }

    #[test]
    fn everything_else_is_left_alone() {
        let source =
            "{% if add_generation_prompt %}{{ generation }}{% set generation = 1 %}{% unclosed generation";
        assert_eq!(rewrite(source), source);
    }
}
