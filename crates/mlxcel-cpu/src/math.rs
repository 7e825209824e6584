//! Functions of one `f32`, without branches on the number, so that loops over them vectorise at every level. Errors
//! are a few units in the last place; the polynomials are fits of our own, checked against `f64` below.

use std::f64::consts::FRAC_2_PI;

use crate::simd::Simd;

/// `e^x`.
#[inline(always)]
pub(crate) fn exp(x: f32) -> f32 {
    const ROUND: f32 = 12_582_912.0; // 1.5 * 2^23: adding it leaves the nearest integer in the low bits
    const LN2_HIGH: f32 = 0.693_359_4;
    const LN2_LOW: f32 = -2.121_944_4e-4;
    // Beyond these the result is zero or infinite.
    let c = if x < -104.0 { -104.0 } else { x };
    let c = if c > 89.0 { 89.0 } else { c };
    let shifted = c * std::f32::consts::LOG2_E + ROUND;
    let n = shifted - ROUND;
    let r = c - n * LN2_HIGH - n * LN2_LOW;
    let p = 1.0 / 5040.0;
    let p = p * r + 1.0 / 720.0;
    let p = p * r + 1.0 / 120.0;
    let p = p * r + 1.0 / 24.0;
    let p = p * r + 1.0 / 6.0;
    let p = p * r + 0.5;
    let p = p * r * r + r + 1.0;
    // Two factors, so that results near the ends of the range neither overflow nor vanish early.
    let n = (shifted.to_bits() as i32).wrapping_sub(ROUND.to_bits() as i32);
    let half = n >> 1;
    let power = |e: i32| f32::from_bits((e.wrapping_add(127) << 23) as u32);
    p * power(half) * power(n.wrapping_sub(half))
}

/// `a * b + c`, fused where vectors can.
#[inline(always)]
fn fma<S: Simd>(a: f32, b: f32, c: f32) -> f32 {
    if S::LANES >= 8 { a.mul_add(b, c) } else { a * b + c }
}

/// `e^x` for `x` no greater than zero. What is too small for an exponent of its own is zero, since numbers below that
/// are slow to compute with and weigh nothing.
#[inline(always)]
pub(crate) fn decay<S: Simd>(x: f32) -> f32 {
    // From here on the power of two below has no bits.
    const LEAST: f32 = -88.0;
    const ROUND: f32 = 12_582_912.0; // 1.5 * 2^23: adding it leaves the nearest integer in the low bits
    const LN2_HIGH: f32 = 0.693_359_4;
    const LN2_LOW: f32 = -2.121_944_4e-4;
    let c = if x < LEAST { LEAST } else { x };
    let shifted = fma::<S>(c, std::f32::consts::LOG2_E, ROUND);
    let n = shifted - ROUND;
    let r = fma::<S>(n, -LN2_LOW, fma::<S>(n, -LN2_HIGH, c));
    let p = 1.0 / 5040.0;
    let p = fma::<S>(p, r, 1.0 / 720.0);
    let p = fma::<S>(p, r, 1.0 / 120.0);
    let p = fma::<S>(p, r, 1.0 / 24.0);
    let p = fma::<S>(p, r, 1.0 / 6.0);
    let p = fma::<S>(p, r, 0.5);
    let p = fma::<S>(p, r, 1.0);
    let p = fma::<S>(p, r, 1.0);
    p * f32::from_bits((shifted.to_bits() << 23).wrapping_add(127 << 23))
}

#[inline(always)]
pub(crate) fn sigmoid<S: Simd>(x: f32) -> f32 {
    // Of a power that is at most 1, so that it needs no care at the ends of the range.
    let e = decay::<S>(-x.abs());
    (if x < 0.0 { e } else { 1.0 }) / (1.0 + e)
}

#[inline(always)]
pub(crate) fn tanh(x: f32) -> f32 {
    let a = x.abs();
    let t = x * x;
    let p = 2.373_507_8e-3;
    let p = p * t - 8.412_546_5e-3;
    let p = p * t + 2.178_910_5e-2;
    let p = p * t - 5.396_165_3e-2;
    let p = p * t + 0.133_333_13;
    let p = p * t - 0.333_333_33;
    let small = x + x * t * p;
    let large = (1.0 - 2.0 / (exp(2.0 * a) + 1.0)).copysign(x);
    if a < 0.6 { small } else { large }
}

#[inline(always)]
pub(crate) fn erf(x: f32) -> f32 {
    let a = x.abs();
    let t = x * x;
    let p = 7.882_497e-5;
    let p = p * t - 8.018_855e-4;
    let p = p * t + 5.189_312e-3;
    let p = p * t - 2.685_432_9e-2;
    let p = p * t + 0.112_835_97;
    let p = p * t - 0.376_126_27;
    let small = x * (p * t + std::f32::consts::FRAC_2_SQRT_PI);
    // Beyond 4.2 the complement is below half a unit in the last place of 1.
    let c = if a > 4.2 { 4.2 } else { a };
    let q = 1.525_575e-6;
    let q = q * c - 4.385_324_3e-5;
    let q = q * c + 5.782_396e-4;
    let q = q * c - 4.672_751_6e-3;
    let q = q * c + 2.617_481_3e-2;
    let q = q * c - 0.109_647_08;
    let q = q * c + 0.367_714;
    let q = q * c - 1.129_963_8;
    let q = q * c + 2.534_073_6e-4;
    let large = (1.0 - exp(q - c * c)).copysign(x);
    let y = if a < 1.0 { small } else { large };
    if x.is_nan() { x } else { y }
}

