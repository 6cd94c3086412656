//! Pairs of 16-bit floating-point numbers in one 32-bit register. The first number is in the lower half.
//!
//! The `half` crate converts in software on this target. These types convert in one instruction.

/// Two `f16` numbers.
#[repr(transparent)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct F16x2(pub u32);

/// Two `bf16` numbers.
#[repr(transparent)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Bf16x2(pub u32);

/// Two 16-bit numbers of either format. A kernel that is generic over this trait works for both formats.
pub trait Half2: Copy {
    /// Creates a pair from its 32 bits.
    fn from_bits(bits: u32) -> Self;
    /// Returns the 32 bits of the pair.
    fn to_bits(self) -> u32;
    /// Converts both to `f32`, exactly.
    fn to_f32(self) -> [f32; 2];
    /// Converts both values, rounding to nearest even.
    fn from_f32(values: [f32; 2]) -> Self;
    /// Returns `self * by + plus` for each number, in the pair's own format, rounded once.
    fn mul_add(self, by: Self, plus: Self) -> Self;
}

/// Executes one instruction with 32-bit register operands and a 32-bit result.
macro_rules! instruction {
    ($text:literal, $($operand:expr),*) => {
        device!(($($operand),*) => {
            let result: u32;
            // SAFETY: arithmetic on registers, without access to memory.
            unsafe {
                core::arch::asm!(
                    $text,
                    out(reg32) result,
                    $(in(reg32) $operand,)*
                    options(pure, nomem, nostack, preserves_flags),
                );
            }
            result
        })
    };
}

impl Half2 for F16x2 {
    #[inline(always)]
    fn from_bits(bits: u32) -> F16x2 {
        F16x2(bits)
    }

    #[inline(always)]
    fn to_bits(self) -> u32 {
        self.0
    }

    #[inline(always)]
    fn to_f32(self) -> [f32; 2] {
        device!((self) => [f16::from_bits(self.0 as u16) as f32, f16::from_bits((self.0 >> 16) as u16) as f32])
    }

    #[inline(always)]
    fn from_f32(values: [f32; 2]) -> F16x2 {
        // The instruction's first source becomes the upper half.
        F16x2(instruction!("cvt.rn.f16x2.f32 {0}, {2}, {1};", values[0], values[1]))
    }

    #[inline(always)]
    fn mul_add(self, by: F16x2, plus: F16x2) -> F16x2 {
        F16x2(instruction!("fma.rn.f16x2 {0}, {1}, {2}, {3};", self.0, by.0, plus.0))
    }
}

impl Half2 for Bf16x2 {
    #[inline(always)]
    fn from_bits(bits: u32) -> Bf16x2 {
        Bf16x2(bits)
    }

    #[inline(always)]
    fn to_bits(self) -> u32 {
        self.0
    }

    #[inline(always)]
    fn to_f32(self) -> [f32; 2] {
        // A bf16 is the upper half of an f32.
        [f32::from_bits(self.0 << 16), f32::from_bits(self.0 & 0xffff_0000)]
    }

    #[inline(always)]
    fn from_f32(values: [f32; 2]) -> Bf16x2 {
        Bf16x2(instruction!("cvt.rn.bf16x2.f32 {0}, {2}, {1};", values[0], values[1]))
    }

    #[inline(always)]
    fn mul_add(self, by: Bf16x2, plus: Bf16x2) -> Bf16x2 {
        Bf16x2(instruction!("fma.rn.bf16x2 {0}, {1}, {2}, {3};", self.0, by.0, plus.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bf16_widens_on_the_host_too() {
        assert_eq!(Bf16x2(0xc000_3f80).to_f32(), [1.0, -2.0]);
    }
}
