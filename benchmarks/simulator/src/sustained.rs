//! A search for the highest request rate that a system sustains.

use std::thread;

use anyhow::{Error, Result};

/// The highest mean normalized latency, in seconds per token, at which a system counts as sustaining a rate. It is the top
/// of the axes in the paper's figures 12, 14, 16 and 17, and the same for all systems.
pub const BOUND: f64 = 1.0;

/// Relative precision of the rates found.
const PRECISION: f64 = 0.03;
/// Shares of the sustained rate at which latencies are computed in addition to the search.
const BELOW: [f64; 4] = [0.25, 0.5, 0.75, 0.9];
/// Number of halvings after which a system counts as sustaining no rate at all.
const MOST_HALVINGS: u32 = 12;

/// The result of a search.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sustained {
    /// The highest rate found with a normalized latency within the bound, in requests per second.
    pub rate: f64,
    /// Rates with their known normalized latencies, in order of rate.
    pub points: Vec<(f64, f64)>,
}

/// Searches for the highest rate at which `latency` is at most `bound`, starting at `guess`. `latency` returns `None`
/// above a limit of its own, which counts as above the bound.
///
/// # Errors
/// The first error of `latency`.
pub fn search(bound: f64, guess: f64, latency: impl Fn(f64) -> Result<Option<f64>> + Sync) -> Result<Sustained> {
    let mut points = Vec::new();
    let mut sustains = |rate: f64| -> Result<bool> {
        let value = latency(rate)?;
        points.extend(value.map(|value| (rate, value)));
        Ok(value.is_some_and(|value| value <= bound))
    };
    let (mut low, mut high) = (guess, guess);
    if sustains(guess)? {
        high *= 2.0;
        while sustains(high)? {
            (low, high) = (high, 2.0 * high);
        }
    } else {
        low /= 2.0;
        while !sustains(low)? {
            (low, high) = (low / 2.0, low);
            if low < guess / f64::from(1u32 << MOST_HALVINGS) {
                return Ok(Sustained::default());
            }
        }
    }
    while high / low > 1.0 + PRECISION {
        let middle = (low * high).sqrt();
        if sustains(middle)? { low = middle } else { high = middle }
    }
    // These rates do not depend on each other.
    thread::scope(|scope| {
        let latency = &latency;
        let below = BELOW.map(|part| (part * low, scope.spawn(move || latency(part * low))));
        for (rate, known) in below {
            let known = known.join().map_err(|_| Error::msg("a simulation has panicked"))??;
            points.extend(known.map(|value| (rate, value)));
        }
        Ok::<(), Error>(())
    })?;
    points.sort_by(|a, b| a.0.total_cmp(&b.0));
    Ok(Sustained { rate: low, points })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // a failed unwrap is a failed test

    use super::*;

    #[test]
    fn the_highest_rate_within_the_bound_is_found_from_any_guess() {
        for guess in [0.01, 3.0, 500.0] {
            let found = search(1.0, guess, |rate| Ok((rate < 20.0).then_some(rate / 7.0))).unwrap();
            assert!((found.rate / 7.0 - 1.0).abs() <= PRECISION, "{found:?}");
            assert!(found.points.is_sorted_by(|a, b| a.0 < b.0) && found.points[0].0 < 0.3 * found.rate);
        }
        assert_eq!(search(1.0, 1.0, |_| Ok(None)).unwrap(), Sustained::default());
    }
}
