//! Weights in every packed format, with sensible random numbers in them.

use mlxcel_ir::{DType, GgufFormat, HostTensor, QuantFormat, ScaleType};
use mlxcel_weights::{Bytes, WeightTensor, quant};

use super::random::Random;

/// Every format at least once, with the column count that its blocks divide.
pub(crate) fn formats() -> Vec<(DType, usize)> {
    let affine = |bits, group, scale| (DType::Quant(QuantFormat::Affine { bits, group, scale }), 384usize);
    let mut all = vec![
        affine(2, 64, ScaleType::F16),
        affine(3, 64, ScaleType::BF16),
        affine(3, 32, ScaleType::F32),
        affine(4, 32, ScaleType::F32),
        affine(4, 64, ScaleType::F16),
        affine(4, 128, ScaleType::BF16),
        affine(5, 64, ScaleType::F32),
        affine(6, 64, ScaleType::BF16),
        affine(8, 32, ScaleType::F16),
        affine(8, 64, ScaleType::BF16),
        (DType::Quant(QuantFormat::MxFp4), 96),
    ];
    all.extend(GgufFormat::ALL.map(|g| (DType::Quant(QuantFormat::Gguf(g)), 3 * g.block().0.max(64))));
    all
}

/// A packed weight of the shape, whose numbers are of the order of one.
pub(crate) fn weight(random: &mut Random, dtype: DType, shape: &[usize]) -> WeightTensor {
    let DType::Quant(format) = dtype else { unreachable!("{dtype} is not packed") };
    let elements = shape.iter().product::<usize>();
    let cols = *shape.last().expect("a packed weight has an axis");
    let built = match format {
        QuantFormat::Affine { bits, group, scale } => {
            let values: Vec<f32> =
                random.normal(DType::F32, &[elements]).to_f64().iter().map(|&v| v as f32).collect();
            let wide = quant::encode_affine(&values, cols, bits, group).expect("the table's formats exist");
            let parts = [wide.parts[0].clone(), narrow(&wide.parts[1], scale), narrow(&wide.parts[2], scale)];
            WeightTensor::new(dtype, shape.to_vec(), parts.to_vec())
        }
        QuantFormat::MxFp4 => {
            let codes = random.bytes(elements / 2);
            let scales: Vec<u8> = random.bytes(elements / 32).iter().map(|b| 122 + b % 6).collect();
            let parts = vec![Bytes::copied(&[&codes]), Bytes::copied(&[&scales])];
            WeightTensor::new(dtype, shape.to_vec(), parts)
        }
        QuantFormat::Gguf(g) => {
            let blocks = gguf_blocks(random, g, elements / g.block().0);
            WeightTensor::new(dtype, shape.to_vec(), vec![Bytes::copied(&[&blocks])])
        }
    };
    built.expect("the arrays have the sizes that the format needs")
}

/// `f32` scales in the type that the format wants.
fn narrow(scales: &[u8], to: ScaleType) -> Bytes {
    let values: Vec<f64> =
        scales.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]).into()).collect();
    Bytes::copied(&[HostTensor::from_f64(to.dtype(), &[values.len()], &values).bytes()])
}

/// Random codes, with the half-precision scales at their places in the block replaced by small numbers.
fn gguf_blocks(random: &mut Random, format: GgufFormat, count: usize) -> Vec<u8> {
    let size = format.block().1;
    let mut bytes = random.bytes(count * size);
    for block in bytes.chunks_exact_mut(size) {
        if format == GgufFormat::MxFp4 {
            block[0] = 122 + block[0] % 6;
            continue;
        }
        for &at in scale_places(format) {
            let scale = random.uniform(DType::F16, &[], (0.01, 0.05));
            block[at..at + 2].copy_from_slice(scale.bytes());
        }
    }
    bytes
}

/// Byte offsets of the half-precision numbers in a block, as the format's description lists them.
fn scale_places(format: GgufFormat) -> &'static [usize] {
    match format {
        GgufFormat::Q4_1 | GgufFormat::Q5_1 | GgufFormat::Q4K | GgufFormat::Q5K => &[0, 2],
        GgufFormat::Q2K => &[80, 82],
        GgufFormat::Q3K => &[108],
        GgufFormat::Q6K => &[208],
        GgufFormat::MxFp4 => &[],
        _ => &[0],
    }
}
