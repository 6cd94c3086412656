//! The element types of the KV cache, as parameters of generic kernels: a 16-bit type as it is, or codes of 8 bits with a
//! scale for each head of a token, beside activations of a 16-bit type.
//!
//! Codes become 16-bit numbers in registers, exactly. Scales are applied in `f32`: those of keys to scores, those of values to
//! the weights that values are summed with, before these are rounded. `f16` has little room there, since a scale may be
//! tiny, or large beside a weight. So scales are multiplied with a gain that makes them a quarter of the largest element of their
//! token: with the [slack](KvElement::SLACK) a product is never above that element, which was within `f16`.
//! Where a token's values are all below some 0.001 products come near the least numbers of `f16`, and lose digits.

use core::marker::PhantomData;

use cuda_std::vector::Vector;

use crate::eight_bit::{EightBit, Fp8, Int8};
use crate::element::{Bf16, Element, ElementType, F16};
use crate::gemm::quantised::codes::FromCodes;
use crate::kv_write::{CodedCache, LayerCache, WriteHead};
use crate::layout::{KvFormat, Pages};

/// An element type of the cache, and that of the activations beside it.
pub trait KvElement {
    /// Of queries, weights and results.
    type Element: Element;

    /// How the elements are stored.
    const FORMAT: KvFormat;

    /// By how much, in powers of two, a score may exceed the reference of its row.
    const SLACK: f32;

    /// What products with keys are multiplied with, beside the keys' scales.
    const KEY_FACTOR: f32;

    /// What scales of values are multiplied with.
    const VALUE_GAIN: f32;

    /// What a sum of weights is multiplied with, so that a sum of values over it is the result.
    const SUM_GAIN: f32;

    /// Writes the cache.
    type Writer: WriteHead;

    /// What writes a layer's cache with such pages.
    fn writer(pages: Pages, vectors: *mut Vector) -> Self::Writer;

    /// Four codes as two pairs of 16-bit elements: of bytes 0 and 2, and of bytes 1 and 3. Not for 16-bit types.
    fn pairs(codes: u32) -> [u32; 2];
}

macro_rules! as_they_are {
    ($($element:ty),*) => {$(
        impl KvElement for $element {
            type Element = $element;
            const FORMAT: KvFormat = KvFormat::Plain;
            const SLACK: f32 = 8.0;
            const KEY_FACTOR: f32 = 1.0;
            const VALUE_GAIN: f32 = 1.0;
            const SUM_GAIN: f32 = 1.0;
            type Writer = LayerCache;

            #[inline(always)]
            fn writer(pages: Pages, vectors: *mut Vector) -> LayerCache {
                LayerCache { pages, vectors }
            }

            #[inline(always)]
            fn pairs(codes: u32) -> [u32; 2] {
                [codes; 2]
            }
        }
    )*};
}

as_they_are!(F16, Bf16);

/// A type of codes, as the tensor cores take it.
pub trait KvCode: EightBit + Copy {
    /// The format of such a cache.
    const FORMAT: KvFormat;

    /// What scales of values are multiplied with for codes as they are: about a quarter of the largest code's number.
    const GAIN: f32;

    /// Four codes as two pairs: of bytes 0 and 2, and of bytes 1 and 3.
    fn pairs<T: FromCodes>(codes: u32) -> [u32; 2];
}

/// A type of codes whose pairs stand for their numbers over a factor, which depends on the type of the pairs.
pub trait CodeFactor<T> {
    /// The factor.
    const FACTOR: f32;
}

impl KvCode for Int8 {
    const FORMAT: KvFormat = KvFormat::Int8;
    const GAIN: f32 = 32.0;

    #[inline(always)]
    fn pairs<T: FromCodes>(codes: u32) -> [u32; 2] {
        T::int8(codes)
    }
}

impl<T> CodeFactor<T> for Int8 {
    const FACTOR: f32 = 1.0;
}

