//! The shape of a KV cache: groups of layers that keep equally many bytes per token, for equally long.
//!
//! The memory is divided into pages of equal size. A page holds blocks of one group at a time, so no group needs a part of
//! the memory for itself, and no group's blocks are inflated to the size of another's (Jenga, SOSP 2025):
//!
//! ```text
//!   page 0             page 1             page 2
//!   [A 0 ][A 1 ][A 2 ] [B 6 ][B 7 ]       [A 6 ][A 7 ][A 8 ]      block i of a page: page * blocks_per_page + i
//! ```

use std::fmt;

use super::KvDtype;
use super::capacity;
use super::counts::Counts;
use super::groups::{CacheGroup, STATE_WINDOW};
use crate::config::{LayerKv, LayerMemory};

/// Most blocks of the group with the largest blocks in a page whose size fits all groups exactly.
const MOST_PER_PAGE: usize = 64;
/// If exact pages are larger than that, blocks are padded. At most one in this many bytes of a page is padding.
const PARTS_PER_WASTE: usize = 32;
/// Largest exact page in bytes, unless it holds one block of the group with the largest blocks.
const MOST_BYTES: usize = 100 << 20;
/// Pages are multiples of this number of bytes if blocks are padded.
const ALIGNMENT: usize = 16;

/// The shape and the element type of a KV cache.
///
/// Layers with equal heads and equal windows form a group. Each group has blocks of its own: a block holds the keys and
/// values of `block_size` tokens in every layer of the group. A layer that reads another layer's cache owns nothing. A
/// layer with latent vectors caches one vector per token, which is both key and value.
///
/// Recurrent layers with states of equal size form a group too. Block `i` of a sequence holds their states after the
/// last token of the block, or after the last token so far. Only the states that are needed have a block.
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
    /// With `Some(n)`, only keys are cached. The last `n` elements of a key are its value.
    pub latent: Option<usize>,
    /// For recurrent layers, the f32 elements of a layer's state. Such a group has no heads.
    pub state: Option<usize>,
    /// Blocks in a page.
    pub blocks_per_page: usize,
    /// Unused bytes at the end of each block in each layer.
    padding: usize,
}

impl fmt::Display for KvGroup {
    /// Writes the layers, their heads and their window, such as `52 layers, 16 heads of 128, the last 1024 tokens`, or the
    /// size of their states, such as `30 layers, a state of 62.8 MiB`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plural = |count: usize, name: &str| format!("{count} {name}{}", if count == 1 { "" } else { "s" });
        let layers = plural(self.layers.len(), "layer");
        if let Some(bytes) = self.state_bytes() {
            let kib = bytes as f64 / 1024.0;
            return match kib < 1024.0 {
                true => write!(f, "{layers}, a state of {kib:.1} KiB"),
                false => write!(f, "{layers}, a state of {:.1} MiB", kib / 1024.0),
            };
        }
        let heads = plural(self.heads, if self.latent.is_some() { "latent vector" } else { "head" });
        write!(f, "{layers}, {heads} of {}, ", self.head_dim)?;
        match self.window {
            Some(window) => write!(f, "the last {window} tokens"),
            None => write!(f, "all tokens"),
        }
    }
}

/// The cache that a layer of the model reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LayerPlace {
    /// The group.
    pub group: usize,
    /// The index among the group's layers.
    pub index: usize,
}

impl KvGroup {
    /// A group of layers that keep `memory`, still without layers.
    fn of(memory: LayerMemory) -> Self {
        let (kv, state) = match memory {
            LayerMemory::Kv(kv) => (kv, None),
            LayerMemory::State { elements } => {
                let (heads, head_dim, window) = (0, 0, Some(STATE_WINDOW));
                (LayerKv { heads, head_dim, window, source: 0, latent: None }, Some(elements))
            }
        };
        let LayerKv { heads, head_dim, window, latent, .. } = kv;
        KvGroup { layers: Vec::new(), heads, head_dim, window, latent, state, blocks_per_page: 1, padding: 0 }
    }

