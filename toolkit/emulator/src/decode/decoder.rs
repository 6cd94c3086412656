//! The decoder of a kernel: the program so far, and the slots and offsets of its names.

use crate::parameter::Parameter;
use crate::program::{Program, Value};
use crate::ptx::ast::{Function, Source, Width};
use std::collections::HashMap;

/// The result of decoding. The error says why an instruction is refused.
pub(super) type Decoded<T> = Result<T, String>;

/// A call through a pointer whose targets are not decoded yet.
pub(super) struct PendingPointerCall {
    /// The index of the instruction.
    pub at: usize,
    /// Offsets and sizes of arguments and of results, in the caller's private memory.
    pub arguments: Vec<(usize, usize)>,
    pub results: Vec<(usize, usize)>,
    /// The only functions that may be called, if the PTX lists them.
    pub listed: Option<Vec<usize>>,
}

/// The decoder of a kernel.
pub(super) struct Decoder<'a> {
    pub source: &'a Source,
    pub program: Program,
    pub parameters: &'a [Parameter],
    /// The function being decoded.
    pub function: usize,
    /// The slots of registers, by function and name.
    pub registers: HashMap<(usize, String), u32>,
    pub constants: HashMap<(Value, bool), u32>,
    /// The offsets of variables in private or shared memory, by function and name. A module's variables have
    /// `usize::MAX` as function.
    pub placed: HashMap<(usize, String), usize>,
    /// The first instruction of each decoded function.
    pub starts: HashMap<usize, u32>,
    pub queue: Vec<usize>,
    /// Functions whose address is taken.
    pub taken: Vec<usize>,
    /// Calls through pointers whose targets are still to be filled in.
    pub pointer_calls: Vec<PendingPointerCall>,
    /// Whether the statement being decoded is invalid PTX, and not just unsupported.
    pub wrong: bool,
    /// Registers that the statement being decoded reads, except its guard and the elements of loads, stores and
    /// vectors.
    pub read: Vec<(Width, u32)>,
    /// Registers that the statement being decoded writes.
    pub written: Vec<(Width, u32)>,
    /// Registers that products of the warp group use.
    pub in_products: Vec<u32>,
    /// The registers that each instruction writes.
    pub writes: Vec<Vec<(Width, u32)>>,
}

impl<'a> Decoder<'a> {
    /// Creates a decoder of the kernel with a function index.
    pub fn new(source: &'a Source, index: usize, parameters: &'a [Parameter]) -> Self {
        Self {
            source,
            program: Program {
                code: Vec::new(),
                opcodes: Vec::new(),
                constants: Vec::new(),
                words: 0,
                wides: 0,
                predicates: 0,
                static_shared: 0,
                private: 0,
                local: 0,
                activations: Vec::new(),
                stack: 0,
                flows: Vec::new(),
            },
            parameters,
            function: index,
            registers: HashMap::new(),
            constants: HashMap::new(),
            placed: HashMap::new(),
            starts: HashMap::new(),
            queue: vec![index],
            taken: Vec::new(),
            pointer_calls: Vec::new(),
            wrong: false,
            read: Vec::new(),
            written: Vec::new(),
            in_products: Vec::new(),
            writes: Vec::new(),
        }
    }

    /// Returns the function being decoded.
    pub fn current(&self) -> &'a Function {
        &self.source.functions[self.function]
    }

    /// Returns the error of a statement that every GPU would refuse.
    pub fn wrong<T>(&mut self, message: String) -> Decoded<T> {
        self.wrong = true;
        Err(message)
    }

    /// Returns the index of an opcode in the list of opcodes. Adds the opcode if it is new.
    pub fn opcode(&mut self, text: &str) -> u32 {
        let existing = self.program.opcodes.iter().position(|opcode| opcode == text);
        let index = existing.unwrap_or_else(|| {
            self.program.opcodes.push(text.to_string());
            self.program.opcodes.len() - 1
        });
        index as u32
    }

    /// Returns the slot of the function's carry.
    pub fn carry(&mut self) -> u32 {
        let key = (self.function, "%cc".to_string());
        if let Some(&slot) = self.registers.get(&key) {
            return slot;
        }
        let slot = self.new_slot(Width::Predicate);
        self.registers.insert(key, slot);
        slot
    }

    /// Adds a register and returns its slot.
    pub fn new_slot(&mut self, width: Width) -> u32 {
        let count = match width {
            Width::Predicate => &mut self.program.predicates,
            Width::B16 | Width::B32 => &mut self.program.words,
            Width::B64 => &mut self.program.wides,
        };
        *count += 1;
        *count as u32 - 1
    }
}
