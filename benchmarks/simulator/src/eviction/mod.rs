//! Eviction of cached prefixes: traces of sessions, replayed with the engine's block pool, with other rules, and with a
//! bound on what any rule can reach.
//!
//! A replay has no clock. Requests come in the order of the trace, and the last `IN_FLIGHT` of them hold their blocks.
//! A request looks its prompt up, computes the rest in chunks, generates its answer, and later gives its blocks back.

mod offline;
mod paged;
mod queued;
mod sessions;
mod work;

use std::collections::HashMap;

use engine::DType;
use engine::tools::config::{LayerKv, LayerMemory};
use engine::tools::kv::{KvGroup, KvLayout};

pub use offline::bound;
pub use paged::PagedReplay;
pub use queued::{Order, QueuedReplay};
pub use sessions::{Kind, SessionRequest, requests};
pub use work::Work;

/// Tokens per block.
pub const BLOCK_SIZE: usize = 16;
/// Requests that run at a time, if the memory has room for them.
const IN_FLIGHT: usize = 8;
/// Tokens of a prompt that are computed in a step.
const CHUNK: usize = 2048;

/// A request of a trace, as a replay sees it.
pub struct Asked {
    /// The prompt and the answer.
    pub tokens: Vec<u32>,
    /// Tokens of the prompt.
    pub prompt: usize,
    /// The numbers of tokens up to the ends of the prompt's messages.
    pub messages: Vec<usize>,
    /// Tokens per block.
    pub block_size: usize,
    /// For each full block of computed tokens, a number that identifies its tokens and all tokens before them.
    pub blocks: Vec<u32>,
}

impl Asked {
    /// Returns the number of tokens whose keys and values are computed. The last token's are not.
    pub fn computed(&self) -> usize {
        self.tokens.len() - 1
    }

    /// Returns the most blocks that a lookup of the prompt can find. At least one token is left to compute.
    pub fn most_hits(&self) -> usize {
        (self.prompt - 1) / self.block_size
    }

    /// Returns the number of tokens after the next step, if `done` are computed. Steps that generate end with a block,
    /// which gives the same blocks as steps of one token.
    fn next(&self, done: usize) -> usize {
        match done < self.prompt {
            true => self.prompt.min(done + CHUNK),
            false => self.computed().min((done / BLOCK_SIZE + 1) * BLOCK_SIZE),
        }
    }
}

/// Numbers the blocks of requests.
pub struct Numbering {
    block_size: usize,
    numbers: HashMap<(u32, Box<[u32]>), u32>,
}

impl Numbering {
    /// Numbers blocks of `block_size` tokens.
    pub fn new(block_size: usize) -> Self {
        Numbering { block_size, numbers: HashMap::new() }
    }

    /// Returns a request with its blocks.
    pub fn ask(&mut self, request: &SessionRequest) -> Asked {
        let (tokens, block_size) = (request.tokens(), self.block_size);
        let mut parent = u32::MAX;
        let number = |block: &[u32]| {
            let next = self.numbers.len() as u32;
            parent = *self.numbers.entry((parent, block.into())).or_insert(next);
            parent
        };
        let blocks = tokens[..tokens.len() - 1].chunks_exact(block_size).map(number).collect();
        Asked { prompt: request.prompt, messages: request.messages(), block_size, blocks, tokens }
    }
}

/// A cache that requests are replayed with.
pub trait Replay {
    /// Tokens per block.
    fn block_size(&self) -> usize {
        BLOCK_SIZE
    }

    /// Serves a request. Returns the number of prompt tokens that were found.
    fn serve(&mut self, asked: &Asked) -> usize;
}

/// The saved part of the prompts of a trace.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Saved {
    /// Prompt tokens that were found.
    pub tokens: f64,
    /// The operations that computing them would have taken.
    pub flops: f64,
}

