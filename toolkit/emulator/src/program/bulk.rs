//! Mbarriers, bulk copies and products of warp groups, decoded.

use super::matrix::Factor;
use super::operand::Address;

/// What an instruction does to an mbarrier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MbarrierOp {
    /// Sets it up for a count of arrivals.
    Init,
    Invalidate,
    /// Arrivals; the state before goes to a register. `drops` lowers the count of later phases too.
    Arrive {
        drops: bool,
    },
    /// Bytes to expect, and an arrival.
    ArriveExpecting,
    Expect,
    Complete,
    /// Whether the phase of a parity is over.
    TestParity,
    /// Whether the phase of a state is over.
    TestState,
}

/// An instruction on an mbarrier.
#[derive(Clone, Debug)]
pub(crate) struct MbarrierInstruction {
    pub op: MbarrierOp,
    pub address: Address,
    /// Slot of the state, or the predicate of a test.
    pub result: Option<u32>,
    /// Slot of the count, the bytes, the parity or the state.
    pub value: u32,
}

/// Where a bulk copy goes.
#[derive(Clone, Debug)]
pub(crate) enum BulkEnd {
    /// To shared memory; an mbarrier is told. A multicast goes to the blocks of the cluster that a slot's bits name.
    Shared { barrier: Address, multicast: Option<u32> },
    /// To global memory, in a group of the thread.
    Global,
}

/// What a bulk copy moves: plain bytes of global memory, or a tile of a tensor.
#[derive(Clone, Debug)]
pub(crate) enum BulkSource {
    Bytes { global: Address, size: u32 },
    Tile { map: Address, coordinates: Box<[u32]> },
}

/// `cp.async.bulk` or `cp.async.bulk.tensor`.
#[derive(Clone, Debug)]
pub(crate) struct BulkCopy {
    pub end: BulkEnd,
    pub source: BulkSource,
    pub shared: Address,
}

/// The first factor of a `wgmma`.
#[derive(Clone, Debug)]
pub(crate) enum FirstFactor {
    Registers(Box<[u32]>),
    /// Slot of a descriptor; whether its rows run along memory.
    Descriptor {
        slot: u32,
        transposed: bool,
    },
}

/// `wgmma.mma_async.m64nNk16`.
#[derive(Clone, Debug)]
pub(crate) struct Product {
    pub factor: Factor,
    pub columns: usize,
    /// Accumulators are packed f16 instead of f32.
    pub half_sum: bool,
    pub d: Box<[u32]>,
    pub a: FirstFactor,
    /// Slot of the descriptor, and whether its columns run along memory.
    pub b: (u32, bool),
    /// Predicate, and whether it is negated: the sum is added to; `None` is always.
    pub accumulates: Option<(u32, bool)>,
    pub negates: [bool; 2],
}
