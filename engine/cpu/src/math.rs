//! Elementwise functions that the compiler vectorises in a loop, sums whose order depends only on the length, and a way
//! to compile them for an instruction set.
//!
//! These functions use no fused multiply-add, so the results are the same on every instruction set.

pub(super) use kernels::arithmetic::exp;
use pulp::{Arch, Simd, WithSimd};

use checkpoint::config::Activation;

/// `1 - erf(x)` with a relative error below 1e-6 while it exceeds 1e-8: the Chebyshev fit of Numerical Recipes (6.2).
#[inline(always)]
fn erfc(x: f32) -> f32 {
    const FIT: [f32; 9] = [
        0.170_872_77,
        -0.822_152_2,
        1.488_515_9,
        -1.135_204,
        0.278_868_07,
        -0.186_288_06,
        0.096_784_18,
        0.374_091_96,
        1.000_023_7,
    ];
    let z = x.abs();
    let t = 1.0 / (1.0 + 0.5 * z);
    let p = FIT.iter().fold(0.0, |p, c| p * t + c);
    let tail = t * exp(-z * z - 1.265_512_2 + t * p);
    if x < 0.0 { 2.0 - tail } else { tail }
}

#[inline(always)]
fn gelu(x: f32) -> f32 {
    // Not `1 + erf`, which loses all precision where the result is small.
    0.5 * x * erfc(x * -std::f32::consts::FRAC_1_SQRT_2)
}

#[inline(always)]
fn gelu_tanh(x: f32) -> f32 {
    // (1 + tanh u) / 2 is the logistic function of 2u. 1.595... is twice the square root of 2 / pi.
    x / (1.0 + exp(-1.595_769 * (x + 0.044_715 * x * x * x)))
}

#[inline(always)]
fn silu(x: f32) -> f32 {
    x / (1.0 + exp(-x))
}

/// The logistic function.
#[inline(always)]
pub(super) fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + exp(-x))
}

/// `ln(1 + e^x)`
#[inline(always)]
pub(super) fn softplus(x: f32) -> f32 {
    // Above 20 the difference from `x` is less than half a unit in the last place.
    if x > 20.0 { x } else { x.exp().ln_1p() }
}

/// `x = x * silu(gate)`
#[inline(always)]
pub(super) fn silu_gate(x: &mut [f32], gate: &[f32]) {
    x.iter_mut().zip(gate).for_each(|(x, gate)| *x *= silu(*gate));
}

/// `x = act(x)`
#[inline(always)]
pub(super) fn activate(x: &mut [f32], act: Activation) {
    match act {
        // Not `max`, which would turn NaN into 0.
        Activation::Relu => x.iter_mut().for_each(|x| *x = if *x < 0.0 { 0.0 } else { *x }),
        Activation::Gelu => {
            for x in x {
                *x = gelu(*x);
            }
        }
        Activation::GeluTanh => {
            for x in x {
                *x = gelu_tanh(*x);
            }
        }
        Activation::Silu => {
            for x in x {
                *x = silu(*x);
            }
        }
    }
}

/// `x = cap * tanh(x / cap)`
#[inline(always)]
pub(super) fn softcap(x: &mut [f32], cap: f32) {
    for x in x {
        *x = cap - 2.0 * cap / (exp(2.0 / cap * *x) + 1.0);
    }
}

/// `gate = gate * sigmoid(alpha * gate) * (up + 1)`. Gates are at most `limit`, and ups are between `-limit` and `limit`.
#[inline(always)]
pub(super) fn clamped_gate(gate: &mut [f32], up: &[f32], alpha: f32, limit: f32) {
    for (gate, up) in gate.iter_mut().zip(up) {
        // Not `min` and `clamp`, which would turn some NaN into numbers.
        let x = if *gate > limit { limit } else { *gate };
        let up = if *up > limit {
            limit
        } else if *up < -limit {
            -limit
        } else {
            *up
        };
        *gate = x / (1.0 + exp(-alpha * x)) * (up + 1.0);
    }
}

/// Multiplies each number by the factor at the same index.
#[inline(always)]
pub(super) fn multiply(numbers: &mut [f32], factors: &[f32]) {
    numbers.iter_mut().zip(factors).for_each(|(x, factor)| *x *= factor);
}

/// Folds a chunk of scores into an online softmax. It turns `scores[from..to]` into exponentials relative to the
/// greatest score so far and all other scores into zeros. If the maximum grows, it rescales `sums` and `norm`.
#[inline(always)]
pub(super) fn fold(scores: &mut [f32], from: usize, to: usize, sums: &mut [f32], (greatest, norm): &mut (f32, f32)) {
    let before = *greatest;
    let now = before.max(max(&scores[from..to]));
    scores.iter_mut().for_each(|s| *s = exp(*s - now));
    scores[..from].fill(0.0);
    scores[to..].fill(0.0);
    let added = sum(scores, |s| s);
    if now > before {
        // The first chunk has no earlier maximum, and the sums are still zero.
        let factor = if before == f32::NEG_INFINITY { 0.0 } else { exp(before - now) };
        *norm *= factor;
        sums.iter_mut().for_each(|s| *s *= factor);
    }
    *greatest = now;
    *norm += added;
}

/// Calls a closure that is marked `#[inline(always)]`, compiled for the instruction set.
///
/// The wrapper [`Compiled`] calls it through `FnMut`. If the closure itself were passed to [`Arch::dispatch`], it would be
/// called by value (`FnOnce`). For closures that can be called again this goes through a separate function, which is not
/// marked for inlining and might be compiled for the baseline instruction set.
pub(super) fn compiled(arch: Arch, work: impl FnMut()) {
    arch.dispatch(Compiled(work));
}

