//! The pool of physical blocks: a reference count for each, and the free ones in the order in which they are taken.
//!
//! ```text
//!   free --- allocate ---> held --- register ---> held and known
//!    ^                      |                       |      ^
//!    |<------ dropped ------+               dropped |      | find
//!    |                                              v      |
//!    +------------ allocate (forgotten) ----------- cached-+
//! ```
//!
//! Cached blocks are free: they are taken when no other is left, the least recently used first.

mod integrity;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::free_list::FreeList;
use super::log::{Event, Logger, SharedLog, Space};
use super::prefix::{Prefix, PrefixId, PrefixIndex};
use super::usage::Usage;

/// All physical blocks of a KV cache. Cloning gives another handle on the same pool.
#[derive(Clone, Debug)]
pub struct BlockPool {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    block_size: usize,
    num_blocks: usize,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// Blocks that nobody holds. Those that are known stay for as long as there are others to take.
    free: FreeList,
    /// What full blocks are known by.
    known: PrefixIndex,
    /// References to each block.
    refs: Vec<u32>,
    /// Slots of each block that hold a token.
    filled: Vec<u32>,
    /// Sum of `filled`.
    total_filled: usize,
    /// Free blocks that are known.
    cached: usize,
    /// Blocks with more than one reference.
    shared: usize,
    log: Option<Logger>,
}

impl BlockPool {
    /// A pool of `num_blocks` free blocks of `block_size` tokens.
    pub fn new(num_blocks: usize, block_size: usize) -> Self {
        let num_ids = u32::try_from(num_blocks).unwrap_or(u32::MAX);
        let num_blocks = num_ids as usize;
        let state = Mutex::new(State {
            free: FreeList::full(num_ids),
            known: PrefixIndex::new(num_blocks),
            refs: vec![0; num_blocks],
            filled: vec![0; num_blocks],
            total_filled: 0,
            cached: 0,
            shared: 0,
            log: None,
        });
        BlockPool { shared: Arc::new(Shared { block_size, num_blocks, state }) }
    }

    /// Reports from now on what happens to blocks.
    pub fn set_log(&self, log: SharedLog, space: Space) {
        self.state().log = Some(Logger { log, space });
    }

    /// Puts an event into the log, if there is one.
    pub(super) fn record(&self, event: Event) {
        self.state().record(event);
    }

    /// Notes in the log that a step was scheduled.
    pub fn record_step(&self) {
        let usage = self.usage();
        self.record(Event::Step(usage));
    }

    /// Tokens a block holds.
    pub fn block_size(&self) -> usize {
        self.shared.block_size
    }

    /// Blocks in the pool, free or not.
    pub fn num_blocks(&self) -> usize {
        self.shared.num_blocks
    }

    /// Blocks nobody holds, cached ones included.
    pub fn num_free(&self) -> usize {
        self.state().free.len()
    }

    /// Blocks that nobody holds, whose contents can still be found; ascending.
    pub fn cached(&self) -> Vec<u32> {
        let state = self.state();
        let mut cached: Vec<u32> = state.free.iter().filter(|&b| state.known.prefix(b).is_some()).collect();
        cached.sort_unstable();
        cached
    }

    /// Present use.
    pub fn usage(&self) -> Usage {
        let state = self.state();
        let used_blocks = self.num_blocks() - state.free.len();
        Usage {
            num_blocks: self.num_blocks(),
            used_blocks,
            shared_blocks: state.shared,
            cached_blocks: state.cached,
            used_slots: used_blocks * self.block_size(),
            filled_slots: state.total_filled,
        }
    }

    /// Whether both are handles on the same pool.
    pub fn is(&self, other: &BlockPool) -> bool {
        Arc::ptr_eq(&self.shared, &other.shared)
    }

    /// Takes a free block. Cached ones go last, and are forgotten.
    pub fn allocate(&self) -> Option<Block> {
        let mut state = self.state();
        let id = state.free.take_first()?;
        if state.known.remove(id) {
            state.cached -= 1;
            state.record(Event::Evict(id));
        }
        state.refs[id as usize] = 1;
        state.record(Event::Allocate(id));
        Some(Block { pool: self.clone(), id })
    }

    /// Another reference to the block that holds the last of `parent`'s tokens followed by `tokens`, if there is one.
    pub(super) fn find(&self, parent: Option<PrefixId>, tokens: &[u32]) -> Option<(PrefixId, Block)> {
        let mut state = self.state();
        let id = state.known.find(parent, tokens)?;
        let name = state.known.prefix(id)?.id();
        state.hold(id, self.block_size());
        Some((name, Block { pool: self.clone(), id }))
    }