    /// The sliding window of attention. `None` for all tokens, and for states.
    pub fn attention_window(&self) -> Option<usize> {
        self.window.filter(|_| self.state.is_none())
    }

    /// Bytes of a sequence's states in all layers. `None` for keys and values.
    pub fn state_bytes(&self) -> Option<usize> {
        Some(self.layers.len() * self.state? * size_of::<f32>())
    }
}

impl KvLayout {
    /// The layout for a model with the given layers. A layer's source must own its cache and must not come later.
    pub fn new(layers: &[impl Copy + Into<LayerMemory>], block_size: usize, dtype: KvDtype) -> Self {
        let (mut groups, mut places): (Vec<KvGroup>, Vec<LayerPlace>) = Default::default();
        for (layer, memory) in layers.iter().map(|&layer| layer.into()).enumerate() {
            if let Some(source) = memory.kv().map(|kv| kv.source).filter(|source| *source < layer) {
                places.push(places[source]);
                continue;
            }
            let own = KvGroup::of(memory);
            let same = |group: &KvGroup| KvGroup { layers: Vec::new(), ..*group } == own;
            let group = groups.iter().position(same).unwrap_or_else(|| {
                groups.push(own);
                groups.len() - 1
            });
            places.push(LayerPlace { group, index: groups[group].layers.len() });
            groups[group].layers.push(layer);
        }
        let mut layout = KvLayout { groups, block_size, dtype, places };
        layout.divide_pages();
        layout
    }

    /// The layout for a model whose `layers` layers are all alike and see all positions.
    pub fn uniform(layers: usize, heads: usize, head_dim: usize, block_size: usize, dtype: KvDtype) -> Self {
        let layer = |source| LayerMemory::Kv(LayerKv { heads, head_dim, window: None, source, latent: None });
        KvLayout::new(&(0..layers).map(layer).collect::<Vec<_>>(), block_size, dtype)
    }

    /// The layout of `workers` caches together, each with this layout.
    pub fn of_workers(mut self, workers: usize) -> Self {
        for group in &mut self.groups {
            group.heads *= workers;
            group.state = group.state.map(|elements| elements * workers);
            group.padding *= workers;
        }
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
        let KvGroup { heads, head_dim, latent, padding, .. } = self.groups[group];
        cpu::KvShape { heads, head_dim, latent, block_size: self.block_size, dtype: self.dtype, padding }
    }

    /// Bytes of one block in one layer of a group.
    pub fn layer_bytes(&self, group: usize) -> usize {
        let KvGroup { padding, state, .. } = self.groups[group];
        match state {
            Some(elements) => elements * size_of::<f32>() + padding,
            None => self.layer_shape(group).block_bytes(),
        }
    }

    /// Bytes of one block of a group: keys and values of `block_size` tokens in its layers, with their scales, or the
    /// states of its layers.
    pub fn group_block_bytes(&self, group: usize) -> usize {
        self.groups[group].layers.len() * self.layer_bytes(group)
    }

    /// Bytes of the keys and values of `block_size` tokens in every layer.
    pub fn block_bytes(&self) -> usize {
        let keys = (0..self.groups.len()).filter(|&group| self.groups[group].state.is_none());
        keys.map(|group| self.group_block_bytes(group)).sum()
    }

    /// The number of blocks whose keys and values take about as much memory as a group's states. A prompt's states are
    /// kept that often. Small states are kept in every block.
    fn state_stride(&self, group: usize) -> Option<usize> {
        self.groups[group].state?;
        let stride = self.group_block_bytes(group) / self.block_bytes().max(1);
        Some(stride.clamp(1, u32::MAX as usize))
    }

    /// Bytes of a page. With one group, a page is a block.
    pub fn page_bytes(&self) -> usize {
        self.groups.first().map_or(0, |group| group.blocks_per_page * self.group_block_bytes(0))
    }

