//! A decoded kernel: every name is resolved, and it is ready to run.

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
pub(crate) use matrix::{Factor, FactorKind, Fragment, FragmentAccess, FragmentProduct, Mma, OtherMma};
pub(crate) use memory::{Access, AsyncCopy, Atomic, AtomicOp, MemoryOrder, Scope};
pub(crate) use operand::{Address, NONE, Register, Special, Value};
pub(crate) use warp::{Collective, ReduxOp, ShuffleMode, VoteMode};

/// The registers that an instruction reads and writes, but for its guard and the elements of loads, stores and vectors.
#[derive(Clone, Debug, Default)]
pub(crate) struct Flow {
    pub reads: Box<[(Width, u32)]>,
    pub writes: Box<[(Width, u32)]>,
}

/// A decoded kernel, with the functions that it calls.
pub(crate) struct Program {
    /// The instructions of the kernel, and after it those of each function.
    pub code: Vec<Instruction>,
    /// The texts of the opcodes, each once.
    pub opcodes: Vec<String>,
    /// What slots hold from the start: a value, the slot, and whether the slot is a 64-bit register.
    pub constants: Vec<(Value, u32, bool)>,
    /// How many 16 and 32-bit registers there are.
    pub words: usize,
    /// How many 64-bit registers there are.
    pub wides: usize,
    /// How many predicates there are.
    pub predicates: usize,
    /// Bytes of shared memory that the kernel declares.
    pub static_shared: usize,
    /// Bytes of private memory of a thread: local variables, and the parameters of calls.
    pub private: usize,
    /// Bytes of local variables of a thread.
    pub local: usize,
    /// Of each instruction, the registers that it reads and writes.
    pub flows: Vec<Flow>,
    /// What calls of recursive functions save.
    pub activations: Vec<Activation>,
    /// Where the local variables of recursive functions begin in private memory, behind all others.
    pub stack: usize,
}
