//! How a group gives its blocks back when they run out (4.5 of the paper).

use crate::group::SequenceGroup;

/// What happens to the blocks of a group that is preempted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Preemption {
    /// As in the paper: groups of several sequences are swapped, single sequences recomputed.
    #[default]
    Auto,
    /// They move to the swap space and back. Groups that do not fit there are recomputed.
    Swap,
    /// They are dropped, and computed again.
    Recompute,
}

impl Preemption {
    /// Whether `group` is to be swapped out rather than recomputed.
    pub(super) fn swaps(self, group: &SequenceGroup) -> bool {
        let computed = group.running.iter().any(|s| !s.table.is_empty());
        computed
            && match self {
                Preemption::Auto => group.running.len() > 1,
                Preemption::Swap => true,
                Preemption::Recompute => false,
            }
    }
}
