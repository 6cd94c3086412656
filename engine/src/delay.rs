//! The delay factor: how long new prompts wait for others, to be computed together.

use std::time::Duration;

/// Delays new prompts by a multiple of the duration of the last step with prompts. A larger factor gives larger batches
/// of prompts, fewer interruptions of decoding sequences, and a longer time to first token.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Delay {
    factor: f64,
    last_prompt_step: Duration,
}

impl Delay {
    /// A delay of `factor` times the duration of the last step with prompts. With 0 no prompt waits.
    pub(crate) fn new(factor: f64) -> Self {
        Delay { factor, last_prompt_step: Duration::ZERO }
    }

    /// Records the duration of a step with prompts.
    pub(crate) fn observe(&mut self, prompt_step: Duration) {
        self.last_prompt_step = prompt_step;
    }

    /// Whether new prompts should wait longer. `waited` is how long the oldest of them has waited.
    pub(crate) fn holds(&self, waited: Duration) -> bool {
        waited.as_secs_f64() < self.factor * self.last_prompt_step.as_secs_f64()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prompts_wait_for_a_multiple_of_the_last_prompt_step() {
        let ms = Duration::from_millis;
        let mut delay = Delay::new(0.5);
        assert!(!delay.holds(ms(0)), "there was no step with prompts yet");
        delay.observe(ms(100));
        assert!(delay.holds(ms(49)) && !delay.holds(ms(50)));
        let mut off = Delay::new(0.0);
        off.observe(ms(100));
        assert!(!off.holds(ms(0)));
    }
}
