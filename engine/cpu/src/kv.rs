//! One layer of a paged KV cache: its layout, and writing to it.
//!
//! Layout: `[block][kv head][keys | values]`. A head's part of a block contains its keys as `[head_dim][block_size]`
//! and its values as `[block_size][head_dim]`. For 8-bit elements each is followed by its scales, `[block_size]`.
//! Because keys are transposed, a vector of scores for consecutive tokens needs one multiply-add per element of the
//! query and no sum across lanes. If keys contain the values, a head's part of a block contains only keys, in the layout of
//! values.

use checkpoint::tensor::KvDtype;
use half::f16;

use super::element::Element;
use super::shape::KvShape;
use super::stored::{StoredElement, with_stored};

/// Writes `key` and `value` (`[T, heads * head_dim]`) to their slots (`block * block_size + offset`) in the blocks of
/// `layer`. If keys contain the values, `value` is unused.
pub fn write_kv(shape: &KvShape, layer: &mut [u8], key: &[f32], value: &[f32], slots: &[u32]) {
    with_stored!(shape.dtype, E => write_as::<E>(shape, layer, key, value, slots));
}

/// Returns the elements of one head of a token after rounding to a cache of type `dtype`.
pub fn rounded(dtype: KvDtype, head: &[f32]) -> Vec<f32> {
    with_stored!(dtype, E => {
        let mut stored = vec![<E as bytemuck::Zeroable>::zeroed(); head.len()];
        let scale = E::store(head, &mut stored).map_or(1.0, |scale| scale.to_f32());
        stored.into_iter().map(|x| x.wide() * scale).collect()
    })
}

fn write_as<E: StoredElement>(shape: &KvShape, layer: &mut [u8], key: &[f32], value: &[f32], slots: &[u32]) {
    let KvShape { heads, head_dim, block_size, .. } = *shape;
    let (block_len, part_len) = (shape.block_bytes(), shape.part_bytes());
    let mut stored = vec![E::zeroed(); head_dim];
    for (t, &slot) in slots.iter().enumerate() {
        let (block, offset) = (slot as usize / block_size, slot as usize % block_size);
        let block = &mut layer[block * block_len..][..block_len];
        for (head, parts) in block.chunks_exact_mut(shape.parts() * part_len).take(heads).enumerate() {
            let row = (t * heads + head) * head_dim..(t * heads + head + 1) * head_dim;
            if shape.latent.is_some() {
                write_row::<E>(parts, offset, (head_dim, block_size), &key[row]);
                continue;
            }
            let (keys, values) = parts.split_at_mut(part_len);
            let scale = E::store(&key[row.clone()], &mut stored);
            let (keys, key_scales) = keys.split_at_mut(head_dim * block_size * size_of::<E>());
            let keys: &mut [E] = bytemuck::cast_slice_mut(keys);
            for (to, from) in keys[offset..].iter_mut().step_by(block_size).zip(&stored) {
                *to = *from;
            }
            write_scale(key_scales, offset, scale);

            write_row::<E>(values, offset, (head_dim, block_size), &value[row]);
        }
    }
}

/// Writes one token of a head's part that has the layout of values.
fn write_row<E: StoredElement>(part: &mut [u8], offset: usize, (head_dim, block_size): (usize, usize), row: &[f32]) {
    let (elements, scales) = part.split_at_mut(head_dim * block_size * size_of::<E>());
    let elements: &mut [E] = bytemuck::cast_slice_mut(elements);
    let scale = E::store(row, &mut elements[offset * head_dim..][..head_dim]);
    write_scale(scales, offset, scale);
}

/// Writes the scale of the token at `offset` in a block, if the element type has scales.
fn write_scale(scales: &mut [u8], offset: usize, scale: Option<f16>) {
    if let Some(scale) = scale {
        scales.as_chunks_mut().0[offset] = scale.to_le_bytes();
    }
}
