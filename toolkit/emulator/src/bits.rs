//! Sets of small numbers.

/// A set of small numbers.
#[derive(Clone, Debug, Default)]
pub(crate) struct Bits(Vec<u64>);

impl Bits {
    pub fn new(len: usize) -> Self {
        Self(vec![0; len / 64 + 1])
    }

    pub fn clear(&mut self) {
        self.0.fill(0);
    }

    pub fn count(&self) -> u64 {
        self.0.iter().map(|word| u64::from(word.count_ones())).sum()
    }

    #[inline(always)]
    pub fn insert(&mut self, at: usize) {
        self.0[at / 64] |= 1 << (at % 64);
    }

    pub fn remove(&mut self, at: usize) {
        self.0[at / 64] &= !(1 << (at % 64));
    }

    /// Returns whether the sets have a number in common.
    pub fn meets(&self, other: &Bits) -> bool {
        self.0.iter().zip(&other.0).any(|(a, b)| a & b != 0)
    }

    /// Returns whether any number of a range is in the set.
    pub fn meets_range(&self, at: usize, len: usize) -> bool {
        Self::parts(at, len).any(|(word, mask)| self.0.get(word).is_some_and(|bits| bits & mask != 0))
    }

    /// Adds all numbers of another set.
    pub fn join(&mut self, other: &Bits) {
        if self.0.len() < other.0.len() {
            self.0.resize(other.0.len(), 0);
        }
        self.0.iter_mut().zip(&other.0).for_each(|(word, other)| *word |= other);
    }

    /// Iterates over the numbers, in order.
    pub fn iter(&self) -> impl Iterator<Item = usize> {
        let words = self.0.iter().enumerate().filter(|(_, word)| **word != 0);
        words.flat_map(|(at, &word)| (0..64).filter(move |bit| word >> bit & 1 == 1).map(move |bit| at * 64 + bit))
    }

    /// Splits a range into words and their masks.
    #[inline(always)]
    fn parts(at: usize, len: usize) -> impl Iterator<Item = (usize, u64)> {
        let end = at + len;
        (at / 64..end.div_ceil(64)).map(move |word| {
            let (from, to) = (at.max(word * 64) % 64, end.min(word * 64 + 64) - word * 64);
            (word, (u64::MAX >> (64 - to)) & (u64::MAX << from))
        })
    }

    #[inline(always)]
    pub fn insert_range(&mut self, at: usize, len: usize) {
        if (1..=64 - at % 64).contains(&len) {
            self.0[at / 64] |= u64::MAX >> (64 - len) << (at % 64);
            return;
        }
        for (word, mask) in Self::parts(at, len) {
            self.0[word] |= mask;
        }
    }

    #[inline(always)]
    pub fn contains_range(&self, at: usize, len: usize) -> bool {
        if (1..=64 - at % 64).contains(&len) {
            let mask = u64::MAX >> (64 - len) << (at % 64);
            return self.0[at / 64] & mask == mask;
        }
        Self::parts(at, len).all(|(word, mask)| self.0[word] & mask == mask)
    }

    /// Returns whether the set contains a range that is within one aligned group of at most 32.
    #[inline(always)]
    pub fn contains_small(&self, at: usize, len: usize) -> bool {
        let mask = (1u64 << len) - 1;
        self.0[at / 64] >> (at % 64) & mask == mask
    }

    #[inline(always)]
    pub fn insert_small(&mut self, at: usize, len: usize) {
        self.0[at / 64] |= ((1u64 << len) - 1) << (at % 64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_inserted_and_found() {
        let mut bits = Bits::new(300);
        bits.insert_range(60, 140);
        assert!(bits.contains_range(60, 140) && !bits.contains_range(59, 2) && !bits.contains_range(190, 11));
        assert_eq!(bits.count(), 140);
        bits.insert_range(5, 0);
        assert_eq!(bits.count(), 140);
        assert!(bits.meets_range(0, 61) && !bits.meets_range(0, 60) && !bits.meets_range(200, 999));
        let mut joined = Bits::default();
        joined.join(&bits);
        assert!(joined.count() == 140 && !Bits::default().meets_range(0, 300));
    }
}
