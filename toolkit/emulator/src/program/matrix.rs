//! Products of a warp and their fragments, decoded.

use super::operand::Address;
use crate::ptx::ast::Space;

/// Types of a tensor-core product's factors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Factor {
    F16,
    Bf16,
    /// The upper nineteen bits of an f32.
    Tf32,
}

/// `mma.sync.m16n8k16` or `m16n8k8`.
#[derive(Clone, Debug)]
pub(crate) struct Mma {
    pub factor: Factor,
    pub depth: usize,
    /// Accumulators are packed f16 instead of f32.
    pub half_sum: bool,
    pub d: Box<[u32]>,
    pub a: Box<[u32]>,
    pub b: Box<[u32]>,
    pub c: Box<[u32]>,
}

/// What the factors of a product are that are no halves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FactorKind {
    Half(Factor),
    Tf32,
    /// Eight bits: whether the first and the second factor are e5m2, or else e4m3.
    Fp8([bool; 2]),
    /// Integers of eight bits: whether the first and the second factor are signed, and whether sums saturate.
    Integer {
        signed: [bool; 2],
        saturates: bool,
    },
}

impl FactorKind {
    /// Bits of an element.
    pub fn bits(self) -> usize {
        match self {
            Self::Half(_) => 16,
            Self::Tf32 => 32,
            Self::Fp8(_) | Self::Integer { .. } => 8,
        }
    }
}

/// `mma.sync.m16n8kN` of factors that are no halves.
#[derive(Clone, Debug)]
pub(crate) struct OtherMma {
    pub kind: FactorKind,
    pub depth: usize,
    /// Accumulators are packed f16 instead of f32.
    pub half_sum: bool,
    pub d: Box<[u32]>,
    pub a: Box<[u32]>,
    pub b: Box<[u32]>,
    pub c: Box<[u32]>,
}

/// A fragment of `wmma`: a matrix in the registers of a warp. Which lane has which element is left to the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fragment {
    /// Rows of the first factor and of the sum, columns of the second factor.
    pub sides: usize,
    /// The other dimension.
    pub depth: usize,
    /// Bits of an element.
    pub bits: usize,
}

impl Fragment {
    /// Elements of a register.
    pub fn per_register(self) -> usize {
        32 / self.bits
    }

    /// Registers that hold it. Where an instruction names more, the others are copies.
    pub fn registers(self) -> usize {
        self.sides * self.depth / (32 * self.per_register())
    }

    /// Where the first element of a register lies; the others follow it along the depth.
    pub fn place(self, register: usize, lane: usize) -> (usize, usize) {
        let first = (register * 32 + lane) * self.per_register();
        (first / self.depth, first % self.depth)
    }
}

/// `wmma.load` or `wmma.store`.
#[derive(Clone, Debug)]
pub(crate) struct FragmentAccess {
    pub fragment: Fragment,
    pub space: Space,
    pub address: Address,
    /// Slot of the elements from one row, or column, to the next.
    pub stride: u32,
    /// Whether the depth runs along memory, or else the sides do.
    pub along_depth: bool,
    pub registers: Box<[u32]>,
    /// A wide and a narrow slot that nothing else uses.
    pub scratch: (u32, u32),
}

/// `wmma.mma`: the shape is that of the sum's rows and columns, and the depth.
#[derive(Clone, Debug)]
pub(crate) struct FragmentProduct {
    pub kind: FactorKind,
    pub shape: [usize; 3],
    /// Whether the new and the old sums are packed f16 instead of f32.
    pub half_sums: [bool; 2],
    pub d: Box<[u32]>,
    pub a: Box<[u32]>,
    pub b: Box<[u32]>,
    pub c: Box<[u32]>,
}
