//! Products of halves: bit for bit those of [`multiply_add`], and a few times as fast for numbers of common sizes where the CPU
//! can.

#[cfg(target_arch = "x86_64")]
use super::wide::{self, WideRows, has_wide, multiply_add_wide};
#[cfg(target_arch = "x86_64")]
use super::wider::{self, has_wider, multiply_add_wider};
use super::{Bits, DEPTH, Factors, Sums, multiply_add};
use crate::program::Factor;

/// How products with a first factor are computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// One sum after the other, of any numbers.
    Any,
    /// By AVX2.
    #[cfg(target_arch = "x86_64")]
    Wide,
    /// By AVX-512.
    #[cfg(target_arch = "x86_64")]
    Wider,
}

/// The first factors of a warp's last products: the next ones often have the same.
#[derive(Clone, Debug)]
pub(crate) struct RecentRows {
    rows: [Rows; 2],
    /// Which of them was used last.
    last: usize,
}

impl RecentRows {
    /// Those of a warp that has multiplied nothing yet.
    pub fn new() -> Self {
        Self { rows: [Rows::new(), Rows::new()], last: 0 }
    }

    /// The rows of these bits.
    pub fn get(&mut self, factor: Factor, bits: &Bits<16>) -> &Rows {
        if !self.rows[self.last].are(factor, bits) {
            self.last = 1 - self.last;
            if !self.rows[self.last].are(factor, bits) {
                self.rows[self.last].set(factor, bits);
            }
        }
        &self.rows[self.last]
    }
}

/// A first factor, ready to be multiplied.
#[derive(Clone, Debug)]
pub(crate) struct Rows {
    factor: Factor,
    bits: Bits<16>,
    way: Way,
    #[cfg(target_arch = "x86_64")]
    wide: WideRows,
}

impl Rows {
    /// Rows of what is no number.
    fn new() -> Self {
        Self {
            factor: Factor::F16,
            bits: [[u16::MAX; DEPTH]; 16],
            way: Way::Any,
            #[cfg(target_arch = "x86_64")]
            wide: WideRows::new(),
        }
    }

    /// Whether they are the rows of these bits.
    fn are(&self, factor: Factor, bits: &Bits<16>) -> bool {
        self.factor == factor && self.bits == *bits
    }

    /// Sets the rows, for the fastest way that this CPU has for their numbers.
    fn set(&mut self, factor: Factor, bits: &Bits<16>) {
        #[cfg(target_arch = "x86_64")]
        if has_wider() {
            return self.set_for(factor, bits, Way::Wider);
        } else if has_wide() {
            return self.set_for(factor, bits, Way::Wide);
        }
        self.set_for(factor, bits, Way::Any);
    }

    /// Sets the rows for a way that this CPU has, if that way can multiply their numbers.
    fn set_for(&mut self, factor: Factor, bits: &Bits<16>, way: Way) {
        (self.factor, self.bits) = (factor, *bits);
        let fits = match way {
            Way::Any => true,
            // SAFETY: the caller has found every feature that the function is compiled for.
            #[cfg(target_arch = "x86_64")]
            Way::Wide => unsafe { wide::set_rows(&mut self.wide, factor, bits) },
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            Way::Wider => unsafe { wider::set_rows(&mut self.wide, factor, bits) },
        };
        self.way = if fits { way } else { Way::Any };
    }

    /// Adds the product with eight columns to the sums. The even columns come first.
    pub fn multiply_add(&self, columns: &Bits<8>, sums: &mut Sums) {
        let done = match self.way {
            Way::Any => false,
            // SAFETY: who has chosen this way has found every feature that the function is compiled for.
            #[cfg(target_arch = "x86_64")]
            Way::Wide => unsafe { multiply_add_wide(self.factor, &self.wide, columns, sums) },
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            Way::Wider => unsafe { multiply_add_wider(self.factor, &self.wide, columns, sums) },
        };
        if !done {
            multiply_add_any(self.factor, &self.bits, columns, sums);
        }
    }
}

/// The product of any numbers.
#[inline(never)]
fn multiply_add_any(factor: Factor, a: &Bits<16>, b: &Bits<8>, sums: &mut Sums) {
    let a = Factors::new(factor, std::array::from_fn(|k| std::array::from_fn(|row| a[row][k])));
    let b = Factors::new(factor, std::array::from_fn(|k| std::array::from_fn(|column| b[column][k])));
    // Where the sum of a row and a column lies.
    let place = |row: usize, column: usize| (row / 8 * 2 + column / 4, row % 8 * 4 + column % 4);
    let mut rows: [[f32; 8]; 16] = std::array::from_fn(|row| {
        std::array::from_fn(|column| {
            let (register, lane) = place(row, column);
            sums[register][lane]
        })
    });
    multiply_add(factor, &a, &b, &mut rows);
    for (row, values) in rows.into_iter().enumerate() {
        for (column, value) in values.into_iter().enumerate() {
            let (register, lane) = place(row, column);
            sums[register][lane] = value;
        }
    }
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
        let mut ways = Vec::new();
        #[cfg(target_arch = "x86_64")]
        ways.extend([(has_wide(), Way::Wide), (has_wider(), Way::Wider)].iter().filter(|way| way.0).map(|way| way.1));
        let mut computed = vec![0; ways.len()];
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
            let before: Sums = std::array::from_fn(|_| {
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
            let bits = |sums: Sums| sums.map(|register| register.map(f32::to_bits));
            let mut wanted = before;
            multiply_add_any(factor, &a, &b, &mut wanted);
            for (way, computed) in ways.iter().zip(&mut computed) {
                let mut rows = Rows::new();
                rows.set_for(factor, &a, *way);
                *computed += u32::from(rows.way != Way::Any);
                let mut found = before;
                rows.multiply_add(&b, &mut found);
                assert_eq!(bits(found), bits(wanted), "round {round}, {way:?}");
            }
        }
        assert!(computed.iter().all(|computed| (3000..6000).contains(computed)), "{computed:?} of 6000 are common");
    }
}
