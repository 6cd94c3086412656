//! Launches: blocks one after the other, the warps of a block by turns.

mod access;
mod clock;
mod collective;
mod machine;
mod product;
mod shared;
mod tensor;
mod traffic;
mod warp;

use crate::device::{Arg, LaunchOptions};
use crate::fault::{Checked, Fault, FaultKind, Violation};
use crate::lanes::Registers;
use crate::memory::Memory;
use crate::module::Module;
use crate::program::{Entry, Special, Value};
use crate::report::{Counts, LineCounts, Report};
use clock::{Clock, View};
use machine::Machine;
use shared::Shared;
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use warp::Warp;

/// Dynamic shared memory starts at a multiple of this after what the kernel declares.
const DYNAMIC_ALIGN: usize = 128;
/// The most shared memory of a block: that of an H100.
const MAX_SHARED: usize = 227 * 1024;

/// The shape of a launch.
#[derive(Clone, Copy)]
pub(crate) struct Shape {
    pub grid: [u32; 3],
    pub block: [u32; 3],
    pub dynamic_shared: usize,
}

/// Checks a launch against the kernel's declaration and gives the block of its parameters.
pub(crate) fn check_launch(
    entry: &Entry,
    grid: [u32; 3],
    block: [u32; 3],
    dynamic_shared: usize,
    args: &[Arg],
) -> Result<Vec<u8>, String> {
    if grid.contains(&0) || block.contains(&0) {
        return Err(format!("grid {grid:?} and block {block:?} must not be empty"));
    }
    if grid[1] > 65_535 || grid[2] > 65_535 || grid[0] > i32::MAX as u32 {
        return Err(format!("grid {grid:?} is too large"));
    }
    let threads = block.iter().map(|&n| u64::from(n)).product::<u64>();
    if threads > 1024 || block[2] > 64 {
        return Err(format!("block {block:?} is too large"));
    }
    if let Some(bound) = entry.bounds.max_threads.map(|bound| bound.iter().map(|&n| u64::from(n)).product::<u64>())
        && threads > bound
    {
        return Err(format!("{threads} threads, of at most {bound} that the kernel declares"));
    }
    if let Some(required) = entry.bounds.required_threads
        && required != block
    {
        return Err(format!("block {block:?}, where the kernel requires {required:?}"));
    }
    let shared = entry.static_shared.next_multiple_of(DYNAMIC_ALIGN).saturating_add(dynamic_shared);
    if shared > MAX_SHARED {
        return Err(format!("{shared} bytes of shared memory, of at most {MAX_SHARED}"));
    }
    if args.len() != entry.parameters.len() {
        return Err(format!("{} arguments for {} parameters", args.len(), entry.parameters.len()));
    }
    let mut bytes = vec![0; entry.parameters.last().map_or(0, |last| last.offset + last.size)];
    for (index, (arg, parameter)) in args.iter().zip(&entry.parameters).enumerate() {
        let value = arg.bytes();
        if value.len() != parameter.size {
            return Err(format!("argument {index} has {} bytes, its parameter has {}", value.len(), parameter.size));
        }
        bytes[parameter.offset..parameter.offset + parameter.size].copy_from_slice(&value);
    }
    Ok(bytes)
}

/// A small generator for orders (SplitMix64).
struct Orders(u64);

impl Orders {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut value = self.0;
        value = (value ^ value >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        value = (value ^ value >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        value ^ value >> 31
    }

    fn shuffle<T>(&mut self, items: &mut [T]) {
        for index in (1..items.len()).rev() {
            items.swap(index, (self.next() % (index as u64 + 1)) as usize);
        }
    }
}

struct Launch<'a> {
    machine: Machine<'a>,
    shape: Shape,
    variables: Vec<u64>,
    warps: Vec<Warp>,
    /// The warp that ran last.
    current: usize,
    block: [u32; 3],
}

