//! Dense attention.

use mlxcel_ir::{AttentionSpec, Tensor};

use super::{Build, Golden};

pub(super) const CASES: &[(&str, Build)] = &[
    ("attention_full", |g| plain(g, AttentionSpec { causal: false, ..causal(ROOT) })),
    ("attention_causal", |g| plain(g, causal(ROOT))),
    ("attention_causal_behind_a_cache", |g| plain(g, causal(0.3))),
    ("attention_window", |g| plain(g, window(4))),
    ("attention_window_behind_a_cache", behind_a_cache),
    ("attention_window_both_ways", |g| plain(g, AttentionSpec { causal: false, ..window(3) })),
    ("attention_bool_mask", |g| masked(g, "keep", AttentionSpec { causal: false, ..causal(ROOT) })),
    ("attention_bias_mask", |g| masked(g, "bias", AttentionSpec { causal: false, ..causal(0.4) })),
    ("attention_soft_cap", |g| plain(g, AttentionSpec { softcap: Some(2.5), ..causal(3.0) })),
    ("attention_sinks", |g| plain(g, AttentionSpec { sinks: true, ..causal(ROOT) })),
    ("attention_of_shared_heads", |g| plain(g, causal(ROOT))),
    ("attention_of_one_key_head", |g| plain(g, causal(ROOT))),
    ("attention_everything", |g| masked(g, "bias", everything())),
    ("attention_bf16", bf16),
];

/// One over the square root of eight, the width of the heads.
const ROOT: f64 = 0.35355339059327373;

fn causal(scale: f64) -> AttentionSpec {
    AttentionSpec { scale, causal: true, window: None, softcap: None, mask: false, sinks: false }
}

fn window(width: usize) -> AttentionSpec {
    AttentionSpec { window: Some(width), ..causal(ROOT) }
}

fn everything() -> AttentionSpec {
    AttentionSpec { window: Some(5), softcap: Some(4.0), sinks: true, ..causal(0.7) }
}

fn attend<'g>(g: &'g Golden<'_>, mask: Option<Tensor<'g>>, spec: AttentionSpec) -> Tensor<'g> {
    let qkv = ["q", "k", "v"].map(|name| g.x(name));
    let sinks = spec.sinks.then(|| g.x("sinks"));
    g.sketch.b().attention(qkv, mask, sinks, spec)
}

fn plain(g: &Golden<'_>, spec: AttentionSpec) {
    g.y("y", attend(g, None, spec));
}

fn masked(g: &Golden<'_>, name: &str, spec: AttentionSpec) {
    let mask = g.x(name);
    g.y("y", attend(g, Some(mask), spec));
}

/// Computed in two ways by the oracle, once by the graph.
fn behind_a_cache(g: &Golden<'_>) {
    let y = attend(g, None, window(4));
    g.y("y", y);
    g.y("again", y);
}

fn bf16(g: &Golden<'_>) {
    plain(g, causal(ROOT));
    // Scores are kept in f32 and the result is rounded once.
    g.sketch.slacken(0.3);
}
