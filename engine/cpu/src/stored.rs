//! Keys and values as the KV cache stores them: elements and, for 8-bit types, a scale for each head of a token.

use std::marker::PhantomData;

use bytemuck::{Pod, Zeroable};
use half::{bf16, f16};
use kernels::eight_bit::{EightBit, HeadScale, size};

use super::element::Element;
use super::shape::KvShape;

/// An element type of the KV cache.
pub(super) trait StoredElement: Element {
    /// Whether each head of a token has a scale. Reading multiplies the elements by it.
    const SCALED: bool;

    /// Stores `from` in `to`, rounded. A scaled type divides the elements by a scale and returns it. The lengths are
    /// equal.
    fn store(from: &[f32], to: &mut [Self]) -> Option<f16>;
}

macro_rules! impl_unscaled {
    ($($float:ty),*) => {
        $(impl StoredElement for $float {
            const SCALED: bool = false;

            fn store(from: &[f32], to: &mut [Self]) -> Option<f16> {
                Self::narrow(from, to);
                None
            }
        })*
    };
}

impl_unscaled!(f32, f16, bf16);

/// A number's code in 8 bits.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(super) struct Code<E>(u8, PhantomData<E>);

// SAFETY: a code is a byte, and zero is a valid byte.
unsafe impl<E> Zeroable for Code<E> {}
// SAFETY: a code consists of one byte, and any byte is a valid code.
unsafe impl<E: Copy + 'static> Pod for Code<E> {}

impl<E: EightBit + Copy + Send + Sync + 'static> Element for Code<E> {
    #[inline(always)]
    fn widen(from: &[Self], to: &mut [f32]) {
        to.iter_mut().zip(from).for_each(|(to, from)| *to = from.wide());
    }

    fn narrow(from: &[f32], to: &mut [Self]) {
        to.iter_mut().zip(from).for_each(|(to, from)| *to = Code(E::encode(*from), PhantomData));
    }

    #[inline(always)]
    fn as_f32(_: &[Self]) -> Option<&[f32]> {
        None
    }

    #[inline(always)]
    fn wide(self) -> f32 {
        E::decode(self.0)
    }
}

impl<E: EightBit + Copy + Send + Sync + 'static> StoredElement for Code<E> {
    const SCALED: bool = true;

    fn store(from: &[f32], to: &mut [Self]) -> Option<f16> {
        let scale = HeadScale::of::<E>(from.iter().map(|&x| size(x)).max().unwrap_or(0));
        for (to, from) in to.iter_mut().zip(from) {
            *to = Code(E::encode(from * scale.inverse), PhantomData);
        }
        Some(f16::from_bits(scale.bits))
    }
}

/// Runs `$body` with `$E` as the type of a cache's elements.
macro_rules! with_stored {
    ($dtype:expr, $E:ident => $body:expr) => {
        match $dtype {
            checkpoint::tensor::KvDtype::Float(checkpoint::tensor::DType::F32) => {
                type $E = f32;
                $body
            }
            checkpoint::tensor::KvDtype::Float(checkpoint::tensor::DType::F16) => {
                type $E = half::f16;
                $body
            }
            checkpoint::tensor::KvDtype::Float(checkpoint::tensor::DType::Bf16) => {
                type $E = half::bf16;
                $body
            }
            checkpoint::tensor::KvDtype::Int8 => {
                type $E = $crate::stored::Code<kernels::eight_bit::Int8>;
                $body
            }
            checkpoint::tensor::KvDtype::Fp8 => {
                type $E = $crate::stored::Code<kernels::eight_bit::Fp8>;
                $body
            }
        }
    };
}
pub(super) use with_stored;

/// The blocks of one layer, in the layout described in `kv`.
#[derive(Clone, Copy)]
pub(super) struct LayerBlocks<'a, E> {
    bytes: &'a [u8],
    shape: &'a KvShape,
    element: PhantomData<E>,
}

/// The keys or the values of one head in a block.
pub(super) struct HeadPart<'a, E> {
    /// Keys `[head_dim][block_size]`, values and keys that contain values `[block_size][head_dim]`.
    pub elements: &'a [E],
    /// `[block_size]` f16 scales for scaled types, otherwise empty. They are unaligned.
    pub scales: &'a [[u8; 2]],
}

impl<'a, E: StoredElement> LayerBlocks<'a, E> {
    /// Interprets `bytes` as blocks.
    pub fn new(bytes: &'a [u8], shape: &'a KvShape) -> Self {
        LayerBlocks { bytes, shape, element: PhantomData }
    }

    /// Returns a head's keys in a block.
    #[inline(always)]
    pub fn keys(&self, block: usize, head: usize) -> HeadPart<'a, E> {
        self.part(block, self.shape.parts() * head)
    }

    /// Returns a head's values in a block. If keys contain the values, returns the keys.
    #[inline(always)]
    pub fn values(&self, block: usize, head: usize) -> HeadPart<'a, E> {
        self.part(block, self.shape.parts() * (head + 1) - 1)
    }

    #[inline(always)]
    fn part(&self, block: usize, index: usize) -> HeadPart<'a, E> {
        let bytes = self.shape.part_bytes();
        let part = &self.bytes[block * self.shape.block_bytes() + index * bytes..][..bytes];
        let (elements, scales) = part.split_at(self.shape.block_size * self.shape.head_dim * size_of::<E>());
        HeadPart { elements: bytemuck::cast_slice(elements), scales: scales.as_chunks().0 }
    }
}

/// Decodes a stored scale.
#[inline(always)]
pub(super) fn scale(bytes: [u8; 2]) -> f32 {
    f16::from_le_bytes(bytes).to_f32()
}
