//! Embeddings: the final hidden states of a prompt, pooled to one vector of length 1.

use std::str::FromStr;

/// How the hidden states of a prompt's tokens are pooled to its embedding.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Pooling {
    /// The hidden state of the last token, which has attended to all others.
    #[default]
    Last,
    /// The mean of all tokens' hidden states.
    Mean,
}

impl FromStr for Pooling {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        match name {
            "last" => Ok(Pooling::Last),
            "mean" => Ok(Pooling::Mean),
            _ => Err(format!("{name:?} is neither last nor mean")),
        }
    }
}

/// The sum of the hidden states to pool, as far as they are computed.
#[derive(Clone, Debug, Default)]
pub(crate) struct PooledStates {
    sum: Vec<f64>,
    count: usize,
}

impl PooledStates {
    /// The number of hidden states in the sum.
    pub(crate) fn count(&self) -> usize {
        self.count
    }

    /// Adds the hidden states of the next tokens.
    pub(crate) fn add(&mut self, states: &[Vec<f32>]) {
        for state in states {
            self.sum.resize(state.len(), 0.0);
            self.sum.iter_mut().zip(state).for_each(|(sum, x)| *sum += f64::from(*x));
            self.count += 1;
        }
    }

    /// The sum scaled to length 1, which is also the normalised mean. A sum of zeros is returned as it is.
    pub(crate) fn normalised(&self) -> Vec<f32> {
        let length = self.sum.iter().map(|x| x * x).sum::<f64>().sqrt();
        let scale = if length > 0.0 { 1.0 / length } else { 1.0 };
        self.sum.iter().map(|x| (x * scale) as f32).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pooled_vector_is_the_mean_scaled_to_length_one() {
        let mut states = PooledStates::default();
        states.add(&[vec![1.0, 5.0]]);
        states.add(&[vec![2.0, -1.0], vec![3.0, 4.0]]);
        assert_eq!((states.count(), states.normalised()), (3, vec![0.6, 0.8]));
        let mut zeros = PooledStates::default();
        zeros.add(&[vec![0.0; 3]]);
        assert_eq!(zeros.normalised(), [0.0; 3]);
    }
}
