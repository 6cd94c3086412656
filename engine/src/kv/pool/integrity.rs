//! A check of a pool: its counts must agree with each other and with the block tables.

use super::BlockPool;

impl BlockPool {
    /// Checks that every block is either free, or has exactly as many references as it occurs among the `held` blocks.
    ///
    /// # Errors
    /// What is wrong, in words.
    pub fn check_integrity<'a>(&self, held: impl IntoIterator<Item = &'a u32>) -> Result<(), String> {
        let blocks = self.blocks();
        let mut refs = vec![0; self.num_blocks()];
        for &block in held {
            refs[block as usize] += 1;
        }
        if let Some(b) = (0..refs.len()).find(|&b| refs[b] != blocks.uses[b].refs) {
            return Err(format!("block {b} is held {} times but counts {} references", refs[b], blocks.uses[b].refs));
        }
        for b in blocks.free.iter() {
            if std::mem::replace(&mut refs[b as usize], 1) != 0 {
                return Err(format!("block {b} is in the free list twice, or held and free"));
            }
        }
        if let Some(b) = refs.iter().position(|&r| r == 0) {
            return Err(format!("block {b} is neither held nor free"));
        }
        if let Some(b) = blocks.free.iter().find(|&b| blocks.uses[b as usize].filled != 0) {
            return Err(format!("free block {b} claims to hold tokens"));
        }
        let filled = || blocks.uses.iter().map(|of| of.filled as usize);
        if filled().sum::<usize>() != blocks.total_filled || filled().any(|f| f > self.block_size()) {
            return Err(format!(
                "{} slots are filled but {} are counted",
                filled().sum::<usize>(),
                blocks.total_filled
            ));
        }
        let shared = blocks.uses.iter().filter(|of| of.refs > 1).count();
        if shared != blocks.shared {
            return Err(format!("{shared} blocks are shared but {} are counted", blocks.shared));
        }
        let is_known = |b: &u32| blocks.prefix(*b).is_some();
        let cached = blocks.free.iter().filter(is_known).count();
        if cached != blocks.cached || !blocks.free.iter().is_sorted_by_key(|b| is_known(&b)) {
            return Err(format!("{cached} blocks are cached but {} are counted, or they are not last", blocks.cached));
        }
        if (0..refs.len() as u32).filter(is_known).count() != blocks.known.len() {
            return Err("the index of known blocks is damaged".into());
        }
        Ok(())
    }
}
