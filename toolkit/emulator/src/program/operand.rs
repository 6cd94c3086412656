//! Operands of instructions: slots of registers, addresses, and what constants hold.

/// Stands for no slot, no target, or no place where lanes meet.
pub(crate) const NONE: u32 = u32::MAX;

/// A register, or the sink `_`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Register {
    pub slot: u32,
    /// Width in bits: 16, 32 or 64; 0 for the sink.
    pub bits: u8,
}

/// An address operand: a register of 32 or 64 bits and an offset.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Address {
    pub slot: u32,
    pub wide: bool,
    pub offset: i64,
}

/// What a constant slot holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Value {
    Bits(u64),
    Special(Special),
    /// Address of a module variable.
    Global {
        variable: usize,
        offset: i64,
    },
    /// A place in the private memory of a thread, of a variable of a function.
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
    /// The index of the cluster, and how many there are.
    Cluster(u8),
    GridClusters(u8),
    /// The index of the block in its cluster, and the cluster's size.
    ClusterBlock(u8),
    ClusterShape(u8),
    /// The same as one number.
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
    /// Whether the lanes of a warp may have different values of it.
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
