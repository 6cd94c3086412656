//! Whether a pool's books agree with each other and with those who hold blocks.

use super::{Block, BlockPool};

impl BlockPool {
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
        for b in state.free.iter() {
            if std::mem::replace(&mut refs[b as usize], 1) != 0 {
                return Err(format!("block {b} is in the free list twice, or held and free"));
            }
        }
        if let Some(b) = refs.iter().position(|&r| r == 0) {
            return Err(format!("block {b} is neither held nor free"));
        }
        if let Some(b) = state.free.iter().find(|&b| state.filled[b as usize] != 0) {
            return Err(format!("free block {b} claims to hold tokens"));
        }
        let filled: usize = state.filled.iter().map(|&f| f as usize).sum();
        if filled != state.total_filled || state.filled.iter().any(|&f| f as usize > self.block_size()) {
            return Err(format!("{filled} slots are filled but {} are counted", state.total_filled));
        }
        let shared = state.refs.iter().filter(|&&r| r > 1).count();
        if shared != state.shared {
            return Err(format!("{shared} blocks are shared but {} are counted", state.shared));
        }
        let is_known = |b: &u32| state.known.prefix(*b).is_some();
        let cached = state.free.iter().filter(is_known).count();
        if cached != state.cached || !state.free.iter().is_sorted_by_key(|b| is_known(&b)) {
            return Err(format!("{cached} blocks are cached but {} are counted, or they are not last", state.cached));
        }
        if (0..refs.len() as u32).filter(is_known).count() != state.known.len() {
            return Err("the index of known blocks is damaged".into());
        }
        Ok(())
    }
}