    /// Forgets what blocks hold: a step that was to fill some of them failed.
    pub fn forget(&self) {
        let mut state = self.state();
        for id in 0..self.shared.num_blocks as u32 {
            if state.known.remove(id) {
                state.record(Event::Evict(id));
            }
        }
        state.cached = 0;
    }

    /// A block for what `other`, a block of another pool, holds; and whether it must be moved there first, as this pool
    /// does not hold it yet. None if there is no free block.
    pub(super) fn counterpart(&self, other: &Block) -> Option<(Block, bool)> {
        if let Some(prefix) = other.prefix() {
            let mut state = self.state();
            if let Some(id) = state.known.find_prefix(&prefix) {
                state.hold(id, self.block_size());
                return Some((Block { pool: self.clone(), id }, false));
            }
        }
        Some((self.allocate()?, true))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // No operation leaves the state half done, so that a panic elsewhere does no harm.
        self.shared.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn record(&self, event: Event) {
        if let Some(log) = &self.log {
            log.record(event);
        }
    }

    /// Adds a reference to a block that is held or cached.
    fn hold(&mut self, id: u32, block_size: usize) {
        let b = id as usize;
        self.refs[b] += 1;
        self.record(Event::Share(id));
        if self.refs[b] == 1 {
            self.free.remove(id);
            self.cached -= 1;
            // Only full blocks are known.
            self.filled[b] = block_size as u32;
            self.total_filled += block_size;
        } else if self.refs[b] == 2 {
            self.shared += 1;
        }
    }
}

/// A reference to a physical block. Cloning shares the block, dropping the last reference frees it.
#[derive(Debug)]
pub struct Block {
    pool: BlockPool,
    id: u32,
}

impl Block {
    /// The physical block number.
    pub fn id(&self) -> u32 {
        self.id
    }

    /// Whether somebody else holds this block too.
    pub fn is_shared(&self) -> bool {
        self.num_refs() > 1
    }

    /// How many hold this block.
    pub fn num_refs(&self) -> usize {
        self.pool.state().refs[self.id as usize] as usize
    }

    /// What the block is known by.
    fn prefix(&self) -> Option<Arc<Prefix>> {
        self.pool.state().known.prefix(self.id).cloned()
    }

    /// Notes that what `other`, a block of another pool, holds is moved here; it is known by the same tokens.
    pub(super) fn take_over(&self, other: &Block) {
        self.fill(other.filled());
        let prefix = other.prefix();
        let mut state = self.pool.state();
        state.record(Event::Swap { src: other.id, dst: self.id });
        if prefix.is_some_and(|prefix| state.known.insert_prefix(self.id, prefix)) {
            state.record(Event::Register(self.id));
        }
    }

    /// Slots that hold tokens.
    pub(super) fn filled(&self) -> usize {
        self.pool.state().filled[self.id as usize] as usize
    }

    /// Notes that at least the first `slots` slots hold tokens.
    pub(super) fn fill(&self, slots: usize) {
        let mut state = self.pool.state();
        let filled = &mut state.filled[self.id as usize];
        let more = slots.saturating_sub(*filled as usize);
        *filled += more as u32;
        state.total_filled += more;
        if more > 0 {
            state.record(Event::Fill { block: self.id, slots });
        }
    }

    /// Makes this full block known by its `tokens` and those before it, so that it can be found until its memory is
    /// needed. Returns their name. None if they cannot be known, see [`PrefixIndex::insert`].
    pub(super) fn register(&self, parent: Option<PrefixId>, tokens: &[u32]) -> Option<PrefixId> {
        let mut state = self.pool.state();
        match state.known.prefix(self.id) {
            Some(prefix) => Some(prefix.id()),
            None => {
                let name = state.known.insert(self.id, parent, tokens);
                if state.known.prefix(self.id).is_some() {
                    state.record(Event::Register(self.id));
                }
                name
            }
        }
    }
}

impl Clone for Block {
    fn clone(&self) -> Self {
        self.pool.state().hold(self.id, self.pool.block_size());
        Block { pool: self.pool.clone(), id: self.id }
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        let mut state = self.pool.state();
        let b = self.id as usize;
        state.refs[b] -= 1;
        state.record(Event::Free(self.id));
        if state.refs[b] == 1 {
            state.shared -= 1;
        } else if state.refs[b] == 0 {
            state.total_filled -= std::mem::take(&mut state.filled[b]) as usize;
            if state.known.prefix(self.id).is_some() {
                state.cached += 1;
                state.free.push_last(self.id);
            } else {
                state.free.push_first(self.id);
            }
        }
    }
}