/// Runs a kernel to its end.
pub(crate) fn launch(
    memory: &mut Memory,
    module: &Module,
    entry: &Entry,
    shape: Shape,
    options: &LaunchOptions,
    parameters: Vec<u8>,
    variables: Vec<u64>,
) -> Result<Report, Box<Fault>> {
    memory.start_launch();
    let threads = shape.block.iter().product::<u32>() as usize;
    let warp_count = threads.div_ceil(32);
    let machine = Machine {
        memory,
        entry,
        options,
        parameters,
        shared: Shared::new(options.check_races, options.check_initialised),
        barriers: Default::default(),
        warp_count,
        stats: vec![Counts::default(); entry.code.len()],
        pc: 0,
        executed: 0,
        turn_ends: 0,
        barriers_passed: 0,
    };
    let view = Rc::new(View::new(warp_count));
    let registers = Registers {
        words: vec![[0; 32]; entry.words],
        wides: vec![[0; 32]; entry.wides],
        masks: vec![0; entry.predicates],
    };
    let warps = (0..warp_count).map(|id| Warp {
        id,
        registers: registers.clone(),
        stack: Vec::new(),
        frames: Vec::new(),
        live: 0,
        waits_at: None,
        private: vec![0xcd; 32 * entry.private],
        clock: Clock::new(&view),
        copies: Vec::new(),
        groups: VecDeque::new(),
    });
    let mut launch = Launch { machine, shape, variables, warps: warps.collect(), current: 0, block: [0; 3] };
    let result = launch.blocks(options.seed);
    result.map_err(|violation| launch.fault(module, *violation))?;
    Ok(launch.report(module))
}

