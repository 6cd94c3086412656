//! The free blocks, in allocation order.

/// A doubly linked list of block numbers in one array. Adding at either end and removing from anywhere are O(1).
#[derive(Debug)]
pub struct FreeList {
    /// One link per block, and a last one that closes the ring.
    links: Vec<Link>,
    len: usize,
}

#[derive(Clone, Copy, Debug)]
struct Link {
    prev: u32,
    next: u32,
}

impl FreeList {
    /// A list of blocks 0 to `num_blocks` - 1, in order.
    pub fn full(num_blocks: u32) -> Self {
        let ring = num_blocks + 1;
        let link = |b: u32| Link { prev: (b + ring - 1) % ring, next: (b + 1) % ring };
        FreeList { links: (0..ring).map(link).collect(), len: num_blocks as usize }
    }

    /// Blocks in the list.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Removes and returns the first block.
    pub fn take_first(&mut self) -> Option<u32> {
        let first = self.links[self.end()].next;
        (first as usize != self.end()).then(|| {
            self.remove(first);
            first
        })
    }

    /// Adds a block at the front, to be allocated next.
    pub fn push_first(&mut self, block: u32) {
        self.insert(self.end() as u32, block);
    }

    /// Adds a block at the end, to be allocated after all others.
    pub fn push_last(&mut self, block: u32) {
        self.insert(self.links[self.end()].prev, block);
    }

    /// Removes a block, which must be in the list.
    pub fn remove(&mut self, block: u32) {
        let Link { prev, next } = self.links[block as usize];
        self.links[prev as usize].next = next;
        self.links[next as usize].prev = prev;
        self.len -= 1;
    }

    /// The blocks, in allocation order.
    pub fn iter(&self) -> impl Iterator<Item = u32> {
        let next = |b: &u32| Some(self.links[*b as usize].next).filter(|&b| b as usize != self.end());
        std::iter::successors(next(&(self.end() as u32)), next)
    }

    fn insert(&mut self, after: u32, block: u32) {
        let next = std::mem::replace(&mut self.links[after as usize].next, block);
        self.links[next as usize].prev = block;
        self.links[block as usize] = Link { prev: after, next };
        self.len += 1;
    }

    /// The index of the link that closes the ring.
    fn end(&self) -> usize {
        self.links.len() - 1
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn behaves_like_a_deque(ops in prop::collection::vec((0..4u8, any::<prop::sample::Index>()), 0..100)) {
            let mut list = FreeList::full(6);
            let mut model: std::collections::VecDeque<u32> = (0..6).collect();
            for (op, pick) in ops {
                let taken: Vec<u32> = (0..6).filter(|b| !model.contains(b)).collect();
                match op {
                    0 => prop_assert_eq!(list.take_first(), model.pop_front()),
                    1 if !model.is_empty() => {
                        let block = model.remove(pick.index(model.len())).unwrap_or_default();
                        list.remove(block);
                    }
                    2 if !taken.is_empty() => {
                        list.push_first(*pick.get(&taken));
                        model.push_front(*pick.get(&taken));
                    }
                    3 if !taken.is_empty() => {
                        list.push_last(*pick.get(&taken));
                        model.push_back(*pick.get(&taken));
                    }
                    _ => {}
                }
                prop_assert_eq!(list.iter().collect::<Vec<_>>(), model.iter().copied().collect::<Vec<_>>());
                prop_assert_eq!(list.len(), model.len());
            }
        }
    }
}
