//! Products of halves. The results equal those of [`multiply_add`] bit for bit. For numbers of common sizes they are a
//! few times as fast if the CPU has the vectors.

#[cfg(target_arch = "x86_64")]
use super::wide::{self, WideRows, has_wide, multiply_add_wide};
#[cfg(target_arch = "x86_64")]
use super::wider::{self, WiderColumns, WiderRows, has_wider, multiply_add_wider};
use super::{Before, Bits, DEPTH, Factors, Sums, multiply_add};
use crate::program::Factor;

/// The way to compute products with a first factor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// One sum after the other, for any numbers.
    Any,
    /// With AVX2.
    #[cfg(target_arch = "x86_64")]
    Wide,
    /// With AVX-512.
    #[cfg(target_arch = "x86_64")]
    Wider,
}

/// The factors of a warp's last products. The next products often have the same factors.
#[derive(Clone, Debug)]
pub(crate) struct RecentFactors {
    rows: [Rows; 2],
    /// The index in `rows` that was used last.
    last: usize,
    columns: Columns,
}

impl RecentFactors {
    /// Creates the state of a warp that has not multiplied yet.
    pub fn new() -> Self {
        Self { rows: [Rows::new(), Rows::new()], last: 0, columns: Columns::new() }
    }

    /// Sets the first factor of the next products.
    pub fn set_rows(&mut self, factor: Factor, bits: &Bits<16>) {
        self.choose_rows(
            |rows| rows.factor == factor && rows.bits == *bits,
            |rows| {
                (rows.bits, rows.from_registers) = (*bits, false);
                rows.prepare(factor);
            },
        );
    }

    /// Sets the first factor of the next products from its registers. `fill` converts the registers to rows.
    pub fn set_rows_from_registers(
        &mut self,
        factor: Factor,
        registers: [&[u32; 32]; 4],
        fill: impl FnOnce(&mut Bits<16>),
    ) {
        self.choose_rows(
            |rows| rows.from_registers && rows.factor == factor && rows.registers.each_ref() == registers,
            |rows| {
                fill(&mut rows.bits);
                rows.prepare(factor);
                rows.registers.iter_mut().zip(registers).for_each(|(cached, new)| *cached = *new);
                rows.from_registers = true;
            },
        );
    }

    /// Selects the cached first factor that `are` accepts. If it accepts neither, replaces the one that was not used last.
    #[inline(always)]
    fn choose_rows(&mut self, are: impl Fn(&Rows) -> bool, set: impl FnOnce(&mut Rows)) {
        if !are(&self.rows[self.last]) {
            self.last = 1 - self.last;
            if !are(&self.rows[self.last]) {
                set(&mut self.rows[self.last]);
            }
        }
    }

    /// Sets the second factor of the next products with the same first factor. `fill` writes its columns, even columns
    /// first.
    pub fn set_columns(&mut self, fill: impl FnOnce(&mut Bits<8>)) {
        fill(&mut self.columns.bits);
        self.columns.from_registers = false;
        self.columns.prepare(&self.rows[self.last]);
    }

    /// Sets the second factor from its registers. `fill` converts the registers to columns.
    pub fn set_columns_from_registers(&mut self, registers: [&[u32; 32]; 2], fill: impl FnOnce(&mut Bits<8>)) {
        let (rows, columns) = (&self.rows[self.last], &mut self.columns);
        let is_ready = columns.from_registers && columns.made_for == (rows.factor, rows.way);
        if !is_ready || columns.registers.each_ref() != registers {
            fill(&mut columns.bits);
            columns.prepare(rows);
            columns.registers.iter_mut().zip(registers).for_each(|(cached, new)| *cached = *new);
            columns.from_registers = true;
        }
    }

    /// Adds the product of the two factors to sums.
    #[inline(always)]
    pub fn multiply_add(&self, before: Before<'_>, after: &mut Sums) {
        self.rows[self.last].multiply_add(&self.columns, before, after);
    }
}

/// The eight columns of the last product.
#[derive(Clone, Debug)]
struct Columns {
    /// The kind of factor and the way that they are prepared for.
    made_for: (Factor, Way),
    bits: Bits<8>,
    /// The registers that they were read from, if any.
    registers: [[u32; 32]; 2],
    from_registers: bool,
    /// Whether that way can multiply them, if it must know in advance.
    fits: bool,
    #[cfg(target_arch = "x86_64")]
    wider: WiderColumns,
}

impl Columns {
    /// Creates columns of zeros.
    fn new() -> Self {
        Self {
            made_for: (Factor::F16, Way::Any),
            bits: [[0; DEPTH]; 8],
            registers: [[0; 32]; 2],
            from_registers: false,
            fits: true,
            #[cfg(target_arch = "x86_64")]
            wider: WiderColumns::new(),
        }
    }

    /// Prepares the columns for the way of some rows.
    fn prepare(&mut self, rows: &Rows) {
        self.fits = match rows.way {
            // SAFETY: this way is chosen only if the CPU has every feature that the function is compiled for.
            #[cfg(target_arch = "x86_64")]
            Way::Wider => unsafe { wider::set_columns(&mut self.wider, rows.factor, &self.bits) },
            _ => true,
        };
        self.made_for = (rows.factor, rows.way);
    }
}

