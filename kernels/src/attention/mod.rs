//! Attention over the paged cache. Block tables say where the keys and values are.
//!
//! | module | kernels | serves |
//! | --- | --- | --- |
//! | [`decode`] | `plan_paged_attention`, `paged_attention`, `paged_attention_capped` | one new token per sequence, or a few with a draft |
//! | [`prefill`] | `paged_prefill`, `paged_prefill_capped` | many new tokens per sequence: prompts, and prompt chunks after a cached prefix |
//! | [`prefill`] | `paged_latent_attention` | latent vectors, which are keys and values of all heads: any number of new tokens |
//! | [`paper`] | `paged_attention_v1`, `paged_attention_v2`, `paged_attention_v2_reduce`, `paper_rope_and_cache` | one new token per sequence, as in the paper: for study and as a baseline |
//!
//! All take `f16` and `bf16` and compute in `f32`. They read the pages of [`layout`](crate::layout), with 16-bit or
//! 8-bit elements, except for the paper's kernels, which read vLLM's layouts. The softmax is computed in powers of two,
//! `exp(s) = exp2(s log2(e))`, because the hardware has an instruction for `exp2`.
//!
//! | feature | how |
//! | --- | --- |
//! | sliding window | an argument of all kernels |
//! | latent vectors (DeepSeek) | a kernel of its own. Keys contain the values, and both come from one tile |
//! | sinks (gpt-oss) | an argument of all kernels, which they read after their loop |
//! | softcap (Gemma 2) | kernels of their own, since it takes four instructions for each score. The paper's kernels take it as an argument |

use core::fmt;

use crate::layout::{KvFormat, Pages};

pub mod decode;
pub mod paper;
pub mod prefill;
mod softcap;
mod squares;

/// Head sizes that the kernels support.
pub const HEAD_SIZES: [u32; 7] = [32, 64, 80, 96, 128, 256, 512];

/// Sizes of keys that contain the values, with a kernel: a small one for tests, and the size of all published models.
pub const LATENT_SIZES: [u32; 2] = [48, 576];

/// Returns the elements of a value at the end of a latent key, or the head size if keys contain no values.
pub const fn value_size(head_size: u32) -> u32 {
    match head_size {
        48 => 32,
        576 => 512,
        other => other,
    }
}

/// Returns whether keys of this size contain the values.
pub const fn is_latent(head_size: u32) -> bool {
    value_size(head_size) != head_size
}

/// Returns the head size of pages. The halves of latent keys take the places of keys and values.
pub const fn page_head_size(head_size: u32) -> u32 {
    if is_latent(head_size) { head_size / 2 } else { head_size }
}

/// Head sizes that the kernels with a softcap support.
pub const CAPPED_HEAD_SIZES: [u32; 3] = [32, 128, 256];

/// Returns every combination of an 8-bit format and a head size.
#[cfg(not(target_arch = "nvptx64"))]
pub fn coded_heads() -> impl Iterator<Item = (KvFormat, u32)> {
    let coded = KvFormat::ALL.into_iter().filter(|format| format.is_coded());
    coded.flat_map(|format| HEAD_SIZES.map(move |size| (format, size)))
}

/// Block sizes that the kernels support.
pub const BLOCK_SIZES: [u32; 3] = [8, 16, 32];

/// `with_head_size!(size, D => expression)` evaluates the expression with an [`AttentionShape`]'s head size as the
/// constant `D`.
#[cfg(not(target_arch = "nvptx64"))]
macro_rules! with_head_size {
    ($size:expr, $D:ident => $expression:expr) => {
        $crate::attention::with_constant!($size, $D => $expression, 32 64 80 96 128 256 512)
    };
}

/// `with_block_size!(size, B => expression)` evaluates the expression with an [`AttentionShape`]'s block size as the
/// constant `B`.
#[cfg(not(target_arch = "nvptx64"))]
macro_rules! with_block_size {
    ($size:expr, $B:ident => $expression:expr) => {
        $crate::attention::with_constant!($size, $B => $expression, 8 16 32)
    };
}

/// Evaluates an expression with a constant that equals a run-time number, which must be one of the listed values.
#[cfg(not(target_arch = "nvptx64"))]
macro_rules! with_constant {
    ($number:expr, $C:ident => $expression:expr, $($value:literal)*) => {
        match $number {
            $($value => {
                const $C: u32 = $value;
                $expression
            })*
            other => unreachable!("{other} is not a supported size"),
        }
    };
}

#[cfg(not(target_arch = "nvptx64"))]
pub(crate) use {with_block_size, with_constant, with_head_size};

/// log2(e): the factor that turns the softmax's powers of e into powers of two.
pub const LOG2_E: f32 = core::f32::consts::LOG2_E;

/// The attention heads of a model and the blocks of its cache, checked to be a shape that the kernels support.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttentionShape {
    heads: u32,
    kv_heads: u32,
    head_size: u32,
    block_size: u32,
    format: KvFormat,
    is_capped: bool,
}

impl AttentionShape {
    /// Checks a shape whose numbers come from outside. The cache has 16-bit elements.
    pub fn new(heads: u32, kv_heads: u32, head_size: u32, block_size: u32) -> Result<AttentionShape, UnsupportedShape> {
        if kv_heads == 0 || heads == 0 || !heads.is_multiple_of(kv_heads) {
            return Err(UnsupportedShape::Heads { heads, kv_heads });
        }
        if !HEAD_SIZES.contains(&head_size) {
            return Err(UnsupportedShape::HeadSize(head_size));
        }
        if !BLOCK_SIZES.contains(&block_size) {
            return Err(UnsupportedShape::BlockSize(block_size));
        }
        Ok(AttentionShape { heads, kv_heads, head_size, block_size, format: KvFormat::Plain, is_capped: false })
    }

