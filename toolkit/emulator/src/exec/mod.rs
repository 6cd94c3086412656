//! Launches: which warp of which block runs next.

mod access;
mod atomic;
mod barrier;
mod block;
mod bulk;
mod call;
mod clock;
mod collective;
mod copy;
mod fence;
mod global;
mod machine;
mod mbarrier;
mod operation;
mod orders;
mod product;
mod race;
mod shadow;
mod shape;
mod shared;
mod tensor;
mod traffic;
mod warp;
mod warp_group;

use crate::device::LaunchOptions;
use crate::entry::Entry;
use crate::fault::{Checked, Fault, FaultKind, Violation};
use crate::memory::Memory;
use crate::module::Module;
use crate::program::Kernel;
use crate::report::{Counts, LineCounts, Report};
use block::{Block, Layout};
use machine::{Machine, Turn};
use orders::Orders;
pub(crate) use shape::{Shape, check_launch};
use std::collections::BTreeMap;

/// The most blocks that a random order keeps resident at once.
const MAX_RESIDENT: u64 = 8;

struct Launch<'a> {
    name: &'a str,
    machine: Machine<'a>,
    layout: Layout<'a>,
    blocks: Vec<Block>,
    /// The warp that ran last.
    current: usize,
}

/// Runs a kernel to its end.
pub(crate) fn launch(
    memory: &mut Memory,
    module: &Module,
    (entry, kernel): (&Entry, &Kernel),
    shape: Shape,
    options: &LaunchOptions,
    parameters: Vec<u8>,
    variables: Vec<u64>,
) -> Result<Report, Box<Fault>> {
    memory.start_launch();
    let machine = Machine {
        memory,
        kernel,
        options,
        parameters,
        block: Default::default(),
        releases: Default::default(),
        shape,
        clocks: shape.threads().div_ceil(32) + 1,
        stats: vec![Counts::default(); kernel.code.len()],
        pc: 0,
        executed: 0,
        turn_ends: 0,
        yields: false,
        barriers_passed: 0,
    };
    let layout = Layout { kernel, shape, variables: &variables };
    let mut launch = Launch { name: entry.name(), machine, layout, blocks: Vec::new(), current: 0 };
    launch.run(options).map_err(|violation| launch.fault(module, *violation))?;
    Ok(launch.report(module))
}

