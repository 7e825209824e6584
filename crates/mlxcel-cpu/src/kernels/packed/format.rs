//! How a stored format becomes panels: the width of its codes, its groups, and where their scales come from. Every
//! integer format is `scale * code + bias` over groups of a row; this says it once for all of them.

use mlxcel_ir::{DType, GgufFormat, QuantFormat, ScaleType};

/// Elements of a row that share one scale of the activations, and whose scales lie together in a panel.
pub(super) const BLOCK: usize = 256;
/// Rows of a panel: the lanes of a vector.
pub(super) const ROWS: usize = 16;
/// Elements of a row in the smallest unit of codes.
pub(super) const UNIT: usize = 16;
/// Groups of a block at most.
pub(super) const GROUPS: usize = BLOCK / UNIT;

/// How the codes of a unit lie. Codes of 2 and 4 bits share bytes; one or two further bits of 3, 5 and 6 lie in masks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Codes {
    Two,
    Three,
    Four,
    Five,
    Six,
    Eight,
    /// Four bits that number an entry.
    Table(&'static [u8; 16]),
}

impl Codes {
    /// Bytes of a unit: [`ROWS`] rows of [`UNIT`] elements.
    pub(super) const fn bytes(self) -> usize {
        let bits = match self {
            Codes::Two => 2,
            Codes::Three => 3,
            Codes::Four | Codes::Table(_) => 4,
            Codes::Five => 5,
            Codes::Six => 6,
            Codes::Eight => 8,
        };
        ROWS * UNIT / 8 * bits
    }

    /// Whether all of them are below 128.
    pub(super) fn are_small(self) -> bool {
        match self {
            Codes::Two | Codes::Three | Codes::Four | Codes::Five | Codes::Six => true,
            Codes::Eight => false,
            Codes::Table(table) => table.iter().all(|&entry| entry < 128),
        }
    }
}

/// How the scales of a block lie, each a run of [`ROWS`] numbers for every group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scales {
    /// A scale, and a bias if codes have no zero.
    Direct { kind: ScaleType },
    /// Small factors of one scale (and of one minimum, if codes have no zero) for the whole block, in `f16`.
    Factored,
}

/// A format as panels hold it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Format {
    pub(super) codes: Codes,
    /// Elements that share a scale.
    pub(super) group: usize,
    pub(super) scales: Scales,
    /// The code that stands for zero, where there is no bias.
    pub(super) zero: Option<u8>,
}

/// The uneven steps of IQ4, 128 above their values.
const IQ4: [u8; 16] = [1, 24, 45, 63, 79, 93, 106, 118, 129, 141, 153, 166, 181, 197, 217, 241];
/// Twice the values of E2M1, 12 above them.
const E2M1: [u8; 16] = [12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0];

impl Format {
    /// `None` for types that have no panels.
    pub(super) fn of(dtype: DType) -> Option<Self> {
        let DType::Quant(quant) = dtype else { return None };
        match quant {
            QuantFormat::Affine { bits, group, scale } => Self::affine(bits, group as usize, scale),
            QuantFormat::MxFp4 => Some(Self::direct(Codes::Table(&E2M1), ScaleType::F32, Some(12))),
            QuantFormat::Gguf(format) => Self::gguf(format),
        }
    }

    fn affine(bits: u8, group: usize, kind: ScaleType) -> Option<Self> {
        let codes = match bits {
            2 => Codes::Two,
            3 => Codes::Three,
            4 => Codes::Four,
            5 => Codes::Five,
            6 => Codes::Six,
            8 => Codes::Eight,
            _ => return None,
        };
        let fits = group.is_multiple_of(UNIT) && BLOCK.is_multiple_of(group);
        fits.then_some(Format { codes, group, scales: Scales::Direct { kind }, zero: None })
    }

    fn direct(codes: Codes, kind: ScaleType, zero: Option<u8>) -> Self {
        Format { codes, group: 32, scales: Scales::Direct { kind }, zero }
    }

    fn gguf(format: GgufFormat) -> Option<Self> {
        let direct = |codes, zero| Some(Self::direct(codes, ScaleType::F16, zero));
        let factored = |codes, group, zero| Some(Format { codes, group, scales: Scales::Factored, zero });
        match format {
            GgufFormat::Q4_0 => direct(Codes::Four, Some(8)),
            GgufFormat::Q4_1 => direct(Codes::Four, None),
            GgufFormat::Q5_0 => direct(Codes::Five, Some(16)),
            GgufFormat::Q5_1 => direct(Codes::Five, None),
            GgufFormat::Q8_0 => direct(Codes::Eight, Some(128)),
            GgufFormat::Q2K => factored(Codes::Two, 16, None),
            GgufFormat::Q3K => factored(Codes::Three, 16, Some(4)),
            GgufFormat::Q4K => factored(Codes::Four, 32, None),
            GgufFormat::Q5K => factored(Codes::Five, 32, None),
            GgufFormat::Q6K => factored(Codes::Six, 16, Some(32)),
            GgufFormat::Iq4Nl => direct(Codes::Table(&IQ4), Some(128)),
            GgufFormat::Iq4Xs => factored(Codes::Table(&IQ4), 32, Some(128)),
            GgufFormat::MxFp4 => Some(Self::direct(Codes::Table(&E2M1), ScaleType::F32, Some(12))),
            GgufFormat::Iq2Xxs | GgufFormat::Iq3Xxs => None,
        }
    }

    /// Bytes of the scales of `groups` groups, before the codes of their block.
    pub(super) fn scale_bytes(&self, groups: usize) -> usize {
        let arrays = if self.zero.is_some() { 1 } else { 2 };
        arrays
            * match self.scales {
                Scales::Direct { kind: ScaleType::F32 } => groups * ROWS * 4,
                Scales::Direct { .. } => groups * ROWS * 2,
                Scales::Factored => ROWS * 2 + groups * ROWS,
            }
    }

    /// Bytes of a block of `len` elements of a panel.
    pub(super) fn block_bytes(&self, len: usize) -> usize {
        self.scale_bytes(len / self.group) + len / UNIT * self.codes.bytes()
    }

    /// Bytes of a panel of rows of `cols` elements.
    pub(super) fn panel_bytes(&self, cols: usize) -> usize {
        cols / BLOCK * self.block_bytes(BLOCK) + self.block_bytes(cols % BLOCK)
    }
}
