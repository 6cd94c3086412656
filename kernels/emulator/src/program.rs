//! A decoded entry: every name resolved, ready to run.

use crate::lanes::{LaneOp, Slots};
use crate::ptx::ast::{LaunchBounds, Place, Space};
use crate::report::Class;

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

/// What a strong access orders.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Order {
    pub acquire: bool,
    pub release: bool,
    /// For more than the threads of the block.
    pub wide: bool,
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
    pub order: Option<Order>,
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
    pub order: Order,
    pub space: Space,
    pub address: Address,
    pub size: u8,
    pub result: Option<u32>,
    pub value: u32,
    /// The new value of a compare-and-swap.
    pub second: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ShuffleMode {
    Up,
    Down,
    Butterfly,
    Index,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum VoteMode {
    Ballot,
    All,
    Any,
    Uniform,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReduxOp {
    Add,
    Min,
    Max,
    MinSigned,
    MaxSigned,
    And,
    Or,
    Xor,
}

/// How a comparison's result is combined with another predicate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Combine {
    And,
    Or,
    Xor,
}

/// An exchange between the lanes of a warp, and the slot of its member mask.
#[derive(Clone, Debug)]
pub(crate) enum Collective {
    Shuffle {
        mode: ShuffleMode,
        result: u32,
        valid: Option<u32>,
        value: u32,
        lane: u32,
        clamp: u32,
    },
    Vote {
        mode: VoteMode,
        result: u32,
        predicate: u32,
        negated: bool,
    },
    Redux {
        op: ReduxOp,
        result: u32,
        value: u32,
    },
    MatchAny {
        result: u32,
        value: u32,
        wide: bool,
    },
    /// The lowest lane, and a predicate that is true there.
    Elect {
        result: u32,
        chosen: u32,
    },
    Barrier,
}

/// Types of a tensor-core product's factors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Factor {
    F16,
    Bf16,
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

/// `cp.async` of 4, 8 or 16 bytes.
#[derive(Clone, Debug)]
pub(crate) struct AsyncCopy {
    pub target: Address,
    pub source: Address,
    pub bytes: u32,
    /// Slot of the count of bytes really read; the rest is zero.
    pub source_bytes: Option<u32>,
}

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
pub(crate) struct Mbarrier {
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
    /// To shared memory; an mbarrier is told.
    Shared { barrier: Address },
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

/// A parameter of an entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parameter {
    /// Its name in the PTX.
    pub name: String,
    /// Its offset in the block of parameters.
    pub offset: usize,
    /// Its size in bytes.
    pub size: usize,
}

/// A kernel of a module.
pub struct Entry {
    pub(crate) name: String,
    pub(crate) parameters: Vec<Parameter>,
    pub(crate) bounds: LaunchBounds,
    pub(crate) code: Vec<Instruction>,
    pub(crate) opcodes: Vec<String>,
    pub(crate) constants: Vec<(Value, u32, bool)>,
    pub(crate) words: usize,
    pub(crate) wides: usize,
    pub(crate) predicates: usize,
    pub(crate) static_shared: usize,
    /// Bytes of private memory of a thread: local variables and parameters of calls.
    pub(crate) private: usize,
    pub(crate) local: usize,
}

impl Entry {
    /// Its name in the PTX.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its parameters, in order.
    pub fn parameters(&self) -> &[Parameter] {
        &self.parameters
    }

    /// The launch bounds it declares.
    pub fn bounds(&self) -> LaunchBounds {
        self.bounds
    }

    /// Bytes of shared memory that the kernel declares itself.
    pub fn static_shared(&self) -> usize {
        self.static_shared
    }

    /// Bytes of local memory of a thread.
    pub fn local(&self) -> usize {
        self.local
    }

    /// The opcodes it uses, each once.
    pub fn opcodes(&self) -> &[String] {
        &self.opcodes
    }
}
