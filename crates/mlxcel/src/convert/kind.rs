//! Which type each tensor gets. Follows the customs of the two formats: MLX quantises every linear layer and embedding
//! whose rows divide into groups; llama.cpp keeps vectors, norms and routers in f32 and the output layer finer.

use anyhow::{Result, bail};
use clap::ValueEnum;
use mlxcel_ir::{DType, GgufFormat, QuantFormat, ScaleType};

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum WeightType {
    F32,
    F16,
    Bf16,
    Affine2,
    Affine3,
    Affine4,
    Affine5,
    Affine6,
    Affine8,
    #[value(name = "q8_0")]
    Q8_0,
    #[value(name = "q6_k")]
    Q6K,
    #[value(name = "q4_k")]
    Q4K,
    #[value(name = "q4_1")]
    Q4_1,
    #[value(name = "q4_0")]
    Q4_0,
}

impl WeightType {
    /// Refuses a type that the output's format does not have.
    pub fn check(self, is_gguf: bool) -> Result<()> {
        let name = self.to_possible_value().map(|v| v.get_name().to_string()).unwrap_or_default();
        match (is_gguf, self.bits(), self.gguf()) {
            (true, Some(_), _) => {
                bail!(
                    "GGUF files cannot hold {name}; choose a q type, or an output that does not end in .gguf"
                )
            }
            (false, _, Some(_)) => {
                bail!(
                    "safetensors files cannot hold {name}; choose an affine type, or an output that ends in .gguf"
                )
            }
            _ => Ok(()),
        }
    }

    /// The bits of an affine type.
    pub fn bits(self) -> Option<u8> {
        Some(match self {
            WeightType::Affine2 => 2,
            WeightType::Affine3 => 3,
            WeightType::Affine4 => 4,
            WeightType::Affine5 => 5,
            WeightType::Affine6 => 6,
            WeightType::Affine8 => 8,
            _ => return None,
        })
    }

    fn gguf(self) -> Option<GgufFormat> {
        Some(match self {
            WeightType::Q8_0 => GgufFormat::Q8_0,
            WeightType::Q6K => GgufFormat::Q6K,
            WeightType::Q4K => GgufFormat::Q4K,
            WeightType::Q4_1 => GgufFormat::Q4_1,
            WeightType::Q4_0 => GgufFormat::Q4_0,
            _ => return None,
        })
    }

    pub fn plain(self) -> Option<DType> {
        Some(match self {
            WeightType::F32 => DType::F32,
            WeightType::F16 => DType::F16,
            WeightType::Bf16 => DType::BF16,
            _ => return None,
        })
    }

    /// `general.file_type`, by which llama.cpp names the mixture.
    pub fn file_type(self) -> u32 {
        match self {
            WeightType::F32 => 0,
            WeightType::F16 => 1,
            WeightType::Q4_0 => 2,
            WeightType::Q4_1 => 3,
            WeightType::Q8_0 => 7,
            WeightType::Q4K => 14,
            WeightType::Q6K => 18,
            _ => 32,
        }
    }
}

/// A tensor's type, and what to tell where it is not the one asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    pub dtype: DType,
    pub instead_of: Option<DType>,
}

impl Choice {
    fn plain(dtype: DType) -> Self {
        Choice { dtype, instead_of: None }
    }
}

/// What a GGUF tensor needs known to choose its type.
#[derive(Clone, Copy, Debug)]
pub struct GgufTensor<'a> {
    pub name: &'a str,
    pub shape: &'a [usize],
    /// As the source stores it.
    pub stored: Option<DType>,
    /// It computes the logits: the output layer, or the embedding where that serves as one.
    pub is_output: bool,
}

/// Parts of names whose tensors stay in f32 whatever their rank.
const FINE: [&str; 8] = [
    "_norm",
    "ffn_gate_inp",
    "position_embd",
    "token_types",
    "ssm_conv1d",
    "attn_sinks",
    "exp_probs_b",
    "rope_f",
];

/// The type of a tensor in a GGUF file.
pub fn gguf_choice(tensor: GgufTensor<'_>, wanted: Option<WeightType>) -> Choice {
    let is_fine = tensor.shape.len() < 2
        || !tensor.name.ends_with(".weight")
        || FINE.iter().any(|part| tensor.name.contains(part));
    if is_fine {
        return Choice::plain(DType::F32);
    }
    let Some(wanted) = wanted else { return Choice::plain(kept_in_gguf(tensor.stored)) };
    let Some(format) = wanted.gguf() else { return Choice::plain(wanted.plain().unwrap_or(DType::BF16)) };
    let cols = tensor.shape.last().copied().unwrap_or(1);
    let finer = tensor.is_output && format != GgufFormat::Q8_0;
    let format = if finer { GgufFormat::Q6K } else { format };
    let dtype = DType::Quant(QuantFormat::Gguf(format));
    let fallback = match format {
        _ if cols.is_multiple_of(format.block().0) => return Choice::plain(dtype),
        GgufFormat::Q4K if cols.is_multiple_of(32) => DType::Quant(QuantFormat::Gguf(GgufFormat::Q5_0)),
        _ if cols.is_multiple_of(32) => DType::Quant(QuantFormat::Gguf(GgufFormat::Q8_0)),
        _ => DType::F16,
    };
    Choice { dtype: fallback, instead_of: Some(dtype) }
}

