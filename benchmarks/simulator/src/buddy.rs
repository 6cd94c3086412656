//! A buddy allocator over a contiguous region (Knuth, "The Art of Computer Programming", volume 1, 2.5).
//!
//! The size of a piece is a power of two. Pieces are halved until they fit, and two free halves are joined again.

use std::collections::BTreeSet;

/// An allocated piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct BuddyPiece {
    /// Its first slot.
    pub start: usize,
    /// The base-2 logarithm of its size.
    order: u32,
}

/// The region. If its size is not a power of two, it starts as several pieces whose sizes are, the largest first.
#[derive(Clone, Debug)]
pub struct Buddies {
    size: usize,
    /// Start slots of the free pieces, by order.
    free: Vec<BTreeSet<usize>>,
}

impl BuddyPiece {
    /// Returns the number of its slots.
    pub fn size(self) -> usize {
        1 << self.order
    }
}

impl Buddies {
    /// Creates a region of `size` slots, all free.
    pub fn new(size: usize) -> Self {
        let mut free = vec![BTreeSet::new(); usize::BITS as usize];
        let mut start = 0;
        for order in (0..usize::BITS).rev().filter(|order| size >> order & 1 == 1) {
            free[order as usize].insert(start);
            start += 1 << order;
        }
        Buddies { size, free }
    }

    /// Returns the number of slots in the region.
    pub fn size(&self) -> usize {
        self.size
    }

    /// Returns the number of free slots, contiguous or not.
    pub fn num_free(&self) -> usize {
        self.free.iter().enumerate().map(|(order, starts)| starts.len() << order).sum()
    }

    /// Allocates the smallest piece of at least `slots` slots. If no free piece is large enough, returns `None`.
    pub fn allocate(&mut self, slots: usize) -> Option<BuddyPiece> {
        let order = slots.max(1).checked_next_power_of_two()?.trailing_zeros();
        let mut from = (order..usize::BITS).find(|&from| !self.free[from as usize].is_empty())?;
        let start = self.free[from as usize].pop_first()?;
        while from > order {
            from -= 1;
            self.free[from as usize].insert(start + (1 << from));
        }
        Some(BuddyPiece { start, order })
    }

    /// Frees a piece that [`Self::allocate`] returned, and joins it with its other half as long as that half is free.
    pub fn free(&mut self, piece: BuddyPiece) {
        let BuddyPiece { mut start, mut order } = piece;
        // The first pieces of the region start at multiples of their sizes too. If a piece's other half is outside the
        // region, it is therefore never in the free list.
        while self.free[order as usize].remove(&(start ^ (1 << order))) {
            start &= !(1 << order);
            order += 1;
        }
        self.free[order as usize].insert(start);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // a failed unwrap is a failed test

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_region_of_opt_13b_holds_seven_of_the_longest_sequences() {
        let mut region = Buddies::new(15_700);
        let pieces: Vec<_> = std::iter::from_fn(|| region.allocate(2048)).collect();
        assert_eq!((pieces.len(), region.num_free()), (7, 15_700 - 7 * 2048));
        assert_eq!(region.allocate(1025), None, "1,364 slots are free, but no 2,048 in one piece");
        assert_eq!(region.allocate(1024).unwrap().size(), 1024);
    }

    proptest! {
        #[test]
        fn pieces_never_overlap_and_nothing_is_lost(
            size in 1usize..5000,
            steps in prop::collection::vec((1usize..700, any::<bool>(), any::<prop::sample::Index>()), 1..200),
        ) {
            let mut region = Buddies::new(size);
            let whole = region.free.clone();
            let mut allocated: Vec<BuddyPiece> = Vec::new();
            for (slots, frees, at) in steps {
                if frees && !allocated.is_empty() {
                    region.free(allocated.swap_remove(at.index(allocated.len())));
                } else if let Some(piece) = region.allocate(slots) {
                    prop_assert!(piece.size() >= slots && piece.size() < 2 * slots.max(1));
                    prop_assert!(piece.start + piece.size() <= size && piece.start % piece.size() == 0);
                    let apart = |other: &BuddyPiece| {
                        piece.start + piece.size() <= other.start || other.start + other.size() <= piece.start
                    };
                    prop_assert!(allocated.iter().all(apart), "{piece:?} overlaps one of {allocated:?}");
                    allocated.push(piece);
                }
                let used: usize = allocated.iter().map(|piece| piece.size()).sum();
                prop_assert_eq!(used + region.num_free(), size);
            }
            allocated.drain(..).for_each(|piece| region.free(piece));
            prop_assert_eq!(&region.free, &whole, "free halves were not joined");
        }
    }
}
