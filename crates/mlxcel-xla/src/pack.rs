//! Packed weights as arrays of plain types: codes of 2, 4 or 8 bits from the low end of each byte, scales and biases.
//! Codes are moved, never changed; formats whose codes are no whole numbers with one scale per group are decoded. The
//! graph's side of it is [`crate::lower`]. What is kept packed is the device's affair: [`Keeping`].

use mlxcel_engine::weights::{Bytes, WeightTensor};
use mlxcel_ir::{DType, GgufFormat, Graph, HostTensor, Node, QuantFormat};

use crate::k_blocks;
use crate::lower::Packing;

/// Which weights stay packed on the device, and what the others are decoded to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Keeping {
    /// Whether anything stays packed: an accelerator gains by reading less, a processor loses more by unpacking in every
    /// step.
    pub packs: bool,
    /// The type of what is decoded when it is loaded.
    pub decoded: DType,
    /// Whether matrices of 16-bit floats are kept as f32, which processors multiply faster.
    pub widens: bool,
}

impl Default for Keeping {
    fn default() -> Self {
        Keeping { packs: false, decoded: DType::F32, widens: false }
    }
}

impl Keeping {
    /// For a graph on a processor: everything becomes what it multiplies fastest.
    pub(crate) fn on_processor() -> Self {
        Keeping { packs: false, decoded: DType::F32, widens: true }
    }

    /// For a graph on an accelerator: what its packed weights are multiplied in is wide enough for them.
    pub(crate) fn on_accelerator(graph: &Graph) -> Self {
        let takes_packed = |node: &&Node| node.inputs.iter().any(|v| graph.ty(*v).dtype.is_quant());
        let results = graph.nodes().iter().filter(takes_packed).map(|node| node.types[0].dtype);
        let mut types = results.filter(|dtype| dtype.is_float());
        let first = types.next().filter(|dtype| matches!(dtype, DType::BF16 | DType::F16));
        let decoded = first.filter(|first| types.all(|dtype| dtype == *first)).unwrap_or(DType::F32);
        Keeping { packs: true, decoded, widens: false }
    }
}

pub(crate) fn packing(dtype: DType, keeping: Keeping) -> Option<Packing> {
    let DType::Quant(format) = dtype else { return None };
    if !keeping.packs {
        return None;
    }
    let blocks = |bits, has_bias| Packing { bits, group: 32, scale: DType::F32, has_bias, is_float: false };
    Some(match format {
        QuantFormat::Affine { bits, group, scale } => {
            let bits = match bits {
                2 | 4 | 8 => bits as usize,
                3 => 4,
                _ => 8,
            };
            Packing { bits, group: group as usize, scale: scale.dtype(), has_bias: true, is_float: false }
        }
        QuantFormat::MxFp4 | QuantFormat::Gguf(GgufFormat::MxFp4) => {
            Packing { is_float: true, ..blocks(4, false) }
        }
        QuantFormat::Gguf(GgufFormat::Q4_0 | GgufFormat::Q4_1) => blocks(4, true),
        QuantFormat::Gguf(GgufFormat::Q5_0 | GgufFormat::Q5_1 | GgufFormat::Q8_0) => blocks(8, true),
        QuantFormat::Gguf(format) => {
            let (bits, group) = k_blocks::form(format)?;
            Packing { group, ..blocks(bits, true) }
        }
    })
}

/// The arrays of the pieces of a weight, in the order of [`Packing::arrays`], or the decoded numbers.
pub(crate) fn arrays(dtype: DType, pieces: &[WeightTensor], keeping: Keeping) -> Vec<Bytes> {
    let Some(packing) = packing(dtype, keeping) else {
        return vec![numbers(pieces, keeping.decoded)];
    };
    let DType::Quant(format) = dtype else { unreachable!("only packed types have a packing") };
    let each: Vec<Vec<Vec<u8>>> = pieces.iter().map(|p| piece(format, &packing, p)).collect();
    let count = if packing.has_bias { 3 } else { 2 };
    (0..count)
        .map(|i| Bytes::copied(&each.iter().map(|arrays| arrays[i].as_slice()).collect::<Vec<_>>()))
        .collect()
}

fn piece(format: QuantFormat, packing: &Packing, t: &WeightTensor) -> Vec<Vec<u8>> {
    match format {
        QuantFormat::Affine { bits, .. } => {
            let codes = if bits as usize == packing.bits {
                t.parts[0].to_vec()
            } else {
                let row = t.shape.last().copied().unwrap_or(1) * bits as usize / 8;
                t.parts[0].chunks_exact(row).flat_map(|r| widen(r, bits as usize, packing.bits)).collect()
            };
            vec![codes, t.parts[1].to_vec(), t.parts[2].to_vec()]
        }
        QuantFormat::MxFp4 => vec![t.parts[0].to_vec(), exponents(&t.parts[1])],
        QuantFormat::Gguf(g) if k_blocks::form(g).is_some() => k_blocks(g, packing.bits, &t.parts[0]),
        QuantFormat::Gguf(g) => blocks(g, &t.parts[0]),
    }
}

