//! Decoded instructions.

use super::bulk::{BulkCopy, MbarrierInstruction, Product};
use super::matrix::{Factor, FactorKind, FragmentAccess, FragmentProduct, Mma};
use super::memory::{Access, AsyncCopy, Atomic, Scope};
use super::operand::{Address, Register};
use super::warp::Collective;
use crate::lanes::{LaneOp, Slots};
use crate::ptx::ast::Place;
use crate::report::Class;

/// The way to combine a comparison's result with another predicate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Combine {
    And,
    Or,
    Xor,
}

/// A parameter or result that a call copies: the source offset, the target offset and the bytes, in the thread's
/// private memory.
pub(crate) type Transfer = (usize, usize, usize);

/// A call of a device function.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    pub target: u32,
    pub arguments: Vec<Transfer>,
    pub results: Vec<Transfer>,
    /// The index of the state that a call of the function saves, if the function may already be running.
    pub activation: Option<u32>,
}

/// A call through a pointer.
#[derive(Clone, Debug)]
pub(crate) struct PointerCall {
    /// The slot of the pointer.
    pub pointer: u32,
    /// The functions that it may call, by address.
    pub targets: Vec<(u64, Call)>,
}

/// A function that every GPU provides, without PTX text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SystemFunction {
    /// `__assertfail`, which a failed assertion calls.
    AssertFail,
    /// `vprintf`, which `printf` calls.
    Print,
    /// `malloc`
    Allocate,
    /// `free`
    Free,
}

/// A call of a function that every GPU provides. Its arguments and its result are offsets in the thread's private
/// memory.
#[derive(Clone, Debug)]
pub(crate) struct SystemCall {
    pub function: SystemFunction,
    pub arguments: Vec<usize>,
    pub result: Option<usize>,
}

/// The registers and parameters of a recursive function. A call saves them, and its return restores them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Activation {
    /// Slots of registers, by kind.
    pub words: Vec<u32>,
    pub wides: Vec<u32>,
    pub predicates: Vec<u32>,
    /// Offsets of parameters in private memory, and their sizes.
    pub parameters: Vec<(usize, usize)>,
    /// The offset and size of its local variables in private memory. Each call has its own variables.
    pub locals: (usize, usize),
    /// Slots of addresses of local variables, whether they have 64 bits, and the address.
    pub addresses: Vec<(u32, bool, i64)>,
}

/// The operation of an instruction.
#[derive(Clone)]
pub(crate) enum Op {
    Lanes(LaneOp, Slots),
    /// A comparison into a predicate, with its complement and a combination with a third predicate.
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
    /// A sum or product with carry.
    Carry(Box<Carry>),
    /// Tests whether a generic address is in a space.
    IsSpace(Box<IsSpace>),
    InsertField {
        /// Whether the operands have 64 bits.
        wide: bool,
        slots: Slots,
        at: u32,
        count: u32,
    },
    /// Splits a wide register into several narrow ones.
    Unpack {
        source: Register,
        parts: Box<[Register]>,
    },
    Pack {
        target: Register,
        parts: Box<[Register]>,
    },
    /// `griddepcontrol.wait`: waits for the launches ahead of a dependent launch.
    GridWait,
    /// Reads the number of instructions executed so far.
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
    /// An instruction that writes registers of a product of the warp group. The next product needs a new `wgmma.fence`.
    Touch(Box<Op>),
    Mma(Box<Mma<Factor>>),
    OtherMma(Box<Mma<FactorKind>>),
    /// `wmma.load`: loads a fragment.
    FragmentLoad(Box<FragmentAccess>),
    /// `wmma.store`: stores a fragment.
    FragmentStore(Box<FragmentAccess>),
    /// `wmma.mma`: multiplies fragments.
    FragmentProduct(Box<FragmentProduct>),
    AsyncCopy(Box<AsyncCopy>),
    AsyncCommit,
    /// `cp.async.mbarrier.arrive`, and whether the mbarrier's count includes the arrival.
    AsyncArrive {
        address: Address,
        counted: bool,
    },
    /// Waits until at most this many groups are in flight. `None` is `wait_all`.
    AsyncWait(Option<u32>),
    Branch(u32),
    BranchTable {
        index: u32,
        targets: Box<[u32]>,
    },
    Call(Box<Call>),
    CallPointer(Box<PointerCall>),
    /// A call of a function that every GPU provides.
    CallSystem(Box<SystemCall>),
    Return,
    Exit,
    Trap,
    /// `bar`: slots of its number and of its count of threads, and whether it waits.
    Barrier {
        id: u32,
        count: Option<u32>,
        waits: bool,
        /// The vote on a predicate of all threads.
        vote: Option<Box<BarrierVote>>,
    },
    /// `barrier.cluster.arrive`, and whether it releases the thread's accesses.
    ClusterArrive {
        releases: bool,
    },
    /// `barrier.cluster.wait`: waits at the cluster barrier.
    ClusterWait,
    /// A fence that orders memory within a scope.
    Fence {
        scope: Scope,
    },
    /// Makes ordinary writes visible to asynchronous copies and products.
    ProxyFence,
    Mbarrier(Box<MbarrierInstruction>),
    BulkCopy(Box<BulkCopy>),
    BulkCommit,
    /// Waits until at most this many groups of bulk copies are in flight. `read` waits only for their reads.
    BulkWait {
        pending: u32,
        read: bool,
    },
    /// `wgmma.fence`: lets the next product use registers that the warp has written.
    ProductFence,
    Product(Box<Product>),
    ProductCommit,
    ProductWait(u32),
    /// A hint about caches or timing, which has no effect here.
    Nothing,
}

