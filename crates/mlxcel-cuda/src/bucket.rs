//! Sizes that steps are laid out for. A step of a model is padded to the next of a few sizes, and every block table to a power
//! of two, so that the same row of kernels serves many steps. Graphs that are no model's step are never padded.

use mlxcel_ir::{Bindings, DType, Graph, HostTensor, Op, Type, Value};

/// The inputs that a padded tail is harmless in, by name: those of a step.
const STEP_INPUTS: [&str; 15] = [
    "tokens",
    "positions",
    "seq_ids",
    "slot_mapping",
    "block_table",
    "slot_ids",
    "known_lens",
    "logit_rows",
    "query_lens",
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "seed",
    "step",
];

/// Whether a graph is the step of a model.
pub(crate) fn is_step(graph: &Graph) -> bool {
    let mut names = graph.inputs().filter_map(|(_, n)| match &n.op {
        Op::Input { name, .. } => Some(name.as_str()),
        _ => None,
    });
    graph.symbols().contains("tokens") && names.all(|n| STEP_INPUTS.contains(&n))
}

/// Whether the values differ from padded ones only in how far their first axis goes.
pub(crate) fn can_be_cut(graph: &Graph, wanted: &[Value]) -> bool {
    let fixed = |t: &Type| t.shape.iter().skip(1).all(|d| d.symbols().next().is_none());
    wanted.iter().all(|v| fixed(graph.ty(*v)))
}

/// The sizes to lay a step out for.
pub(crate) fn bucketed(exact: &Bindings) -> Bindings {
    let of = |name: &str| exact.get(name).copied();
    let mut sizes = exact.clone();
    if let Some(pages) = of("pages") {
        sizes.insert("pages".to_string(), pages.next_power_of_two().max(4));
    }
    let Some(tokens) = of("tokens") else { return sizes };
    let one_each = of("sequences").is_none_or(|s| s == tokens) && of("rows").is_none_or(|r| r == tokens);
    if one_each && tokens > 0 {
        for name in ["tokens", "sequences", "rows"] {
            if let Some(size) = sizes.get_mut(name) {
                *size = ceiling(tokens);
            }
        }
    } else if tokens > 0 && of("rows").is_some() {
        // Prompts, alone or among single tokens: there are many mixtures, and each is used once.
        sizes.insert(
            "tokens".to_string(),
            if tokens <= 64 { ceiling(tokens) } else { tokens.next_multiple_of(64) },
        );
        for name in ["sequences", "rows"] {
            if let Some(size) = sizes.get_mut(name).filter(|size| **size > 0) {
                *size = size.next_power_of_two();
            }
        }
    }
    sizes
}

/// The next size up: every number to eight, then steps of an eighth to a quarter.
fn ceiling(n: usize) -> usize {
    if n <= 8 { n } else { n.next_multiple_of((n.next_power_of_two() / 8).max(4)) }
}

/// Copies a fed tensor into the room of a padded one.
pub(crate) fn pad(room: &mut [u8], t: &HostTensor, shape: &[usize], pad: &[u8]) {
    if t.shape() == shape {
        room.copy_from_slice(t.bytes());
        return;
    }
    for place in room.chunks_exact_mut(pad.len()) {
        place.copy_from_slice(pad);
    }
    let (from, to) = (t.shape(), shape);
    let row = |s: &[usize]| s.get(1..).map_or(1, |rest| rest.iter().product::<usize>()) * pad.len();
    let (short, long) = (row(from), row(to));
    if short == 0 {
        return;
    }
    for (bytes, place) in t.bytes().chunks_exact(short).zip(room.chunks_mut(long)) {
        place[..short].copy_from_slice(bytes);
    }
}

/// The bytes of a pad value.
pub(crate) fn pad_bytes(dtype: DType, pad: i64) -> Vec<u8> {
    HostTensor::from_f64(dtype, &[], &[pad as f64]).bytes().to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sizes(pairs: &[(&str, usize)]) -> Bindings {
        pairs.iter().map(|(n, s)| (n.to_string(), *s)).collect()
    }

    #[test]
    fn steps_of_one_token_each_share_sizes_and_so_do_prompts() {
        let decode = sizes(&[("tokens", 13), ("sequences", 13), ("rows", 13), ("pages", 5)]);
        let expected = sizes(&[("tokens", 16), ("sequences", 16), ("rows", 16), ("pages", 8)]);
        assert_eq!(bucketed(&decode), expected);
        let prompt = sizes(&[("tokens", 13), ("sequences", 1), ("rows", 1), ("pages", 1)]);
        let expected = sizes(&[("tokens", 16), ("sequences", 1), ("rows", 1), ("pages", 4)]);
        assert_eq!(bucketed(&prompt), expected);
        let mixed = sizes(&[("tokens", 500), ("sequences", 130), ("rows", 129), ("pages", 9)]);
        let expected = sizes(&[("tokens", 512), ("sequences", 256), ("rows", 256), ("pages", 16)]);
        assert_eq!(bucketed(&mixed), expected);
        let embedding = sizes(&[("tokens", 13), ("sequences", 1)]);
        assert_eq!(bucketed(&embedding), embedding);
    }

    #[test]
    fn a_ceiling_is_never_far() {
        for n in 1..3000 {
            let c = ceiling(n);
            assert!(c >= n && (c <= n + 4 || c as f64 <= n as f64 * 1.25), "{n} {c}");
        }
    }

    #[test]
    fn a_table_is_padded_on_both_sides() {
        let t = HostTensor::new(&[2, 2], &[1i32, 2, 3, 4]);
        let mut room = [0u8; 48];
        pad(&mut room, &t, &[3, 4], &pad_bytes(DType::I32, -1));
        let padded = HostTensor::from_bytes(DType::I32, vec![3, 4], room.to_vec()).unwrap();
        assert_eq!(padded.to_i64(), [1, 2, -1, -1, 3, 4, -1, -1, -1, -1, -1, -1]);
    }
}