    /// Bytes of a group's blocks that a sequence of `tokens` tokens uses while it grows token by token. A group with a
    /// window has given back the blocks that the window has left behind.
    pub fn sequence_bytes(&self, group: usize, tokens: usize) -> usize {
        self.sequence_blocks(tokens).of(group) * self.group_block_bytes(group)
    }

    /// The number of sequences of `tokens` tokens that `pages` pages hold at a time.
    pub fn sequences_in(&self, pages: usize, tokens: usize) -> usize {
        let (groups, blocks) = (self.cache_groups(), self.sequence_blocks(tokens));
        let fits = |sequences: usize| {
            let counts = Counts::by(groups.len(), |group| sequences * blocks.of(group));
            capacity::pages_for(&groups, &counts) <= pages
        };
        let most = groups.iter().map(|group| pages * group.blocks_per_page).max().unwrap_or(0);
        if fits(1) { capacity::longest(most, fits) } else { 0 }
    }

    fn sequence_blocks(&self, tokens: usize) -> Counts {
        capacity::blocks_at_once(&self.cache_groups(), self.block_size, tokens, 1)
    }

    /// Whether no page of a reasonable size could be found. Blocks then have more padding than contents.
    pub fn is_wasteful(&self) -> bool {
        let layers = self.groups.iter().enumerate();
        layers.into_iter().any(|(at, group)| group.padding > self.layer_bytes(at) / 2)
    }

    /// The groups, as the block pool knows them.
    pub fn cache_groups(&self) -> Vec<CacheGroup> {
        let group = |(at, group): (usize, &KvGroup)| CacheGroup {
            window: group.window,
            is_latent: group.latent.is_some(),
            blocks_per_page: group.blocks_per_page,
            id_step: self.id_step(at),
            state_stride: self.state_stride(at),
        };
        self.groups.iter().enumerate().map(group).collect()
    }

    /// Chooses the size of pages. It is the least common multiple of the groups' blocks, unless such a page would be too
    /// large or hold too many of the largest blocks. Then states get a little padding, which lets a smaller page divide
    /// evenly, or otherwise all blocks do. The GPU's kernels skip padding in 8-bit keys and values, but not in 16-bit
    /// ones.
    fn divide_pages(&mut self) {
        let bytes: Vec<usize> = (0..self.groups.len()).map(|group| self.group_block_bytes(group)).collect();
        let Some(&largest) = bytes.iter().max().filter(|&&largest| largest > 0) else { return };
        let fits = |page: &usize| match page / largest {
            1 => true,
            blocks => blocks <= MOST_PER_PAGE && *page <= MOST_BYTES,
        };
        let counts = |page: usize| bytes.iter().map(|block| page / block).collect::<Vec<_>>();
        let exact = bytes.iter().try_fold(1, |a, &b| lcm(a, b)).filter(fits).map(|page| (page, counts(page)));
        let is_tight = |(page, counts): &(usize, Vec<usize>)| {
            let waste = bytes.iter().zip(counts).map(|(block, count)| page - block * count).max();
            waste.is_some_and(|waste| waste <= *page / PARTS_PER_WASTE)
        };
        let tight = |pads_keys: bool| {
            let pages = (1..=MOST_PER_PAGE).map(|blocks| blocks * largest);
            let mut padded = pages.map(|least| self.padded_page(least, counts(least), pads_keys));
            padded.find(|page| is_tight(page) && (pads_keys || fits(&page.0)))
        };
        // The fallback: one block of each group per page, padded to the largest. No known model needs it.
        let single = || self.padded_page(largest, vec![1; bytes.len()], true);
        let (page, counts) = exact.or_else(|| tight(false)).or_else(|| tight(true)).unwrap_or_else(single);
        for ((group, block), count) in self.groups.iter_mut().zip(bytes).zip(counts) {
            group.blocks_per_page = count;
            group.padding = (page / count - block) / group.layers.len();
        }
    }