impl Launch<'_> {
    /// Runs all blocks. In the natural order one is resident at a time, else several, and their warps take turns of random
    /// length. When all resident warps seem to wait for something that another block must do, one more becomes resident.
    fn run(&mut self, options: &LaunchOptions) -> Checked<()> {
        let random = options.seed != 0;
        let mut orders = Orders(options.seed);
        let count = self.layout.shape.grid.iter().map(|&n| u64::from(n)).product::<u64>();
        let mut order: Vec<u64> = if random { (0..count).collect() } else { Vec::new() };
        orders.shuffle(&mut order);
        let mut started = 0;
        let mut resident = if random { 1 + orders.next() % MAX_RESIDENT } else { 1 } as usize;
        let patience = if random { 16 } else { 1 };
        let (mut running, mut spun) = (0, 0);
        let mut turns = Vec::new();
        loop {
            for slot in 0..resident {
                if slot == self.blocks.len() && started < count {
                    self.blocks.push(Block::new(&self.layout, options));
                }
                if self.blocks.get(slot).is_some_and(Block::ended) && started < count {
                    let index = order.get(started as usize).copied().unwrap_or(started);
                    self.blocks[slot].start(index, &self.layout);
                    started += 1;
                    running += 1;
                }
            }
            if running == 0 {
                return Ok(());
            }
            turns.clear();
            for (slot, block) in self.blocks.iter().enumerate() {
                let ready = block.warps.iter().filter(|warp| warp.live != 0 && warp.waits_at.is_none());
                turns.extend(ready.map(|warp| (slot, warp.id)));
            }
            if random {
                orders.shuffle(&mut turns);
            }
            // Of each block, whether its warps did nothing but ask mbarriers in vain.
            let mut idle = vec![true; self.blocks.len()];
            let (mut spinning, mut over) = (true, false);
            for &(slot, warp) in &turns {
                let turn = self.turn(slot, warp, if random { Some(&mut orders) } else { None })?;
                idle[slot] &= turn == Turn::Spins;
                spinning &= matches!(turn, Turn::Over | Turn::Spins);
                over |= turn == Turn::Over;
            }
            for (slot, idle) in idle.into_iter().enumerate() {
                let block = &mut self.blocks[slot];
                let released = block.release_barriers(&mut self.machine.barriers_passed);
                if block.ended() {
                    if turns.iter().any(|turn| turn.0 == slot) {
                        self.end_block(slot)?;
                        running -= 1;
                    }
                } else if !released && block.warps.iter().all(|warp| warp.live == 0 || warp.waits_at.is_some()) {
                    return Err(self.deadlock(slot));
                } else if let Some(warp) = block.lost(idle && !released) {
                    return Err(self.lost_phase(slot, warp));
                }
            }
            spinning &= over;
            spun = if spinning { spun + 1 } else { 0 };
            if spun >= patience {
                resident += 1;
                spun = 0;
            }
        }
    }

    /// Gives a warp its turn.
    fn turn(&mut self, slot: usize, warp: usize, orders: Option<&mut Orders>) -> Checked<Turn> {
        self.current = warp;
        self.machine.plan_turn(orders);
        let block = &mut self.blocks[slot];
        std::mem::swap(&mut self.machine.block, &mut block.state);
        let turn = self.machine.run(&mut block.warps[warp])?;
        std::mem::swap(&mut self.machine.block, &mut block.state);
        Ok(turn)
    }

    /// Ends what a block left in flight.
    fn end_block(&mut self, slot: usize) -> Checked<()> {
        let block = &mut self.blocks[slot];
        std::mem::swap(&mut self.machine.block, &mut block.state);
        self.machine.end_block(&mut block.warps)?;
        std::mem::swap(&mut self.machine.block, &mut block.state);
        Ok(())
    }

    fn lost_phase(&mut self, slot: usize, warp: usize) -> Box<Violation> {
        let block = &mut self.blocks[slot];
        std::mem::swap(&mut self.machine.block, &mut block.state);
        self.current = warp;
        match block.warps[warp].spins_on {
            Some(wait) => {
                self.machine.pc = wait.pc;
                self.machine.lost_phase(&wait)
            }
            None => Violation::new(FaultKind::Deadlock, "an endless wait"),
        }
    }

    fn deadlock(&mut self, slot: usize) -> Box<Violation> {
        let block = &mut self.blocks[slot];
        let (warp, violation) = block.deadlock();
        // The instruction to name is the barrier it waits at.
        let pc = block.warps[warp].stack.last().map_or(0, |part| part.pc);
        self.current = warp;
        self.machine.pc = (pc as usize).saturating_sub(1);
        std::mem::swap(&mut self.machine.block, &mut block.state);
        violation
    }

    fn fault(&self, module: &Module, violation: Violation) -> Box<Fault> {
        let kernel = self.machine.kernel;
        let instruction = &kernel.code[self.machine.pc];
        let [bx, by, _] = self.layout.shape.block;
        Box::new(Fault {
            kind: violation.kind,
            message: violation.message,
            kernel: self.name.to_string(),
            source: instruction.place.map(|place| (module.file(place.file), place.line)),
            ptx_line: instruction.line,
            opcode: kernel.opcodes[instruction.opcode as usize].clone(),
            block: self.machine.block.index,
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
        for (instruction, counts) in self.machine.kernel.code.iter().zip(&self.machine.stats) {
            if counts.instructions == 0 {
                continue;
            }
            report.total.add(counts);
            *report.classes.entry(instruction.class).or_default() += counts.instructions;
            let key = match instruction.place {
                Some(place) => (module.file(place.file), place.line),
                None => (String::new(), instruction.line),
            };
            lines.entry(key).or_default().add(counts);
        }
        report.lines = lines.into_iter().map(|((file, line), counts)| LineCounts { file, line, counts }).collect();
        report
    }
}
