//! Lengths of requests like those in the paper's traces (6.1, figure 11).

use crate::random::WorkloadRng;

/// A log-normal distribution of prompt and output lengths, with the means of a data set.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LengthDistribution {
    /// The data set's name.
    pub name: &'static str,
    mean_prompt: f64,
    mean_output: f64,
}

/// Conversations. They are long and vary a lot in length.
pub const SHAREGPT: LengthDistribution =
    LengthDistribution { name: "ShareGPT", mean_prompt: 161.31, mean_output: 337.99 };
/// Instructions. They are short.
pub const ALPACA: LengthDistribution = LengthDistribution { name: "Alpaca", mean_prompt: 19.31, mean_output: 58.45 };

/// Standard deviation of the logarithm. A few requests are several times longer than the mean.
const SPREAD: f64 = 0.8;
/// Most tokens of a prompt or an output. Together they fit OPT's 2048 positions.
const MOST: f64 = 1023.0;

impl LengthDistribution {
    /// Draws the prompt and output length of a request.
    pub fn draw(&self, random: &mut WorkloadRng) -> (usize, usize) {
        let mut length = |mean: f64| {
            let logarithm = mean.ln() - SPREAD * SPREAD / 2.0 + SPREAD * random.normal();
            logarithm.exp().round().clamp(2.0, MOST) as usize
        };
        (length(self.mean_prompt), length(self.mean_output))
    }

    /// Draws the prompt and output lengths of `n` requests.
    pub fn lengths(&self, n: usize, random: &mut WorkloadRng) -> Vec<(usize, usize)> {
        (0..n).map(|_| self.draw(random)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_have_the_means_of_the_data_set() {
        for trace in [SHAREGPT, ALPACA] {
            let lengths = trace.lengths(20_000, &mut WorkloadRng::new(1));
            let mean = |part: fn(&(usize, usize)) -> usize| lengths.iter().map(part).sum::<usize>() as f64 / 20_000.0;
            assert!((mean(|l| l.0) / trace.mean_prompt - 1.0).abs() < 0.05, "{}: {}", trace.name, mean(|l| l.0));
            assert!((mean(|l| l.1) / trace.mean_output - 1.0).abs() < 0.05, "{}: {}", trace.name, mean(|l| l.1));
        }
    }
}
