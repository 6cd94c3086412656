//! Arrival times of requests.

use std::time::Duration;

use crate::random::WorkloadRng;

/// The distribution of arrivals over time. The rate does not depend on how fast requests are answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Process {
    /// Arrivals are independent, like the requests of many users. The paper uses this process.
    Poisson,
    /// Arrivals are equally spaced.
    Fixed,
}

/// Returns an endless sequence of arrival times from the start of the run, at a mean of `rate` requests per second.
pub fn times(process: Process, rate: f64, seed: u64) -> impl Iterator<Item = Duration> {
    let mut random = WorkloadRng::new(seed);
    let mut next = 0.0;
    std::iter::repeat_with(move || {
        let arrival = next;
        next += match process {
            Process::Poisson => random.exponential(),
            Process::Fixed => 1.0,
        } / rate;
        // If a gap is too long for a `Duration`, the next request never arrives.
        Duration::try_from_secs_f64(arrival).unwrap_or(Duration::MAX)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const N: usize = 40_000;

    fn gaps(process: Process) -> Vec<f64> {
        let times: Vec<_> = times(process, 5.0, 3).take(N + 1).collect();
        times.windows(2).map(|pair| (pair[1] - pair[0]).as_secs_f64()).collect()
    }

    #[test]
    fn poisson_arrivals_have_the_rate_and_spread_of_a_poisson_process() {
        let gaps = gaps(Process::Poisson);
        let mean = gaps.iter().sum::<f64>() / N as f64;
        assert!((mean * 5.0 - 1.0).abs() < 0.02, "{mean}");
        let variance = gaps.iter().map(|gap| (gap - mean).powi(2)).sum::<f64>() / N as f64;
        assert!((variance.sqrt() / mean - 1.0).abs() < 0.03, "{variance}");
        let none_in_a_mean_gap = gaps.iter().filter(|gap| **gap > mean).count() as f64 / N as f64;
        assert!((none_in_a_mean_gap - (-1f64).exp()).abs() < 0.01, "{none_in_a_mean_gap}");
    }

    #[test]
    fn fixed_arrivals_are_equally_far_apart() {
        assert!(gaps(Process::Fixed).iter().all(|gap| (gap - 0.2).abs() < 1e-6));
    }
}
