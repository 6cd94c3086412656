//! The element types of the KV cache, as type parameters of generic kernels.
//!
//! The cache stores either a 16-bit type directly, or 8-bit codes with one scale per head and token. Activations are
//! always 16 bits.
//!
//! Kernels convert codes to 16-bit numbers in registers, without rounding. They apply scales in `f32`: key scales to
//! the scores, and value scales to the softmax weights before the weights are rounded to 16 bits.
//!
//! Rounding to `f16` needs care because a scale may be tiny, or large next to a weight. So the kernels first multiply
//! value scales by a gain. A scale times the gain is about a quarter of the largest element of its token. Weights stay
//! below four because of the [slack](KvElement::SLACK). Their product therefore never exceeds that element, which was
//! within `f16`'s range. If all values of a token are below about 0.001, products approach the smallest numbers of
//! `f16` and lose digits.

use core::marker::PhantomData;

use cuda_std::vector::Vector;

use crate::eight_bit::{EightBit, Fp8, Int8};
use crate::element::{Bf16, Element, ElementType, F16};
use crate::gemm::quantised::codes::FromCodes;
use crate::kv_write::{CodedCache, LayerCache, WriteElements, WriteHead};
use crate::layout::{KvFormat, Pages};

/// An element type of the cache, together with the type of the activations.
pub trait KvElement {
    /// The type of queries, weights and outputs.
    type Element: Element;

    /// The storage format of the elements.
    const FORMAT: KvFormat;

    /// How far a score may exceed its row's reference, as an exponent of two.
    const SLACK: f32;

    /// The factor for products with keys, in addition to the keys' scales.
    const KEY_FACTOR: f32;

    /// The gain that value scales are multiplied by.
    const VALUE_GAIN: f32;

    /// The factor for a sum of weights. The sum of values divided by the product is the output.
    const SUM_GAIN: f32;

    /// The type that writes heads to the cache.
    type Writer: WriteHead + WriteElements;

    /// Returns a writer for a layer's cache, which has these pages and begins at `vectors`.
    fn writer(pages: Pages, vectors: *mut Vector) -> Self::Writer;

    /// Converts four codes to two pairs of 16-bit elements: bytes 0 and 2, and bytes 1 and 3. Meaningless for 16-bit
    /// types.
    fn pairs(codes: u32) -> [u32; 2];
}

macro_rules! plain_elements {
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

plain_elements!(F16, Bf16);

/// An 8-bit code type that can be converted for the tensor cores.
pub trait KvCode: EightBit + Copy {
    /// The cache format that uses these codes.
    const FORMAT: KvFormat;

    /// The value gain for unconverted codes: about a quarter of the largest number that a code represents.
    const GAIN: f32;

    /// Converts four codes to two pairs: bytes 0 and 2, and bytes 1 and 3.
    fn pairs<T: FromCodes>(codes: u32) -> [u32; 2];
}

/// A code type whose converted pairs equal the codes' numbers divided by a factor. The factor depends on `T`, the type
/// of the pairs.
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

/// Codes of type `C` with activations of type `T`.
pub struct Coded<T, C>(PhantomData<(T, C)>);

/// [`Int8`] codes with [`F16`] activations.
pub type F16Int8 = Coded<F16, Int8>;
/// [`Fp8`] codes with [`F16`] activations.
pub type F16Fp8 = Coded<F16, Fp8>;
/// [`Int8`] codes with [`Bf16`] activations.
pub type Bf16Int8 = Coded<Bf16, Int8>;
/// [`Fp8`] codes with [`Bf16`] activations.
pub type Bf16Fp8 = Coded<Bf16, Fp8>;

impl<T: FromCodes, C: KvCode + CodeFactor<T>> KvElement for Coded<T, C> {
    type Element = T;
    const FORMAT: KvFormat = C::FORMAT;
    // Slightly below two, because the `int8` gain and the scales themselves are rounded up.
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

/// `with_kv_element!(element, format, T => expression)` evaluates the expression with `T` as the
/// [`KvElement`](crate::kv_element::KvElement) that an [`ElementType`](crate::element::ElementType) and a
/// [`KvFormat`](crate::layout::KvFormat) select.
///
/// With `T => plain, coded`, 8-bit formats evaluate the second expression instead.
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

/// Returns the [`KvElement::KEY_FACTOR`] of a type.
#[cfg(not(target_arch = "nvptx64"))]
pub fn key_factor(element: ElementType, format: KvFormat) -> f32 {
    with_kv_element!(element, format, T => <T as KvElement>::KEY_FACTOR)
}

/// Returns the name of a [`KvElement`] in kernel names and labels.
pub const fn label(element: ElementType, format: KvFormat) -> &'static str {
    match (element, format) {
        (element, KvFormat::Plain) => element.label(),
        (ElementType::F16, KvFormat::Int8) => "f16int8",
        (ElementType::F16, KvFormat::Fp8) => "f16fp8",
        (ElementType::Bf16, KvFormat::Int8) => "bf16int8",
        (ElementType::Bf16, KvFormat::Fp8) => "bf16fp8",
    }
}
