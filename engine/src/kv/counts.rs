//! Numbers of blocks, one for each group of layers.

/// Most groups of layers that a cache may have. Current families have one or two.
pub const MAX_GROUPS: usize = 4;

/// A number of blocks for each group of layers. Groups that a cache does not have count zero.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts([usize; MAX_GROUPS]);

impl Counts {
    /// The same number for the first `groups` groups.
    pub fn each(groups: usize, blocks: usize) -> Self {
        Counts::by(groups, |_| blocks)
    }

    /// A number for each of the first `groups` groups.
    pub fn by(groups: usize, mut blocks: impl FnMut(usize) -> usize) -> Self {
        let mut counts = Counts::default();
        counts.0[..groups].iter_mut().enumerate().for_each(|(group, count)| *count = blocks(group));
        counts
    }

    /// The number of a group.
    pub fn of(&self, group: usize) -> usize {
        self.0[group]
    }

    /// Adds blocks of a group.
    pub fn add(&mut self, group: usize, blocks: usize) {
        self.0[group] += blocks;
    }

    /// Takes a block of a group away, if there is one.
    pub fn take_one(&mut self, group: usize) {
        self.0[group] = self.0[group].saturating_sub(1);
    }

    /// The sums with other counts.
    pub fn plus(mut self, other: Counts) -> Self {
        self.0.iter_mut().zip(other.0).for_each(|(count, other)| *count += other);
        self
    }

    /// The differences to other counts, or zero where those are larger.
    pub fn minus(mut self, other: Counts) -> Self {
        self.0.iter_mut().zip(other.0).for_each(|(count, other)| *count = count.saturating_sub(other));
        self
    }

    /// Whether no group has fewer blocks than in `other`.
    pub fn covers(&self, other: &Counts) -> bool {
        self.0.iter().zip(other.0).all(|(count, other)| *count >= other)
    }
}
