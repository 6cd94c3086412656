//! Types for wide loads and stores, one for each width.

/// Sixteen bytes as raw bits: four `f32`, or eight elements of 16 bits.
#[repr(C, align(16))]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Vector(pub [u32; 4]);

/// Eight bytes as raw bits: two `f32`, or four elements of 16 bits.
#[repr(C, align(8))]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HalfVector(pub [u32; 2]);

// The conversions are written out: an array stays in registers only if no loop over it remains, and iterators do not
// guarantee that.
impl Vector {
    /// Packs four numbers.
    #[inline(always)]
    pub fn from_f32([a, b, c, d]: [f32; 4]) -> Self {
        Vector([a.to_bits(), b.to_bits(), c.to_bits(), d.to_bits()])
    }

    /// Unpacks the four numbers.
    #[inline(always)]
    pub fn to_f32(self) -> [f32; 4] {
        let [a, b, c, d] = self.0;
        [f32::from_bits(a), f32::from_bits(b), f32::from_bits(c), f32::from_bits(d)]
    }
}

impl HalfVector {
    /// Packs two numbers.
    #[inline(always)]
    pub fn from_f32([a, b]: [f32; 2]) -> Self {
        HalfVector([a.to_bits(), b.to_bits()])
    }

    /// Unpacks the two numbers.
    #[inline(always)]
    pub fn to_f32(self) -> [f32; 2] {
        let [a, b] = self.0;
        [f32::from_bits(a), f32::from_bits(b)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_keep_their_bits() {
        let numbers = [1.5, -0.0, f32::INFINITY, 1e-40];
        assert_eq!(Vector::from_f32(numbers).to_f32().map(f32::to_bits), numbers.map(f32::to_bits));
        assert_eq!(HalfVector::from_f32([2.0, -3.0]).to_f32(), [2.0, -3.0]);
    }
}
