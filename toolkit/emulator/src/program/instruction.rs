//! Decoded instructions.

use super::bulk::{BulkCopy, MbarrierInstruction, Product};
use super::matrix::{FragmentAccess, FragmentProduct, Mma, OtherMma};
use super::memory::{Access, AsyncCopy, Atomic, Scope};
use super::operand::{Address, Register};
use super::warp::Collective;
use crate::lanes::{LaneOp, Slots};
use crate::ptx::ast::Place;
use crate::report::Class;

/// How a comparison's result is combined with another predicate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Combine {
    And,
    Or,
    Xor,
}

/// A parameter or result that a call copies: offsets in the thread's private memory from and to which, and bytes.
pub(crate) type Transfer = (usize, usize, usize);

/// A call of a device function.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    pub target: u32,
    pub arguments: Vec<Transfer>,
    pub results: Vec<Transfer>,
    /// The index of what a call of the function saves, if it may be running already.
    pub activation: Option<u32>,
}

/// A call through a pointer.
#[derive(Clone, Debug)]
pub(crate) struct PointerCall {
    /// The slot of the pointer.
    pub pointer: u32,
    /// The functions that fit, by their address.
    pub targets: Vec<(u64, Call)>,
}

/// A function that every GPU has, and no PTX text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SystemFunction {
    /// `__assertfail`: what an assertion calls that does not hold.
    AssertFail,
    /// `vprintf`
    Print,
    /// `malloc`
    Allocate,
    /// `free`
    Free,
}

/// A call of a function that every GPU has: places in the thread's private memory of its arguments and its result.
#[derive(Clone, Debug)]
pub(crate) struct SystemCall {
    pub function: SystemFunction,
    pub arguments: Vec<usize>,
    pub result: Option<usize>,
}

/// What a call of a recursive function saves, so that the caller finds its own again: the function's registers and parameters.
#[derive(Clone, Debug, Default)]
pub(crate) struct Activation {
    /// Slots of registers, by their kind.
    pub words: Vec<u32>,
    pub wides: Vec<u32>,
    pub predicates: Vec<u32>,
    /// Places in private memory of parameters, and their sizes.
    pub parameters: Vec<(usize, usize)>,
    /// Where its local variables lie in private memory, and their bytes. Each call has its own.
    pub locals: (usize, usize),
    /// Slots of addresses of local variables, whether they are wide, and the address.
    pub addresses: Vec<(u32, bool, i64)>,
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
    /// A comparison whose result is a number or zero.
    Set {
        test: LaneOp,
        slots: Slots,
        target: u32,
        value: u32,
    },
    /// A sum with carry.
    Carry(Box<Carry>),
    /// Whether a generic address lies in a space.
    IsSpace(Box<IsSpace>),
    InsertField {
        /// Whether it is one of 64 bits.
        wide: bool,
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
    /// `griddepcontrol.wait`
    GridWait,
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
    StoreMatrix {
        address: Address,
        registers: Box<[u32]>,
        transposed: bool,
    },
    /// An instruction that writes registers which a product of the warp group uses: it needs a `wgmma.fence` again.
    Touch(Box<Op>),
    Mma(Box<Mma>),
    OtherMma(Box<OtherMma>),
    /// `wmma.load`
    FragmentLoad(Box<FragmentAccess>),
    /// `wmma.store`
    FragmentStore(Box<FragmentAccess>),
    /// `wmma.mma`
    FragmentProduct(Box<FragmentProduct>),
    AsyncCopy(Box<AsyncCopy>),
    AsyncCommit,
    /// `cp.async.mbarrier.arrive`: whether the arrival is one that the mbarrier's count has.
    AsyncArrive {
        address: Address,
        counted: bool,
    },
    /// Waits until at most so many groups are in flight; `None` is `wait_all`.
    AsyncWait(Option<u32>),
    Branch(u32),
    BranchTable {
        index: u32,
        targets: Box<[u32]>,
    },
    Call(Box<Call>),
    CallPointer(Box<PointerCall>),
    /// A call of a function that every GPU has.
    CallSystem(Box<SystemCall>),
    Return,
    Exit,
    Trap,
    /// `bar`: slots of its number and of its count of threads; whether it waits.
    Barrier {
        id: u32,
        count: Option<u32>,
        waits: bool,
        /// What it finds out of a predicate of all threads.
        vote: Option<Box<BarrierVote>>,
    },
    /// `barrier.cluster.arrive`: whether it releases what the thread did.
    ClusterArrive {
        releases: bool,
    },
    /// `barrier.cluster.wait`
    ClusterWait,
    /// A fence.
    Fence {
        scope: Scope,
    },
    /// Makes ordinary writes visible to asynchronous copies and products.
    ProxyFence,
    Mbarrier(Box<MbarrierInstruction>),
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
    /// A hint about caches or time, which changes nothing here.
    Nothing,
}

/// A decoded instruction.
#[derive(Clone)]
pub(crate) struct Instruction {
    /// What it does.
    pub op: Op,
    /// The slot of the guard's predicate, or [`NONE`](super::NONE).
    pub guard: u32,
    /// Whether the guard is negated.
    pub negated: bool,
    /// Whether all living lanes of the warp must execute it together, as `.aligned` says.
    pub aligned: bool,
    /// The class as which it is counted.
    pub class: Class,
    /// The instruction at which lanes that part here meet again, or [`NONE`](super::NONE).
    pub meet: u32,
    /// The line of the PTX.
    pub line: u32,
    /// The line of the Rust source.
    pub place: Option<Place>,
    /// The index of the opcode's text.
    pub opcode: u32,
}

/// What is added or subtracted with a carry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CarryOp {
    /// `a + c`
    Add,
    /// `a - c`; the carry is what was borrowed.
    Subtract,
    /// The lower half of `a * b`, and `c`.
    LowProduct,
    /// The upper half of `a * b`, and `c`.
    HighProduct,
}

/// A sum with carry.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Carry {
    pub op: CarryOp,
    pub slots: Slots,
    /// Whether it is one of 64 bits.
    pub wide: bool,
    /// Whether the product is a signed one.
    pub signed: bool,
    /// Whether it adds the carry of the last one.
    pub takes: bool,
    /// Whether it leaves its carry for the next one.
    pub leaves: bool,
    /// The slot of the carry, a predicate.
    pub carry: u32,
}

/// A question whether a generic address lies in a space.
#[derive(Clone)]
pub(crate) struct IsSpace {
    pub shift: LaneOp,
    pub test: LaneOp,
    /// The result, and the address.
    pub slots: Slots,
    /// The slot of the address's upper bits, and that of how far they are to be shifted.
    pub upper: u32,
    pub bits: u32,
    /// The slots of the windows' upper bits.
    pub windows: Vec<u32>,
    /// Whether the space is one of these windows, or all else.
    pub inside: bool,
}

/// What a barrier finds out of a predicate of all threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BarrierReduction {
    /// How many have it.
    Count,
    /// Whether all have it.
    All,
    /// Whether any has it.
    Any,
}

/// A barrier's question to all threads.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BarrierVote {
    pub reduction: BarrierReduction,
    /// The slot of the predicate, and whether it is negated.
    pub predicate: (u32, bool),
    /// The slot of the result: a word for a count, else a predicate.
    pub result: u32,
}
