//! Keys and values in 8 bits as the host encodes them, for comparison with kernels.

use kernels::eight_bit::{EightBit, Fp8, HeadScale, Int8, size};
use kernels::layout::{KeyOrValue, KvFormat, Pages};

/// The codes of one head of one token, and their scale.
#[derive(Clone, Debug)]
pub struct CodedHead {
    /// A code for each element.
    pub codes: Vec<u8>,
    /// The bits of the scale, a half.
    pub scale: u16,
}

impl CodedHead {
    /// Encodes a head.
    ///
    /// # Panics
    /// If the format has no codes.
    pub fn of(format: KvFormat, elements: &[f32]) -> CodedHead {
        match format {
            KvFormat::Plain => panic!("16-bit elements have no codes"),
            KvFormat::Int8 => encode::<Int8>(elements),
            KvFormat::Fp8 => encode::<Fp8>(elements),
        }
    }

    /// Decodes the codes to numbers.
    pub fn numbers(&self, format: KvFormat) -> Vec<f64> {
        let scale = half::f16::from_bits(self.scale).to_f64();
        let decode = if format == KvFormat::Int8 { Int8::decode } else { Fp8::decode };
        self.codes.iter().map(|&code| f64::from(decode(code)) * scale).collect()
    }

    /// Writes codes and scale to their positions in a layer's cache.
    pub fn put(&self, cache: &mut [u8], pages: Pages, block: u32, head: u32, part: KeyOrValue, offset: u32) {
        for (element, &code) in (0..).zip(&self.codes) {
            cache[pages.element(block, head, part, element, offset)] = code;
        }
        let at = 2 * pages.scale(block, head, part, offset);
        cache[at..at + 2].copy_from_slice(&self.scale.to_le_bytes());
    }
}

fn encode<E: EightBit>(elements: &[f32]) -> CodedHead {
    let scale = HeadScale::of::<E>(elements.iter().map(|&x| size(x)).max().unwrap_or(0));
    CodedHead { codes: elements.iter().map(|&x| E::encode(x * scale.inverse)).collect(), scale: scale.bits }
}