/// GGUF has the usual floats and its own formats; all else becomes bf16.
fn kept_in_gguf(stored: Option<DType>) -> DType {
    match stored {
        Some(d @ (DType::F32 | DType::F16 | DType::BF16 | DType::Quant(QuantFormat::Gguf(_)))) => d,
        Some(DType::F64) => DType::F32,
        _ => DType::BF16,
    }
}

/// What a folder's tensors become.
#[derive(Clone, Copy, Debug)]
pub enum FolderType {
    Keep,
    Plain(DType),
    Affine { bits: u8, group: u16 },
}

/// The type of a tensor in a safetensors file. `is_layer` says that it is the weight of a linear layer or an embedding.
pub fn folder_choice(stored: DType, shape: &[usize], wanted: FolderType, is_layer: bool) -> Choice {
    let float = match stored {
        DType::Quant(_) => DType::BF16,
        other => other,
    };
    if !stored.is_float() && !stored.is_quant() {
        return Choice::plain(stored);
    }
    match wanted {
        FolderType::Keep => match stored {
            DType::Quant(QuantFormat::Gguf(_)) => Choice::plain(DType::BF16),
            DType::F64 => Choice::plain(DType::F32),
            _ => Choice::plain(stored),
        },
        FolderType::Plain(dtype) => Choice::plain(dtype),
        FolderType::Affine { bits, group } => {
            let (float, scale) = match float {
                DType::F16 => (DType::F16, ScaleType::F16),
                DType::F32 | DType::F64 => (DType::F32, ScaleType::F32),
                _ => (DType::BF16, ScaleType::BF16),
            };
            let dtype = DType::Quant(QuantFormat::Affine { bits, group, scale });
            let cols = shape.last().copied().unwrap_or(1);
            match (is_layer, cols.is_multiple_of(group as usize)) {
                (true, true) => Choice::plain(dtype),
                (true, false) => Choice { dtype: float, instead_of: Some(dtype) },
                (false, _) => Choice::plain(float),
            }
        }
    }
}

/// One sentence for all tensors of one kind that did not get the type asked for.
pub fn fallback_notes(choices: &[(String, Vec<usize>, Choice)]) -> Vec<String> {
    let mut kinds = std::collections::BTreeMap::<(String, String, usize), Vec<&str>>::new();
    for (name, shape, choice) in choices {
        if let Some(wanted) = choice.instead_of {
            let cols = shape.last().copied().unwrap_or(1);
            let key = (wanted.to_string(), choice.dtype.to_string(), cols);
            kinds.entry(key).or_default().push(name);
        }
    }
    let sentence = |((wanted, got, cols), names): ((String, String, usize), Vec<&str>)| {
        let others = if names.len() > 1 { format!(" and {} more", names.len() - 1) } else { String::new() };
        format!(
            "{}{others}: rows of {cols} do not divide into blocks of {wanted}, written as {got}",
            names[0]
        )
    };
    kinds.into_iter().map(sentence).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gguf(name: &str, shape: &[usize], wanted: WeightType) -> String {
        let is_output = name == "output.weight";
        let tensor = GgufTensor { name, shape, stored: Some(DType::F32), is_output };
        gguf_choice(tensor, Some(wanted)).dtype.to_string()
    }

    #[test]
    fn gguf_types_follow_the_customs_of_llama_cpp() {
        use WeightType::{Bf16, F16, Q4_0, Q4K, Q8_0};
        for (name, shape, wanted, expected) in [
            ("blk.0.ffn_up.weight", &[512, 256][..], Q4K, "q4_k"),
            ("blk.0.ffn_up.weight", &[512, 96], Q4K, "q5_0"),
            ("blk.0.ffn_up.weight", &[512, 100], Q4K, "f16"),
            ("blk.0.ffn_up.weight", &[512, 96], Q4_0, "q4_0"),
            ("output.weight", &[512, 256], Q4K, "q6_k"),
            ("output.weight", &[512, 256], Q4_0, "q6_k"),
            ("output.weight", &[512, 256], Q8_0, "q8_0"),
            ("output.weight", &[512, 96], Q4K, "q8_0"),
            ("output.weight", &[512, 96], Bf16, "bf16"),
            ("blk.0.attn_norm.weight", &[256], Q4K, "f32"),
            ("blk.0.attn_q_norm.weight", &[4, 256], F16, "f32"),
            ("blk.0.ffn_gate_inp.weight", &[8, 256], Q8_0, "f32"),
            ("blk.0.ffn_up_exps.bias", &[8, 256], Q8_0, "f32"),
            ("blk.0.ssm_a", &[8, 256], F16, "f32"),
        ] {
            assert_eq!(gguf(name, shape, wanted), expected, "{name} {shape:?} {wanted:?}");
        }
    }

    #[test]
    fn a_type_that_was_not_asked_for_is_said() {
        let tensor = GgufTensor { name: "a.weight", shape: &[4, 96], stored: None, is_output: false };
        let choice = gguf_choice(tensor, Some(WeightType::Q4K));
        let notes = fallback_notes(&[("a.weight".to_string(), vec![4, 96], choice)]);
        assert_eq!(notes, ["a.weight: rows of 96 do not divide into blocks of q4_k, written as q5_0"]);
    }
}
