//! A worker's part of a model.

use std::ops::Range;

use crate::config::{DecoderLayer, Experts, LayerKv, LayerMemory, ModelConfig, ModelFamily};
use crate::error::{Error, Result};

/// A worker's part of a model, identified by the worker's number and the number of workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shard {
    /// The worker's number, from 0.
    pub rank: usize,
    /// The number of workers.
    pub of: usize,
    /// Whether each worker has whole experts. Otherwise it has a part of each expert.
    pub whole_experts: bool,
}

impl Shard {
    /// The whole model on a single worker.
    pub const WHOLE: Shard = Shard { rank: 0, of: 1, whole_experts: false };

    /// Whether this is the whole model.
    pub fn is_whole(self) -> bool {
        self.of == 1
    }

    /// Whether this is the first worker's part, which adds terms that must be added once.
    pub fn is_first(self) -> bool {
        self.rank == 0
    }

    /// Returns the worker's part of `count` items, of which all workers have equally many.
    pub fn even(self, count: usize) -> Range<usize> {
        let each = count / self.of;
        self.rank * each..(self.rank + 1) * each
    }

    /// Returns the worker's experts among `count`.
    pub fn experts(self, count: usize) -> Range<usize> {
        if self.whole_experts { self.even(count) } else { 0..count }
    }

    /// Returns the worker's part of the `inner` elements of an expert that it has.
    pub fn of_expert(self, inner: usize) -> Range<usize> {
        if self.whole_experts { 0..inner } else { self.even(inner) }
    }

    /// Returns the worker's part of `count` heads. If there are fewer heads than workers, several workers have the same
    /// head.
    pub fn heads(self, count: usize) -> Range<usize> {
        if count < self.of {
            let head = self.rank * count / self.of;
            return head..head + 1;
        }
        self.even(count)
    }

    /// Returns the worker's part of `count` rows of the vocabulary. The last worker may have fewer than the others.
    pub fn rows(self, count: usize) -> Range<usize> {
        let each = count.div_ceil(self.of);
        (self.rank * each).min(count)..((self.rank + 1) * each).min(count)
    }

    /// Describes the worker's memory of every layer of a model.
    pub fn memory_layers(self, config: &ModelConfig) -> Vec<LayerMemory> {
        let part = |i: usize| match &config.family {
            ModelFamily::Decoder(decoder) => decoder.layers[i].recurrent.and_then(|layer| layer.part(self.of).ok()),
            ModelFamily::Opt(_) | ModelFamily::Gpt2(_) => None,
        };
        let own = |(i, layer): (usize, LayerMemory)| match layer {
            LayerMemory::Kv(kv) => LayerMemory::Kv(LayerKv { heads: self.heads(kv.heads).len(), ..kv }),
            LayerMemory::State { elements } => {
                LayerMemory::State { elements: part(i).map_or(elements, |part| part.state()) }
            }
        };
        config.memory_layers().into_iter().enumerate().map(own).collect()
    }

    /// Returns the model's configuration for one worker, with its number of heads.
    ///
    /// # Errors
    /// [`Error::Option`] if the model cannot be divided among this many workers.
    pub fn config(self, config: &ModelConfig) -> Result<ModelConfig> {
        let of = self.of;
        let refuse = |what: String| Err(Error::Option(format!("tensor-parallel-size: {what}")));
        let heads = config.heads;
        let kv_heads: Vec<usize> = config.kv_layers().into_iter().map(|layer| layer.heads).collect();
        if !heads.is_multiple_of(of) {
            return refuse(format!("the model's {heads} attention heads cannot be divided among {of} workers"));
        }
        let is_odd = |heads: &&usize| !heads.is_multiple_of(of) && !of.is_multiple_of(**heads);
        if let Some(heads) = kv_heads.iter().find(is_odd) {
            return refuse(format!("the model's {heads} key-value heads cannot be divided among {of} workers"));
        }
        if let ModelFamily::Decoder(decoder) = &config.family {
            decoder.layers.iter().filter_map(|layer| layer.recurrent).try_for_each(|layer| layer.part(of).map(drop))?;
        }
        let inner = match &config.family {
            ModelFamily::Opt(opt) => vec![opt.ffn_dim],
            ModelFamily::Gpt2(gpt2) => vec![gpt2.n_inner],
            ModelFamily::Decoder(decoder) => decoder.layers.iter().flat_map(|layer| self.inner_sizes(layer)).collect(),
        };
        self.check_experts(config)?;
        if let Some(inner) = inner.into_iter().find(|inner| !inner.is_multiple_of(of)) {
            return refuse(format!("feed-forward layers of {inner} elements cannot be divided among {of} workers"));
        }
        if config.vocab_size < of * of {
            return refuse(format!("{} tokens are too few to be divided among {of} workers", config.vocab_size));
        }
        let extra = match &config.family {
            ModelFamily::Decoder(decoder) => decoder.layer_embedding.map(|extra| extra.vocab_size),
            _ => None,
        };
        if let Some(tokens) = extra.filter(|tokens| *tokens < of * of) {
            return refuse(format!(
                "{tokens} tokens of per-layer embeddings are too few to be divided among {of} workers"
            ));
        }
        Ok(ModelConfig { heads: heads / of, kv_heads: self.heads(config.kv_heads).len(), ..config.clone() })
    }

    /// Sizes of a layer's feed-forward parts that are divided. 0 if the layer does not have the part.
    fn inner_sizes(self, layer: &DecoderLayer) -> [usize; 3] {
        let shared = |experts: Experts| experts.shared.map_or(0, |shared| shared.inner);
        let routed = |experts: Experts| if self.whole_experts { 0 } else { experts.inner };
        [layer.inner, layer.experts.map_or(0, routed), layer.experts.map_or(0, shared)]
    }

    /// Refuses models whose experts cannot be divided among the workers.
    fn check_experts(self, config: &ModelConfig) -> Result<()> {
        if !self.whole_experts {
            return Ok(());
        }
        let refuse = |what: String| Err(Error::Option(format!("expert-parallel: {what}")));
        let counts: Vec<usize> = match &config.family {
            ModelFamily::Decoder(decoder) => {
                decoder.layers.iter().filter_map(|layer| Some(layer.experts?.count)).collect()
            }
            _ => Vec::new(),
        };
        if counts.is_empty() {
            return refuse("the model has no experts".into());
        }
        match counts.into_iter().find(|count| !count.is_multiple_of(self.of)) {
            Some(count) => refuse(format!("{count} experts cannot be divided among {} workers", self.of)),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all<T>(of: usize, part: impl Fn(Shard) -> T) -> Vec<T> {
        (0..of).map(|rank| part(Shard { rank, of, ..Shard::WHOLE })).collect()
    }

    #[test]
    fn parts_cover_everything_once() {
        assert_eq!(all(4, |shard| shard.even(12)), [0..3, 3..6, 6..9, 9..12]);
        assert_eq!(all(4, |shard| shard.rows(10)), [0..3, 3..6, 6..9, 9..10]);
        assert_eq!(all(4, |shard| shard.rows(13)), [0..4, 4..8, 8..12, 12..13]);
    }

    #[test]
    fn heads_are_repeated_if_there_are_fewer_than_workers() {
        assert_eq!(all(4, |shard| shard.heads(8)), [0..2, 2..4, 4..6, 6..8]);
        assert_eq!(all(4, |shard| shard.heads(2)), [0..1, 0..1, 1..2, 1..2]);
        assert_eq!(all(2, |shard| shard.heads(1)), [0..1, 0..1]);
    }
}
