//! The KV cache in the plan of a deployment: its groups of layers, and the memory of a sequence.

use std::fmt;

use anyhow::{Result, ensure};
use engine::tools::config::ModelConfig;
use engine::tools::kv::{KvDtype, KvGroup, KvLayout, MAX_GROUPS};
use engine::tools::parallel::Shard;
use serde_json::{Value, json};

const KIB: f64 = 1024.0;
const MIB: f64 = 1024.0 * KIB;
const GIB: f64 = 1024.0 * MIB;

/// Returns the layout of a model's KV cache on one of several GPUs.
///
/// # Errors
/// If the layers have too many kinds of caches.
pub fn layout(config: &ModelConfig, shard: Shard, block_size: usize, kv_dtype: KvDtype) -> Result<KvLayout> {
    let layout = KvLayout::new(&shard.memory_layers(config), block_size, kv_dtype);
    ensure!(layout.groups.len() <= MAX_GROUPS, "the layers have {} kinds of KV caches", layout.groups.len());
    Ok(layout)
}

/// The KV cache of a model, on all its GPUs together.
#[derive(Clone, Debug)]
pub struct CachePlan {
    layout: KvLayout,
    /// The longest sequence.
    max_len: usize,
}

impl CachePlan {
    /// Plans the cache of a model that is divided among `gpus` GPUs. `part` is the layout on one of them.
    pub fn new(part: &KvLayout, gpus: usize, max_len: usize) -> Self {
        CachePlan { layout: part.clone().of_workers(gpus), max_len }
    }

    /// Whether every layer keeps keys and values of all tokens.
    pub fn keeps_all(&self) -> bool {
        self.layout.groups.iter().all(|group| group.window.is_none())
    }

    /// Whether some layers keep keys and values of only a window.
    pub fn has_windows(&self) -> bool {
        self.layout.groups.iter().any(|group| group.window.is_some() && group.state.is_none())
    }

    /// Returns the bytes of a token in all layers, apart from states.
    pub fn token_bytes(&self) -> f64 {
        (0..self.layout.groups.len()).map(|group| self.group_token_bytes(group)).sum()
    }

    fn group_token_bytes(&self, group: usize) -> f64 {
        match self.layout.groups[group].state {
            Some(_) => 0.0,
            None => self.layout.group_block_bytes(group) as f64 / self.layout.block_size as f64,
        }
    }

    /// Returns the bytes of a sequence's states in all layers.
    fn state_bytes(&self) -> usize {
        self.layout.groups.iter().filter_map(KvGroup::state_bytes).sum()
    }

    /// Returns the bytes that a sequence of `tokens` tokens keeps. Free slots of its last blocks do not count.
    pub fn kept_bytes(&self, tokens: f64) -> f64 {
        let kept = |group: &KvGroup| group.window.map_or(tokens, |window| tokens.min(window as f64));
        let groups = self.layout.groups.iter().enumerate();
        self.state_bytes() as f64 + groups.map(|(at, group)| kept(group) * self.group_token_bytes(at)).sum::<f64>()
    }

    /// Returns the bytes of a page.
    pub fn page_bytes(&self) -> usize {
        self.layout.page_bytes()
    }

    /// Returns the number of sequences of the maximum length that `pages` pages hold at a time.
    pub fn sequences_in(&self, pages: usize) -> usize {
        self.layout.sequences_in(pages, self.max_len)
    }

    /// As [`Self::sequences_in`], if windows gave no blocks back.
    pub fn whole_sequences_in(&self, pages: usize) -> usize {
        let keys = self.max_len.div_ceil(self.layout.block_size) * self.layout.block_bytes();
        pages * self.layout.page_bytes() / (keys + self.state_bytes())
    }

    /// Returns the bytes of the blocks of a sequence of the maximum length.
    pub fn longest_bytes(&self) -> usize {
        (0..self.layout.groups.len()).map(|group| self.layout.sequence_bytes(group, self.max_len)).sum()
    }

