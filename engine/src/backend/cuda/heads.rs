//! The attention heads of each layer, and the launches of decode attention for them.

use kernels::attention::AttentionShape;
use kernels::attention::decode::DecodeLaunch;

use crate::error::{Error, Result};

/// The attention heads of a worker's layers. Layers with equal heads share their launches.
pub struct LayerHeads {
    /// The launches for each distinct shape, in the order of their first layers.
    kinds: Vec<DecodeKind>,
    /// The index in `kinds` for each layer.
    layers: Vec<usize>,
}

/// Decode attention for layers with equal heads.
#[derive(Clone, Copy)]
struct DecodeKind {
    /// For steps without drafts.
    single: DecodeLaunch,
    /// For steps with drafts.
    drafts: DecodeLaunch,
}

impl LayerHeads {
    /// Creates the launches for layers with these shapes. `slots` returns the number of blocks of a launch. Latent vectors
    /// have no kernel for decode alone, so their launches only say how drafts are divided.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for a model without layers, and errors of `slots`.
    pub fn new(shapes: &[AttentionShape], mut slots: impl FnMut(DecodeLaunch) -> Result<u32>) -> Result<Self> {
        let kind = |shape: AttentionShape| {
            if shape.is_latent() {
                return Ok(DecodeKind {
                    single: DecodeLaunch::new(shape, 1),
                    drafts: DecodeLaunch::with_drafts(shape, 1),
                });
            }
            let single = slots(DecodeLaunch::new(shape, 1))?;
            let drafts = slots(DecodeLaunch::with_drafts(shape, 1))?;
            let (single, drafts) = (DecodeLaunch::new(shape, single), DecodeLaunch::with_drafts(shape, drafts));
            Ok(DecodeKind { single, drafts })
        };
        let distinct = distinct(shapes);
        let index = |shape| distinct.iter().position(|kind| kind == shape);
        let layers = shapes.iter().filter_map(index).collect();
        let kinds = distinct.iter().copied().map(kind).collect::<Result<Vec<_>>>()?;
        if kinds.is_empty() {
            return Err(Error::Unsupported("the GPU runs no model without layers".into()));
        }
        Ok(LayerHeads { kinds, layers })
    }

    /// The heads of a layer.
    pub fn layer(&self, layer: usize) -> AttentionShape {
        self.kinds[self.layers[layer]].single.attention()
    }

    /// Tokens per block of the cache.
    pub fn block_size(&self) -> usize {
        self.kinds[0].single.attention().pages().block_size as usize
    }

    /// The launch of decode attention in a layer, for a step with or without drafts.
    pub fn decode(&self, layer: usize, has_drafts: bool) -> DecodeLaunch {
        let DecodeKind { single, drafts } = self.kinds[self.layers[layer]];
        if has_drafts { drafts } else { single }
    }

    /// The launch that divides sequences with drafts into parts. Its parts have the fewest tokens, so all layers can
    /// process them.
    pub fn drafts(&self) -> DecodeLaunch {
        let launches = self.kinds.iter().map(|kind| kind.drafts);
        launches.min_by_key(|launch| launch.tokens_at_once()).unwrap_or(self.kinds[0].drafts)
    }

    /// The number of blocks of each launch for drafts.
    pub fn draft_slots(&self) -> Vec<u32> {
        self.kinds.iter().map(|kind| kind.drafts.arrivals()).collect()
    }

    /// Sets the number of blocks of each launch for drafts.
    pub fn set_draft_slots(&mut self, slots: &[u32]) {
        for (kind, &slots) in self.kinds.iter_mut().zip(slots) {
            kind.drafts = DecodeLaunch::with_drafts(kind.drafts.attention(), slots);
        }
    }
}

/// Returns the distinct shapes, in the order of their first layers.
pub fn distinct(shapes: &[AttentionShape]) -> Vec<AttentionShape> {
    let mut kinds = Vec::new();
    for &shape in shapes {
        if !kinds.contains(&shape) {
            kinds.push(shape);
        }
    }
    kinds
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // a failed unwrap is a failed test

    use super::*;

    #[test]
    fn parts_of_drafts_fit_every_layer() {
        let shape = |heads, kv_heads, size| AttentionShape::new(heads, kv_heads, size, 16).unwrap();
        let (wide, narrow) = (shape(8, 2, 64), shape(8, 1, 256));
        let mut heads = LayerHeads::new(&[wide, narrow, wide], |launch| Ok(10 * launch.attention().group())).unwrap();
        assert_eq!([0, 1, 2].map(|layer| heads.layer(layer)), [wide, narrow, wide]);
        assert_eq!([0, 1].map(|layer| heads.decode(layer, true).tokens_at_once()), [4, 1]);
        assert_eq!((heads.drafts().attention(), heads.draft_slots()), (narrow, vec![40, 80]));
        heads.set_draft_slots(&[7, 9]);
        assert_eq!([false, true].map(|drafts| heads.decode(2, drafts).arrivals()), [40, 7]);
        assert_eq!(heads.drafts().arrivals(), 9);
        assert!(LayerHeads::new(&[], |_| Ok(1)).is_err());
    }
}
