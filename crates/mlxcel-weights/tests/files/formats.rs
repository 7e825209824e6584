//! Decoding against values that the formats' own Python packages computed: the block formats of GGUF in the fixtures
//! of the workspace, everything else in those of this crate (see `fixtures/make_*.py`).

use std::path::PathBuf;

use mlxcel_ir::{DType, GgufFormat, HostTensor, QuantFormat, ScaleType};
use mlxcel_weights::quant::encode_affine;
use mlxcel_weights::{Bytes, Checkpoint, WeightTensor};

fn fixture(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)
}

fn open(name: &str) -> Checkpoint {
    Checkpoint::open(fixture(name)).unwrap()
}

fn values(checkpoint: &Checkpoint, name: &str) -> Vec<f32> {
    checkpoint.tensor(name).unwrap().to_f32()
}

/// Packed bytes, and the values the `gguf` package gives them.
fn dequant(file: &str) -> (WeightTensor, Vec<f32>) {
    let checkpoint = open(&format!("../../../../fixtures/gguf/dequant/{file}.safetensors"));
    (checkpoint.tensor("raw").unwrap(), values(&checkpoint, "values"))
}

/// Checks one block format against its fixture, whole and in pieces.
fn check_gguf(format: GgufFormat, file: &str) {
    let (raw, expected) = dequant(file);
    let (length, _) = format.block();
    let dtype = DType::Quant(QuantFormat::Gguf(format));
    let tensor = WeightTensor::new(dtype, vec![2, expected.len() / 2], raw.parts).unwrap();
    assert_eq!(tensor.to_f32(), expected);
    let decoder = tensor.decoder();
    let mut piece = vec![0.0; length];
    decoder.decode(1, length, &mut piece);
    assert_eq!(piece, expected[expected.len() / 2 + length..][..length]);
}

macro_rules! block_formats {
    ($($test:ident: $format:ident, $file:literal;)*) => {$(
        #[test]
        fn $test() {
            check_gguf(GgufFormat::$format, $file);
        }
    )*};
}

block_formats! {
    q4_0_decodes_as_the_gguf_package_does: Q4_0, "Q4_0";
    q4_1_decodes_as_the_gguf_package_does: Q4_1, "Q4_1";
    q5_0_decodes_as_the_gguf_package_does: Q5_0, "Q5_0";
    q5_1_decodes_as_the_gguf_package_does: Q5_1, "Q5_1";
    q8_0_decodes_as_the_gguf_package_does: Q8_0, "Q8_0";
    q2_k_decodes_as_the_gguf_package_does: Q2K, "Q2_K";
    q3_k_decodes_as_the_gguf_package_does: Q3K, "Q3_K";
    q4_k_decodes_as_the_gguf_package_does: Q4K, "Q4_K";
    q5_k_decodes_as_the_gguf_package_does: Q5K, "Q5_K";
    q6_k_decodes_as_the_gguf_package_does: Q6K, "Q6_K";
    iq4_nl_decodes_as_the_gguf_package_does: Iq4Nl, "IQ4_NL";
    iq4_xs_decodes_as_the_gguf_package_does: Iq4Xs, "IQ4_XS";
    iq2_xxs_decodes_as_the_gguf_package_does: Iq2Xxs, "IQ2_XXS";
    iq3_xxs_decodes_as_the_gguf_package_does: Iq3Xxs, "IQ3_XXS";
    mxfp4_of_gguf_decodes_as_the_gguf_package_does: MxFp4, "MXFP4";
}

#[test]
fn plain_floats_of_gguf_decode_as_the_gguf_package_does() {
    for (dtype, file) in [(DType::F32, "F32"), (DType::F16, "F16"), (DType::BF16, "BF16")] {
        let (raw, expected) = dequant(file);
        let tensor = WeightTensor::new(dtype, vec![expected.len()], raw.parts).unwrap();
        assert_eq!(tensor.to_f32(), expected, "{dtype}");
    }
}

/// Every affine module of the fixture: its name, bits, group and scale type as the name says them.
fn affine_modules() -> Vec<(String, DType)> {
    let scales = [("f32", ScaleType::F32), ("f16", ScaleType::F16), ("bf16", ScaleType::BF16)];
    let mut modules = Vec::new();
    for bits in [2, 3, 4, 5, 6, 8] {
        for (name, scale) in scales {
            let format = QuantFormat::Affine { bits, group: 64, scale };
            modules.push((format!("b{bits}_g64_{name}"), DType::Quant(format)));
        }
    }
    let affine = |bits, group, scale| DType::Quant(QuantFormat::Affine { bits, group, scale });
    modules.push(("b4_g32_f16".into(), affine(4, 32, ScaleType::F16)));
    modules.push(("b3_g128_f32".into(), affine(3, 128, ScaleType::F32)));
    modules.push(("b4_g64_bf16_stacked".into(), affine(4, 64, ScaleType::BF16)));
    modules
}