struct Compiled<F>(F);

impl<F: FnMut()> WithSimd for Compiled<F> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(mut self, _: S) {
        (self.0)();
    }
}

/// Returns the sum of `f(x)`, computed as sixteen interleaved partial sums.
#[inline(always)]
pub(super) fn sum(x: &[f32], f: impl Fn(f32) -> f32) -> f32 {
    let mut partial = [0.0; 16];
    let (chunks, rest) = x.as_chunks::<16>();
    for chunk in chunks {
        for (p, &x) in partial.iter_mut().zip(chunk) {
            *p += f(x);
        }
    }
    let mut width = 8;
    while width > 0 {
        for i in 0..width {
            partial[i] += partial[i + width];
        }
        width /= 2;
    }
    rest.iter().fold(partial[0], |s, &x| s + f(x))
}

/// Returns the greatest element, ignoring NaN, or negative infinity if `x` has no numbers.
#[inline(always)]
pub(super) fn max(x: &[f32]) -> f32 {
    let greater = |a: f32, b: f32| if b > a { b } else { a };
    let mut partial = [f32::NEG_INFINITY; 16];
    let (chunks, rest) = x.as_chunks::<16>();
    for chunk in chunks {
        for (p, &x) in partial.iter_mut().zip(chunk) {
            *p = greater(*p, x);
        }
    }
    partial.iter().chain(rest).fold(f32::NEG_INFINITY, |a, &b| greater(a, b))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Computes the error function in double precision by its Taylor series.
    pub fn erf_f64(x: f64) -> f64 {
        if x.abs() > 5.0 {
            return x.signum();
        }
        let (mut term, mut sum) = (x, x);
        for n in 1..200 {
            term *= -x * x / f64::from(n);
            sum += term / f64::from(2 * n + 1);
        }
        sum * 2.0 / std::f64::consts::PI.sqrt()
    }

    #[test]
    fn activations_are_accurate() {
        let tanh = |x: f64| 0.5 * x * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x * x * x)).tanh());
        type Function = fn(f64) -> f64;
        let cases: [(Activation, Function); 3] = [
            (Activation::Relu, |x| x.max(0.0)),
            (Activation::Gelu, |x| 0.5 * x * (1.0 + erf_f64(x / 2f64.sqrt()))),
            (Activation::Silu, |x| x / (1.0 + (-x).exp())),
        ];
        let check = |act, want: &dyn Fn(f64) -> f64| {
            for i in -12_000..12_000 {
                let x = i as f32 * 1e-3;
                let mut got = [x];
                activate(&mut got, act);
                let want = want(f64::from(x));
                let error = (f64::from(got[0]) - want).abs();
                assert!(error < 4e-7 * (1.0 + f64::from(x).abs()), "{act:?}({x}) is off by {error}");
            }
            let mut extreme = [-1e4, 1e4, f32::NAN];
            activate(&mut extreme, act);
            assert!(extreme[0].abs() < 1e-2 && extreme[1] == 1e4 && extreme[2].is_nan(), "{act:?}: {extreme:?}");
        };
        for (act, want) in cases {
            check(act, &want);
        }
        check(Activation::GeluTanh, &tanh);
    }

    #[test]
    fn clamped_gates_are_accurate() {
        let (alpha, limit) = (1.702f32, 7.0f32);
        for i in -300..300 {
            for up in [-9.0f64, -7.0, -1.5, 0.0, 6.9, 8.0] {
                let mut gate = [i as f32 * 0.05];
                let x = f64::from(gate[0].min(limit));
                let want = x / (1.0 + (-f64::from(alpha) * x).exp()) * (up.clamp(-7.0, 7.0) + 1.0);
                clamped_gate(&mut gate, &[up as f32], alpha, limit);
                assert!((f64::from(gate[0]) - want).abs() < 1e-5, "{} is not {want}", gate[0]);
            }
        }
        for (gate, up) in [(f32::NAN, 1.0), (1.0, f32::NAN)] {
            let mut gate = [gate];
            clamped_gate(&mut gate, &[up], alpha, limit);
            assert!(gate[0].is_nan());
        }
    }

    #[test]
    fn capped_numbers_are_accurate() {
        for cap in [4.0, 30.0, 50.0] {
            for i in -1000..1000 {
                let mut x = [i as f32 * 0.37];
                let want = f64::from(cap) * (f64::from(x[0]) / f64::from(cap)).tanh();
                softcap(&mut x, cap);
                assert!((f64::from(x[0]) - want).abs() < 4e-7 * f64::from(cap), "{} of {want}", x[0]);
            }
            let mut extreme = [-1e30, 1e30, f32::NAN];
            softcap(&mut extreme, cap);
            assert!(extreme[..2] == [-cap, cap] && extreme[2].is_nan(), "{extreme:?}");
        }
    }

    #[test]
    fn sums_and_maxima_are_exact() {
        for n in [0, 1, 15, 16, 17, 100] {
            let x: Vec<f32> = (0..n).map(|i| ((i * 7) % 13) as f32).collect();
            assert_eq!(sum(&x, |v| v * v), x.iter().map(|v| v * v).sum::<f32>());
            assert_eq!(max(&x), x.iter().copied().fold(f32::NEG_INFINITY, f32::max));
        }
    }
}
