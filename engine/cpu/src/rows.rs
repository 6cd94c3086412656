//! Operations on one row of an activation: normalisations and the rotation of heads.

use std::cell::RefCell;

use super::element::widen_range;
use super::math::sum;
use checkpoint::tensor::Elements;

/// Calls `run` with `elements[start..][..len]`, widened to f32.
#[inline(always)]
pub(super) fn with_widened(elements: Elements<'_>, start: usize, len: usize, run: impl FnOnce(&[f32])) {
    thread_local! {
        static WIDENED: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
    }
    if let Elements::F32(v) = elements {
        return run(&v[start..][..len]);
    }
    WIDENED.with_borrow_mut(|wide| {
        wide.resize(len, 0.0);
        widen_range(elements, start, wide);
        run(wide);
    });
}

/// Computes `to = (x - mean) / sqrt(variance + eps) * weight + bias`.
#[inline(always)]
pub(super) fn layer_norm(x: &[f32], weight: Option<&[f32]>, bias: Option<&[f32]>, eps: f32, to: &mut [f32]) {
    let count = x.len() as f32;
    let mean = sum(x, |v| v) / count;
    let variance = sum(x, |v| (v - mean) * (v - mean)) / count;
    let factor = 1.0 / (variance + eps).sqrt();
    to.iter_mut().zip(x).for_each(|(y, x)| *y = (x - mean) * factor);
    if let Some(weight) = weight {
        to.iter_mut().zip(weight).for_each(|(y, w)| *y *= w);
    }
    if let Some(bias) = bias {
        to.iter_mut().zip(bias).for_each(|(y, b)| *y += b);
    }
}

/// Returns `1 / sqrt(mean(x^2) + eps)`.
#[inline(always)]
fn rms_factor(x: &[f32], eps: f32) -> f32 {
    1.0 / (sum(x, |v| v * v) / x.len() as f32 + eps).sqrt()
}

/// Computes `to = x / rms(x) * weight`.
#[inline(always)]
pub(super) fn rms_norm(x: &[f32], weight: &[f32], eps: f32, to: &mut [f32]) {
    let factor = rms_factor(x, eps);
    for ((y, x), w) in to.iter_mut().zip(x).zip(weight) {
        *y = x * factor * w;
    }
}

/// Computes `x = x / rms(x) * weight` for each group of `weight.len()` elements of the row `x`.
#[inline(always)]
pub(super) fn head_norm(x: &mut [f32], weight: &[f32], eps: f32) {
    for head in x.chunks_exact_mut(weight.len()) {
        let factor = rms_factor(head, eps);
        for (x, w) in head.iter_mut().zip(weight) {
            *x = *x * factor * w;
        }
    }
}

/// Computes `x = x / rms(x)` for each group of `width` elements of the row `x`.
#[inline(always)]
pub(super) fn unweighted_head_norm(x: &mut [f32], width: usize, eps: f32) {
    for head in x.chunks_exact_mut(width) {
        let factor = rms_factor(head, eps);
        head.iter_mut().for_each(|x| *x *= factor);
    }
}

/// Scales `x` to a length. `eps` is added to the sum of squares.
#[inline(always)]
pub(super) fn scale_to_length(x: &mut [f32], length: f32, eps: f32) {
    let factor = length / (squares(x) + eps).sqrt();
    x.iter_mut().for_each(|x| *x *= factor);
}

/// Returns the sum of the squares of `x`.
#[inline(always)]
pub(super) fn squares(x: &[f32]) -> f32 {
    sum(x, |v| v * v)
}

/// Computes `x = x / sqrt(mean + eps) * weight`, where `mean` is a mean of squares.
#[inline(always)]
pub(super) fn norm_by(x: &mut [f32], mean: f32, weight: &[f32], eps: f32) {
    let factor = 1.0 / (mean + eps).sqrt();
    x.iter_mut().zip(weight).for_each(|(x, w)| *x = *x * factor * w);
}

/// Rotates the first `angles.len()` elements of each head of the row `x`. `angles` contains cosines, then as many sines.
#[inline(always)]
pub(super) fn rope(x: &mut [f32], head_dim: usize, angles: &[f32]) {
    let half = angles.len() / 2;
    let (cos, sin) = angles.split_at(half);
    for head in x.chunks_exact_mut(head_dim) {
        let (first, second) = head[..angles.len()].split_at_mut(half);
        for (((a, b), cos), sin) in first.iter_mut().zip(second).zip(cos).zip(sin) {
            (*a, *b) = (*a * cos - *b * sin, *b * cos + *a * sin);
        }
    }
}

/// Like [`rope`], but the two elements of a pair are adjacent.
#[inline(always)]
pub(super) fn rope_adjacent(x: &mut [f32], head_dim: usize, angles: &[f32]) {
    let (cos, sin) = angles.split_at(angles.len() / 2);
    for head in x.chunks_exact_mut(head_dim) {
        for (([a, b], cos), sin) in head[..angles.len()].as_chunks_mut::<2>().0.iter_mut().zip(cos).zip(sin) {
            (*a, *b) = (*a * cos - *b * sin, *b * cos + *a * sin);
        }
    }
}
