//! Panels are kept in files, which an older program may have written: whoever changes where something lies in them says so.

use mlxcel_engine::weights::{Bytes, WeightTensor};
use mlxcel_ir::{DType, GgufFormat, QuantFormat, ScaleType};
use xxhash_rust::xxh3::xxh3_64;

use super::*;
use crate::weight::Matrix;

/// Rows that leave a part of the last panel empty, and columns that leave a part of the last block.
const SHAPE: [usize; 2] = [21, 768];

/// The hash of all panels in one type, packed without any threads or level.
fn hash(dtype: DType, numbers: Numbers) -> u64 {
    let count = match dtype {
        DType::Quant(QuantFormat::Affine { .. }) => 3,
        DType::Quant(QuantFormat::MxFp4) => 2,
        _ => 1,
    };
    let [rows, cols] = SHAPE;
    let bytes = |part: usize| match dtype {
        DType::Quant(QuantFormat::Affine { bits, .. }) if part == 0 => rows * cols * bits as usize / 8,
        DType::Quant(QuantFormat::Affine { group, scale, .. }) => {
            rows * cols / group as usize * scale.dtype().size().expect("scales are plain")
        }
        DType::Quant(QuantFormat::MxFp4) => rows * cols / if part == 0 { 2 } else { 32 },
        _ => dtype.storage_bytes(&SHAPE).expect("a whole number of blocks"),
    };
    let part = |part: usize| {
        let numbers = (0..bytes(part) as u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8);
        Bytes::copied(&[&numbers.collect::<Vec<u8>>()])
    };
    let t = WeightTensor::new(dtype, SHAPE.to_vec(), (0..count).map(part).collect()).unwrap();
    let matrix = Matrix::new(dtype, SHAPE.to_vec(), vec![t]).unwrap();
    let bytes = numbers.panel_bytes(cols);
    let mut panels = vec![0; rows.div_ceil(ROWS) * bytes];
    for (panel, to) in panels.chunks_mut(bytes).enumerate() {
        let range = panel * ROWS..((panel + 1) * ROWS).min(rows);
        match &numbers {
            Numbers::Codes(format) => pack_codes(format, &matrix.rows(), range, to),
            Numbers::Halves => pack_halves(&matrix.rows(), range, to),
        }
    }
    xxh3_64(&panels)
}

#[test]
fn who_changes_panels_raises_their_layout() {
    let affine = [2, 3, 4, 5, 6, 8].into_iter().flat_map(|bits| {
        let scales = [ScaleType::F16, ScaleType::BF16, ScaleType::F32];
        scales.map(|scale| QuantFormat::Affine { bits, group: 64, scale })
    });
    let gguf = GgufFormat::ALL.into_iter().map(QuantFormat::Gguf);
    let all = gguf.chain([QuantFormat::MxFp4]).chain(affine).map(DType::Quant);
    let codes = all.filter_map(|dtype| Some((dtype, Numbers::Codes(Format::of(dtype)?))));
    let hashes: Vec<u64> =
        codes.chain([(DType::BF16, Numbers::Halves)]).map(|(dtype, numbers)| hash(dtype, numbers)).collect();
    let all = xxh3_64(&hashes.iter().flat_map(|hash| hash.to_le_bytes()).collect::<Vec<u8>>());
    assert_eq!(
        (Form::LAYOUT, hashes.len(), all),
        (1, 33, 5_664_177_247_003_078_784),
        "panels are not what they were: raise `Form::LAYOUT`, and pin it here with the new hash"
    );
}