    /// The smallest page of at least `least` bytes that the given numbers of blocks and their layers divide evenly. Unless
    /// `pads_keys` is set, as many blocks of keys and values as the page has room for divide it without padding.
    fn padded_page(&self, least: usize, mut counts: Vec<usize>, pads_keys: bool) -> (usize, Vec<usize>) {
        let is_exact = |group: usize| !pads_keys && self.groups[group].state.is_none();
        let unit = |group: usize| match is_exact(group) {
            true => self.group_block_bytes(group),
            false => counts[group] * self.groups[group].layers.len() * ALIGNMENT,
        };
        // If the parts have no common multiple of a reasonable size, the page is too large to be tight.
        let unit = (0..counts.len()).try_fold(ALIGNMENT, |all, group| lcm(all, unit(group)));
        let page = unit.and_then(|unit| least.checked_next_multiple_of(unit)).unwrap_or(usize::MAX);
        for group in (0..counts.len()).filter(|&group| is_exact(group)) {
            counts[group] = page / self.group_block_bytes(group);
        }
        (page, counts)
    }

    /// The distance between the ids of consecutive blocks in the tables and slots that a backend gets. If there are
    /// several groups, a block's layers are next to each other in memory. Counting in layers makes every layer an array
    /// that begins at its own part of the first block. With one group, each layer is an array of blocks.
    pub fn id_step(&self, group: usize) -> usize {
        if self.groups.len() == 1 { 1 } else { self.groups[group].layers.len() }
    }
}

