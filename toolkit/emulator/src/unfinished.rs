//! Accesses of earlier launches that may not have ended when a dependent launch begins.
//!
//! The emulator runs launches one after the other. But it keeps the accesses of the launches ahead of a dependent one
//! until its threads have waited, as if they were still to come. On a GPU, an earlier access would be right or wrong by
//! chance. The records have the resolution of a sector.

use std::ops::RangeInclusive;

use crate::bits::Bits;

/// Bits of an address within a sector.
const SECTOR_BITS: u32 = 5;

/// The sectors of a buffer that launches accessed.
#[derive(Clone, Debug, Default)]
struct Accessed {
    touched: Bits,
    stored: Bits,
}

/// The accesses of launches to a buffer that may not have ended.
#[derive(Clone, Debug, Default)]
pub(crate) struct Unfinished {
    /// By all launches that may not have ended before a thread has waited.
    before_wait: Accessed,
    /// By launches that may not have ended even after the wait, because a launch in between never waited.
    after_wait: Accessed,
    /// Sectors that the current launch stored to before its memory was last forked.
    pub stored: Bits,
}

impl Unfinished {
    /// Begins a launch. `last_waited` says whether the launch before it waited for the launches ahead. `accessed` are
    /// the sectors that the launch before it touched and stored to, if any.
    pub fn begin_launch(&mut self, dependent: bool, last_waited: bool, accessed: Option<(&Bits, &Bits)>) {
        if !dependent {
            *self = Self::default();
            return;
        }
        let Unfinished { before_wait, after_wait, stored: earlier } = self;
        if !last_waited {
            after_wait.clone_from(before_wait);
        }
        if let Some((touched, stored)) = accessed {
            before_wait.touched.join(touched);
            before_wait.stored.join(stored);
            before_wait.stored.join(earlier);
        }
        *earlier = Bits::default();
    }

    /// Whether an access to a range of bytes of the buffer comes too early.
    ///
    /// It is too early if a launch that may not have ended stored to the same sectors, or touched sectors that the
    /// access stores to.
    pub fn meets(&self, bytes: RangeInclusive<u64>, stores: bool, waited: bool) -> bool {
        let (first, last) = ((bytes.start() >> SECTOR_BITS) as usize, (bytes.end() >> SECTOR_BITS) as usize);
        let accessed = if waited { &self.after_wait } else { &self.before_wait };
        let sectors = if stores { &accessed.touched } else { &accessed.stored };
        sectors.meets_range(first, last - first + 1)
    }
}
