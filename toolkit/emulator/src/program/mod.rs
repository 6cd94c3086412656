//! A decoded kernel: every name is resolved, and it is ready to run.

mod bulk;
mod instruction;
mod memory;
mod operand;
mod warp;

pub(crate) use bulk::{BulkCopy, BulkEnd, BulkSource, FirstFactor, MbarrierInstruction, MbarrierOp, Product};
pub(crate) use instruction::{Call, Combine, Instruction, Op, Transfer};
pub(crate) use memory::{Access, AsyncCopy, Atomic, AtomicOp, MemoryOrder};
pub(crate) use operand::{Address, NONE, Register, Special, Value};
pub(crate) use warp::{Collective, Factor, Mma, ReduxOp, ShuffleMode, VoteMode};

/// A kernel, ready to run.
pub(crate) struct Program {
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