/// A first factor, prepared for multiplication.
#[derive(Clone, Debug)]
struct Rows {
    factor: Factor,
    bits: Bits<16>,
    /// The registers that they were read from, if any.
    registers: [[u32; 32]; 4],
    from_registers: bool,
    way: Way,
    #[cfg(target_arch = "x86_64")]
    wide: WideRows,
    #[cfg(target_arch = "x86_64")]
    wider: WiderRows,
}

impl Rows {
    /// Creates rows of NaN.
    fn new() -> Self {
        Self {
            factor: Factor::F16,
            bits: [[u16::MAX; DEPTH]; 16],
            registers: [[0; 32]; 4],
            from_registers: false,
            way: Way::Any,
            #[cfg(target_arch = "x86_64")]
            wide: WideRows::new(),
            #[cfg(target_arch = "x86_64")]
            wider: WiderRows::new(),
        }
    }

    /// Prepares the rows for the fastest way that this CPU has for their numbers.
    fn prepare(&mut self, factor: Factor) {
        #[cfg(target_arch = "x86_64")]
        if has_wider() {
            return self.prepare_for(factor, Way::Wider);
        } else if has_wide() {
            return self.prepare_for(factor, Way::Wide);
        }
        self.prepare_for(factor, Way::Any);
    }

    /// Prepares the rows for a way that this CPU has. Falls back to [`Way::Any`] if that way cannot multiply their
    /// numbers.
    fn prepare_for(&mut self, factor: Factor, way: Way) {
        let fits = match way {
            Way::Any => true,
            // SAFETY: the caller has found every feature that the function is compiled for.
            #[cfg(target_arch = "x86_64")]
            Way::Wide => unsafe { wide::set_rows(&mut self.wide, factor, &self.bits) },
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            Way::Wider => unsafe { wider::set_rows(&mut self.wider, factor, &self.bits) },
        };
        self.way = if fits { way } else { Way::Any };
        self.factor = factor;
    }

    /// Adds the product with columns that were prepared for these rows to sums.
    fn multiply_add(&self, columns: &Columns, before: Before<'_>, after: &mut Sums) {
        let done = match self.way {
            Way::Any => false,
            // SAFETY: this way is chosen only if the CPU has every feature that the function is compiled for.
            #[cfg(target_arch = "x86_64")]
            Way::Wide => unsafe { multiply_add_wide(self.factor, &self.wide, &columns.bits, before, after) },
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            Way::Wider => columns.fits && unsafe { multiply_add_wider(&self.wider, &columns.wider, before, after) },
        };
        if !done {
            *after = before.map(|register| *register);
            multiply_add_any(self.factor, &self.bits, &columns.bits, after);
        }
    }
}

/// Adds the product of any numbers to sums.
#[inline(never)]
fn multiply_add_any(factor: Factor, a: &Bits<16>, b: &Bits<8>, sums: &mut Sums) {
    let a = Factors::new(factor, std::array::from_fn(|k| std::array::from_fn(|row| a[row][k])));
    let b = Factors::new(factor, std::array::from_fn(|k| std::array::from_fn(|column| b[column][k])));
    // The register and the lane with the sum of a row and a column.
    let place = |row: usize, column: usize| (row / 8 * 2 + column / 4, row % 8 * 4 + column % 4);
    let mut rows: [[f32; 8]; 16] = std::array::from_fn(|row| {
        std::array::from_fn(|column| {
            let (register, lane) = place(row, column);
            f32::from_bits(sums[register][lane])
        })
    });
    multiply_add(factor, &a, &b, &mut rows);
    for (row, values) in rows.into_iter().enumerate() {
        for (column, value) in values.into_iter().enumerate() {
            let (register, lane) = place(row, column);
            sums[register][lane] = value.to_bits();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use half::{bf16, f16};

    #[test]
    fn vectors_compute_the_same_bits_as_scalars() {
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
                // By kind: any bits, similar sizes, small or subnormal, mostly zeros, whole numbers.
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
                    // All have the largest mantissa, so that the sum of the products is as large as possible.
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
                        0 => 0,
                        1 => bits & 0x807f_ffff | 0x3f80_0000,
                        2 => bits & 0x80ff_ffff,
                        3 => bits << 1 & 0xfeff_ffff,
                        _ => bits << 1,
                    }
                })
            });
            let mut wanted = before;
            multiply_add_any(factor, &a, &b, &mut wanted);
            for (way, computed) in ways.iter().zip(&mut computed) {
                let mut rows = Rows::new();
                rows.bits = a;
                rows.prepare_for(factor, *way);
                *computed += u32::from(rows.way != Way::Any);
                let (mut columns, mut found) = (Columns::new(), [[0; 32]; 4]);
                columns.bits = b;
                columns.prepare(&rows);
                rows.multiply_add(&columns, before.each_ref(), &mut found);
                assert_eq!(found, wanted, "round {round}, {way:?}");
            }
        }
        assert!(
            computed.iter().all(|computed| (3000..6000).contains(computed)),
            "{computed:?} of 6000 products used the vectors"
        );
    }
}
