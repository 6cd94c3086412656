//! Counts of a launch while it runs.

use crate::report::Counts;

/// The instructions that a polling access counts for. It takes about as long, since it ends the warp's turn early.
const POLL: u64 = 64;

/// What a launch has executed so far, and the instruction that it executes now.
pub(crate) struct Meter {
    /// The counts of each instruction of the program.
    pub counts: Vec<Counts>,
    /// The index of the instruction that runs.
    pub pc: usize,
    /// Instructions executed so far, each counted once per warp.
    pub executed: u64,
    /// Accesses by which threads may wait for others.
    pub polls: u64,
    /// Barriers of blocks that were passed.
    pub barriers: u64,
}

impl Meter {
    /// The meter of a program of so many instructions, before the first of them.
    pub fn new(instructions: usize) -> Self {
        Self { counts: vec![Counts::default(); instructions], pc: 0, executed: 0, polls: 0, barriers: 0 }
    }

    /// The counts of the instruction that runs.
    #[inline(always)]
    pub fn current(&mut self) -> &mut Counts {
        &mut self.counts[self.pc]
    }

    /// Instructions executed so far for `LaunchOptions::instruction_limit`.
    pub fn work(&self) -> u64 {
        self.executed + POLL * self.polls
    }

    /// Adds what another meter of the same program has counted.
    pub fn take_over(&mut self, other: &Meter) {
        self.counts.iter_mut().zip(&other.counts).for_each(|(counts, other)| counts.add(other));
        self.executed += other.executed;
        self.polls += other.polls;
        self.barriers += other.barriers;
    }
}