    /// Checks the shape of attention over latent vectors. Keys have `key` elements, and values are the last `value` of them.
    pub fn latent(heads: u32, key: u32, value: u32, block_size: u32) -> Result<AttentionShape, UnsupportedShape> {
        if !LATENT_SIZES.contains(&key) || value_size(key) != value {
            return Err(UnsupportedShape::LatentSize(key, value));
        }
        Ok(AttentionShape { head_size: key, ..Self::new(heads, 1, HEAD_SIZES[0], block_size)? })
    }

    /// Returns whether keys contain the values.
    pub const fn is_latent(self) -> bool {
        is_latent(self.head_size)
    }

    /// Returns the elements of a value.
    pub const fn value_size(self) -> u32 {
        value_size(self.head_size)
    }

    /// Returns the same heads and blocks with a cache of this format.
    pub const fn with_format(self, format: KvFormat) -> AttentionShape {
        AttentionShape { format, ..self }
    }

    /// Returns the same heads and blocks for scores with a softcap.
    ///
    /// # Errors
    /// [`UnsupportedShape::Capped`] if no kernel for this head size has a softcap.
    pub fn with_softcap(self) -> Result<AttentionShape, UnsupportedShape> {
        if !CAPPED_HEAD_SIZES.contains(&self.head_size) {
            return Err(UnsupportedShape::Capped(self.head_size));
        }
        Ok(AttentionShape { is_capped: true, ..self })
    }

    /// Returns whether scores have a softcap.
    pub const fn is_capped(self) -> bool {
        self.is_capped
    }

    /// Returns the number of query heads.
    pub const fn heads(self) -> u32 {
        self.heads
    }

    /// Returns the elements of a query or key.
    pub const fn head_size(self) -> u32 {
        self.head_size
    }

    /// Returns the number of query heads that share a key/value head.
    pub const fn group(self) -> u32 {
        self.heads / self.kv_heads
    }

    /// Returns the shape of one layer's pages.
    pub const fn pages(self) -> Pages {
        let AttentionShape { kv_heads: heads, head_size, block_size, format, .. } = self;
        Pages { heads, head_size: page_head_size(head_size), block_size, format, padding: 0 }
    }
}

/// The reason why no kernel supports a shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnsupportedShape {
    /// The head size is not in [`HEAD_SIZES`].
    HeadSize(u32),
    /// Latent keys and values do not have sizes in [`LATENT_SIZES`].
    LatentSize(u32, u32),
    /// The block size is not in [`BLOCK_SIZES`].
    BlockSize(u32),
    /// No kernel has a softcap for this head size.
    Capped(u32),
    /// The query heads do not divide evenly among the key/value heads.
    Heads {
        /// Query heads.
        heads: u32,
        /// Key/value heads.
        kv_heads: u32,
    },
}

impl fmt::Display for UnsupportedShape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            UnsupportedShape::HeadSize(size) => {
                write!(f, "attention has no kernels for head size {size}; supported head sizes: {HEAD_SIZES:?}")
            }
            UnsupportedShape::LatentSize(key, value) => {
                write!(f, "attention has no kernels for latent keys of {key} elements with values of {value}")
            }
            UnsupportedShape::BlockSize(size) => {
                write!(f, "attention cannot read blocks of {size} tokens; supported block sizes: {BLOCK_SIZES:?}")
            }
            UnsupportedShape::Capped(size) => {
                write!(
                    f,
                    "attention with a softcap has no kernels for head size {size}; supported head sizes: \
                     {CAPPED_HEAD_SIZES:?}"
                )
            }
            UnsupportedShape::Heads { heads, kv_heads } => {
                write!(f, "{heads} query heads cannot share {kv_heads} key/value heads evenly")
            }
        }
    }
}

impl core::error::Error for UnsupportedShape {}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use std::string::ToString;

    #[test]
    fn shapes_without_kernels_are_refused() {
        assert_eq!(AttentionShape::new(32, 8, 128, 16).map(AttentionShape::group), Ok(4));
        assert_eq!(AttentionShape::new(71, 1, 64, 8).map(AttentionShape::group), Ok(71));
        let message =
            |heads, kv_heads, size, block| AttentionShape::new(heads, kv_heads, size, block).unwrap_err().to_string();
        assert_eq!(
            message(8, 8, 72, 16),
            "attention has no kernels for head size 72; supported head sizes: [32, 64, 80, 96, 128, 256, 512]"
        );
        assert_eq!(
            message(8, 8, 64, 12),
            "attention cannot read blocks of 12 tokens; supported block sizes: [8, 16, 32]"
        );
        let latent =
            AttentionShape::latent(16, 576, 512, 16).map(|shape| (shape.group(), shape.pages().page_vectors()));
        assert_eq!(latent, Ok((16, 576 / 8 * 16)));
        assert_eq!(AttentionShape::latent(16, 576, 256, 16), Err(UnsupportedShape::LatentSize(576, 256)));
        assert_eq!(message(8, 3, 64, 16), "8 query heads cannot share 3 key/value heads evenly");
        for (heads, kv_heads) in [(0, 0), (8, 0), (0, 8)] {
            assert!(matches!(AttentionShape::new(heads, kv_heads, 64, 16), Err(UnsupportedShape::Heads { .. })));
        }
    }
}
