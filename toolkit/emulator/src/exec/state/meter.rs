//! Counts of a running launch.

use crate::report::Counts;

/// Instructions that a polling access counts as. It takes about as long, because it ends the warp's turn early.
const POLL: u64 = 64;

/// The counts of a launch so far, and the instruction that it executes now.
pub(crate) struct Meter {
    /// The counts of each instruction of the program.
    pub counts: Vec<Counts>,
    /// The index of the running instruction.
    pub pc: usize,
    /// Instructions executed so far, each counted once per warp.
    pub executed: u64,
    /// Strong accesses so far. Threads may wait for others with strong accesses.
    pub polls: u64,
    /// Barriers of blocks that were passed.
    pub barriers: u64,
}

impl Meter {
    /// Creates the meter of a program with `instructions` instructions.
    pub fn new(instructions: usize) -> Self {
        Self { counts: vec![Counts::default(); instructions], pc: 0, executed: 0, polls: 0, barriers: 0 }
    }

    /// Returns the counts of the running instruction.
    #[inline(always)]
    pub fn current(&mut self) -> &mut Counts {
        &mut self.counts[self.pc]
    }

    /// Instructions executed so far for `LaunchOptions::instruction_limit`.
    pub fn work(&self) -> u64 {
        self.executed + POLL * self.polls
    }

    /// Adds the counts of another meter of the same program.
    pub fn take_over(&mut self, other: &Meter) {
        self.counts.iter_mut().zip(&other.counts).for_each(|(counts, other)| counts.add(other));
        self.executed += other.executed;
        self.polls += other.polls;
        self.barriers += other.barriers;
    }
}
