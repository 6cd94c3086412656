//! A replay with the engine's own block pool.

use std::collections::VecDeque;

use engine::tools::kv::{BlockPool, BlockTable, KvLayout, prefix_hit, state_ends};

use super::{Asked, BLOCK_SIZE, IN_FLIGHT, Replay};

/// The engine's pool, and the tables of the requests that run.
pub struct PagedReplay {
    pool: BlockPool,
    running: VecDeque<BlockTable>,
}

impl PagedReplay {
    /// Creates an empty pool of `bytes` bytes.
    pub fn new(layout: &KvLayout, bytes: usize) -> Self {
        let pages = bytes / layout.page_bytes();
        let pool = BlockPool::with_groups(pages, layout.block_size, &layout.cache_groups());
        PagedReplay { pool, running: VecDeque::new() }
    }
}

impl Replay for PagedReplay {
    fn serve(&mut self, asked: &Asked) -> usize {
        if self.running.len() == IN_FLIGHT {
            self.running.pop_front();
        }
        let mut table = prefix_hit(&self.pool, &asked.tokens[..asked.prompt], false);
        table.keep_states(Some(&state_ends(&asked.messages, &[], asked.prompt, BLOCK_SIZE)));
        let hits = table.len();
        while table.len() < asked.computed() {
            table.slide_past(asked.prompt, false);
            let more = asked.next(table.len()) - table.len();
            while table.reserve(more, &mut Vec::new()).is_err() {
                assert!(self.running.pop_front().is_some(), "a request does not fit the memory alone");
            }
            table.register(&asked.tokens[..table.len()]);
            table.settle(&asked.tokens);
        }
        self.running.push_back(table);
        hits
    }
}
