//! Memory order of a quantised weight's codes and scales, which is the order of the lanes' loads.
//!
//! A weight `[n][k]` is cut into fragments of 16 rows, and each fragment into steps of 64 columns. In a step each lane
//! has the codes of its elements in four 16 x 16 tiles of `mma`'s first operand. These codes are one or two vectors of
//! 16 bytes. The same vector of all lanes is 512 contiguous bytes, and the steps of a fragment follow each other. Rows
//! and columns are padded with codes of zero.
//!
//! The word of a group has its scale in the lower half, in `f16`. The upper half is the number that is added to each
//! code, in the type of the activations. The 16 words that 16 rows have for a group are contiguous, and the words of
//! rows `r` and `r + 8` are next to each other.

/// Rows of a fragment.
pub const FRAGMENT_ROWS: u32 = 16;

/// Columns of a step.
pub const STEP_COLUMNS: u32 = 64;

/// How the elements of a quantised weight are coded. An element is `factor * scale * (code + offset)`, where each group
/// has a scale and an offset, and the whole weight has a factor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum CodeForm {
    /// Integers from 0 to 15.
    Int4 = 0,
    /// Integers from -128 to 127.
    Int8 = 1,
    /// FP8 e4m3, without an offset.
    Fp8 = 2,
    /// FP4 e2m1, without an offset. Only grouped products have kernels for it.
    Fp4 = 3,
}

impl CodeForm {
    /// All forms that have kernels for dense products.
    pub const ALL: [CodeForm; 3] = [CodeForm::Int4, CodeForm::Int8, CodeForm::Fp8];

    /// All forms that have kernels for grouped products.
    pub const GROUPED: [CodeForm; 3] = [CodeForm::Int4, CodeForm::Int8, CodeForm::Fp4];

    /// Bits of a code.
    pub const fn bits(self) -> u32 {
        match self {
            CodeForm::Int4 | CodeForm::Fp4 => 4,
            CodeForm::Int8 | CodeForm::Fp8 => 8,
        }
    }

    /// Returns the value of a code, divided by the number that kernels make of it.
    #[cfg(not(target_arch = "nvptx64"))]
    pub(crate) const fn factor<T: super::codes::FromCodes>(self) -> f32 {
        match self {
            CodeForm::Int4 | CodeForm::Int8 => 1.0,
            CodeForm::Fp8 => T::FP8_FACTOR,
            CodeForm::Fp4 => T::FP4_FACTOR,
        }
    }

    /// Returns the columns of the smallest group. Every group size is a power of two.
    pub const fn least_group(self) -> u32 {
        match self {
            CodeForm::Int8 => 16,
            CodeForm::Int4 | CodeForm::Fp8 | CodeForm::Fp4 => 32,
        }
    }
}

/// The shape of a quantised weight, which determines where its codes and scales are.
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
    /// Fragments of the weight. The last one may be padded.
    pub const fn fragments(self) -> usize {
        self.n.div_ceil(FRAGMENT_ROWS) as usize
    }

    /// Steps of a fragment. The last one may be padded.
    pub const fn steps(self) -> usize {
        self.k.div_ceil(STEP_COLUMNS) as usize
    }

    /// Groups of a row, including groups of padding columns.
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

    /// Returns where the code of a row and column is among its fragment's codes: the byte, and the first bit in it.
    #[inline]
    pub const fn code_place(self, row: u32, column: u32) -> (usize, u32) {
        let (row, step) = (row % FRAGMENT_ROWS, column / STEP_COLUMNS);
        let (tile, column) = (column % STEP_COLUMNS / 16, column % 16);
        let lane = row % 8 * 4 + column % 8 / 2;
        // The register of `mma`'s operand, and the half of that register.
        let (register, half) = (row / 8 + column / 8 * 2, column % 2);
        match self.form {
            CodeForm::Int4 | CodeForm::Fp4 => {
                let bit = 4 * register + 16 * half;
                (((step * 32 + lane) * 16 + tile * 4 + bit / 8) as usize, bit % 8)
            }
            CodeForm::Int8 | CodeForm::Fp8 => {
                let vector = (step * 2 + tile / 2) * 32 + lane;
                ((vector * 16 + tile % 2 * 8 + register / 2 * 4 + half * 2 + register % 2) as usize, 0)
            }
        }
    }

    /// Returns the index of a row's and group's word among its fragment's words.
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
    fn every_code_and_every_scale_has_its_own_place() {
        for form in CodeForm::ALL.into_iter().chain([CodeForm::Fp4]) {
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
    fn shapes_are_padded() {
        let shape = PackedShape { form: CodeForm::Int4, n: 17, k: 96, group: 128 };
        assert_eq!((shape.fragments(), shape.steps(), shape.groups()), (2, 2, 1));
        assert_eq!((shape.code_bytes(), shape.scales()), (2 * 2 * 512, 2 * 16));
    }
}
