//! BERT <https://arxiv.org/abs/1810.04805> as a sentence encoder <https://arxiv.org/abs/1908.10084>: full attention
//! within each sequence, then one normalised vector per sequence.

use mlxcel_ir::{AttentionSpec, DType, Tensor};
use serde::Deserialize;
use serde_json::Value;

use super::{Built, Family, Gguf, ModelKind};
use crate::blocks::{Mlp, Pooling, mlp};
use crate::config::{Common, activation, check_only, read};
use crate::error::ModelError;
use crate::net::{Bias, Net};

pub(super) const FAMILY: Family = Family {
    names: &[
        ("bert.", ""),
        ("*.LayerNorm.gamma", "*.LayerNorm.weight"),
        ("*.LayerNorm.beta", "*.LayerNorm.bias"),
    ],
    ignore: &["pooler.", "cls.", "embeddings.position_ids"],
    gguf: Some(Gguf {
        architecture: "bert",
        names: &[
            ("token_embd", "embeddings.word_embeddings"),
            ("position_embd", "embeddings.position_embeddings"),
            ("token_types", "embeddings.token_type_embeddings"),
            ("token_embd_norm", "embeddings.LayerNorm"),
            ("blk.{}.attn_q", "encoder.layer.{}.attention.self.query"),
            ("blk.{}.attn_k", "encoder.layer.{}.attention.self.key"),
            ("blk.{}.attn_v", "encoder.layer.{}.attention.self.value"),
            ("blk.{}.attn_output", "encoder.layer.{}.attention.output.dense"),
            ("blk.{}.attn_output_norm", "encoder.layer.{}.attention.output.LayerNorm"),
            ("blk.{}.ffn_up", "encoder.layer.{}.intermediate.dense"),
            ("blk.{}.ffn_down", "encoder.layer.{}.output.dense"),
            ("blk.{}.layer_output_norm", "encoder.layer.{}.output.LayerNorm"),
        ],
        interleaved: false,
    }),
    ..Family::new("bert", build)
};

#[derive(Deserialize)]
struct Config {
    layer_norm_eps: Option<f64>,
    pooling_type: Option<u64>,
}

fn build(net: &Net<'_>, config: &Value) -> Result<Built, ModelError> {
    check_only(config, "is_decoder", false)?;
    check_only(config, "add_cross_attention", false)?;
    check_only(config, "position_embedding_type", "absolute")?;
    let c = Common::read(net, config)?;
    let own: Config = read(config)?;
    let (eps, hidden) = (own.layer_norm_eps.unwrap_or(1e-12), c.hidden_size);
    let asked = net.embed.and_then(|options| options.pooling);
    let pooling = asked.map_or_else(|| Pooling::read(net, own.pooling_type), |asked| Ok(Some(asked)))?;
    let act = activation("hidden_act", c.hidden_act.as_deref().unwrap_or("gelu"))?;
    let feed_forward = Mlp { width: c.intermediate_size, activation: act, bias: Bias::Yes };

    let table = net.at("embeddings");
    let words = table.embedding("word_embeddings", net.inputs.tokens, (c.vocab_size, hidden));
    let places = table.embedding("position_embeddings", net.inputs.positions, (c.context(), hidden));
    // A text alone is of the first of two types.
    let name = "token_type_embeddings.weight";
    let types = table.shape_of(name).and_then(|s| s.first().copied()).unwrap_or(2);
    let first_type = table.tensor(name, &[types, hidden]).dequantize(net.dtype).slice(0, 0, 1);
    let mut x = table.layer_norm("LayerNorm", words + first_type + places, eps, Bias::Yes);
    for i in 0..c.num_hidden_layers {
        let layer = net.at(&format!("encoder.layer.{i}"));
        let h = attend(&layer.at("attention.self"), c.heads(), x);
        let h = layer.linear("attention.output.dense", h, hidden, Bias::Yes);
        x = layer.layer_norm("attention.output.LayerNorm", h + x, eps, Bias::Yes);
        let h = mlp(&layer, x, ["intermediate.dense", "output.dense"], feed_forward);
        x = layer.layer_norm("output.LayerNorm", h + x, eps, Bias::Yes);
    }
    pooling.unwrap_or(Pooling::Mean).embeddings(net, x.cast(DType::F32));
    Ok(Built { kind: ModelKind::Embed, ..Built::new(&c, &[]) })
}

/// Every token sees every token of its own sequence.
fn attend<'g>(net: &Net<'g>, (heads, _, dim): (usize, usize, usize), x: Tensor<'g>) -> Tensor<'g> {
    let part = |name: &str| net.linear(name, x, heads * dim, Bias::Yes).split_last(heads, dim).unsqueeze(0);
    let ids = net.inputs.seq_ids;
    let same = ids.unsqueeze(1).eq(ids.unsqueeze(0)); // [tokens, tokens]
    let spec = AttentionSpec {
        scale: (dim as f64).powf(-0.5),
        causal: false,
        window: None,
        softcap: None,
        mask: true,
        sinks: false,
    };
    let out = net.b.attention(["query", "key", "value"].map(part), Some(same), None, spec);
    out.reshape(vec![x.dim(0), (heads * dim).into()])
}
