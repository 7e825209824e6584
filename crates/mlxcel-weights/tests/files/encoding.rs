//! Encoding against what the formats' own packages make of the same numbers (see `fixtures/make_encoded.py` and
//! `fixtures/make_affine.py`).

use mlxcel_ir::{DType, GgufFormat, QuantFormat, ScaleType};
use mlxcel_weights::quant::{Parts, RowDecoder, can_encode, encode_rows};
use mlxcel_weights::{Checkpoint, WeightTensor};

fn open(name: &str) -> Checkpoint {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
    Checkpoint::open(folder.join(name)).unwrap()
}

fn encode(dtype: DType, values: &[f32]) -> Parts {
    let mut parts = Parts::default();
    encode_rows(dtype, values, &mut parts);
    parts
}

fn gguf(format: GgufFormat) -> DType {
    DType::Quant(QuantFormat::Gguf(format))
}

fn input(checkpoint: &Checkpoint) -> WeightTensor {
    checkpoint.tensor("input").unwrap()
}

/// The root of the mean square of what encoding changed, for each row.
fn errors(dtype: DType, bytes: &[u8], input: &WeightTensor) -> Vec<f64> {
    let (rows, cols) = (input.shape[0], input.shape[1]);
    let values = input.to_f32();
    let decoder = RowDecoder::new(dtype, cols, &[bytes]);
    let mut decoded = vec![0.0; cols];
    let mut error = |row: usize| {
        decoder.decode(row, 0, &mut decoded);
        let squares = decoded.iter().zip(&values[row * cols..]).map(|(a, b)| f64::from(a - b).powi(2));
        (squares.sum::<f64>() / cols as f64).sqrt()
    };
    (0..rows).map(&mut error).collect()
}

#[test]
fn formats_without_a_search_equal_those_of_the_gguf_package_to_the_bit() {
    let checkpoint = open("encoded.safetensors");
    let values = input(&checkpoint).to_f32();
    for (name, dtype) in [
        ("F16", DType::F16),
        ("BF16", DType::BF16),
        ("Q8_0", gguf(GgufFormat::Q8_0)),
        ("Q4_0", gguf(GgufFormat::Q4_0)),
        ("Q4_1", gguf(GgufFormat::Q4_1)),
        ("Q5_0", gguf(GgufFormat::Q5_0)),
    ] {
        let theirs = checkpoint.tensor(name).unwrap();
        let ours = encode(dtype, &values);
        let differing = ours[0].iter().zip(&*theirs.parts[0]).filter(|(a, b)| a != b).count();
        assert_eq!((differing, ours[0].len()), (0, theirs.parts[0].len()), "{name}");
        assert!(ours[1].is_empty() && ours[2].is_empty(), "{name} has one array");
    }
}

#[test]
fn super_blocks_are_as_close_as_those_of_llama_cpp() {
    let checkpoint = open("encoded.safetensors");
    let input = input(&checkpoint);
    for (name, format) in [("Q4_K", GgufFormat::Q4K), ("Q6_K", GgufFormat::Q6K)] {
        let theirs = checkpoint.tensor(name).unwrap();
        let theirs = errors(gguf(format), &theirs.parts[0], &input);
        let ours = errors(gguf(format), &encode(gguf(format), &input.to_f32())[0], &input);
        for (row, (ours, theirs)) in ours.iter().zip(&theirs).enumerate() {
            assert!(ours <= &(theirs * 1.03 + 1e-9), "{name} row {row}: {ours:e}, llama.cpp {theirs:e}");
        }
        let sum = |errors: &[f64]| errors.iter().sum::<f64>();
        assert!(sum(&ours) <= 1.005 * sum(&theirs), "{name}: {:e}, llama.cpp {:e}", sum(&ours), sum(&theirs));
        assert!(ours[0] > 0.0, "{name} is not exact");
    }
}

#[test]
fn affine_groups_of_every_width_and_scale_type_equal_those_of_mlx() {
    let checkpoint = open("affine");
    for bits in [2, 3, 4, 5, 6, 8] {
        for scale in [ScaleType::F32, ScaleType::F16, ScaleType::BF16] {
            let name = format!("b{bits}_g64_{}", scale.dtype());
            let input = checkpoint.tensor(&format!("{name}.input")).unwrap();
            let theirs = checkpoint.tensor(&format!("{name}.weight")).unwrap();
            let ours = encode(DType::Quant(QuantFormat::Affine { bits, group: 64, scale }), &input.to_f32());
            for (part, (ours, theirs)) in ours.iter().zip(&theirs.parts).enumerate() {
                assert_eq!(&ours[..], &**theirs, "{name}, part {part}");
            }
        }
    }
}

#[test]
fn numbers_that_are_none_encode_without_a_panic() {
    let values = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, f32::MAX, f32::MIN_POSITIVE, -0.0].repeat(256);
    let affine = |bits| DType::Quant(QuantFormat::Affine { bits, group: 64, scale: ScaleType::BF16 });
    let types =
        DType::PLAIN.into_iter().chain(GgufFormat::ALL.map(gguf)).chain([2, 3, 4, 5, 6, 8].map(affine));
    let encodable: Vec<DType> = types.filter(|d| can_encode(*d)).collect();
    assert_eq!(encodable.len(), 3 + 6 + 6);
    for dtype in encodable {
        assert_eq!(
            encode(dtype, &values).iter().map(Vec::len).sum::<usize>(),
            dtype.storage_bytes(&[values.len()]).unwrap()
        );
    }
}
