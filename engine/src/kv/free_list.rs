//! The free blocks, in allocation order.

/// Doubly linked lists of numbers in one array. A number is in at most one list. Adding at either end and removing from
/// anywhere are O(1).
#[derive(Debug)]
pub struct FreeList<const LISTS: usize = 1> {
    /// One link per number, and one for each list that closes its ring.
    links: Vec<Link>,
    /// Numbers in all lists.
    len: usize,
}

#[derive(Clone, Copy, Debug)]
struct Link {
    prev: u32,
    next: u32,
}

impl<const LISTS: usize> FreeList<LISTS> {
    /// Lists of the numbers below `count`, all in the first list, in order.
    pub fn full(count: u32) -> Self {
        let mut lists = FreeList::empty(count);
        let ring = count + 1;
        let link = |b: u32| Link { prev: (b + ring - 1) % ring, next: (b + 1) % ring };
        lists.links[..ring as usize].iter_mut().zip((0..ring).map(link)).for_each(|(to, link)| *to = link);
        lists.len = count as usize;
        lists
    }

    /// Empty lists for the numbers below `count`.
    pub fn empty(count: u32) -> Self {
        let alone = |b: u32| Link { prev: b, next: b };
        FreeList { links: (0..count + LISTS as u32).map(alone).collect(), len: 0 }
    }

    /// Numbers in all lists.
    pub fn len(&self) -> usize {
        self.len
    }

    /// The first number of a list.
    pub fn first(&self, list: usize) -> Option<u32> {
        let first = self.links[self.end(list)].next;
        ((first as usize) < self.links.len() - LISTS).then_some(first)
    }

    /// Removes and returns the first number of a list.
    pub fn take_first(&mut self, list: usize) -> Option<u32> {
        let first = self.first(list)?;
        self.remove(first);
        Some(first)
    }

    /// Adds a number at the front of a list.
    pub fn push_first(&mut self, list: usize, number: u32) {
        self.insert(self.end(list) as u32, number);
    }

    /// Adds a number at the end of a list.
    pub fn push_last(&mut self, list: usize, number: u32) {
        self.insert(self.links[self.end(list)].prev, number);
    }

    /// Removes a number, which must be in one of the lists.
    pub fn remove(&mut self, number: u32) {
        let Link { prev, next } = self.links[number as usize];
        self.links[prev as usize].next = next;
        self.links[next as usize].prev = prev;
        self.len -= 1;
    }

    /// The numbers of a list, in order.
    pub fn iter(&self, list: usize) -> impl Iterator<Item = u32> {
        let count = self.links.len() - LISTS;
        let next = move |b: &u32| Some(self.links[*b as usize].next).filter(|&b| (b as usize) < count);
        std::iter::successors(self.first(list), next)
    }

    fn insert(&mut self, after: u32, number: u32) {
        let next = std::mem::replace(&mut self.links[after as usize].next, number);
        self.links[next as usize].prev = number;
        self.links[number as usize] = Link { prev: after, next };
        self.len += 1;
    }

    /// The index of the link that closes a list's ring.
    fn end(&self, list: usize) -> usize {
        self.links.len() - LISTS + list
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn behaves_like_deques(ops in prop::collection::vec((0..4u8, 0..2usize, any::<prop::sample::Index>()), 0..100)) {
            let mut lists = FreeList::<2>::full(6);
            let mut model: [VecDeque<u32>; 2] = [(0..6).collect(), VecDeque::new()];
            for (op, list, pick) in ops {
                let taken: Vec<u32> = (0..6).filter(|b| !model.iter().any(|list| list.contains(b))).collect();
                match op {
                    0 => prop_assert_eq!(lists.take_first(list), model[list].pop_front()),
                    1 if !model[list].is_empty() => {
                        let at = pick.index(model[list].len());
                        lists.remove(model[list].remove(at).unwrap_or_default());
                    }
                    2 if !taken.is_empty() => {
                        lists.push_first(list, *pick.get(&taken));
                        model[list].push_front(*pick.get(&taken));
                    }
                    3 if !taken.is_empty() => {
                        lists.push_last(list, *pick.get(&taken));
                        model[list].push_back(*pick.get(&taken));
                    }
                    _ => {}
                }
                for (list, model) in model.iter().enumerate() {
                    prop_assert_eq!(lists.iter(list).collect::<Vec<_>>(), model.iter().copied().collect::<Vec<_>>());
                }
                prop_assert_eq!(lists.len(), model.iter().map(VecDeque::len).sum::<usize>());
            }
        }
    }
}
