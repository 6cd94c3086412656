//! Decoded mbarrier instructions, bulk copies, and products of warp groups.

use super::matrix::Factor;
use super::operand::Address;

/// The effect of an instruction on an mbarrier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MbarrierOp {
    /// Initialises it for a number of arrivals.
    Init,
    Invalidate,
    /// Arrives, and returns the state before. `drops` also lowers the count of later phases.
    Arrive {
        drops: bool,
    },
    /// Expects bytes, and arrives.
    ArriveExpecting,
    Expect,
    Complete,
    /// Tests whether the phase with a parity is over.
    TestParity,
    /// Tests whether the phase with a state is over.
    TestState,
}

/// An instruction on an mbarrier.
#[derive(Clone, Debug)]
pub(crate) struct MbarrierInstruction {
    pub op: MbarrierOp,
    pub address: Address,
    /// Slot of the returned state, or of a test's predicate.
    pub result: Option<u32>,
    /// Slot of the count, the bytes, the parity or the state.
    pub value: u32,
}

/// The destination of a bulk copy.
#[derive(Clone, Debug)]
pub(crate) enum BulkEnd {
    /// Shared memory, and an mbarrier to notify. With `multicast`, a slot's bits name the blocks of the cluster that
    /// receive the copy.
    Shared { barrier: Address, multicast: Option<u32> },
    /// Global memory, as part of a group of the thread.
    Global,
}

/// The global side of a bulk copy: plain bytes, or a tile of a tensor.
#[derive(Clone, Debug)]
pub(crate) enum BulkSource {
    Bytes { global: Address, size: u32 },
    Tile { map: Address, coordinates: Box<[u32]> },
}

/// A bulk copy: `cp.async.bulk` or `cp.async.bulk.tensor`.
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
    /// Slot of a descriptor, and whether its rows run along memory.
    Descriptor {
        slot: u32,
        transposed: bool,
    },
}

/// A product of a warp group: `wgmma.mma_async.m64nNk16`.
#[derive(Clone, Debug)]
pub(crate) struct Product {
    pub factor: Factor,
    pub columns: usize,
    /// Whether accumulators are packed f16 instead of f32.
    pub half_sum: bool,
    pub d: Box<[u32]>,
    pub a: FirstFactor,
    /// Slot of the descriptor, and whether its columns run along memory.
    pub b: (u32, bool),
    /// The predicate that decides whether to add to the old sum, and whether it is negated. `None` always adds.
    pub accumulates: Option<(u32, bool)>,
    pub negates: [bool; 2],
}
