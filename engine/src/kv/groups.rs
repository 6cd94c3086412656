//! Groups of layers, as the block pool knows them.

/// The properties of a group of layers that the block pool knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheGroup {
    /// The number of positions that a token sees, its own included. `None` for all.
    pub window: Option<usize>,
    /// Whether only keys are cached, which contain the values.
    pub is_latent: bool,
    /// Blocks in a page.
    pub blocks_per_page: usize,
    /// See [`KvLayout::id_step`](super::KvLayout::id_step).
    pub id_step: usize,
    /// For a group of recurrent layers, the largest number of blocks from one kept state of a prompt to the next. `None`
    /// for keys and values.
    pub state_stride: Option<usize>,
}

/// The window of states: a token needs only the state after the previous token.
pub(super) const STATE_WINDOW: usize = 2;

impl CacheGroup {
    /// The only group of a cache. A page is a block.
    pub fn only(window: Option<usize>) -> Self {
        CacheGroup { window, is_latent: false, blocks_per_page: 1, id_step: 1, state_stride: None }
    }

    /// A group of recurrent layers.
    pub fn states(state_stride: usize, blocks_per_page: usize, id_step: usize) -> Self {
        let state_stride = Some(state_stride.max(1));
        CacheGroup { window: Some(STATE_WINDOW), is_latent: false, blocks_per_page, id_step, state_stride }
    }

    /// The sliding window of attention. `None` for all tokens, and for states.
    pub fn attention_window(&self) -> Option<usize> {
        self.window.filter(|_| !self.is_state())
    }

    /// Whether the group keeps states of recurrent layers.
    pub fn is_state(&self) -> bool {
        self.state_stride.is_some()
    }
}

/// The number of blocks that `tokens` tokens take.
pub fn blocks_for(tokens: usize, block_size: usize) -> usize {
    tokens.div_ceil(block_size)
}
