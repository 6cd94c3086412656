//! The pool of physical blocks: a free list and a reference count for each.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

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
    /// Free blocks, the next to be taken last: taking and returning are O(1).
    free: Vec<u32>,
    /// References to each block.
    refs: Vec<u32>,
    /// Slots of each block that hold a token.
    filled: Vec<u32>,
    /// Sum of `filled`.
    total_filled: usize,
}

/// How much of a pool is in use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Blocks in the pool.
    pub num_blocks: usize,
    /// Blocks that somebody holds.
    pub used_blocks: usize,
    /// Slots in the used blocks.
    pub used_slots: usize,
    /// Slots in the used blocks that hold a token.
    pub filled_slots: usize,
}

impl BlockPool {
    /// A pool of `num_blocks` free blocks of `block_size` tokens.
    pub fn new(num_blocks: usize, block_size: usize) -> Self {
        let num_ids = u32::try_from(num_blocks).unwrap_or(u32::MAX);
        let num_blocks = num_ids as usize;
        let state = Mutex::new(State {
            free: (0..num_ids).rev().collect(),
            refs: vec![0; num_blocks],
            filled: vec![0; num_blocks],
            total_filled: 0,
        });
        BlockPool { shared: Arc::new(Shared { block_size, num_blocks, state }) }
    }

    /// Tokens a block holds.
    pub fn block_size(&self) -> usize {
        self.shared.block_size
    }

    /// Blocks in the pool, free or not.
    pub fn num_blocks(&self) -> usize {
        self.shared.num_blocks
    }

    /// Blocks nobody holds.
    pub fn num_free(&self) -> usize {
        self.state().free.len()
    }

    /// Present use.
    pub fn usage(&self) -> Usage {
        let state = self.state();
        let used_blocks = self.num_blocks() - state.free.len();
        Usage {
            num_blocks: self.num_blocks(),
            used_blocks,
            used_slots: used_blocks * self.block_size(),
            filled_slots: state.total_filled,
        }
    }

    /// Whether both are handles on the same pool.
    pub fn is(&self, other: &BlockPool) -> bool {
        Arc::ptr_eq(&self.shared, &other.shared)
    }

    /// Takes a free block.
    pub fn allocate(&self) -> Option<Block> {
        let mut state = self.state();
        let id = state.free.pop()?;
        state.refs[id as usize] = 1;
        Some(Block { pool: self.clone(), id })
    }

    /// Proves that every block is either free, or held exactly as often as the `held` blocks say.
    ///
    /// # Errors
    /// What is wrong, in words.
    pub fn check_integrity<'a>(&self, held: impl IntoIterator<Item = &'a Block>) -> Result<(), String> {
        let state = self.state();
        let mut refs = vec![0; self.num_blocks()];
        for block in held {
            refs[block.id as usize] += 1;
        }
        if let Some(b) = (0..refs.len()).find(|&b| refs[b] != state.refs[b]) {
            return Err(format!("block {b} is held {} times but counts {} references", refs[b], state.refs[b]));
        }
        for &b in &state.free {
            if std::mem::replace(&mut refs[b as usize], 1) != 0 {
                return Err(format!("block {b} is in the free list twice, or held and free"));
            }
        }
        if let Some(b) = refs.iter().position(|&r| r == 0) {
            return Err(format!("block {b} is neither held nor free"));
        }
        if let Some(&b) = state.free.iter().find(|&&b| state.filled[b as usize] != 0) {
            return Err(format!("free block {b} claims to hold tokens"));
        }
        let filled: usize = state.filled.iter().map(|&f| f as usize).sum();
        if filled != state.total_filled || state.filled.iter().any(|&f| f as usize > self.block_size()) {
            return Err(format!("{filled} slots are filled but {} are counted", state.total_filled));
        }
        Ok(())
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // No operation leaves the state half done, so that a panic elsewhere does no harm.
        self.shared.state.lock().unwrap_or_else(PoisonError::into_inner)
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
    }
}

impl Clone for Block {
    fn clone(&self) -> Self {
        self.pool.state().refs[self.id as usize] += 1;
        Block { pool: self.pool.clone(), id: self.id }
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        let mut state = self.pool.state();
        let b = self.id as usize;
        state.refs[b] -= 1;
        if state.refs[b] == 0 {
            state.total_filled -= std::mem::take(&mut state.filled[b]) as usize;
            state.free.push(self.id);
        }
    }
}
