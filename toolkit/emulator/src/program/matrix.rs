//! Decoded products of a warp, and their fragments.

use super::operand::Address;
use crate::ptx::ast::Space;

/// The type of a tensor-core product's factors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Factor {
    F16,
    Bf16,
    /// The upper nineteen bits of an f32.
    Tf32,
}

/// A product of a warp, `mma.sync.m16n8kN`. `K` is the type of the factors, which is [`Factor`] for halves.
#[derive(Clone, Debug)]
pub(crate) struct Mma<K> {
    pub kind: K,
    pub depth: usize,
    /// Whether accumulators are packed f16 instead of f32.
    pub half_sum: bool,
    pub d: Box<[u32]>,
    pub a: Box<[u32]>,
    pub b: Box<[u32]>,
    pub c: Box<[u32]>,
}

/// The kind of factors of a product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FactorKind {
    Half(Factor),
    Tf32,
    /// Floating-point numbers of eight bits. For each factor, true means e5m2 and false e4m3.
    Fp8([bool; 2]),
    /// Integers of eight bits: whether each factor is signed, and whether sums saturate.
    Integer {
        signed: [bool; 2],
        saturates: bool,
    },
}

impl FactorKind {
    /// Returns the bits of an element.
    pub fn bits(self) -> usize {
        match self {
            Self::Half(_) => 16,
            Self::Tf32 => 32,
            Self::Fp8(_) | Self::Integer { .. } => 8,
        }
    }
}

/// A fragment of `wmma`: a matrix in the registers of a warp. PTX leaves its layout to the implementation.
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
    /// Returns the number of elements in a register.
    pub fn per_register(self) -> usize {
        32 / self.bits
    }

    /// Returns the number of registers that hold it. If an instruction names more registers, the rest are copies.
    pub fn registers(self) -> usize {
        self.sides * self.depth / (32 * self.per_register())
    }

    /// Returns the side and the depth of a register's first element. The other elements follow it along the depth.
    pub fn place(self, register: usize, lane: usize) -> (usize, usize) {
        let first = (register * 32 + lane) * self.per_register();
        (first / self.depth, first % self.depth)
    }
}

/// A load or store of a fragment: `wmma.load` or `wmma.store`.
#[derive(Clone, Debug)]
pub(crate) struct FragmentAccess {
    pub fragment: Fragment,
    pub space: Space,
    pub address: Address,
    /// Slot of the distance from one row or column to the next, in elements.
    pub stride: u32,
    /// Whether the depth runs along memory. Otherwise the sides do.
    pub along_depth: bool,
    pub registers: Box<[u32]>,
    /// A 64-bit slot and a 32-bit slot for temporary values.
    pub scratch: (u32, u32),
}

/// A product of fragments: `wmma.mma`. The shape has the sum's rows, its columns, and the depth.
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
