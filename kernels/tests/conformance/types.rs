//! The types of operands, and the values that test each type.

use std::fmt;

use crate::exact::{Exact, Rounding};
use workbench::number::ProblemRng;

/// The type of an operand. In memory an operand takes 64 bits, and its type uses the lowest of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Type {
    Pred,
    B8,
    U8,
    S8,
    B16,
    U16,
    S16,
    F16,
    Bf16,
    F16x2,
    Bf16x2,
    B32,
    U32,
    S32,
    F32,
    B64,
    U64,
    S64,
    F64,
    /// A number of bits or lanes, mostly small, in a 32-bit register.
    Count,
    /// Two `f16` of moderate size, some of them zero, infinite or NaN, for a factor of `mma`.
    Factors,
    /// [`Type::Factors`] in `bf16`.
    BfFactors,
    /// An `f32` with values like [`Type::Factors`], for the sums of `mma`.
    Sum,
    /// Two `f16` that are small integers.
    Integers,
    /// [`Type::Integers`] in `bf16`.
    BfIntegers,
    /// An `f32` that is a small integer.
    IntegerSum,
}

/// Unsigned and signed integers of the widths that have arithmetic.
pub const INTEGERS: [Type; 6] = [Type::U16, Type::S16, Type::U32, Type::S32, Type::U64, Type::S64];

impl fmt::Display for Type {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&format!("{self:?}").to_lowercase())
    }
}

impl Type {
    /// Returns the width in bits.
    pub fn bits(self) -> u32 {
        match self {
            Type::Pred => 1,
            Type::B8 | Type::U8 | Type::S8 => 8,
            Type::B16 | Type::U16 | Type::S16 | Type::F16 | Type::Bf16 => 16,
            Type::B64 | Type::U64 | Type::S64 | Type::F64 => 64,
            _ => 32,
        }
    }