/// The least common multiple, unless it is too large for a number of bytes.
fn lcm(a: usize, b: usize) -> Option<usize> {
    let (mut gcd, mut rest) = (a, b);
    while rest > 0 {
        (gcd, rest) = (rest, gcd % rest);
    }
    (a / gcd).checked_mul(b)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tensor::DType;

    fn layer(window: Option<usize>, source: usize) -> LayerMemory {
        LayerMemory::Kv(LayerKv {
            heads: 2,
            head_dim: if window.is_some() { 8 } else { 16 },
            window,
            source,
            latent: None,
        })
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

    /// A model whose layers repeat a pattern: `(layers, heads, head size, window)` of each kind.
    fn model(kinds: &[(usize, usize, usize, Option<usize>)], dtype: KvDtype) -> KvLayout {
        let layers = kinds.iter().flat_map(|&(layers, heads, head_dim, window)| {
            std::iter::repeat_n(LayerKv { heads, head_dim, window, source: 0, latent: None }, layers)
        });
        let own = |(source, layer)| LayerMemory::Kv(LayerKv { source, ..layer });
        KvLayout::new(&layers.enumerate().map(own).collect::<Vec<_>>(), 16, dtype)
    }

    #[test]
    fn a_page_holds_whole_blocks_of_every_group() {
        let half = DType::F16.into();
        let pages = |kinds: &[_]| {
            let layout = model(kinds, half);
            let blocks: Vec<usize> = layout.groups.iter().map(|group| group.blocks_per_page).collect();
            for (group, blocks) in blocks.iter().enumerate() {
                assert_eq!(blocks * layout.group_block_bytes(group), layout.page_bytes());
            }
            blocks
        };
        assert_eq!(pages(&[(50, 16, 256, Some(1024)), (10, 4, 512, None)]), [1, 10], "Gemma 4 31B");
        assert_eq!(pages(&[(25, 8, 256, Some(1024)), (5, 2, 512, None)]), [1, 10], "Gemma 4 26B-A4B");
        assert_eq!(pages(&[(52, 16, 128, Some(1024)), (10, 16, 128, None)]), [5, 26], "Gemma 3 27B");
        assert_eq!(pages(&[(12, 8, 64, Some(128)), (12, 8, 64, None)]), [1, 1], "gpt-oss 20b");
        assert_eq!(pages(&[(7, 2, 64, None)]), [1]);
    }

    #[test]
    fn windows_make_room_for_more_sequences() {
        let gib = |bytes: usize| format!("{:.1}", bytes as f64 / (1u64 << 30) as f64);
        let layout = model(&[(50, 16, 256, Some(1024)), (10, 4, 512, None)], DType::F16.into());
        let bytes: usize = (0..2).map(|group| layout.sequence_bytes(group, 262_144)).sum();
        let all = 262_144 / 16 * layout.block_bytes();
        assert_eq!((gib(bytes), gib(all)), ("20.8".into(), "220.0".into()), "Gemma 4 31B");
        // A sequence takes 65 pages for the windows, and its 16,384 other blocks take a tenth as many pages.
        let pages = |sequences: usize| 65 * sequences + (16_384 * sequences).div_ceil(10);
        for sequences in [1, 2, 10] {
            assert_eq!(layout.sequences_in(pages(sequences), 262_144), sequences);
            assert_eq!(layout.sequences_in(pages(sequences) - 1, 262_144), sequences - 1);
        }
        let [window, full] = [0, 1].map(|group| layout.groups[group].to_string());
        assert_eq!(window, "50 layers, 16 heads of 256, the last 1024 tokens");
        assert_eq!(full, "10 layers, 4 heads of 512, all tokens");
    }

    /// Granite 4 Small: 36 layers with states and 4 of attention.
    #[test]
    fn states_are_padded_rather_than_keys() {
        let state = |elements| move |_| LayerMemory::State { elements };
        let key = |source| LayerMemory::Kv(LayerKv { heads: 8, head_dim: 128, window: None, source, latent: None });
        for elements in [3 * 8448 + 128 * 64 * 128, 3 * 8448 + 127 * 64 * 128] {
            let layers: Vec<_> = (0..36).map(state(elements)).chain((36..40).map(key)).collect();
            let layout = KvLayout::new(&layers, 16, DType::F16.into());
            assert_eq!(layout.layer_bytes(1), 2 * 8 * 16 * 128 * 2);
            let padding = layout.layer_bytes(0) - 4 * elements;
            assert!(padding > 0 && padding.is_multiple_of(16) && padding < elements / 8, "{padding} bytes");
            for group in [0, 1] {
                let blocks = layout.groups[group].blocks_per_page;
                assert_eq!(blocks * layout.group_block_bytes(group), layout.page_bytes());
            }
        }
    }

    #[test]
    fn padding_takes_little_where_an_exact_page_would_be_too_large() {
        for dtype in [KvDtype::Int8, KvDtype::Fp8] {
            for (kinds, percent) in [
                (&[(50, 16, 256, Some(1024)), (10, 4, 512, None)][..], 0.4),
                (&[(25, 8, 256, Some(1024)), (5, 2, 512, None)], 0.4),
                (&[(21, 8, 128, Some(512)), (42, 8, 96, None)], 0.6),
                // Three odd sizes: a page holds one block.
                (&[(29, 3, 256, Some(1024)), (31, 5, 160, None), (7, 1, 96, Some(7))], 99.0),
            ] {
                let layout = model(kinds, dtype);
                let largest = (0..kinds.len()).map(|group| layout.group_block_bytes(group)).max().unwrap();
                assert!(layout.page_bytes() <= MOST_PER_PAGE * largest);
                for (group, &(layers, heads, head_dim, _)) in kinds.iter().enumerate() {
                    let bytes = layout.group_block_bytes(group);
                    assert_eq!(layout.groups[group].blocks_per_page * bytes, layout.page_bytes());
                    let waste = bytes - 2 * layers * heads * 16 * (head_dim + 2);
                    assert!(waste as f64 <= bytes as f64 * percent / 100.0, "{dtype}: {waste} of {bytes} wasted");
                }
            }
        }
    }
}
