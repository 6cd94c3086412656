//! Poison: values that come from unwritten shared memory. It is tracked only for a warp that has read some.

use super::lane_mask::lanes;
use crate::fault::{FaultKind, Violation};
use crate::program::{Program, Register};
use crate::ptx::ast::Width;
use std::collections::HashSet;

/// The values of a warp that are poison.
#[derive(Debug)]
pub(crate) struct Poison {
    /// The lanes with poison, by slot.
    words: Vec<u32>,
    wides: Vec<u32>,
    predicates: Vec<u32>,
    /// Bytes of private memory with poison.
    pub private: HashSet<usize>,
    /// The instruction that first read poison, and the offset in shared memory.
    origin: (u32, u64),
}

impl Poison {
    /// Creates the poison of a warp. `origin` is the first instruction that reads poison, and the offset in shared
    /// memory.
    pub fn new(program: &Program, origin: (u32, u64)) -> Box<Self> {
        Box::new(Self {
            words: vec![0; program.words],
            wides: vec![0; program.wides],
            predicates: vec![0; program.predicates],
            private: HashSet::new(),
            origin,
        })
    }

    fn file(&mut self, width: Width) -> &mut Vec<u32> {
        match width {
            Width::Predicate => &mut self.predicates,
            Width::B16 | Width::B32 => &mut self.words,
            Width::B64 => &mut self.wides,
        }
    }

    /// Returns the lanes whose value in a slot is poison.
    pub fn get(&self, (width, slot): (Width, u32)) -> u32 {
        match width {
            Width::Predicate => self.predicates[slot as usize],
            Width::B16 | Width::B32 => self.words[slot as usize],
            Width::B64 => self.wides[slot as usize],
        }
    }

    /// Sets which lanes of `mask` have poison in a slot.
    pub fn set(&mut self, (width, slot): (Width, u32), mask: u32, poisoned: u32) {
        let lanes = &mut self.file(width)[slot as usize];
        *lanes = *lanes & !mask | poisoned & mask;
    }

    /// Returns the lanes with poison in a register of a load, a store or a vector.
    pub fn get_register(&self, register: Register) -> u32 {
        if register.bits == 0 { 0 } else { self.get((width(register), register.slot)) }
    }

    pub fn set_register(&mut self, register: Register, mask: u32, poisoned: u32) {
        if register.bits != 0 {
            self.set((width(register), register.slot), mask, poisoned);
        }
    }

    /// Returns whether no value is poison any more.
    pub fn is_over(&self) -> bool {
        let files = [&self.words, &self.wides, &self.predicates];
        self.private.is_empty() && files.iter().all(|file| file.iter().all(|&lanes| lanes == 0))
    }

    /// Returns the fault of lanes that use poison.
    #[cold]
    pub fn fault(&self, program: &Program, used: u32, how: &str) -> Box<Violation> {
        let (pc, at) = self.origin;
        let line = program.code[pc as usize].line;
        let message = format!(
            "{how} a value from shared memory that nothing wrote (first read at offset {at:#x}, in PTX line {line})"
        );
        let lane = lanes(used).next().unwrap_or(0);
        Violation::new(FaultKind::Uninitialised, message).lane(lane).address(at).buffer("shared memory")
    }
}

fn width(register: Register) -> Width {
    if register.bits == 64 { Width::B64 } else { Width::B32 }
}
