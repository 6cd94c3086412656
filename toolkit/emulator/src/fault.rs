//! Faults: errors in a kernel, and where they happened.

use std::fmt;

/// The kind of a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FaultKind {
    /// The launch itself is invalid: no such kernel, wrong arguments or an impossible shape.
    Launch,
    /// An access outside every buffer, or to a freed buffer.
    OutOfBounds,
    /// An address that is not a multiple of the access size.
    Misaligned,
    /// A read of unwritten memory.
    Uninitialised,
    /// Two unordered accesses to shared memory, at least one of them a write.
    SharedRace,
    /// Two unordered accesses to global memory by different warps, at least one of them a write.
    GlobalRace,
    /// A warp collective that some of the lanes it names do not execute together.
    MissingLanes,
    /// A block barrier or an `.aligned` instruction that only part of a warp reaches.
    DivergentBarrier,
    /// Warps wait for an event that can no longer happen.
    Deadlock,
    /// An access to memory that an asynchronous copy still writes, or a write to memory that an asynchronous copy or
    /// product still reads.
    AsyncRegion,
    /// An asynchronous copy or product reads data of ordinary stores, with no `fence.proxy.async` between.
    MissingProxyFence,
    /// A wrong use of an mbarrier.
    Mbarrier,
    /// A `trap` instruction, which ends the launch.
    Trap,
    /// A Rust panic, or a failed `assert` of CUDA C++.
    Assertion,
    /// More instructions than the limit, which suggests an endless loop.
    InstructionLimit,
    /// A feature that the emulator does not support.
    Unsupported,
}

/// An error in a kernel, and where it happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The kind of fault.
    pub kind: FaultKind,
    /// A description of the error.
    pub message: String,
    /// The name of the kernel, or of the host call that is at fault.
    pub kernel: String,
    /// File and line of the Rust source, if the PTX has `.loc`.
    pub source: Option<(String, u32)>,
    /// If `source` is in a library, the file and line of the workspace that led there.
    ///
    /// This is the line of the call. If the compiler inlined the function, it is the last workspace line before the
    /// instruction in the PTX.
    pub reached_from: Option<(String, u32)>,
    /// Line of the PTX text, or 0 if no instruction is at fault.
    pub ptx_line: u32,
    /// The instruction's opcode.
    pub opcode: String,
    /// Index of the block.
    pub block: [u32; 3],
    /// Index of the thread in its block.
    pub thread: Option<[u32; 3]>,
    /// The number of the device, if the fault was found among several devices.
    pub device: Option<i32>,
    /// The address of the access, in its address space.
    pub address: Option<u64>,
    /// The buffer that was accessed, or whose pages contain the address.
    pub buffer: Option<String>,
}

impl Fault {
    /// Creates the fault of a host call.
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

/// A fault as an instruction reports it. The launch adds the location.
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

/// The result of a function that may find a fault.
pub(crate) type Checked<T> = Result<T, Box<Violation>>;
