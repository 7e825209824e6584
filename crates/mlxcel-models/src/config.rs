//! Configuration: JSON in the dialects of Hugging Face's `config.json`. GGUF metadata is brought to the same JSON
//! before any family sees it.

use mlxcel_ir::Activation;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::blocks::{Attention, Head, Mlp};
use crate::error::ModelError;
use crate::net::Net;

/// Reads a struct from the configuration; errors name the field.
pub fn read<T: DeserializeOwned>(config: &Value) -> Result<T, ModelError> {
    serde_path_to_error::deserialize(config).map_err(|e| {
        let reason = e.inner().to_string();
        // A missing field is reported at its parent; serde's sentence has its name.
        let named =
            reason.split('`').nth(1).filter(|_| reason.starts_with("missing field")).map(str::to_string);
        ModelError::Field { field: named.unwrap_or_else(|| e.path().to_string()), reason }
    })
}

/// What decoders of the Llama line share. Names are those of `config.json`.
#[derive(Clone, Debug, Deserialize)]
pub struct Common {
    pub vocab_size: usize,
    pub hidden_size: usize,
    pub num_hidden_layers: usize,
    pub num_attention_heads: usize,
    pub num_key_value_heads: Option<usize>,
    pub head_dim: Option<usize>,
    pub intermediate_size: usize,
    pub max_position_embeddings: Option<usize>,
    pub tie_word_embeddings: Option<bool>,
    #[serde(default)]
    pub attention_bias: bool,
    #[serde(default)]
    pub mlp_bias: bool,
    pub sliding_window: Option<usize>,
    pub layer_types: Option<Vec<LayerType>>,
    pub rms_norm_eps: Option<f64>,
    pub hidden_act: Option<String>,
}

/// Whether a family shares embedding and output where the configuration is silent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tied {
    No,
    Yes,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LayerType {
    FullAttention,
    SlidingAttention,
}

impl Common {
    /// Reads and checks the shared fields: a hostile number is refused before anything is built from it.
    pub fn read(net: &Net<'_>, config: &Value) -> Result<Common, ModelError> {
        let c: Common = read(config)?;
        let sizes = [
            ("vocab_size", c.vocab_size),
            ("hidden_size", c.hidden_size),
            ("num_hidden_layers", c.num_hidden_layers),
            ("num_attention_heads", c.num_attention_heads),
            ("num_key_value_heads", c.kv_heads()),
            ("head_dim", c.head_dim()),
            ("intermediate_size", c.intermediate_size),
            ("max_position_embeddings", c.context()),
            ("sliding_window", c.sliding_window.unwrap_or(1)),
        ];
        check_sizes(&sizes)?;
        check_layers(net, "num_hidden_layers", c.num_hidden_layers)?;
        if !c.num_attention_heads.is_multiple_of(c.kv_heads()) {
            let reason = format!("{} query heads do not divide by {}", c.num_attention_heads, c.kv_heads());
            return Err(ModelError::field("num_key_value_heads", reason));
        }
        if c.layer_types.as_ref().is_some_and(|t| t.len() != c.num_hidden_layers) {
            return Err(ModelError::field(
                "layer_types",
                format!("expected {} entries", c.num_hidden_layers),
            ));
        }
        Ok(c)
    }

    pub fn kv_heads(&self) -> usize {
        self.num_key_value_heads.unwrap_or(self.num_attention_heads)
    }

    pub fn head_dim(&self) -> usize {
        self.head_dim.unwrap_or(self.hidden_size.checked_div(self.num_attention_heads).unwrap_or(0))
    }

    /// Query heads, key heads and their width.
    pub fn heads(&self) -> (usize, usize, usize) {
        (self.num_attention_heads, self.kv_heads(), self.head_dim())
    }

    pub fn context(&self) -> usize {
        self.max_position_embeddings.unwrap_or(2048)
    }

    /// The epsilon of the RMS norms.
    pub fn eps(&self, by_default: f64) -> f64 {
        self.rms_norm_eps.unwrap_or(by_default)
    }

    /// `hidden_act`, silu where it is not given.
    pub fn activation(&self) -> Result<Activation, ModelError> {
        activation("hidden_act", self.hidden_act.as_deref().unwrap_or("silu"))
    }

    /// The gated feed-forward layer of the Llama line.
    pub fn mlp(&self) -> Result<Mlp, ModelError> {
        Ok(Mlp { width: self.intermediate_size, activation: self.activation()?, bias: self.mlp_bias.into() })
    }

    /// Attention of layer `i` with the biases of the configuration.
    pub fn attention(&self, i: usize) -> Attention<'_> {
        Attention {
            qkv_bias: self.attention_bias.into(),
            out_bias: self.attention_bias.into(),
            ..Attention::new(i, self.heads())
        }
    }

    /// The output layer, shared with the embedding as the configuration or the family's custom says.
    pub fn head(&self, tied_by_default: Tied) -> Head<'static> {
        let tied = self.tie_word_embeddings.unwrap_or(tied_by_default == Tied::Yes);
        Head::new(tied, "model.embed_tokens", self.vocab_size)
    }

    /// The window of layer `i`: where `layer_types` is given it decides, else `by_default` does.
    pub fn window(&self, i: usize, by_default: impl Fn(usize) -> bool) -> Option<usize> {
        let slides = match &self.layer_types {
            Some(types) => types[i] == LayerType::SlidingAttention,
            None => by_default(i),
        };
        self.sliding_window.filter(|_| slides)
    }
}

/// No size may be zero or absurd.
pub fn check_sizes(sizes: &[(&str, usize)]) -> Result<(), ModelError> {
    for &(field, size) in sizes {
        if size == 0 || size > 1 << 30 {
            return Err(ModelError::field(field, format!("{size} is not a possible size")));
        }
    }
    Ok(())
}

/// A checkpoint cannot have more layers than tensors.
pub fn check_layers(net: &Net<'_>, field: &str, layers: usize) -> Result<(), ModelError> {
    if layers > net.tensor_count() {
        return Err(ModelError::field(
            field,
            format!("{layers} layers, but only {} tensors", net.tensor_count()),
        ));
    }
    Ok(())
}

/// The activation of a name as configurations spell it.
pub fn activation(field: &str, name: &str) -> Result<Activation, ModelError> {
    Ok(match name {
        "silu" | "swish" => Activation::Silu,
        "gelu" => Activation::Gelu,
        "gelu_new" | "gelu_pytorch_tanh" | "gelu_fast" => Activation::GeluTanh,
        "quick_gelu" => Activation::QuickGelu,
        "relu" => Activation::Relu,
        "relu2" => Activation::Relu2,
        _ => return Err(ModelError::field(field, format!("unknown activation '{name}'"))),
    })
}

/// The configuration with other spellings of fields, `(other, usual)`, under the usual ones.
pub fn renamed(config: &Value, spellings: &[(&str, &str)]) -> Value {
    let mut config = config.clone();
    if let Some(fields) = config.as_object_mut() {
        for (other, usual) in spellings {
            if let (false, Some(v)) = (fields.contains_key(*usual), fields.get(*other).cloned()) {
                fields.insert(usual.to_string(), v);
            }
        }
    }
    config
}

/// Refuses a field that is given and is anything but the only value that is understood.
pub fn check_only(config: &Value, field: &str, understood: impl Into<Value>) -> Result<(), ModelError> {
    let understood = understood.into();
    match config.get(field).filter(|v| !v.is_null() && **v != understood) {
        Some(v) => Err(ModelError::field(field, format!("{v} is not supported, only {understood}"))),
        None => Ok(()),
    }
}
