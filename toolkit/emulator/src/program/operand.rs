//! Operands of instructions: slots of registers, addresses, and values of constants.

/// No slot, no target, or no meeting point.
pub(crate) const NONE: u32 = u32::MAX;

/// A register, or the sink `_`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Register {
    pub slot: u32,
    /// Width in bits: 16, 32 or 64, or 0 for the sink.
    pub bits: u8,
}

/// An address operand: a 32-bit or 64-bit register, and an offset.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Address {
    pub slot: u32,
    pub wide: bool,
    pub offset: i64,
}

/// The value of a constant slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Value {
    Bits(u64),
    Special(Special),
    /// Address of a module variable.
    Global {
        variable: usize,
        offset: i64,
    },
    /// The offset of a function's variable in the private memory of a thread.
    Private {
        function: usize,
        place: i64,
    },
    /// Offset of dynamic shared memory.
    DynamicShared {
        offset: i64,
    },
}

/// A special register.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Special {
    Thread(u8),
    BlockSize(u8),
    Block(u8),
    GridSize(u8),
    /// The index of the cluster in the grid. `GridClusters` is the number of clusters.
    Cluster(u8),
    GridClusters(u8),
    /// The index of the block in its cluster. `ClusterShape` is the cluster's size.
    ClusterBlock(u8),
    ClusterShape(u8),
    /// The block's index in its cluster as one number. `ClusterSize` is the cluster's size as one number.
    ClusterRank,
    ClusterSize,
    Lane,
    Warp,
    WarpCount,
    MaskLess,
    MaskLessEqual,
    MaskEqual,
    MaskGreaterEqual,
    MaskGreater,
    DynamicSharedSize,
    TotalSharedSize,
    Multiprocessor,
}

impl Special {
    /// Returns whether its value may differ between the lanes of a warp.
    pub fn differs_by_lane(self) -> bool {
        matches!(
            self,
            Self::Thread(_)
                | Self::Lane
                | Self::MaskLess
                | Self::MaskLessEqual
                | Self::MaskEqual
                | Self::MaskGreaterEqual
                | Self::MaskGreater
        )
    }
}
