//! A decoded kernel. All names are resolved, and it is ready to run.

mod bulk;
mod instruction;
mod matrix;
mod memory;
mod operand;
mod warp;

use crate::ptx::ast::Width;

pub(crate) use bulk::{BulkCopy, BulkEnd, BulkSource, FirstFactor, MbarrierInstruction, MbarrierOp, Product};
pub(crate) use instruction::{
    Activation, BarrierReduction, BarrierVote, Call, Carry, CarryOp, Combine, Instruction, IsSpace, Op, PointerCall,
    SystemCall, SystemFunction, Transfer,
};
pub(crate) use matrix::{Factor, FactorKind, Fragment, FragmentAccess, FragmentProduct, Mma};
pub(crate) use memory::{Access, AsyncCopy, Atomic, AtomicOp, MemoryOrder, Scope};
pub(crate) use operand::{Address, NONE, Register, Special, Value};
pub(crate) use warp::{Collective, ReduxOp, ShuffleMode, VoteMode};

/// The registers that an instruction reads and writes, except its guard and the elements of loads, stores and vectors.
#[derive(Clone, Debug, Default)]
pub(crate) struct Flow {
    pub reads: Box<[(Width, u32)]>,
    pub writes: Box<[(Width, u32)]>,
}

/// A decoded kernel, with the functions that it calls.
pub(crate) struct Program {
    /// The instructions of the kernel, followed by the instructions of each function.
    pub code: Vec<Instruction>,
    /// The texts of the opcodes, each once.
    pub opcodes: Vec<String>,
    /// Initial values of slots: the value, the slot, and whether the slot is a 64-bit register.
    pub constants: Vec<(Value, u32, bool)>,
    /// The number of 16-bit and 32-bit registers.
    pub words: usize,
    /// The number of 64-bit registers.
    pub wides: usize,
    /// The number of predicates.
    pub predicates: usize,
    /// Bytes of shared memory that the kernel declares.
    pub static_shared: usize,
    /// Bytes of private memory per thread, for local variables and the parameters of calls.
    pub private: usize,
    /// Bytes of local variables per thread.
    pub local: usize,
    /// The registers that each instruction reads and writes.
    pub flows: Vec<Flow>,
    /// The state that calls of recursive functions save.
    pub activations: Vec<Activation>,
    /// The offset in private memory at which local variables of recursive functions begin, after all others.
    pub stack: usize,
}
