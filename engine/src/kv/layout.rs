//! The shape of a KV cache: groups of layers that keep equally many bytes per token, for equally long.

use super::KvDtype;
use crate::config::LayerKv;

/// The shape and the element type of a KV cache.
///
/// Layers with equal heads and equal windows form a group. Each group has blocks of its own: a block holds the keys and
/// values of `block_size` tokens in every layer of the group. A layer that reads another layer's cache owns nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KvLayout {
    /// The groups, in the order of their first layers.
    pub groups: Vec<KvGroup>,
    /// Tokens per block, the same in every group.
    pub block_size: usize,
    /// Element type of keys and values.
    pub dtype: KvDtype,
    /// For each layer of the model, the cache that it reads.
    places: Vec<LayerPlace>,
}

/// Layers that share a block table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KvGroup {
    /// The layers of the model that own a cache in this group, in order.
    pub layers: Vec<usize>,
    /// Key/value heads per layer.
    pub heads: usize,
    /// Elements per head.
    pub head_dim: usize,
    /// The number of positions that a token sees, its own included. `None` for all.
    pub window: Option<usize>,
}

/// The cache that a layer of the model reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LayerPlace {
    /// The group.
    pub group: usize,
    /// The index among the group's layers.
    pub index: usize,
}

impl KvLayout {
    /// The layout for a model with the given layers. A layer's source must own its cache and must not come later.
    pub fn new(layers: &[LayerKv], block_size: usize, dtype: KvDtype) -> Self {
        let (mut groups, mut places): (Vec<KvGroup>, Vec<LayerPlace>) = Default::default();
        for (layer, &LayerKv { heads, head_dim, window, source }) in layers.iter().enumerate() {
            if source < layer {
                places.push(places[source]);
                continue;
            }
            let same = |group: &KvGroup| (group.heads, group.head_dim, group.window) == (heads, head_dim, window);
            let group = groups.iter().position(same).unwrap_or_else(|| {
                groups.push(KvGroup { layers: Vec::new(), heads, head_dim, window });
                groups.len() - 1
            });
            places.push(LayerPlace { group, index: groups[group].layers.len() });
            groups[group].layers.push(layer);
        }
        KvLayout { groups, block_size, dtype, places }
    }

    /// The layout for a model whose `layers` layers are all alike and see all positions.
    pub fn uniform(layers: usize, heads: usize, head_dim: usize, block_size: usize, dtype: KvDtype) -> Self {
        let layer = |source| LayerKv { heads, head_dim, window: None, source };
        KvLayout::new(&(0..layers).map(layer).collect::<Vec<_>>(), block_size, dtype)
    }

    /// The layout of `workers` caches together, each with this layout.
    pub fn of_workers(mut self, workers: usize) -> Self {
        self.groups.iter_mut().for_each(|group| group.heads *= workers);
        self
    }

    /// Layers of the model, including layers that own no cache.
    pub fn num_layers(&self) -> usize {
        self.places.len()
    }

    /// The cache that a layer of the model reads.
    pub fn place(&self, layer: usize) -> LayerPlace {
        self.places[layer]
    }

    /// The shape of one layer of a group, as the CPU kernels take it.
    pub(crate) fn layer_shape(&self, group: usize) -> cpu::KvShape {
        let KvGroup { heads, head_dim, .. } = self.groups[group];
        cpu::KvShape { heads, head_dim, block_size: self.block_size, dtype: self.dtype }
    }

    /// Bytes of one block in one layer of a group.
    pub fn layer_bytes(&self, group: usize) -> usize {
        let KvGroup { heads, head_dim, .. } = self.groups[group];
        2 * heads * self.block_size * self.dtype.head_bytes(head_dim)
    }

    /// Bytes of one block of a group: keys and values of `block_size` tokens in its layers, with their scales.
    pub fn group_block_bytes(&self, group: usize) -> usize {
        self.groups[group].layers.len() * self.layer_bytes(group)
    }

    /// Bytes of `block_size` tokens in every layer.
    pub fn block_bytes(&self) -> usize {
        (0..self.groups.len()).map(|group| self.group_block_bytes(group)).sum()
    }

    /// The distance between the ids of consecutive blocks in the tables and slots that a backend gets. If there are
    /// several groups, a block's layers are next to each other in memory. Counting in layers makes every layer an array
    /// that begins at its own part of the first block. With one group, each layer is an array of blocks.
    pub fn id_step(&self, group: usize) -> usize {
        if self.groups.len() == 1 { 1 } else { self.groups[group].layers.len() }
    }
}

/// The number of blocks that `tokens` tokens take.
pub fn blocks_for(tokens: usize, block_size: usize) -> usize {
    tokens.div_ceil(block_size)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tensor::DType;

    fn layer(window: Option<usize>, source: usize) -> LayerKv {
        LayerKv { heads: 2, head_dim: if window.is_some() { 8 } else { 16 }, window, source }
    }

    #[test]
    fn layers_with_equal_heads_and_windows_share_blocks() {
        let layers = [layer(Some(4), 0), layer(None, 1), layer(Some(4), 2), layer(Some(4), 2), layer(None, 1)];
        let layout = KvLayout::new(&layers, 16, DType::F16.into());
        let owned: Vec<_> = layout.groups.iter().map(|group| (group.layers.clone(), group.window)).collect();
        assert_eq!(owned, [(vec![0, 2], Some(4)), (vec![1], None)]);
        let places: Vec<_> = (0..5).map(|layer| layout.place(layer)).map(|place| (place.group, place.index)).collect();
        assert_eq!(places, [(0, 0), (1, 0), (0, 1), (0, 1), (1, 0)], "a shared layer reads its source's cache");
        assert_eq!([0, 1].map(|group| layout.group_block_bytes(group)), [2 * 2 * 2 * 16 * 16, 2 * 2 * 16 * 32]);
        assert_eq!(layout.block_bytes(), 2048 + 2048);
        assert_eq!([0, 1].map(|group| layout.id_step(group)), [2, 1]);
        assert_eq!(layout.clone().of_workers(3).block_bytes(), 3 * layout.block_bytes());
        assert_eq!(KvLayout::uniform(7, 2, 8, 16, DType::F16.into()).id_step(0), 1);
    }
}
