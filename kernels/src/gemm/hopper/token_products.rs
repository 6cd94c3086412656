//! Products of weight rows with few tokens, by `wgmma`.

use cuda_std::ptx::wgmma_chain::{self, row_descriptors};

use crate::element::{Bf16, Element, F16};

/// Sums of 64 weight rows by up to 64 tokens, one array for each eight tokens, in `wgmma`'s layout.
pub type TokenSums = [[f32; 4]; 8];

/// An element type that `wgmma` can multiply as weight rows, with tokens as the columns.
pub trait TokenProducts: Element {
    /// Multiplies 64 weight rows by `TOKENS` tokens (8, 16, 32 or 64), 128 elements along K, and adds the products to
    /// `sums`.
    ///
    /// Each factor is two tiles of 64-element rows, given by their [descriptors](cuda_std::ptx::wgmma::row_descriptor).
    /// Only the first `TOKENS / 8` sums are used.
    ///
    /// # Safety
    /// All threads of the warp group call this together, and no thread writes the factors meanwhile.
    unsafe fn multiply_tokens<const TOKENS: u32>(sums: &mut TokenSums, weight: [u32; 2], x: [u32; 2]);

    /// Does the same as [`multiply_tokens`](Self::multiply_tokens), starting from zero.
    ///
    /// # Safety
    /// As for [`multiply_tokens`](Self::multiply_tokens).
    unsafe fn multiply_tokens_first<const TOKENS: u32>(weight: [u32; 2], x: [u32; 2]) -> TokenSums;
}

/// Returns the first `COUNT` sums.
#[inline(always)]
fn first_of<const COUNT: usize>(sums: &mut TokenSums) -> &mut [[f32; 4]; COUNT] {
    const { assert!(COUNT <= 8) }
    // SAFETY: these are the first elements of a longer array, as just checked.
    unsafe { &mut *core::ptr::from_mut(sums).cast() }
}

macro_rules! token_products {
    ($ty:ident [$n8:ident $n16:ident $n32:ident $n64:ident] [$new8:ident $new16:ident $new32:ident $new64:ident]) => {
        impl TokenProducts for $ty {
            #[inline(always)]
            unsafe fn multiply_tokens<const TOKENS: u32>(sums: &mut TokenSums, weight: [u32; 2], x: [u32; 2]) {
                let (weight, x) = (row_descriptors(weight), row_descriptors(x));
                // SAFETY: all threads of the warp group are here, and the factors stay, by this function's contract.
                unsafe {
                    match TOKENS {
                        8 => wgmma_chain::$n8(first_of(sums), weight, x),
                        16 => wgmma_chain::$n16(first_of(sums), weight, x),
                        32 => wgmma_chain::$n32(first_of(sums), weight, x),
                        _ => wgmma_chain::$n64(sums, weight, x),
                    }
                }
            }

            #[inline(always)]
            unsafe fn multiply_tokens_first<const TOKENS: u32>(weight: [u32; 2], x: [u32; 2]) -> TokenSums {
                let (weight, x) = (row_descriptors(weight), row_descriptors(x));
                let mut sums = [[0.0; 4]; 8];
                // SAFETY: all threads of the warp group are here, and the factors stay, by this function's contract.
                unsafe {
                    match TOKENS {
                        8 => *first_of(&mut sums) = wgmma_chain::$new8(weight, x),
                        16 => *first_of(&mut sums) = wgmma_chain::$new16(weight, x),
                        32 => *first_of(&mut sums) = wgmma_chain::$new32(weight, x),
                        _ => sums = wgmma_chain::$new64(weight, x),
                    }
                }
                sums
            }
        }
    };
}

token_products!(
    F16 [m64n8k128_f16 m64n16k128_f16 m64n32k128_f16 m64n64k128_f16]
    [m64n8k128_f16_first m64n16k128_f16_first m64n32k128_f16_first m64n64k128_f16_first]
);
token_products!(
    Bf16 [m64n8k128_bf16 m64n16k128_bf16 m64n32k128_bf16 m64n64k128_bf16]
    [m64n8k128_bf16_first m64n16k128_bf16_first m64n32k128_bf16_first m64n64k128_bf16_first]
);