impl KvCode for Fp8 {
    const FORMAT: KvFormat = KvFormat::Fp8;
    const GAIN: f32 = 112.0;

    #[inline(always)]
    fn pairs<T: FromCodes>(codes: u32) -> [u32; 2] {
        T::fp8(codes)
    }
}

impl<T: FromCodes> CodeFactor<T> for Fp8 {
    const FACTOR: f32 = T::FP8_FACTOR;
}

/// Codes of type `C` beside activations of type `T`.
pub struct Coded<T, C>(PhantomData<(T, C)>);

/// [`Int8`] beside [`F16`].
pub type F16Int8 = Coded<F16, Int8>;
/// [`Fp8`] beside [`F16`].
pub type F16Fp8 = Coded<F16, Fp8>;
/// [`Int8`] beside [`Bf16`].
pub type Bf16Int8 = Coded<Bf16, Int8>;
/// [`Fp8`] beside [`Bf16`].
pub type Bf16Fp8 = Coded<Bf16, Fp8>;

impl<T: FromCodes, C: KvCode + CodeFactor<T>> KvElement for Coded<T, C> {
    type Element = T;
    const FORMAT: KvFormat = C::FORMAT;
    // A little less than two, for what is rounded up.
    const SLACK: f32 = 1.9;
    const KEY_FACTOR: f32 = C::FACTOR;
    const VALUE_GAIN: f32 = C::GAIN;
    const SUM_GAIN: f32 = C::GAIN / C::FACTOR;
    type Writer = CodedCache<C>;

    #[inline(always)]
    fn writer(pages: Pages, vectors: *mut Vector) -> CodedCache<C> {
        CodedCache { pages, vectors, code: PhantomData }
    }

    #[inline(always)]
    fn pairs(codes: u32) -> [u32; 2] {
        C::pairs::<T>(codes)
    }
}

/// `with_kv_element!(element, format, T => expression)`: the expression with `T` as the [`KvElement`](crate::kv_element::KvElement)
/// that an [`ElementType`](crate::element::ElementType) and a [`KvFormat`](crate::layout::KvFormat) stand for; with
/// `T => plain, coded` the formats of 8 bits have their own.
#[macro_export]
macro_rules! with_kv_element {
    ($element:expr, $format:expr, $T:ident => $expression:expr) => {
        $crate::with_kv_element!($element, $format, $T => $expression, $expression)
    };
    ($element:expr, $format:expr, $T:ident => $plain:expr, $coded:expr) => {
        match ($element, $format) {
            (element, $crate::layout::KvFormat::Plain) => $crate::with_element!(element, $T => $plain),
            ($crate::element::ElementType::F16, $crate::layout::KvFormat::Int8) => {
                type $T = $crate::kv_element::F16Int8;
                $coded
            }
            ($crate::element::ElementType::F16, $crate::layout::KvFormat::Fp8) => {
                type $T = $crate::kv_element::F16Fp8;
                $coded
            }
            ($crate::element::ElementType::Bf16, $crate::layout::KvFormat::Int8) => {
                type $T = $crate::kv_element::Bf16Int8;
                $coded
            }
            ($crate::element::ElementType::Bf16, $crate::layout::KvFormat::Fp8) => {
                type $T = $crate::kv_element::Bf16Fp8;
                $coded
            }
        }
    };
}

/// The name of the [`KvElement`] for such activations and such a cache, in the labels and names of kernels.
pub const fn label(element: ElementType, format: KvFormat) -> &'static str {
    match (element, format) {
        (element, KvFormat::Plain) => element.label(),
        (ElementType::F16, KvFormat::Int8) => "f16int8",
        (ElementType::F16, KvFormat::Fp8) => "f16fp8",
        (ElementType::Bf16, KvFormat::Int8) => "bf16int8",
        (ElementType::Bf16, KvFormat::Fp8) => "bf16fp8",
    }
}
