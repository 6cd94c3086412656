//! The softmax of rows of logits, summed in parts.

use kernels::arithmetic::{logprob, weight};

use super::scan::{self, argmax};

/// Logits that are scanned at a time. A large vocabulary gives work to several threads, even with a single row.
const PART: usize = 1 << 15;

/// The greatest logit of a row, and the sum of the [`weight`]s of all its logits minus the greatest.
#[derive(Clone, Copy, Debug)]
pub struct Softmax {
    greatest: f32,
    sum: u64,
}

impl Softmax {
    /// Returns the softmax of each row of `logits [rows, vocab]`, or `None` for a row with a logit that is NaN or
    /// positive infinity, or if all are negative infinity. `map` applies a function to all items, in any order or in
    /// parallel, and returns the results in the items' order. It gets parts of rows. The division does not change a bit
    /// of the result.
    pub fn of_rows(logits: &[f32], vocab: usize, map: &impl Map) -> Vec<Option<Self>> {
        let parts: Vec<&[f32]> = logits.chunks(vocab).flat_map(|row| row.chunks(PART)).collect();
        let in_row = vocab.div_ceil(PART);
        let most = |part: &[f32]| scan::below_infinity(part).then(|| part[argmax(part) as usize]);
        let greatest: Vec<Option<f32>> = map.map(&parts, |_, part| most(part));
        let greatest: Vec<Option<f32>> = greatest
            .chunks(in_row)
            .map(|parts| parts.iter().try_fold(f32::NEG_INFINITY, |a, &b| Some(a.max(b?))))
            .map(|most| most.filter(|&most| most > f32::NEG_INFINITY))
            .collect();
        let sums = map.map(&parts, |i, part| {
            greatest[i / in_row].map_or(0, |greatest| scan::sum(part, |v| weight(v - greatest)))
        });
        let rows = greatest.iter().zip(sums.chunks(in_row));
        rows.map(|(&greatest, sums)| Some(Softmax { greatest: greatest?, sum: sums.iter().sum() })).collect()
    }

    /// Returns the logprob of a logit of the row.
    pub(super) fn logprob(self, logit: f32) -> f32 {
        logprob(logit, self.greatest, self.sum)
    }
}

/// Applies functions to lists.
pub trait Map {
    /// Returns `run(i, &items[i])` for each item.
    fn map<T: Sync, R: Send>(&self, items: &[T], run: impl Fn(usize, &T) -> R + Sync) -> Vec<R>;
}

/// Applies functions to one item after the other.
pub(super) struct InTurn;

impl Map for InTurn {
    fn map<T: Sync, R: Send>(&self, items: &[T], run: impl Fn(usize, &T) -> R + Sync) -> Vec<R> {
        items.iter().enumerate().map(|(i, item)| run(i, item)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_softmax_does_not_depend_on_the_division_of_its_row() {
        let vocab = 2 * PART + 17;
        let mut logits: Vec<f32> = (0..4 * vocab).map(|i| (i * 37 % 1001) as f32 / 50.0).collect();
        logits[vocab + PART] = f32::NAN;
        logits[2 * vocab..3 * vocab].fill(f32::NEG_INFINITY);
        logits[4 * vocab - 1] = 30.0;
        let rows = Softmax::of_rows(&logits, vocab, &InTurn);
        assert!(rows[1].is_none() && rows[2].is_none());
        for (row, greatest) in [(0, 20.0), (3, 30.0)] {
            let sum = logits[row * vocab..][..vocab].iter().map(|v| weight(v - greatest)).sum();
            assert_eq!(rows[row].map(|row| (row.greatest, row.sum)), Some((greatest, sum)), "row {row}");
        }
    }
}
