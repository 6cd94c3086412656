//! The pages of a pool. A page holds blocks of one group of layers. If none of its blocks has references, any group can
//! take it.

use crate::kv::free_list::FreeList;

/// How much a cached block or page is worth. Less valuable ones are evicted first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Value {
    /// Blocks that a window has left behind. They help only a prompt that branches off there.
    Low,
    /// Blocks that a window has left behind, from which a repetition of the prompt resumes.
    Middle,
    /// Other blocks.
    #[default]
    High,
}

/// The group of pages that have no blocks, but an adapter.
pub const NO_GROUP: usize = u32::MAX as usize;

/// All values, in ascending order.
const VALUES: [Value; 3] = [Value::Low, Value::Middle, Value::High];
/// The lists of pages without references: pages without cached blocks, and a list for each highest value in a page.
const EMPTY: usize = 0;
const LISTS: usize = 1 + VALUES.len();

impl Value {
    /// The list of pages whose highest value this is.
    fn list(self) -> usize {
        1 + self as usize
    }
}

/// The pages of a pool.
#[derive(Debug)]
pub struct Pages {
    /// Pages without references, in the order in which they are taken.
    free: FreeList<LISTS>,
    /// One entry per page, or none if the pool has only one group. Then a page is a block.
    states: Vec<PageState>,
    /// The number of pages.
    count: usize,
}

/// The state of a page.
#[derive(Clone, Copy, Debug, Default)]
pub struct PageState {
    /// The group whose blocks the page holds. Meaningless before the page is first taken.
    pub group: u32,
    /// Blocks with references.
    pub used: u32,
    /// When the last block lost its references.
    pub released: u64,
}

impl Pages {
    /// `count` pages without references for `groups` groups.
    pub fn new(count: u32, groups: usize) -> Self {
        let states = if groups > 1 { vec![PageState::default(); count as usize] } else { Vec::new() };
        Pages { free: FreeList::full(count), states, count: count as usize }
    }

    /// The number of pages.
    pub fn len(&self) -> usize {
        self.count
    }

    /// Pages without references.
    pub fn num_free(&self) -> usize {
        self.free.len()
    }

    /// The pages without references, in the order in which they are taken.
    pub fn free(&self) -> impl Iterator<Item = u32> {
        (0..LISTS).flat_map(|list| self.free.iter(list))
    }

    /// The state of a page of a pool with several groups.
    pub fn state(&mut self, page: u32) -> &mut PageState {
        &mut self.states[page as usize]
    }

    /// The pages without references that have cached blocks, in ascending order.
    pub fn cached(&self) -> Vec<u32> {
        let mut cached: Vec<u32> = (EMPTY + 1..LISTS).flat_map(|list| self.free.iter(list)).collect();
        cached.sort_unstable();
        cached
    }

    /// The states of all pages. Empty if the pool has only one group.
    pub fn states(&self) -> &[PageState] {
        &self.states
    }

    /// The value and the age of the page that is taken next. `None` if it has no cached blocks, or if there is none.
    pub fn next_age(&self) -> Option<(Value, u64)> {
        let age = |value: Value| Some((value, self.states[self.free.first(value.list())? as usize].released));
        match self.free.first(EMPTY) {
            Some(_) => None,
            None => VALUES.into_iter().find_map(age),
        }
    }

    /// Takes a page without references for a group, or [`NO_GROUP`]. Returns it, and the group that has cached blocks in it,
    /// if any. If an idle adapter has the page, the group is meaningless.
    pub fn take(&mut self, group: usize) -> Option<(u32, Option<usize>)> {
        let (page, is_cached) = match self.free.take_first(EMPTY) {
            Some(page) => (page, false),
            None => (self.take_cached()?, true),
        };
        let before = match self.states.get_mut(page as usize) {
            Some(state) => std::mem::replace(&mut state.group, group as u32) as usize,
            None => 0,
        };
        Some((page, is_cached.then_some(before)))
    }

    /// Takes the least valuable page that has cached blocks.
    fn take_cached(&mut self) -> Option<u32> {
        VALUES.into_iter().find_map(|value| self.free.take_first(value.list()))
    }

    /// Removes a page from the lists, because one of its cached blocks gets a reference.
    pub fn reclaim(&mut self, page: u32) {
        self.free.remove(page);
    }

    /// Adds a page that has lost its last reference. `value` is the highest value of its cached blocks, if any.
    pub fn release(&mut self, page: u32, value: Option<Value>, now: u64) {
        if let Some(state) = self.states.get_mut(page as usize) {
            state.released = now;
        }
        match value {
            None => self.free.push_first(EMPTY, page),
            Some(value) => self.free.push_last(value.list(), page),
        }
    }

    /// Notes that no page has cached blocks any more.
    pub fn forget_cached(&mut self) {
        while let Some(page) = self.take_cached() {
            self.free.push_last(EMPTY, page);
        }
    }
}
