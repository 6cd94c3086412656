//! Poison: values that come from shared memory which nothing wrote. Kept only for a warp that has read some.

use super::lane_mask::lanes;
use crate::fault::{FaultKind, Violation};
use crate::program::{Program, Register};
use crate::ptx::ast::Width;
use std::collections::HashSet;

/// Which values of a warp are poison.
#[derive(Debug)]
pub(crate) struct Poison {
    /// The lanes, by slot.
    words: Vec<u32>,
    wides: Vec<u32>,
    predicates: Vec<u32>,
    /// Bytes of private memory.
    pub private: HashSet<usize>,
    /// The instruction that read some first, and the offset in shared memory.
    origin: (u32, u64),
}

impl Poison {
    /// A warp's poison, which is first read by the instruction of an index at an offset of shared memory.
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

    /// The lanes whose value in a slot is poison.
    pub fn of(&self, (width, slot): (Width, u32)) -> u32 {
        match width {
            Width::Predicate => self.predicates[slot as usize],
            Width::B16 | Width::B32 => self.words[slot as usize],
            Width::B64 => self.wides[slot as usize],
        }
    }

    /// Says of some lanes which of them have poison in a slot.
    pub fn set(&mut self, (width, slot): (Width, u32), mask: u32, poisoned: u32) {
        let lanes = &mut self.file(width)[slot as usize];
        *lanes = *lanes & !mask | poisoned & mask;
    }

    /// The same for a register of a load, a store or a vector.
    pub fn of_register(&self, register: Register) -> u32 {
        if register.bits == 0 { 0 } else { self.of((width(register), register.slot)) }
    }

    pub fn set_register(&mut self, register: Register, mask: u32, poisoned: u32) {
        if register.bits != 0 {
            self.set((width(register), register.slot), mask, poisoned);
        }
    }

    /// Whether nothing is poison any more.
    pub fn is_over(&self) -> bool {
        let files = [&self.words, &self.wides, &self.predicates];
        self.private.is_empty() && files.iter().all(|file| file.iter().all(|&lanes| lanes == 0))
    }

    /// The fault of lanes that use poison.
    #[cold]
    pub fn fault(&self, program: &Program, used: u32, how: &str) -> Box<Violation> {
        let (pc, at) = self.origin;
        let line = program.code[pc as usize].line;
        let message = format!(
            "{how} a value that comes from shared memory which nothing wrote (the first such read was of offset {at:#x}, in PTX line {line})"
        );
        let lane = lanes(used).next().unwrap_or(0);
        Violation::new(FaultKind::Uninitialised, message).lane(lane).address(at).buffer("shared memory")
    }
}

fn width(register: Register) -> Width {
    if register.bits == 64 { Width::B64 } else { Width::B32 }
}
