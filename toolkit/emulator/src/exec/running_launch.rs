//! A launch that has begun.

use super::grid_run::{GridRun, Progress, Shared};
use super::launch_config::LaunchConfig;
use super::launch_kernel::LaunchKernel;
use super::outcome::{fault, report};
use super::state::clock::Others;
use super::state::constants::LaunchConstants;
use crate::fault::{Fault, FaultKind, Violation};
use crate::launch_options::LaunchOptions;
use crate::memory::Memory;
use crate::program::Program;
use crate::report::CostReport;
use std::sync::Arc;

/// What a launch is, beside its kernel.
pub(crate) struct LaunchArguments {
    pub config: LaunchConfig,
    pub options: LaunchOptions,
    /// The bytes of the kernel's parameters.
    pub parameters: Vec<u8>,
    /// The addresses of the module's variables.
    pub variables: Vec<u64>,
}

/// Where a launch runs among others.
#[derive(Default)]
pub(crate) struct LaunchPlace {
    /// The number of the device.
    pub device: usize,
    /// The number of its first block among those of all launches that run at the same time.
    pub first_block: u32,
    /// What comes before all of its threads.
    pub before: Option<Arc<Others>>,
    /// Whether other devices may run launches at the same time.
    pub in_company: bool,
}

/// A launch that has begun.
pub(crate) struct RunningLaunch {
    arguments: LaunchArguments,
    place: LaunchPlace,
    run: GridRun,
    /// Whether it did nothing but wait when it last ran.
    spins: bool,
}

impl RunningLaunch {
    /// Begins a launch, of which no block has started yet.
    pub fn new(kernel: LaunchKernel<'_>, arguments: LaunchArguments, place: LaunchPlace) -> Self {
        let run = GridRun::new(&constants(kernel.program, &arguments, &place), place.in_company);
        Self { arguments, place, run, spins: false }
    }

    /// Whether it seemed to do nothing but wait for others when it last ran.
    pub fn spins(&self) -> bool {
        self.spins
    }

    /// Instructions executed so far, each counted once per warp, and how many of them were strong accesses, by which threads
    /// may wait for others.
    pub fn effort(&self) -> (u64, u64) {
        (self.run.meter.executed, self.run.meter.polls)
    }

    /// Goes on for at most so many rounds, in which each warp of the resident blocks has a turn.
    pub fn advance(
        &mut self,
        kernel: LaunchKernel<'_>,
        shared: &mut Shared<'_>,
        rounds: usize,
    ) -> Result<Progress, Box<Fault>> {
        let Self { arguments, place, run, spins } = self;
        let constants = constants(kernel.program, arguments, place);
        shared.memory.enter(place.device);
        let mut progress = Ok(Progress::Runs);
        for _ in 0..rounds {
            progress = run.round(&constants, shared);
            if !matches!(progress, Ok(Progress::Runs | Progress::Spins)) {
                break;
            }
        }
        *spins = matches!(progress, Ok(Progress::Spins));
        progress.map_err(|violation| self.fault(kernel, *violation))
    }

    /// The fault of a launch that waits for what nothing will do.
    pub fn endless(&self, kernel: LaunchKernel<'_>, message: String) -> Box<Fault> {
        self.fault(kernel, *Violation::new(FaultKind::Deadlock, message))
    }

    fn fault(&self, kernel: LaunchKernel<'_>, violation: Violation) -> Box<Fault> {
        let run = &self.run;
        let resident = run.blocks.get(run.slot);
        let block = resident.map_or([0; 3], |block| block.state.index);
        let frames = resident.and_then(|block| block.warps.get(run.warp)).map_or(&[][..], |warp| &warp.frames);
        let calls = frames.iter().rev().map(|frame| frame.call as usize);
        let threads = self.arguments.config.block;
        fault(kernel, (run.meter.pc, calls), (block, threads, run.warp), violation)
    }

    /// What the launch cost, when it has ended.
    pub fn report(&self, kernel: LaunchKernel<'_>, memory: &Memory) -> CostReport {
        report(kernel.module, kernel.program, &self.run.meter, memory.distinct_sectors())
    }

    /// What its threads did and knew, for those that come after all of them.
    pub fn handed_on(&self) -> Option<&Arc<Others>> {
        self.run.handed_on.as_ref()
    }
}

fn constants<'a>(program: &'a Program, arguments: &'a LaunchArguments, place: &'a LaunchPlace) -> LaunchConstants<'a> {
    LaunchConstants {
        program,
        options: &arguments.options,
        config: arguments.config,
        parameters: &arguments.parameters,
        variables: &arguments.variables,
        device: place.device,
        first_block: place.first_block,
        before: place.before.as_ref(),
    }
}