#[test]
fn affine_tensors_packed_by_mlx_decode_to_the_values_numpy_computes() {
    let checkpoint = open("affine");
    for (module, dtype) in affine_modules() {
        let tensor = checkpoint.tensor(&format!("{module}.weight")).unwrap();
        let expected = checkpoint.tensor(&format!("{module}.values")).unwrap();
        assert_eq!((tensor.dtype, &tensor.shape), (dtype, &expected.shape), "{module}");
        assert_eq!(tensor.to_f32(), expected.to_f32(), "{module}");
        let written = Bytes::filled(4 * tensor.elements(), |out| tensor.write_f32(out));
        assert_eq!(*written, *expected.parts[0], "{module}");
        assert!(tensor.parts.iter().all(|p| p.is_mapped()), "{module} was copied");
        assert!(checkpoint.info(&format!("{module}.scales")).is_none(), "scales are part of their tensor");
    }
}

#[test]
fn affine_rows_decode_from_any_group_on() {
    let checkpoint = open("affine");
    let tensor = checkpoint.tensor("b3_g64_f16.weight").unwrap();
    let expected = values(&checkpoint, "b3_g64_f16.values");
    let mut out = [0.0; 64];
    tensor.decoder().decode(2, 64, &mut out);
    assert_eq!(out, expected[2 * 128 + 64..][..64]);
}

#[test]
fn the_affine_encoder_chooses_the_codes_scales_and_biases_that_mlx_chooses() {
    let checkpoint = open("affine");
    for bits in [2, 3, 4, 5, 6, 8] {
        let input = checkpoint.tensor(&format!("b{bits}_g64_f32.input")).unwrap();
        let theirs = checkpoint.tensor(&format!("b{bits}_g64_f32.weight")).unwrap();
        let ours = encode_affine(&input.to_f32(), input.shape[1], bits, 64).unwrap();
        assert_eq!((ours.dtype, &ours.shape), (theirs.dtype, &theirs.shape));
        for (part, (ours, theirs)) in ours.parts.iter().zip(&theirs.parts).enumerate() {
            assert_eq!(**ours, **theirs, "{bits} bits, part {part}");
        }
    }
}

#[test]
fn the_affine_encoder_refuses_rows_that_do_not_divide() {
    for (cols, bits, group) in [(64, 4, 48), (0, 4, 64), (64, 7, 64), (64, 4, 0), (64, 4, 4), (40, 3, 40)] {
        assert!(encode_affine(&[0.0; 640], cols, bits, group).is_err(), "{cols} {bits} {group}");
    }
}

#[test]
fn mxfp4_words_of_mlx_decode_as_mlx_decodes_them() {
    let checkpoint = open("affine");
    let tensor = checkpoint.tensor("mx.weight").unwrap();
    assert_eq!((tensor.dtype, &tensor.shape[..]), (DType::Quant(QuantFormat::MxFp4), &[2, 3, 96][..]));
    assert_eq!(tensor.to_f32(), values(&checkpoint, "mx.values"));
}

#[test]
fn mxfp4_blocks_of_experts_decode_as_transformers_decodes_them() {
    let checkpoint = open("mxfp4");
    let tensor = checkpoint.tensor("experts.proj").unwrap();
    assert_eq!((tensor.dtype, &tensor.shape[..]), (DType::Quant(QuantFormat::MxFp4), &[2, 3, 128][..]));
    assert_eq!(tensor.to_f32(), values(&checkpoint, "experts.proj_values"));
    let names: Vec<&str> = checkpoint.names().collect();
    assert_eq!(names, ["experts.proj", "experts.proj_values"]);
}