impl Saved {
    /// Replays a trace.
    pub fn by(replay: &mut dyn Replay, trace: &[SessionRequest], work: &Work) -> Self {
        let (mut numbering, mut saved) = (Numbering::new(replay.block_size()), Saved::default());
        for request in trace {
            let hits = replay.serve(&numbering.ask(request));
            saved.tokens += hits as f64;
            saved.flops += work.flops(hits);
        }
        saved
    }

    /// Returns the sum over all prompts of a trace.
    pub fn all(trace: &[SessionRequest], work: &Work) -> Self {
        let prompts = trace.iter().map(|request| request.prompt);
        Saved { tokens: prompts.clone().sum::<usize>() as f64, flops: prompts.map(|tokens| work.flops(tokens)).sum() }
    }
}

/// Returns whether the longest request of a trace fits `bytes` bytes when it runs alone.
pub fn fits(trace: &[SessionRequest], layout: &KvLayout, bytes: usize) -> bool {
    let blocks = trace.iter().map(|request| request.len().div_ceil(BLOCK_SIZE)).max().unwrap_or(0);
    let most = |(at, group): (usize, &KvGroup)| {
        let kept = match (group.state, group.window) {
            (Some(_), _) => 1,
            (None, Some(window)) => blocks.min((window + CHUNK).div_ceil(BLOCK_SIZE) + 1),
            (None, None) => blocks,
        };
        // The last page may be partly used.
        kept * layout.group_block_bytes(at) + layout.page_bytes()
    };
    layout.groups.iter().enumerate().map(most).sum::<usize>() <= bytes
}

/// The bytes of the smallest blocks.
fn unit(layout: &KvLayout) -> usize {
    (0..layout.groups.len()).map(|group| layout.group_block_bytes(group)).min().unwrap_or(1)
}

/// The memory of a block of each group of layers, in the units of the group with the smallest blocks, and its window.
fn units(layout: &KvLayout) -> Vec<(usize, Option<usize>)> {
    let group = |(at, group): (usize, &KvGroup)| (layout.group_block_bytes(at).div_ceil(unit(layout)), group.window);
    layout.groups.iter().enumerate().map(group).collect()
}

/// Returns the blocks that a group with a window needs to resume after `blocks` blocks.
fn needed(window: Option<usize>, blocks: usize, block_size: usize) -> usize {
    window.map_or(blocks, |window| blocks.min(window.saturating_sub(1).div_ceil(block_size)))
}

/// Returns the cache of Qwen3.5 35B-A3B and the work of its prompts: three of four layers are delta nets with 32 value
/// heads and 16 key heads of 128, and the others have 16 heads of 256 and 2 key/value heads. Each token has eight of 256
/// experts and a shared one.
pub fn qwen3_5_35b() -> (KvLayout, Work) {
    let (layers, hidden, expert) = (40, 2048, 512);
    let (keys, values, channels) = (16 * 128, 32 * 128, 8192);
    let state = 32 * 128 * 128;
    let layer = |source: usize| match source % 4 {
        3 => LayerMemory::Kv(LayerKv { heads: 2, head_dim: 256, window: None, source, latent: None }),
        _ => LayerMemory::State { elements: 3 * channels + state },
    };
    let memory: Vec<LayerMemory> = (0..layers).map(layer).collect();
    let delta = hidden * (2 * keys + 2 * values + 64) + values * hidden + 4 * channels;
    let attention = hidden * 256 * (2 * 16 + 2 * 2) + 16 * 256 * hidden;
    let experts = layers * (9 * 3 * hidden * expert + 256 * hidden);
    // A token's step of the delta rule reads the state, corrects it and reads it again.
    let linear = 2 * (30 * delta + 10 * attention + experts) + 30 * 6 * state;
    let work = Work { linear: linear as f64, attention: vec![(4.0 * 16.0 * 256.0, None); 10] };
    (KvLayout::new(&memory, BLOCK_SIZE, DType::F16.into()), work)
}

#[cfg(test)]
mod tests;