    /// Returns the type of a register for values of this type.
    pub fn register(self) -> &'static str {
        match self.bits() {
            1 => "pred",
            8 | 16 => "b16",
            32 => "b32",
            _ => "b64",
        }
    }

    pub fn is_signed(self) -> bool {
        matches!(self, Type::S8 | Type::S16 | Type::S32 | Type::S64)
    }

    /// Returns the mask of the type's bits.
    pub fn mask(self) -> u64 {
        u64::MAX >> (64 - self.bits())
    }

    /// Returns the integer that the bits stand for in this type.
    pub fn integer(self, bits: u64) -> i128 {
        let bits = bits & self.mask();
        let negative = self.is_signed() && bits >> (self.bits() - 1) == 1;
        i128::from(bits) - if negative { 1 << self.bits() } else { 0 }
    }

    /// Returns the corner cases of the type, as bits.
    fn corners(self) -> Vec<u64> {
        let float = |values: &[f32]| values.iter().map(|v| u64::from(v.to_bits())).collect();
        match self {
            Type::Pred => vec![0, 1],
            Type::Count => vec![0, 1, 2, 7, 8, 15, 16, 17, 31, 32, 33, 63, 64, 65, 255, 256, 1 << 31, u32::MAX.into()],
            Type::F32 => float(&[
                0.0,
                -0.0,
                1.0,
                -1.0,
                0.5,
                1.5,
                2.5,
                -2.5,
                3.0,
                1e-40,
                -1e-40,
                f32::MIN_POSITIVE,
                f32::from_bits(1),
                f32::MAX,
                f32::MIN,
                f32::INFINITY,
                f32::NEG_INFINITY,
                f32::NAN,
                f32::from_bits(0xff80_0001),
                65504.0,
                65520.0,
                5.96e-8,
                2.98e-8,
                16_777_217.0,
                2.147_483_6e9,
                -3e9,
                4.5e9,
                9.3e18,
                1.9e19,
            ]),
            Type::F64 => [
                0.0,
                -0.0,
                1.0,
                -1.0,
                0.5,
                2.5,
                1e-310,
                f64::MIN_POSITIVE,
                f64::MAX,
                f64::INFINITY,
                f64::NEG_INFINITY,
                f64::NAN,
                65504.0,
                65_519.999_999,
                3.402_823_5e38,
                1e-45,
                9.3e18,
                -1.9e19,
            ]
            .map(f64::to_bits)
            .to_vec(),
            Type::F16 => vec![
                0, 0x8000, 0x3c00, 0xbc00, 0x3800, 0x3e00, 0x4100, 0x0001, 0x8001, 0x03ff, 0x0400, 0x7bff, 0xfbff,
                0x7c00, 0xfc00, 0x7e00, 0xfc01, 0x7fff, 0x1000, 0x3c01,
            ],
            Type::Bf16 => vec![
                0, 0x8000, 0x3f80, 0xbf80, 0x3f00, 0x3fc0, 0x4020, 0x0001, 0x8001, 0x007f, 0x0080, 0x7f7f, 0xff7f,
                0x7f80, 0xff80, 0x7fc0, 0xff81, 0x7fff, 0x2000, 0x3f81,
            ],
            Type::F16x2 => pairs(&Type::F16.corners()),
            Type::Bf16x2 => pairs(&Type::Bf16.corners()),
            Type::Factors | Type::BfFactors | Type::Sum | Type::Integers | Type::BfIntegers | Type::IntegerSum => {
                Vec::new()
            }
            _ => {
                let (mask, top) = (self.mask(), self.bits() - 1);
                let small = [0, 1, 2, 3, 5, 7, 8, 31, 32, 33, 127, 128, 255, 256, 0x7fff, 0x8000, 0xffff];
                let large = [mask, mask - 1, mask >> 1, 1 << top, (1 << top) + 1, 0x8000_0000, 0xffff_ffff, 1 << 32];
                small.into_iter().chain(large).filter(|value| value & !mask == 0).collect()
            }
        }
    }

    /// Returns a random value. Most floats have a moderate size, which makes operands interact.
    fn random(self, random: &mut ProblemRng) -> u64 {
        let moderate = random.below(4) > 0;
        let rare = random.below(100);
        match self {
            Type::Count => random.below(70),
            Type::F32 if moderate => float(random, 12).to_bits().into(),
            Type::F64 if moderate => f64::from(float(random, 30)).to_bits() | random.word() & 0xfff_ffff,
            Type::F16 if moderate => half(random, 0x2c00, 0x2000),
            Type::Bf16 if moderate => half(random, 0x3d00, 0x0500),
            Type::F16x2 => Type::F16.random(random) | Type::F16.random(random) << 16,
            Type::Bf16x2 => Type::Bf16.random(random) | Type::Bf16.random(random) << 16,
            Type::Sum if rare < 4 => [0, 0x7f80_0000, 0x7fc0_0000, 0x0000_0001][rare as usize],
            Type::Sum => float(random, 4).to_bits().into(),
            Type::Factors | Type::BfFactors => self.pair(random, |ty, random| match random.below(256) {
                0 => 0,
                1 => Exact::Infinity { negative: false }.round(ty, Rounding::Nearest),
                2 => Exact::Nan.round(ty, Rounding::Nearest),
                3 => 1,
                _ if ty == Type::F16 => half(random, 0x3400, 0x1400),
                _ => half(random, 0x3e80, 0x0280),
            }),
            Type::Integers | Type::BfIntegers => self.pair(random, |ty, random| {
                Exact::of_integer(i128::from(random.below(17)) - 8).round(ty, Rounding::Nearest)
            }),
            Type::IntegerSum => (random.below(2001) as f32 - 1000.0).to_bits().into(),
            _ => random.word() & self.mask(),
        }
    }

    fn pair(self, random: &mut ProblemRng, one: impl Fn(Type, &mut ProblemRng) -> u64) -> u64 {
        let half = self.halves();
        one(half, random) | one(half, random) << 16
    }

    /// Returns the format of the two numbers in a pair.
    pub fn halves(self) -> Type {
        match self {
            Type::Bf16 | Type::Bf16x2 | Type::BfFactors | Type::BfIntegers => Type::Bf16,
            _ => Type::F16,
        }
    }
}

/// Combines the numbers into pairs, each with a different number.
fn pairs(halves: &[u64]) -> Vec<u64> {
    (0..halves.len()).map(|i| halves[i] | halves[(i * 7 + 3) % halves.len()] << 16).collect()
}

/// Returns a float of either sign between `2^-range` and `2^range`.
fn float(random: &mut ProblemRng, range: u64) -> f32 {
    let exponent = 127 - range + random.below(2 * range);
    f32::from_bits((exponent << 23 | random.word() & 0x807f_ffff) as u32)
}

/// Returns a half of either sign. Its other bits are one of `count` values from `least` on.
fn half(random: &mut ProblemRng, least: u64, count: u64) -> u64 {
    (least + random.below(count)) | random.word() & 0x8000
}

/// Returns operands for `threads` threads: every pair of corners of the first two types, then random values. Further
/// operands alternate between corners and random values.
pub fn operands(types: &[Type], threads: usize) -> Vec<Vec<u64>> {
    let mut random = ProblemRng(0x517c_c1b7);
    let corners: Vec<Vec<u64>> = types.iter().map(|ty| ty.corners()).collect();
    let len = |operand: usize| corners.get(operand).map_or(1, |corners| corners.len().max(1));
    (0..threads)
        .map(|thread| {
            let combination = thread < len(0) * len(1);
            let row = types.iter().enumerate().map(|(operand, ty)| match (operand, corners[operand].len()) {
                (0, n) if combination && n > 0 => corners[0][thread % n],
                (1, n) if combination && n > 0 => corners[1][thread / len(0)],
                (2.., n) if n > 0 && random.below(2) == 0 => corners[operand][random.below(n as u64) as usize],
                _ => ty.random(&mut random),
            });
            row.collect()
        })
        .collect()
}
