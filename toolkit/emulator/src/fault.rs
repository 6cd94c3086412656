//! What is wrong with a kernel, and where.

use std::fmt;

/// Kinds of faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FaultKind {
    /// The launch itself is wrong: no such kernel, wrong arguments, impossible shape.
    Launch,
    /// An access outside of every buffer, or to a buffer that was freed.
    OutOfBounds,
    /// An address that is no multiple of the access's size.
    Misaligned,
    /// A read of memory that nothing wrote.
    Uninitialised,
    /// Two accesses to shared memory with nothing that orders them, at least one of them a write.
    SharedRace,
    /// Two accesses to global memory by different warps with nothing that orders them, at least one of them a write.
    GlobalRace,
    /// A warp collective that not all lanes it names execute together.
    MissingLanes,
    /// A block barrier or an `.aligned` instruction reached by part of a warp.
    DivergentBarrier,
    /// Warps wait for something that can no longer happen.
    Deadlock,
    /// An access to memory that an asynchronous copy still writes, or a write to memory that a copy or product still reads.
    AsyncRegion,
    /// An asynchronous copy or product reads what ordinary stores wrote, with no `fence.proxy.async` between.
    MissingProxyFence,
    /// A wrong use of an mbarrier.
    Mbarrier,
    /// `trap`: the kernel ended the launch.
    Trap,
    /// A Rust panic, or an `assert` of CUDA C++ that does not hold.
    Assertion,
    /// More instructions than the limit: probably an endless loop.
    InstructionLimit,
    /// Something that the emulator does not support.
    Unsupported,
}

/// What is wrong, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Its kind.
    pub kind: FaultKind,
    /// What happened, in words.
    pub message: String,
    /// The kernel.
    pub kernel: String,
    /// File and line of the Rust source, where the PTX has `.loc`.
    pub source: Option<(String, u32)>,
    /// Where that is in a library: file and line of the workspace's own source from which it was reached. It is the line of
    /// the call; of a function that the compiler inlined it is the last line before the instruction in the PTX.
    pub reached_from: Option<(String, u32)>,
    /// Line of the PTX text; 0 when no instruction is at fault.
    pub ptx_line: u32,
    /// The instruction's opcode.
    pub opcode: String,
    /// Index of the block.
    pub block: [u32; 3],
    /// Index of the thread in its block.
    pub thread: Option<[u32; 3]>,
    /// The number of the device, where the fault was found beside other devices.
    pub device: Option<i32>,
    /// The address at fault, in the address space accessed.
    pub address: Option<u64>,
    /// The buffer that was accessed, or whose pages the address lies in.
    pub buffer: Option<String>,
}

impl Fault {
    /// What is wrong with a call of the host.
    pub(crate) fn of_call(kind: FaultKind, call: &str, message: String) -> Box<Self> {
        Box::new(Self {
            kind,
            message,
            kernel: call.to_string(),
            source: None,
            reached_from: None,
            ptx_line: 0,
            opcode: String::new(),
            block: [0; 3],
            thread: None,
            device: None,
            address: None,
            buffer: None,
        })
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} in kernel `{}`: {}", self.kind, self.kernel, self.message)?;
        if let Some((file, line)) = &self.source {
            write!(f, "; at {file}:{line}")?;
        }
        if let Some((file, line)) = &self.reached_from {
            write!(f, ", reached from {file}:{line}")?;
        }
        match self.ptx_line {
            0 => {}
            line if self.opcode.is_empty() => write!(f, "; PTX line {line}")?,
            line => write!(f, "; PTX line {line} `{}`; block {:?}", self.opcode, self.block)?,
        }
        if let Some(thread) = self.thread {
            write!(f, "; thread {thread:?}")?;
        }
        if let Some(device) = self.device {
            write!(f, "; device {device}")?;
        }
        if let Some(address) = self.address {
            write!(f, "; address {address:#x}")?;
        }
        if let Some(buffer) = &self.buffer {
            write!(f, "; buffer `{buffer}`")?;
        }
        Ok(())
    }
}

impl std::error::Error for Fault {}

/// A fault as an instruction reports it. The launch adds where it happened.
#[derive(Debug)]
pub(crate) struct Violation {
    pub kind: FaultKind,
    pub message: String,
    pub lane: Option<usize>,
    pub address: Option<u64>,
    pub buffer: Option<String>,
    /// The file and line that the kernel itself names.
    pub source: Option<(String, u32)>,
}

impl Violation {
    #[cold]
    pub fn new(kind: FaultKind, message: impl Into<String>) -> Box<Self> {
        Box::new(Self { kind, message: message.into(), lane: None, address: None, buffer: None, source: None })
    }

    pub fn source(mut self: Box<Self>, file: String, line: u32) -> Box<Self> {
        self.source = Some((file, line));
        self
    }

    pub fn lane(mut self: Box<Self>, lane: usize) -> Box<Self> {
        self.lane = Some(lane);
        self
    }

    pub fn address(mut self: Box<Self>, address: u64) -> Box<Self> {
        self.address = Some(address);
        self
    }

    pub fn buffer(mut self: Box<Self>, name: &str) -> Box<Self> {
        self.buffer = Some(name.to_string());
        self
    }
}

/// What functions return that may find a fault.
pub(crate) type Checked<T> = Result<T, Box<Violation>>;