#[test]
fn every_plain_type_of_safetensors_decodes_as_torch_does() {
    let checkpoint = open("dtypes.safetensors");
    for dtype in DType::PLAIN {
        let tensor = checkpoint.tensor(&dtype.to_string()).unwrap();
        assert_eq!((tensor.dtype, &tensor.shape[..]), (dtype, &[3, 5][..]));
        assert_eq!(tensor.to_f32(), values(&checkpoint, &format!("{dtype}.values")), "{dtype}");
        let address = tensor.parts[0].as_ptr().addr();
        assert!(address.is_multiple_of(dtype.size().unwrap()), "{dtype} is not aligned");
    }
    assert_eq!(checkpoint.info("empty"), Some((DType::F32, &[0, 4][..])));
    assert!(values(&checkpoint, "empty").is_empty());
    assert_eq!(values(&checkpoint, "scalar"), [2.5]);
}

#[test]
fn rows_of_every_format_are_cut_and_joined_without_changing_a_value() {
    let (affine, mx, plain) = (open("affine"), open("mxfp4"), open("dtypes.safetensors"));
    let mut tensors: Vec<WeightTensor> =
        affine_modules().iter().map(|(m, _)| affine.tensor(&format!("{m}.weight")).unwrap()).collect();
    tensors.push(mx.tensor("experts.proj").unwrap());
    tensors.push(plain.tensor("bf16").unwrap());
    for tensor in tensors {
        let (head, tail) = (tensor.rows(0..1).unwrap(), tensor.rows(1..tensor.shape[0]).unwrap());
        assert!(head.parts.iter().all(|p| p.is_mapped()), "cutting copied {}", tensor.dtype);
        let (all, first) = (tensor.to_f32(), head.to_f32());
        assert_eq!([&first[..], &tail.to_f32()[..]].concat(), all);
        let swapped = WeightTensor::concat_rows(&[tail.clone(), head]).unwrap();
        assert_eq!((swapped.dtype, &swapped.shape), (tensor.dtype, &tensor.shape));
        assert_eq!(swapped.to_f32(), [&tail.to_f32()[..], &first[..]].concat());
    }
}

#[test]
fn what_cannot_be_cut_joined_or_reshaped_is_refused() {
    let affine = open("affine");
    let four = affine.tensor("b4_g64_f16.weight").unwrap();
    let eight = affine.tensor("b8_g64_f16.weight").unwrap();
    assert!(four.rows(2..4).is_err());
    #[expect(clippy::reversed_empty_ranges)]
    let reversed = four.rows(2..1);
    assert!(reversed.is_err());
    assert!(WeightTensor::concat_rows(&[four.clone(), eight]).is_err());
    assert!(WeightTensor::concat_rows(&[]).is_err());
    assert_eq!(four.reshaped(&[1, 3, 128]).unwrap().to_f32(), four.to_f32());
    assert!(four.reshaped(&[6, 64]).is_err());
    assert!(four.reshaped(&[usize::MAX, 128]).is_err());
    let scalar = WeightTensor::from_host(HostTensor::scalar(1.0f32));
    assert!(scalar.rows(0..1).is_err());
    assert!(WeightTensor::concat_rows(&[scalar.clone(), scalar]).is_err());
}

#[test]
fn a_packed_vector_is_cut_only_between_blocks() {
    let (raw, expected) = dequant("Q8_0");
    let dtype = DType::Quant(QuantFormat::Gguf(GgufFormat::Q8_0));
    let vector = WeightTensor::new(dtype, vec![expected.len()], raw.parts).unwrap();
    assert_eq!(vector.rows(32..96).unwrap().to_f32(), expected[32..96]);
    assert!(vector.rows(0..33).is_err());
    assert!(vector.rows(16..48).is_err());
}

#[test]
fn a_host_tensor_becomes_a_weight_with_the_same_values() {
    let host = HostTensor::from_f64(DType::F16, &[2, 2], &[1.0, -0.5, 0.25, 3.0]);
    let weight = WeightTensor::from_host(host);
    assert_eq!((weight.dtype, &weight.shape[..]), (DType::F16, &[2, 2][..]));
    assert_eq!(weight.to_f32(), [1.0, -0.5, 0.25, 3.0]);
    assert_eq!(weight.parts[0].as_ptr().addr() % 64, 0);
}

#[test]
fn arrays_of_the_wrong_size_are_not_a_tensor() {
    let weight = WeightTensor::from_host(HostTensor::new(&[4], &[0u8; 4]));
    assert!(WeightTensor::new(DType::F32, vec![2], weight.parts.clone()).is_err());
    assert!(WeightTensor::new(DType::F32, vec![1], vec![]).is_err());
    assert!(WeightTensor::new(DType::F32, vec![1], weight.parts).is_ok());
}
