//! Random numbers that are the same on every machine.

/// SplitMix64. It is reproducible, and good enough for lengths, arrivals and prompts.
#[derive(Clone, Debug)]
pub struct WorkloadRng(u64);

impl WorkloadRng {
    /// Creates the stream of a seed.
    pub fn new(seed: u64) -> Self {
        WorkloadRng(seed)
    }

    /// Returns 64 random bits.
    pub fn bits(&mut self) -> u64 {
        splitmix::next(&mut self.0)
    }

    /// Returns a number above 0 and at most 1.
    pub fn uniform(&mut self) -> f64 {
        ((self.bits() >> 11) + 1) as f64 / (1u64 << 53) as f64
    }

    /// Returns an integer below `n`, which must not be 0.
    pub fn below(&mut self, n: usize) -> usize {
        (self.bits() % n as u64) as usize
    }

    /// Returns `len` tokens of a vocabulary of size `vocab_size`.
    pub fn tokens(&mut self, len: usize, vocab_size: usize) -> Vec<u32> {
        (0..len).map(|_| self.below(vocab_size) as u32).collect()
    }

    /// Returns a normal number with mean 0 and standard deviation 1 (Box and Muller).
    pub fn normal(&mut self) -> f64 {
        (-2.0 * self.uniform().ln()).sqrt() * (std::f64::consts::TAU * self.uniform()).cos()
    }

    /// Returns an exponential number with mean 1: a gap of a Poisson process.
    pub fn exponential(&mut self) -> f64 {
        -self.uniform().ln()
    }
}
