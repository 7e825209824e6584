//! The search for the scale, or scale and offset, with which a few levels come closest to a group of numbers.
//!
//! For given codes the best scale and offset are a weighted linear regression, and its error follows from the same
//! sums. Codes come from a trial scale; a handful of trials around the one that spans the range finds codes whose
//! regression is better than that of the obvious ones. Weights favour large numbers, which matter most in a product.

/// Sums are kept in lanes, so that they vectorise without changing the order of additions from build to build.
const LANES: usize = 8;

/// `scale * code - min`, with `min` not negative.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Line {
    pub(super) scale: f32,
    pub(super) min: f32,
}

/// Round to nearest, ties to even, for magnitudes below 2^22; any processor has the two additions.
#[inline(always)]
pub(super) fn round(value: f32) -> f32 {
    const SHIFT: f32 = 12_582_912.0;
    (value + SHIFT) - SHIFT
}

/// Between the bounds; a number that is none becomes the lower one. Unlike `clamp`, one instruction for each bound.
#[inline(always)]
pub(super) fn within(value: f32, low: f32, high: f32) -> f32 {
    let value = if value > low { value } else { low };
    if value < high { value } else { high }
}

/// Codes from 0 to `top`: the trial scales stretch the range by up to one level in each direction.
pub(super) fn line<const N: usize>(values: &[f32; N], top: f32) -> Line {
    const TRIALS: i32 = 20;
    let (low, high) = values.iter().fold((0f32, f32::MIN), |(l, h), &v| (l.min(v), h.max(v)));
    let width = high - low;
    if width.is_nan() || width <= f32::MIN_POSITIVE {
        return Line { scale: 0.0, min: -low };
    }
    let squares = lanes(|i| values[i] * values[i], N);
    let typical = (squares / N as f32).sqrt();
    let weights: [f32; N] = std::array::from_fn(|i| typical + values[i].abs());
    let fixed = [
        lanes(|i| weights[i], N),
        lanes(|i| weights[i] * values[i], N),
        lanes(|i| weights[i] * values[i] * values[i], N),
    ];
    let mut best = (f32::INFINITY, Line { scale: width / top, min: -low });
    for trial in 0..=TRIALS {
        let inverse = (top - 1.0 + 0.1 * trial as f32) / width;
        let codes: [f32; N] = std::array::from_fn(|i| within(round((values[i] - low) * inverse), 0.0, top));
        let candidate = regress(values, &weights, &codes, fixed);
        if candidate.0 < best.0 {
            best = candidate;
        }
    }
    best.1
}

/// The best line for these codes and its error. An offset above zero, which the formats cannot store, becomes zero.
#[inline(always)]
fn regress<const N: usize>(
    values: &[f32; N],
    weights: &[f32; N],
    codes: &[f32; N],
    [w, wx, wxx]: [f32; 3],
) -> (f32, Line) {
    let wc = lanes(|i| weights[i] * codes[i], N);
    let wcc = lanes(|i| weights[i] * codes[i] * codes[i], N);
    let wcx = lanes(|i| weights[i] * codes[i] * values[i], N);
    let determinant = w * wcc - wc * wc;
    if determinant <= 0.0 {
        return (f32::INFINITY, Line::default());
    }
    let mut scale = (w * wcx - wx * wc) / determinant;
    let mut offset = (wcc * wx - wc * wcx) / determinant;
    if offset > 0.0 {
        (scale, offset) = (wcx / wcc, 0.0);
    }
    let error = wxx
        + scale * scale * wcc
        + offset * offset * w
        + 2.0 * (scale * offset * wc - scale * wcx - offset * wx);
    (if scale > 0.0 { error } else { f32::INFINITY }, Line { scale, min: -offset })
}

/// `scale * code` with codes from `-levels` to `levels - 1`. The sign of the scale gives the longer side to the
/// larger end.
pub(super) fn symmetric<const N: usize>(values: &[f32; N], levels: f32) -> f32 {
    const TRIALS: i32 = 9;
    let largest = values.iter().fold(0f32, |best, &v| if v.abs() > best.abs() { v } else { best });
    if largest.is_nan() || largest.abs() <= f32::MIN_POSITIVE {
        return 0.0;
    }
    let weights: [f32; N] = std::array::from_fn(|i| (values[i] / largest) * (values[i] / largest));
    let mut best = (f32::MIN_POSITIVE, 0.0);
    // The obvious scale first: another one has to be better by more than rounding.
    for trial in std::iter::once(0).chain(-TRIALS..=TRIALS) {
        let inverse = -(levels + 0.1 * trial as f32) / largest;
        let codes: [f32; N] =
            std::array::from_fn(|i| within(round(values[i] * inverse), -levels, levels - 1.0));
        let (wcx, wcc) =
            (lanes(|i| weights[i] * codes[i] * values[i], N), lanes(|i| weights[i] * codes[i] * codes[i], N));
        // What the best scale for these codes takes off the error.
        let gain = if wcc > 0.0 { wcx * wcx / wcc } else { 0.0 };
        if gain > best.0 * (1.0 + 1e-6) {
            best = (gain, wcx / wcc);
        }
    }
    best.1
}

/// The sum of `term(0..n)`, `n` a multiple of the lanes.
#[inline(always)]
fn lanes(term: impl Fn(usize) -> f32, n: usize) -> f32 {
    let mut sums = [0f32; LANES];
    for start in (0..n).step_by(LANES) {
        for (lane, sum) in sums.iter_mut().enumerate() {
            *sum += term(start + lane);
        }
    }
    sums.iter().sum()
}