    /// Returns the groups as JSON.
    pub fn json(&self) -> Value {
        let group = |(at, group): (usize, &KvGroup)| {
            json!({
                "layers": group.layers.len(),
                "heads": group.heads,
                "head_dim": group.head_dim,
                "window": group.window.filter(|_| group.state.is_none()),
                "state_bytes": group.state_bytes(),
                "bytes_per_token": self.group_token_bytes(at),
                "bytes_per_longest_sequence": self.layout.sequence_bytes(at, self.max_len),
            })
        };
        self.layout.groups.iter().enumerate().map(group).collect()
    }
}

impl fmt::Display for CachePlan {
    /// Writes a line for each group of layers, and one for the longest sequence.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, group) in self.layout.groups.iter().enumerate() {
            if group.state.is_some() {
                writeln!(f, "{:14}{group} per sequence", "")?;
                continue;
            }
            write!(f, "{:14}{group}: {:.0} KiB per token", "", self.group_token_bytes(at) / KIB)?;
            if group.window.is_some() {
                let most = self.layout.sequence_bytes(at, self.max_len) as f64 / MIB;
                write!(f, ", at most {most:.0} MiB per sequence")?;
            }
            writeln!(f)?;
        }
        let (max_len, bytes) = (self.max_len, self.longest_bytes() as f64 / GIB);
        write!(f, "{:14}a sequence of {max_len} tokens takes {bytes:.1} GiB", "")?;
        if self.has_windows() {
            let all = (self.max_len as f64 * self.token_bytes() + self.state_bytes() as f64) / GIB;
            write!(f, ", and would take {all:.1} GiB if windows gave no blocks back")?;
        }
        writeln!(f)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // a failed unwrap is a failed test

    use engine::DType;

    use super::*;
    use crate::model::ModelShape;

    fn cache(model: &str, gpus: usize) -> CachePlan {
        let config = ModelShape::find(model).unwrap().config;
        let part = layout(&config, Shard { rank: 0, of: gpus, ..Shard::WHOLE }, 16, DType::F16.into()).unwrap();
        CachePlan::new(&part, gpus, config.max_positions)
    }

    #[test]
    fn each_group_of_gemma_3_27b_has_a_line() {
        let cache = cache("gemma-3-27b", 1);
        let lines: Vec<String> = cache.to_string().lines().map(|line| line.trim().into()).collect();
        // The window's 1,023 earlier tokens may begin anywhere in a block, so they are in up to 65 blocks of 6.5 MiB.
        assert_eq!(
            lines,
            [
                "52 layers, 16 heads of 128, the last 1024 tokens: 416 KiB per token, at most 422 MiB per sequence",
                "10 layers, 16 heads of 128, all tokens: 80 KiB per token",
                "a sequence of 131072 tokens takes 10.4 GiB, and would take 62.0 GiB if windows gave no blocks back",
            ]
        );
        let json = cache.json();
        assert_eq!((json[0]["window"].as_u64(), json[1]["window"].as_u64()), (Some(1024), None));
        assert_eq!(json[1]["bytes_per_token"], 80.0 * 1024.0);
        assert_eq!(cache.kept_bytes(2048.0), (2048.0 * 80.0 + 1024.0 * 416.0) * 1024.0);
    }

    #[test]
    fn gemma_4_31b_takes_a_tenth_of_what_all_tokens_would_take() {
        let cache = cache("gemma-4-31b", 1);
        let text = cache.to_string();
        assert!(text.contains("a sequence of 262144 tokens takes 20.8 GiB, and would take 220.0 GiB"), "{text}");
        // As many pages as ten sequences need.
        let pages = 65 * 10 + 16_384;
        assert_eq!((cache.sequences_in(pages), cache.whole_sequences_in(pages)), (10, 0));
    }

    #[test]
    fn heads_are_counted_on_all_gpus_together() {
        let (one, two) = (cache("gemma-4-31b", 1), cache("gemma-4-31b", 2));
        assert_eq!(one.to_string(), two.to_string());
        // Eight GPUs cannot divide four heads, so each head is there twice.
        let eight = cache("gemma-4-31b", 8).to_string();
        assert!(eight.contains("10 layers, 8 heads of 512, all tokens"), "{eight}");
        assert!(cache("olmo-2-7b", 1).keeps_all() && !cache("olmo-3-7b", 1).keeps_all());
    }
}