/// The numbers of the pieces of a weight in a type.
pub(crate) fn numbers(pieces: &[WeightTensor], dtype: DType) -> Bytes {
    if dtype == DType::F32 {
        let bytes = |piece: &WeightTensor| 4 * piece.shape.iter().product::<usize>();
        return Bytes::filled(pieces.iter().map(bytes).sum(), |mut rest| {
            for piece in pieces {
                let (head, tail) = rest.split_at_mut(bytes(piece));
                piece.write_f32(head);
                rest = tail;
            }
        });
    }
    let each = pieces.iter().map(|piece| narrowed(&piece.to_f32(), dtype)).collect::<Vec<_>>();
    Bytes::copied(&each.iter().map(Vec::as_slice).collect::<Vec<_>>())
}

/// Numbers in a type, a few at a time, since they pass through the widest one.
fn narrowed(numbers: &[f32], dtype: DType) -> Vec<u8> {
    let narrow = |some: &[f32]| {
        let wide: Vec<f64> = some.iter().map(|v| f64::from(*v)).collect();
        HostTensor::from_f64(dtype, &[wide.len()], &wide).bytes().to_vec()
    };
    numbers.chunks(1 << 16).flat_map(narrow).collect()
}

/// A stream of codes of `bits` bits as codes of 4 or 8.
fn widen(row: &[u8], bits: usize, to: usize) -> Vec<u8> {
    let codes = row.len() * 8 / bits;
    let code = |i: usize| {
        let at = i * bits;
        let low = u32::from(row[at / 8]);
        let high = row.get(at / 8 + 1).map_or(0, |b| u32::from(*b) << 8);
        ((low | high) >> (at % 8) & ((1 << bits) - 1)) as u8
    };
    match to {
        8 => (0..codes).map(code).collect(),
        _ => (0..codes / 2).map(|i| code(2 * i) | code(2 * i + 1) << 4).collect(),
    }
}

/// Powers of two by their biased exponents, as f32.
fn exponents(scales: &[u8]) -> Vec<u8> {
    scales.iter().flat_map(|&e| 2f32.powi(i32::from(e) - 127).to_le_bytes()).collect()
}

/// Super-blocks, with as many codes in a byte as fit.
fn k_blocks(format: GgufFormat, bits: usize, bytes: &[u8]) -> Vec<Vec<u8>> {
    let (_, size) = format.block();
    let (mut codes, mut scales, mut biases) = (vec![], vec![], vec![]);
    for block in bytes.chunks_exact(size) {
        let block = k_blocks::read(format, block);
        let joined = |some: &[u8]| some.iter().enumerate().fold(0, |all, (i, code)| all | code << (i * bits));
        codes.extend(block.codes.chunks_exact(8 / bits).map(joined));
        scales.extend(block.scales.iter().flat_map(|v| v.to_le_bytes()));
        biases.extend(block.biases.iter().flat_map(|v| v.to_le_bytes()));
    }
    vec![codes, scales, biases]
}

pub(crate) fn half(bytes: &[u8]) -> f32 {
    let t = HostTensor::from_bytes(DType::F16, vec![], bytes.to_vec());
    t.expect("a half has two bytes").to_f64()[0] as f32
}

/// Blocks of 32 elements of the older formats of GGUF.
fn blocks(format: GgufFormat, bytes: &[u8]) -> Vec<Vec<u8>> {
    let (_, size) = format.block();
    let (mut codes, mut scales, mut biases) = (vec![], vec![], vec![]);
    for block in bytes.chunks_exact(size) {
        let (scale, bias) = match format {
            GgufFormat::Q4_0 => (half(&block[..2]), -8.0 * half(&block[..2])),
            GgufFormat::Q5_0 => (half(&block[..2]), -16.0 * half(&block[..2])),
            GgufFormat::Q8_0 => (half(&block[..2]), -128.0 * half(&block[..2])),
            GgufFormat::MxFp4 => (2f32.powi(i32::from(block[0]) - 127), 0.0),
            _ => (half(&block[..2]), half(&block[2..4])),
        };
        scales.extend(scale.to_le_bytes());
        biases.extend(bias.to_le_bytes());
        match format {
            GgufFormat::Q4_0 | GgufFormat::Q4_1 | GgufFormat::MxFp4 => {
                codes.extend(pairs(&block[size - 16..]))
            }
            GgufFormat::Q8_0 => codes.extend(block[2..].iter().map(|c| c ^ 0x80)),
            _ => codes.extend(five_bits(&block[size - 20..size - 16], &block[size - 16..])),
        }
    }
    vec![codes, scales, biases]
}

/// Nibbles of the first and the second half of a block, as neighbours in a byte.
fn pairs(nibbles: &[u8]) -> Vec<u8> {
    let low = nibbles.as_chunks::<2>().0.iter().map(|[a, b]| a & 15 | b << 4);
    let high = nibbles.as_chunks::<2>().0.iter().map(|[a, b]| a >> 4 | b & 0xf0);
    low.chain(high).collect()
}

/// Nibbles with a fifth bit of their own.
fn five_bits(high: &[u8], nibbles: &[u8]) -> Vec<u8> {
    let fifth = u32::from_le_bytes(high.try_into().expect("a block has four bytes of fifth bits"));
    let code = |i: usize| {
        let nibble = if i < 16 { nibbles[i] & 15 } else { nibbles[i - 16] >> 4 };
        nibble | ((fifth >> i & 1) as u8) << 4
    };
    (0..32).map(code).collect()
}