/// Sine and cosine, accurate for angles up to about 10^8: the angle is reduced in `f64`.
#[inline(always)]
pub(crate) fn sin_cos(x: f32) -> (f32, f32) {
    const ROUND: f64 = 6_755_399_441_055_744.0; // 1.5 * 2^52
    const PI_2_HIGH: f64 = 1.570_796_326_734_125_6; // the first 33 bits
    const PI_2_LOW: f64 = 6.077_100_506_506_192e-11;
    let x = x as f64;
    let shifted = x * FRAC_2_PI + ROUND;
    let n = shifted - ROUND;
    let r = (x - n * PI_2_HIGH) - n * PI_2_LOW;
    let t = r * r;
    let s = 1.0 / 362_880.0;
    let s = s * t - 1.0 / 5040.0;
    let s = s * t + 1.0 / 120.0;
    let s = s * t - 1.0 / 6.0;
    let s = s * t * r + r;
    let c = -1.0 / 3_628_800.0;
    let c = c * t + 1.0 / 40_320.0;
    let c = c * t - 1.0 / 720.0;
    let c = c * t + 1.0 / 24.0;
    let c = c * t - 0.5;
    let c = c * t + 1.0;
    let quadrant = shifted.to_bits();
    let (sin, cos) = if quadrant & 1 == 1 { (c, s) } else { (s, c) };
    let sin = if quadrant & 2 == 2 { -sin } else { sin };
    let cos = if quadrant.wrapping_add(1) & 2 == 2 { -cos } else { cos };
    (sin as f32, cos as f32)
}

/// The largest angle that [`sin_cos`] takes; beyond it the library's slow functions are right.
pub(crate) const ANGLE_MAX: f32 = 1e8;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simd::{Kernel, LANES_MAX, SimdLevel};

    /// The largest error relative to the result, over `from..to`.
    fn worst(f: impl Fn(f32) -> f32, truth: impl Fn(f64) -> f64, from: f32, to: f32) -> f64 {
        let n = 200_000;
        let at = |i: usize| from + (to - from) * (i as f32 / n as f32);
        (0..=n)
            .map(|i| {
                let (y, t) = (f(at(i)) as f64, truth(at(i) as f64));
                (y - t).abs() / t.abs().max(f32::MIN_POSITIVE as f64)
            })
            .fold(0.0, f64::max)
    }

    #[test]
    fn functions_are_right_to_a_few_units_in_the_last_place() {
        assert!(worst(exp, f64::exp, -87.0, 88.7) < 2.0e-7, "{}", worst(exp, f64::exp, -87.0, 88.7));
        assert!(worst(tanh, f64::tanh, -12.0, 12.0) < 3e-7, "{}", worst(tanh, f64::tanh, -12.0, 12.0));
        assert!(worst(erf, mlxcel_ir::erf, -6.0, 6.0) < 3e-7, "{}", worst(erf, mlxcel_ir::erf, -6.0, 6.0));
    }

    /// As the level computes many, beside others of which one is no number.
    #[inline(always)]
    fn sigmoid_of_some<S: Simd>(x: f32) -> f32 {
        let mut some = [f32::NAN; LANES_MAX + 3];
        let at = x.to_bits() as usize % some.len();
        some[at] = x;
        S::sigmoids(&mut some);
        some[at]
    }

    #[derive(Clone, Copy)]
    struct AtLevel;

    impl Kernel for AtLevel {
        type Output = ();

        #[inline(always)]
        fn run<S: Simd>(self) {
            assert!(worst(decay::<S>, f64::exp, -87.0, 0.0) < 2.5e-7, "{}", S::LEVEL);
            assert_eq!((decay::<S>(0.0), decay::<S>(-90.0), decay::<S>(f32::NEG_INFINITY)), (1.0, 0.0, 0.0));
            assert!(decay::<S>(f32::NAN).is_nan());
            for sigmoid in [sigmoid::<S>, sigmoid_of_some::<S>] {
                assert!(worst(sigmoid, |x| 1.0 / (1.0 + (-x).exp()), -80.0, 80.0) < 4e-7, "{}", S::LEVEL);
                let ends = [f32::NEG_INFINITY, -200.0, 0.0, 200.0, f32::INFINITY].map(sigmoid);
                assert_eq!(ends, [0.0, 0.0, 0.5, 1.0, 1.0]);
                assert!(sigmoid(f32::NAN).is_nan());
            }
        }
    }

    #[test]
    fn functions_of_levels_are_right_at_all_of_them() {
        SimdLevel::available().into_iter().for_each(|level| level.dispatch(AtLevel));
    }

    #[test]
    fn angles_of_a_million_keep_their_sine() {
        for i in 0..200_000u32 {
            let x = (i as f32 * 5.37 - 20_000.0) * 1.01;
            let (s, c) = sin_cos(x);
            assert!((s as f64 - (x as f64).sin()).abs() < 1e-7, "sin {x}");
            assert!((c as f64 - (x as f64).cos()).abs() < 1e-7, "cos {x}");
        }
    }

    #[test]
    fn the_ends_of_the_range_are_exact() {
        assert_eq!(exp(f32::NEG_INFINITY), 0.0);
        assert_eq!(exp(f32::INFINITY), f32::INFINITY);
        assert_eq!(exp(0.0), 1.0);
        assert_eq!(exp(-200.0), 0.0);
        assert!(exp(-100.0) > 0.0, "subnormal results are kept");
        assert_eq!((tanh(50.0), tanh(-50.0), erf(9.0), erf(-9.0)), (1.0, -1.0, 1.0, -1.0));
        for f in [exp, tanh, erf] {
            assert!(f(f32::NAN).is_nan());
        }
    }
}
