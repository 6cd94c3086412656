//! A launch that has begun.

use super::grid_run::{GridRun, Progress, Shared};
use super::launch_config::LaunchConfig;
use super::launch_kernel::LaunchKernel;
use super::outcome::{fault, report};
use super::parallel;
use super::state::clock::Others;
use super::state::constants::LaunchConstants;
use crate::fault::{Fault, FaultKind, Violation};
use crate::launch_options::LaunchOptions;
use crate::memory::Memory;
use crate::program::Program;
use crate::report::CostReport;
use std::sync::Arc;

/// The configuration and inputs of a launch, without its kernel.
pub(crate) struct LaunchArguments {
    pub config: LaunchConfig,
    pub options: LaunchOptions,
    /// The bytes of the kernel's parameters.
    pub parameters: Vec<u8>,
    /// The addresses of the module's variables.
    pub variables: Vec<u64>,
}

/// The position of a launch among others: its device, and the launches before it and at the same time.
#[derive(Default)]
pub(crate) struct LaunchPlace {
    /// The number of the device.
    pub device: usize,
    /// The number of its first block, counted over all launches that run at the same time.
    pub first_block: u32,
    /// Accesses that come before all its threads.
    pub before: Option<Arc<Others>>,
    /// Whether other devices may run launches at the same time.
    pub in_company: bool,
}

/// A launch that has begun.
pub(crate) struct RunningLaunch {
    arguments: LaunchArguments,
    place: LaunchPlace,
    run: GridRun,
    /// Whether its blocks may still be divided among CPU cores.
    divides: bool,
    /// Whether it only waited when it last ran.
    spins: bool,
}

impl RunningLaunch {
    /// Creates a launch before its first block has started.
    pub fn new(kernel: LaunchKernel<'_>, arguments: LaunchArguments, place: LaunchPlace) -> Self {
        let run = GridRun::new(&constants(kernel.program, &arguments, &place), place.in_company);
        let options = &arguments.options;
        let alone = !place.in_company && place.first_block == 0;
        let divides = options.cores > 1 && options.seed == 0 && alone && parallel::is_separable(kernel.program);
        Self { arguments, place, run, divides, spins: false }
    }

    /// Returns whether it seemed to wait for other launches when it last ran.
    pub fn spins(&self) -> bool {
        self.spins
    }

    /// Returns the number of executed instructions, counted once per warp, and the number of strong accesses among
    /// them. Threads may wait for others with strong accesses.
    pub fn effort(&self) -> (u64, u64) {
        (self.run.meter.executed, self.run.meter.polls)
    }

    /// Runs up to `rounds` rounds. In a round, each warp of the resident blocks has a turn.
    pub fn advance(
        &mut self,
        kernel: LaunchKernel<'_>,
        shared: &mut Shared<'_>,
        rounds: usize,
    ) -> Result<Progress, Box<Fault>> {
        let Self { arguments, place, run, divides, spins } = self;
        let constants = constants(kernel.program, arguments, place);
        shared.memory.enter(place.device);
        let mut progress = Ok(Progress::Runs);
        for _ in 0..rounds {
            if *divides
                && run.is_between_blocks()
                && let Some(parts) = parallel::parts(run, &constants, shared.memory)
            {
                *divides = false;
                if let Err(violation) = parallel::divide(run, &constants, shared, &parts) {
                    progress = Err(violation);
                    break;
                }
            }
            progress = run.round(&constants, shared);
            if !matches!(progress, Ok(Progress::Runs | Progress::Spins)) {
                break;
            }
        }
        *spins = matches!(progress, Ok(Progress::Spins));
        progress.map_err(|violation| self.fault(kernel, *violation))
    }

    /// Returns the fault of a launch that waits for an event that never happens.
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

    /// Returns the cost of a launch that has ended.
    pub fn report(&self, kernel: LaunchKernel<'_>, memory: &Memory) -> CostReport {
        report(kernel.module, kernel.program, &self.run.meter, memory.distinct_sectors())
    }

    /// Returns the accesses of its threads, and everything ordered before them, for threads that come after the launch.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arg::Arg;
    use crate::device::{EmulatedDevice, kernel};
    use crate::module::PtxModule;

    /// Returns whether a round begins in the first half of the grid and ends at the end of the grid.
    ///
    /// With `apart` 1, each block stores to its own sector. With 0, all blocks store to the same place.
    fn leaps(cores: usize, apart: u32) -> bool {
        let text =
            ".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry k(.param .u64 out, .param .u32 apart) {
            .reg .pred %p; .reg .b32 %r<4>; .reg .b64 %d<2>;
            mov.u32 %r0, 1000;
            again: sub.u32 %r0, %r0, 1; setp.ne.u32 %p, %r0, 0; @%p bra again;
            ld.param.u64 %d0, [out]; ld.param.u32 %r1, [apart]; mov.u32 %r2, %ctaid.x; mul.lo.u32 %r1, %r1, %r2;
            mul.wide.u32 %d1, %r1, 32; add.u64 %d0, %d0, %d1; ld.global.u32 %r3, [%d0]; add.u32 %r3, %r3, 1;
            st.global.u32 [%d0], %r3; ret; }";
        let module = PtxModule::parse(text).unwrap();
        let mut device = EmulatedDevice::new();
        let out = device.alloc_from("out", &[0; 400 * 32]);
        let kernel = kernel(&module, "k").unwrap();
        let config = LaunchConfig { grid: [400, 1, 1], block: [32, 1, 1], dynamic_shared: 0, cluster: [1; 3] };
        let options = LaunchOptions { cores, check_global_races: false, ..LaunchOptions::default() };
        let arguments = [Arg::Ptr(out), Arg::U32(apart)];
        let mut launch = device.begin(kernel, config, &options, &arguments, LaunchPlace::default()).unwrap();
        let (mut leaps, mut before) = (false, 0);
        loop {
            let mut shared = Shared { memory: &mut device.memory, releases: &mut device.releases };
            let progress = launch.advance(kernel, &mut shared, 1).unwrap();
            leaps |= before < 200 && launch.run.started == 400;
            before = launch.run.started;
            if progress == Progress::Ended {
                break;
            }
        }
        let sum = |bytes: Vec<u8>| bytes.iter().map(|&byte| u32::from(byte)).sum::<u32>();
        assert_eq!(sum(device.read(out, 400 * 32).unwrap()), if apart == 0 { 400 / 256 + 400 % 256 } else { 400 });
        leaps
    }

    #[test]
    fn blocks_run_ahead_unless_they_share_memory() {
        assert_eq!([leaps(1, 1), leaps(2, 1), leaps(4, 1)], [false, true, true]);
        assert_eq!([leaps(1, 0), leaps(2, 0), leaps(4, 0)], [false; 3]);
    }
}
