//! A consistency check: the pool's counts must agree with each other and with the block tables.

use super::BlockPool;

impl BlockPool {
    /// Checks the reference counts and the free list. Every block must have as many references as it occurs in
    /// `in_tables`, the blocks of all tables. It must be free if it has none.
    ///
    /// # Errors
    /// Describes the first inconsistency.
    pub fn check_integrity<'a>(&self, in_tables: impl IntoIterator<Item = &'a u32>) -> Result<(), String> {
        let blocks = self.blocks();
        let mut refs = vec![0; self.num_blocks()];
        for &block in in_tables {
            refs[block as usize] += 1;
        }
        if let Some(b) = (0..refs.len()).find(|&b| refs[b] != blocks.uses[b].refs) {
            return Err(format!("block {b} is in {} tables but counts {} references", refs[b], blocks.uses[b].refs));
        }
        for b in blocks.free.iter() {
            if std::mem::replace(&mut refs[b as usize], 1) != 0 {
                return Err(format!("block {b} is in the free list twice, or both in use and free"));
            }
        }
        if let Some(b) = refs.iter().position(|&r| r == 0) {
            return Err(format!("block {b} is neither in use nor free"));
        }
        if let Some(b) = blocks.free.iter().find(|&b| blocks.uses[b as usize].filled != 0) {
            return Err(format!("free block {b} claims to hold tokens"));
        }
        let filled = || blocks.uses.iter().map(|usage| usage.filled as usize);
        if filled().sum::<usize>() != blocks.total_filled || filled().any(|f| f > self.block_size()) {
            return Err(format!(
                "{} slots are filled but {} are counted",
                filled().sum::<usize>(),
                blocks.total_filled
            ));
        }
        let shared = blocks.uses.iter().filter(|usage| usage.refs > 1).count();
        if shared != blocks.shared {
            return Err(format!("{shared} blocks are shared but {} are counted", blocks.shared));
        }
        let is_registered = |b: &u32| blocks.prefix(*b).is_some();
        let cached = blocks.free.iter().filter(is_registered).count();
        if cached != blocks.cached || !blocks.free.iter().is_sorted_by_key(|b| is_registered(&b)) {
            return Err(format!(
                "{cached} blocks are cached but {} are counted, or they are not last in the free list",
                blocks.cached
            ));
        }
        if (0..refs.len() as u32).filter(is_registered).count() != blocks.registered.len() {
            return Err("the prefix index has a wrong number of entries".into());
        }
        Ok(())
    }
}
