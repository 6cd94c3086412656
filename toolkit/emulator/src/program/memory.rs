//! Decoded loads, stores, atomics and asynchronous copies.

use super::operand::{Address, Register};
use crate::ptx::ast::Space;

/// The scope of a fence or a strong access: the threads that it orders.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Scope {
    /// The threads of the block.
    Block,
    /// The threads of the device.
    #[default]
    Device,
    /// The threads of all devices, and the host.
    System,
}

impl Scope {
    /// Returns the scope that modifiers name, if any.
    pub fn from_modifiers(modifiers: &[&str]) -> Option<Self> {
        modifiers.iter().find_map(|&modifier| match modifier {
            "cta" => Some(Self::Block),
            "gpu" | "gl" | "cluster" => Some(Self::Device),
            "sys" => Some(Self::System),
            _ => None,
        })
    }
}

/// The ordering of a strong access.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct MemoryOrder {
    /// Whether it has acquire semantics.
    pub acquire: bool,
    /// Whether it has release semantics.
    pub release: bool,
    /// The threads that it orders.
    pub scope: Scope,
}

/// A load or a store.
#[derive(Clone, Debug)]
pub(crate) struct Access {
    pub space: Space,
    pub address: Address,
    /// Bytes of one element.
    pub size: u8,
    pub signed: bool,
    /// Set for a volatile, relaxed, acquire or release access. Two such accesses do not race.
    pub order: Option<MemoryOrder>,
    pub registers: Box<[Register]>,
}

impl Access {
    /// Returns the bytes of one lane.
    pub fn bytes(&self) -> usize {
        usize::from(self.size) * self.registers.len()
    }
}

/// The effect of an atomic on memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AtomicOp {
    Add,
    AddF32,
    AddF64,
    AddF16x2,
    AddBf16x2,
    Exchange,
    CompareSwap,
    And,
    Or,
    Xor,
    Min,
    Max,
    MinSigned,
    MaxSigned,
    Increment,
    Decrement,
}

/// An atomic, or a reduction if it returns nothing.
#[derive(Clone, Debug)]
pub(crate) struct Atomic {
    pub op: AtomicOp,
    pub order: MemoryOrder,
    pub space: Space,
    pub address: Address,
    pub size: u8,
    pub result: Option<u32>,
    pub value: u32,
    /// The new value of a compare-and-swap.
    pub second: u32,
}

/// An asynchronous copy: `cp.async` of 4, 8 or 16 bytes.
#[derive(Clone, Debug)]
pub(crate) struct AsyncCopy {
    pub target: Address,
    pub source: Address,
    pub bytes: u32,
    /// Register slot with the number of source bytes to read. The rest of the target becomes zeros. `None` reads all
    /// `bytes`.
    pub source_bytes: Option<u32>,
}
