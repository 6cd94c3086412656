//! Loads, stores, atomics and asynchronous copies, decoded.

use super::operand::{Address, Register};
use crate::ptx::ast::Space;

/// How far a fence or a strong access reaches: the threads it orders.
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
    /// The scope that modifiers name, if they name one.
    pub fn of(modifiers: &[&str]) -> Option<Self> {
        modifiers.iter().find_map(|&modifier| match modifier {
            "cta" => Some(Self::Block),
            "gpu" | "gl" | "cluster" => Some(Self::Device),
            "sys" => Some(Self::System),
            _ => None,
        })
    }
}

/// What a strong access orders.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct MemoryOrder {
    /// Whether it acquires.
    pub acquire: bool,
    /// Whether it releases.
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
    /// Volatile, relaxed, acquire or release: two such accesses do not race.
    pub order: Option<MemoryOrder>,
    pub registers: Box<[Register]>,
}

impl Access {
    /// Bytes of one lane.
    pub fn bytes(&self) -> usize {
        usize::from(self.size) * self.registers.len()
    }
}

/// What an atomic does to memory.
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

/// An atomic, or a reduction when it returns nothing.
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

/// `cp.async` of 4, 8 or 16 bytes.
#[derive(Clone, Debug)]
pub(crate) struct AsyncCopy {
    pub target: Address,
    pub source: Address,
    pub bytes: u32,
    /// Slot of the count of bytes really read; the rest is zero.
    pub source_bytes: Option<u32>,
}
