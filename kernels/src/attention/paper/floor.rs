//! The least memory traffic and arithmetic that attention can cost (its roofline). Host code.

use super::span::TokenRange;
use crate::attention::AttentionShape;
use crate::floor::Floor;

/// Returns bytes and flops of one new token's attention per sequence, for sequences of these lengths.
///
/// Bytes are keys and values of visible tokens, once per key/value head, plus queries, outputs, block tables and
/// lengths.
///
/// A flop is a multiplication or an addition. Each element of each visible token costs four per query head. The softmax
/// is not counted, as it costs only a few per token.
pub fn floor(shape: AttentionShape, lengths: &[u32], window: u32) -> Floor {
    let pages = shape.pages();
    let (head_size, heads, kv_heads) = (u64::from(shape.head_size()), u64::from(shape.heads()), u64::from(pages.heads));
    let mut floor = Floor { bytes: 0, flops: 0 };
    for &length in lengths {
        let span = TokenRange::visible(length, window);
        let (tokens, blocks) =
            (u64::from(span.end - span.first), u64::from(span.slots(pages.block_size) / pages.block_size));
        let (cache, rows) = (2 * tokens * kv_heads * head_size, 2 * heads * head_size);
        floor.bytes += 2 * (cache + rows) + 4 * (blocks + 1);
        floor.flops += 4 * tokens * heads * head_size;
    }
    floor
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floor_matches_a_hand_computed_batch() {
        let shape = AttentionShape::new(8, 2, 64, 16).unwrap();
        // 100 tokens in 7 blocks and 40 in 3. 256 bytes of keys and values per token and key/value head. 2048 bytes of
        // queries and outputs per sequence.
        let bytes = 140 * 2 * 256 + 2 * 2048 + 4 * (7 + 3 + 2);
        assert_eq!(floor(shape, &[100, 40], 0), Floor { bytes, flops: 140 * 4 * 8 * 64 });
        // A window of 20: tokens 80 to 99 in two blocks, 20 to 39 in two.
        let bytes = 40 * 2 * 256 + 2 * 2048 + 4 * (2 + 2 + 2);
        assert_eq!(floor(shape, &[100, 40], 20), Floor { bytes, flops: 40 * 4 * 8 * 64 });
    }
}
