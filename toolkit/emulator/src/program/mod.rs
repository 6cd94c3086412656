//! A decoded kernel: every name resolved, ready to run.

mod bulk;
mod memory;
mod warp;

use crate::lanes::{LaneOp, Slots};
use crate::ptx::ast::Place;
use crate::report::Class;

pub(crate) use bulk::{BulkCopy, BulkEnd, BulkSource, FirstFactor, Mbarrier, MbarrierOp, Product};
pub(crate) use memory::{Access, AsyncCopy, Atomic, AtomicOp, Order};
pub(crate) use warp::{Collective, Factor, Mma, ReduxOp, ShuffleMode, VoteMode};

/// No such slot, target or reconvergence point.
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

/// How a comparison's result is combined with another predicate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Combine {
    And,
    Or,
    Xor,
}

/// A parameter or result that a call copies: from, to, bytes; offsets into the thread's private memory.
pub(crate) type Transfer = (usize, usize, usize);

/// A call of a device function.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    pub target: u32,
    pub arguments: Vec<Transfer>,
    pub results: Vec<Transfer>,
}

/// What an instruction does.
#[derive(Clone)]
pub(crate) enum Op {
    Lanes(LaneOp, Slots),
    /// A comparison into a predicate, its complement and a combination with a third predicate.
    Compare {
        test: LaneOp,
        slots: Slots,
        complement: Option<u32>,
        combine: Option<(Combine, u32, bool)>,
    },
    Logic3 {
        slots: Slots,
        table: u32,
    },
    InsertField {
        slots: Slots,
        at: u32,
        count: u32,
    },
    /// One wide register to several narrow ones.
    Unpack {
        source: Register,
        parts: Box<[Register]>,
    },
    Pack {
        target: Register,
        parts: Box<[Register]>,
    },
    /// The count of instructions so far.
    Clock(Register),
    ActiveMask(u32),
    /// A load from the kernel's parameters.
    Parameter {
        offset: usize,
        access: Box<Access>,
    },
    Load(Box<Access>),
    Store(Box<Access>),
    Atomic(Box<Atomic>),
    Collective {
        op: Box<Collective>,
        members: u32,
    },
    LoadMatrix {
        address: Address,
        registers: Box<[u32]>,
        transposed: bool,
    },
    Mma(Box<Mma>),
    AsyncCopy(Box<AsyncCopy>),
    AsyncCommit,
    /// Waits until at most so many groups are in flight; `None` is `wait_all`.
    AsyncWait(Option<u32>),
    Branch(u32),
    BranchTable {
        index: u32,
        targets: Box<[u32]>,
    },
    Call(Box<Call>),
    Return,
    Exit,
    Trap,
    /// `bar`: slots of its number and of its count of threads; whether it waits.
    Barrier {
        id: u32,
        count: Option<u32>,
        waits: bool,
    },
    /// A fence, for more than the block or only for it.
    Fence {
        wide: bool,
    },
    /// Makes ordinary writes visible to asynchronous copies and products.
    ProxyFence,
    Mbarrier(Box<Mbarrier>),
    BulkCopy(Box<BulkCopy>),
    BulkCommit,
    /// Waits until at most so many groups of bulk copies are in flight; `read` waits only for their reads.
    BulkWait {
        pending: u32,
        read: bool,
    },
    /// `wgmma.fence`
    ProductFence,
    Product(Box<Product>),
    ProductCommit,
    ProductWait(u32),
    /// Hints: nothing to do when memory is coherent and time does not count.
    Nothing,
}

/// A decoded instruction.
#[derive(Clone)]
pub(crate) struct Instruction {
    pub op: Op,
    /// Slot of the guard's predicate, or [`NONE`].
    pub guard: u32,
    pub negated: bool,
    /// `.aligned`: all living lanes of the warp must execute it together.
    pub aligned: bool,
    pub class: Class,
    /// Where diverging lanes meet again, or [`NONE`].
    pub meet: u32,
    pub line: u32,
    pub place: Option<Place>,
    /// Index of the opcode's text.
    pub opcode: u32,
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

/// A kernel, ready to run.
pub(crate) struct Kernel {
    pub code: Vec<Instruction>,
    pub opcodes: Vec<String>,
    pub constants: Vec<(Value, u32, bool)>,
    pub words: usize,
    pub wides: usize,
    pub predicates: usize,
    pub static_shared: usize,
    /// Bytes of private memory of a thread: local variables and parameters of calls.
    pub private: usize,
    pub local: usize,
}
