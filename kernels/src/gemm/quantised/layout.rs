//! Where the codes and scales of a quantised weight lie: in the order in which the lanes of a warp take them.
//!
//! A weight `[n][k]` is cut into fragments of 16 rows, and these into steps of 64 columns. Of a step each lane has the codes of its
//! elements of `mma`'s first operand, four of 16 x 16, in one or two vectors of 16 bytes; the same vector of all lanes is 512 bytes
//! that lie together, and the steps of a fragment lie one after the other. Rows and columns are filled up with codes of zero.
//!
//! A group's word has its scale in the lower half, in `f16`; in the upper half what is added to each code, in the type of the
//! activations. Of 16 rows and a group the 16 words lie together, those of rows `r` and `r + 8` side by side.

/// Rows of a fragment.
pub const FRAGMENT_ROWS: u32 = 16;

/// Columns of a step.
pub const STEP_COLUMNS: u32 = 64;

/// How the elements of a quantised weight are coded: an element is `factor * scale * (code + offset)`, where scale and offset are
/// those of its group, and the factor is the weight's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum CodeForm {
    /// Integers from 0 to 15.
    Int4 = 0,
    /// Integers from -128 to 127.
    Int8 = 1,
    /// FP8 e4m3, without an offset.
    Fp8 = 2,
}

impl CodeForm {
    /// All forms.
    pub const ALL: [CodeForm; 3] = [CodeForm::Int4, CodeForm::Int8, CodeForm::Fp8];

    /// Bits of a code.
    pub const fn bits(self) -> u32 {
        match self {
            CodeForm::Int4 => 4,
            CodeForm::Int8 | CodeForm::Fp8 => 8,
        }
    }

    /// Elements of the smallest group, a power of two like those of all others.
    pub const fn least_group(self) -> u32 {
        match self {
            CodeForm::Int8 => 16,
            CodeForm::Int4 | CodeForm::Fp8 => 32,
        }
    }
}

/// The shape of a quantised weight, and so the places of its codes and scales.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PackedShape {
    /// How elements are coded.
    pub form: CodeForm,
    /// Rows.
    pub n: u32,
    /// Columns.
    pub k: u32,
    /// Columns of a group, a power of two.
    pub group: u32,
}

impl PackedShape {
    /// Fragments, the last of which may be filled up.
    pub const fn fragments(self) -> usize {
        self.n.div_ceil(FRAGMENT_ROWS) as usize
    }

    /// Steps of a fragment, the last of which may be filled up.
    pub const fn steps(self) -> usize {
        self.k.div_ceil(STEP_COLUMNS) as usize
    }

    /// Groups of a row, those of columns that fill it up included.
    pub const fn groups(self) -> usize {
        (self.steps() * STEP_COLUMNS as usize).div_ceil(self.group as usize)
    }

    /// Bytes of a fragment's codes.
    pub const fn fragment_code_bytes(self) -> usize {
        self.steps() * (FRAGMENT_ROWS * STEP_COLUMNS * self.form.bits() / 8) as usize
    }

    /// Words of a fragment's scales.
    pub const fn fragment_scales(self) -> usize {
        self.groups() * FRAGMENT_ROWS as usize
    }

    /// Bytes of all codes.
    pub const fn code_bytes(self) -> usize {
        self.fragments() * self.fragment_code_bytes()
    }

    /// Words of all scales.
    pub const fn scales(self) -> usize {
        self.fragments() * self.fragment_scales()
    }

    /// Where the code of a row and a column is among its fragment's codes: the byte, and the first bit in it.
    #[inline]
    pub const fn code_place(self, row: u32, column: u32) -> (usize, u32) {
        let (row, step) = (row % FRAGMENT_ROWS, column / STEP_COLUMNS);
        let (tile, column) = (column % STEP_COLUMNS / 16, column % 16);
        let lane = row % 8 * 4 + column % 8 / 2;
        // The register of `mma`'s operand, and the half of it.
        let (register, half) = (row / 8 + column / 8 * 2, column % 2);
        match self.form {
            CodeForm::Int4 => {
                let bit = 4 * register + 16 * half;
                (((step * 32 + lane) * 16 + tile * 4 + bit / 8) as usize, bit % 8)
            }
            CodeForm::Int8 | CodeForm::Fp8 => {
                let vector = (step * 2 + tile / 2) * 32 + lane;
                ((vector * 16 + tile % 2 * 8 + register / 2 * 4 + half * 2 + register % 2) as usize, 0)
            }
        }
    }

    /// Where the word of a row and a group is among its fragment's words.
    #[inline]
    pub const fn scale_place(self, row: u32, group: u32) -> usize {
        ((group * 8 + row % 8) * 2 + row % FRAGMENT_ROWS / 8) as usize
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_place_is_that_of_one_element() {
        for form in CodeForm::ALL {
            let shape = PackedShape { form, n: 16, k: 128, group: 32 };
            let elements = || (0..16).flat_map(|row| (0..128).map(move |column| (row, column)));
            let places: BTreeSet<_> = elements().map(|(row, column)| shape.code_place(row, column)).collect();
            assert_eq!(places.len(), 16 * 128);
            assert!(places.iter().all(|&(byte, bit)| byte < shape.code_bytes() && bit + form.bits() <= 8));
            let words = (0..16).flat_map(|row| (0..4).map(move |group| shape.scale_place(row, group)));
            assert!(words.clone().collect::<BTreeSet<_>>().into_iter().eq(0..shape.scales()), "{words:?}");
        }
    }

    #[test]
    fn shapes_are_filled_up() {
        let shape = PackedShape { form: CodeForm::Int4, n: 17, k: 96, group: 128 };
        assert_eq!((shape.fragments(), shape.steps(), shape.groups()), (2, 2, 1));
        assert_eq!((shape.code_bytes(), shape.scales()), (2 * 2 * 512, 2 * 16));
    }
}
