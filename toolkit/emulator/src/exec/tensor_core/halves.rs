//! Products of halves: bit for bit those of [`multiply_add`], and a few times as fast for numbers of common sizes where the CPU
//! can.

#[cfg(target_arch = "x86_64")]
use super::wide::{WideRows, has_wide, multiply_add_wide, wide_rows};
use super::{Bits, Factors, multiply_add};
use crate::program::Factor;

/// A first factor, ready to be multiplied.
pub(crate) struct Rows {
    factor: Factor,
    bits: Bits<16>,
    #[cfg(target_arch = "x86_64")]
    wide: Option<WideRows>,
}

impl Rows {
    /// Takes over the bits.
    pub fn new(factor: Factor, bits: Bits<16>) -> Self {
        Self {
            factor,
            bits,
            #[cfg(target_arch = "x86_64")]
            // SAFETY: `has_wide` has just found every feature that the function is compiled for.
            wide: if has_wide() { unsafe { wide_rows(factor, &bits) } } else { None },
        }
    }

    /// Adds the product with eight columns to the sums.
    pub fn multiply_add(&self, columns: &Bits<8>, sums: &mut [[f32; 8]; 16]) {
        #[cfg(target_arch = "x86_64")]
        if let Some(rows) = &self.wide {
            // SAFETY: there are such rows where `has_wide` has found every feature that the function is compiled for.
            if unsafe { multiply_add_wide(self.factor, rows, columns, sums) } {
                return;
            }
        }
        multiply_add_any(self.factor, &self.bits, columns, sums);
    }
}

/// The product of any numbers.
#[inline(never)]
fn multiply_add_any(factor: Factor, a: &Bits<16>, b: &Bits<8>, sums: &mut [[f32; 8]; 16]) {
    let a = Factors::new(factor, std::array::from_fn(|k| std::array::from_fn(|row| a[row][k])));
    let b = Factors::new(factor, std::array::from_fn(|k| std::array::from_fn(|column| b[column][k])));
    multiply_add(factor, &a, &b, sums);
}

#[cfg(test)]
mod tests {
    use super::*;
    use half::{bf16, f16};

    #[test]
    fn the_same_bits_as_one_at_a_time() {
        let mut state = 3u64;
        let mut random = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as u32
        };
        #[cfg(target_arch = "x86_64")]
        let mut wide = 0;
        for round in 0..6000 {
            let factor = if round % 2 == 0 { Factor::F16 } else { Factor::Bf16 };
            let kind = round / 2 % 10;
            let mut number = || {
                let bits = random();
                // Any bits; numbers of similar sizes; small and subnormal ones; many zeros; whole numbers.
                match (kind, factor) {
                    (0, _) => bits as u16,
                    (1 | 2, Factor::F16) => (bits & 0x8fff) as u16 | 0x3000,
                    (1 | 2, _) => (bits & 0x87ff) as u16 | 0x3c00,
                    (3, Factor::F16) => (bits & 0x87ff) as u16,
                    (3, _) => (bits & 0x81ff) as u16 | if bits & 0x10000 == 0 { 0 } else { 0x2700 },
                    (4, _) => {
                        if bits & 0x70000 == 0 {
                            bits as u16 & 0xbfff
                        } else {
                            bits as u16 & 0x8000
                        }
                    }
                    (5, Factor::F16) => f16::from_f32((bits % 17) as f32 - 8.0).to_bits(),
                    (5, _) => bf16::from_f32((bits % 17) as f32 - 8.0).to_bits(),
                    // All as large as they can be: the sum of their products is as well.
                    (6, Factor::F16) => 0x3fff,
                    (6, _) => 0x3fff,
                    (7, Factor::F16) => (bits & 0xbfff) as u16,
                    _ => (bits & 0x9fff) as u16 | 0x2000,
                }
            };
            let a: Bits<16> = std::array::from_fn(|_| std::array::from_fn(|_| number()));
            let b: Bits<8> = std::array::from_fn(|_| std::array::from_fn(|_| number()));
            let before: [[f32; 8]; 16] = std::array::from_fn(|_| {
                std::array::from_fn(|_| {
                    let bits = random();
                    match round / 20 % 5 {
                        0 => 0.0,
                        1 => f32::from_bits(bits & 0x807f_ffff | 0x3f80_0000),
                        2 => f32::from_bits(bits & 0x80ff_ffff),
                        3 => f32::from_bits(bits << 1 & 0xfeff_ffff),
                        _ => f32::from_bits(bits << 1),
                    }
                })
            });
            let rows = Rows::new(factor, a);
            #[cfg(target_arch = "x86_64")]
            {
                wide += u32::from(rows.wide.is_some());
            }
            let (mut found, mut wanted) = (before, before);
            rows.multiply_add(&b, &mut found);
            multiply_add_any(factor, &a, &b, &mut wanted);
            let bits = |sums: [[f32; 8]; 16]| sums.map(|row| row.map(f32::to_bits));
            assert_eq!(bits(found), bits(wanted), "round {round}");
        }
        #[cfg(target_arch = "x86_64")]
        assert!(!has_wide() || (3000..6000).contains(&wide), "{wide} of 6000 are of common sizes");
    }
}
