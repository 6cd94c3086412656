//! Test data in the 16-bit types, and the error that results may have.

use half::{bf16, f16};
use kernels::element::ElementType;

/// A 16-bit type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Type {
    /// IEEE half precision.
    F16,
    /// The upper half of an `f32`.
    Bf16,
}

impl Type {
    /// Both types.
    pub const ALL: [Type; 2] = [Type::F16, Type::Bf16];

    /// Returns the kernels' name for the type.
    pub fn element(self) -> ElementType {
        match self {
            Type::F16 => ElementType::F16,
            Type::Bf16 => ElementType::Bf16,
        }
    }

    /// Returns its name in the labels of instances.
    pub fn label(self) -> &'static str {
        self.element().label()
    }

    /// Returns the bits of the nearest number.
    pub fn bits(self, x: f64) -> u16 {
        match self {
            Type::F16 => f16::from_f64(x).to_bits(),
            Type::Bf16 => bf16::from_f64(x).to_bits(),
        }
    }

    /// Returns the number with these bits.
    pub fn number(self, bits: u16) -> f64 {
        match self {
            Type::F16 => f16::from_bits(bits).to_f64(),
            Type::Bf16 => bf16::from_bits(bits).to_f64(),
        }
    }

    /// Returns the bits of a NaN, to fill elements that a kernel must not read.
    pub fn nan(self) -> u16 {
        self.bits(f64::NAN)
    }

    /// Returns the allowed error of a result, relative to the largest true value.
    pub fn tolerance(self) -> f64 {
        match self {
            Type::F16 => 2e-3,
            Type::Bf16 => 1.6e-2,
        }
    }
}

/// Returns the largest error over the largest true value, or infinity if a result is not a number.
pub fn relative_error(results: impl IntoIterator<Item = f64>, truth: &[f64]) -> f64 {
    let scale = truth.iter().fold(f64::MIN_POSITIVE, |most, t| most.max(t.abs()));
    let mut count = 0;
    let worst = results.into_iter().zip(truth).fold(0.0, |worst: f64, (result, t)| {
        count += 1;
        let off = (result - t).abs() / scale;
        if off.is_nan() { f64::INFINITY } else { worst.max(off) }
    });
    assert_eq!(count, truth.len(), "results and true values differ in number");
    worst
}

/// Reproducible random numbers (SplitMix64).
pub struct ProblemRng(pub u64);

impl ProblemRng {
    /// Returns 64 random bits.
    pub fn word(&mut self) -> u64 {
        splitmix::next(&mut self.0)
    }

    /// Returns an integer below `n`.
    pub fn below(&mut self, n: u64) -> u64 {
        self.word() % n
    }

    /// Returns a number within [-1, 1).
    pub fn unit(&mut self) -> f64 {
        splitmix::unit(&mut self.0)
    }

    /// Returns the bits of `n` numbers within [-1, 1).
    pub fn bits(&mut self, ty: Type, n: usize) -> Vec<u16> {
        (0..n).map(|_| ty.bits(self.unit())).collect()
    }

    /// Shuffles a list.
    pub fn shuffle<T>(&mut self, list: &mut [T]) {
        splitmix::shuffle(&mut self.0, list);
    }
}