/// A decoded instruction.
#[derive(Clone)]
pub(crate) struct Instruction {
    /// Its operation.
    pub op: Op,
    /// The slot of the guard's predicate, or [`NONE`](super::NONE).
    pub guard: u32,
    /// Whether the guard is negated.
    pub negated: bool,
    /// Whether all living lanes of the warp must execute it together (`.aligned`).
    pub aligned: bool,
    /// Its class in reports.
    pub class: Class,
    /// The instruction at which lanes that diverge here reconverge, or [`NONE`](super::NONE).
    pub meet: u32,
    /// The line in the PTX.
    pub line: u32,
    /// The line in the Rust source.
    pub place: Option<Place>,
    /// The index of its opcode in the program's list.
    pub opcode: u32,
}

/// The arithmetic of an instruction with carry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CarryOp {
    /// `a + c`
    Add,
    /// `a - c`. The carry is the borrow.
    Subtract,
    /// The lower half of `a * b`, plus `c`.
    LowProduct,
    /// The upper half of `a * b`, plus `c`.
    HighProduct,
}

/// An instruction with carry.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Carry {
    pub op: CarryOp,
    pub slots: Slots,
    /// Whether the operands have 64 bits.
    pub wide: bool,
    /// Whether the product is signed.
    pub signed: bool,
    /// Whether it adds the carry of an earlier instruction.
    pub takes: bool,
    /// Whether it writes a carry for a later instruction.
    pub leaves: bool,
    /// The slot of the carry, a predicate.
    pub carry: u32,
}

/// A test of whether a generic address is in a space.
#[derive(Clone)]
pub(crate) struct IsSpace {
    pub shift: LaneOp,
    pub test: LaneOp,
    /// Slots of the result and of the address.
    pub slots: Slots,
    /// Slots of the address's upper bits, and of the shift that extracts them.
    pub upper: u32,
    pub bits: u32,
    /// Slots of the windows' upper bits.
    pub windows: Vec<u32>,
    /// Whether the space is one of these windows. Otherwise it is everything outside them.
    pub inside: bool,
}

/// The result of a barrier's vote.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BarrierReduction {
    /// The number of threads whose predicate is true.
    Count,
    /// Whether the predicate of every thread is true.
    All,
    /// Whether the predicate of any thread is true.
    Any,
}

/// A barrier's vote on a predicate of all threads.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BarrierVote {
    pub reduction: BarrierReduction,
    /// The slot of the predicate, and whether it is negated.
    pub predicate: (u32, bool),
    /// The slot of the result, which is a word for a count and otherwise a predicate.
    pub result: u32,
}