impl Launch<'_> {
    fn blocks(&mut self, seed: u64) -> Checked<()> {
        for index in 0..self.warps.len() {
            self.constants(index, false);
        }
        let [x, y, z] = self.shape.grid.map(u64::from);
        let mut orders = Orders(seed);
        let mut order: Vec<u64> = if seed == 0 { Vec::new() } else { (0..x * y * z).collect() };
        orders.shuffle(&mut order);
        for position in 0..x * y * z {
            let index = order.get(position as usize).copied().unwrap_or(position);
            self.block = [(index % x) as u32, (index / x % y) as u32, (index / x / y) as u32];
            self.start_block();
            let mut turns: Vec<usize> = (0..self.warps.len()).collect();
            loop {
                if seed != 0 {
                    orders.shuffle(&mut turns);
                }
                let mut ran = false;
                for &turn in &turns {
                    let warp = &mut self.warps[turn];
                    if warp.live != 0 && warp.waits_at.is_none() {
                        self.current = turn;
                        self.machine.run(warp)?;
                        ran = true;
                    }
                }
                let released = self.release_barriers();
                if self.warps.iter().all(|warp| warp.live == 0) {
                    break;
                }
                if !ran && !released {
                    return Err(self.deadlock());
                }
            }
        }
        Ok(())
    }

    fn start_block(&mut self) {
        let entry = self.machine.entry;
        self.machine.shared.reset(entry.static_shared.next_multiple_of(DYNAMIC_ALIGN) + self.shape.dynamic_shared);
        self.machine.barriers = Default::default();
        let view = Rc::new(View::new(self.warps.len()));
        let threads = self.shape.block.iter().product::<u32>();
        for index in 0..self.warps.len() {
            let lanes = (threads - index as u32 * 32).min(32);
            let warp = &mut self.warps[index];
            warp.start(u32::MAX >> (32 - lanes));
            warp.clock = Clock::new(&view);
            self.constants(index, true);
        }
    }

    /// Sets the slots of constants: those that change from block to block, or the others.
    fn constants(&mut self, index: usize, per_block: bool) {
        let entry = self.machine.entry;
        let dynamic = entry.static_shared.next_multiple_of(DYNAMIC_ALIGN) as u64;
        let [bx, by, _] = self.shape.block;
        for &(value, slot, wide) in &entry.constants {
            if matches!(value, Value::Special(Special::Block(_))) != per_block {
                continue;
            }
            for lane in 0..32u32 {
                let thread = index as u32 * 32 + lane;
                let bits = match value {
                    Value::Bits(bits) => bits,
                    Value::Global { variable, offset } => self.variables[variable].wrapping_add_signed(offset),
                    Value::DynamicShared { offset } => dynamic.wrapping_add_signed(offset),
                    Value::Special(special) => u64::from(match special {
                        Special::Thread(0) => thread % bx,
                        Special::Thread(1) => thread / bx % by,
                        Special::Thread(_) => thread / bx / by,
                        Special::BlockSize(axis) => self.shape.block[usize::from(axis)],
                        Special::Block(axis) => self.block[usize::from(axis)],
                        Special::GridSize(axis) => self.shape.grid[usize::from(axis)],
                        Special::Lane => lane,
                        Special::Warp => index as u32,
                        Special::WarpCount => self.warps.len() as u32,
                        Special::MaskEqual => 1 << lane,
                        Special::MaskLess => (1 << lane) - 1,
                        Special::MaskLessEqual => u32::MAX >> (31 - lane),
                        Special::MaskGreaterEqual => u32::MAX << lane,
                        Special::MaskGreater => (u32::MAX << lane) & !(1 << lane),
                        Special::DynamicSharedSize => self.shape.dynamic_shared as u32,
                        Special::TotalSharedSize => dynamic as u32 + self.shape.dynamic_shared as u32,
                        Special::Multiprocessor => 0,
                    }),
                };
                let registers = &mut self.warps[index].registers;
                if wide {
                    registers.wides[slot as usize][lane as usize] = bits;
                } else {
                    registers.words[slot as usize][lane as usize] = bits as u32;
                }
            }
        }
    }

    /// Lets the warps go on whose barrier all have reached. False when there was none.
    fn release_barriers(&mut self) -> bool {
        let living = 32 * self.warps.iter().filter(|warp| warp.live != 0).count() as u32;
        let warps = self.warps.len();
        let mut released = false;
        for (id, barrier) in self.machine.barriers.iter_mut().enumerate() {
            if barrier.arrived == 0 || barrier.arrived < barrier.expected.unwrap_or(living) {
                continue;
            }
            barrier.arrived = 0;
            let view = barrier.views.take(warps);
            for warp in self.warps.iter_mut().filter(|warp| warp.waits_at == Some(id)) {
                warp.waits_at = None;
                warp.clock.receive(warp.live, &view);
            }
            self.machine.barriers_passed += 1;
            released = true;
        }
        released
    }

    fn deadlock(&mut self) -> Box<Violation> {
        let waiting: Vec<_> = self.warps.iter().filter_map(|warp| Some((warp.id, warp.waits_at?))).collect();
        // The instruction to name is the first waiting warp's barrier.
        if let Some(&(warp, _)) = waiting.first() {
            self.current = warp;
            let pc = self.warps[warp].stack.last().map_or(0, |part| part.pc);
            self.machine.pc = (pc as usize).saturating_sub(1);
        }
        let list: Vec<String> = waiting.iter().map(|(warp, id)| format!("warp {warp} at barrier {id}")).collect();
        let message = format!("{} wait for threads that never come", list.join(", "));
        Violation::new(FaultKind::Deadlock, message)
    }

    fn fault(&self, module: &Module, violation: Violation) -> Box<Fault> {
        let entry = self.machine.entry;
        let instruction = &entry.code[self.machine.pc];
        let [bx, by, _] = self.shape.block;
        Box::new(Fault {
            kind: violation.kind,
            message: violation.message,
            kernel: entry.name.clone(),
            source: instruction
                .place
                .map(|place| (module.files.get(&place.file).cloned().unwrap_or_default(), place.line)),
            ptx_line: instruction.line,
            opcode: entry.opcodes[instruction.opcode as usize].clone(),
            block: self.block,
            thread: violation.lane.map(|lane| {
                let thread = (self.current * 32 + lane) as u32;
                [thread % bx, thread / bx % by, thread / bx / by]
            }),
            address: violation.address,
            buffer: violation.buffer,
        })
    }

    fn report(&self, module: &Module) -> Report {
        let mut report = Report {
            barriers: self.machine.barriers_passed,
            distinct_sectors: self.machine.memory.distinct_sectors(),
            ..Report::default()
        };
        let mut lines: BTreeMap<(String, u32), Counts> = BTreeMap::new();
        for (instruction, counts) in self.machine.entry.code.iter().zip(&self.machine.stats) {
            if counts.instructions == 0 {
                continue;
            }
            report.total.add(counts);
            *report.classes.entry(instruction.class).or_default() += counts.instructions;
            let key = match instruction.place {
                Some(place) => (module.files.get(&place.file).cloned().unwrap_or_default(), place.line),
                None => (String::new(), instruction.line),
            };
            lines.entry(key).or_default().add(counts);
        }
        report.lines = lines.into_iter().map(|((file, line), counts)| LineCounts { file, line, counts }).collect();
        report
    }
}
