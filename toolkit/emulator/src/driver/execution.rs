//! Executes queued stream work while a host thread waits for its result.

use super::current;
use super::event::Recorded;
use super::group::{RunningWork, Waiting};
use super::host::mapped_memory;
use super::host_call;
use super::launch_report::LaunchReport;
use super::pools;
use super::queue::{QueuedWork, Until};
use super::result_code::Result;
use super::session::Session;
use super::work::{LaunchRequest, UploadSource, Work};
use crate::device::{MemoryError, kernel};
use crate::exec::{LaunchConfig, LaunchPlace, Progress, Shared, cluster_of};
use crate::fault::{Fault, FaultKind};
use crate::launch_options::LaunchOptions;
use crate::memory::DeviceAddress;
use std::sync::PoisonError;
use std::time::{Duration, Instant};

/// Rounds that a launch runs per turn when its context is alone in the group.
const ROUNDS_ALONE: usize = 4096;
/// The most rounds that a launch runs per turn when the group has several contexts.
const ROUNDS_SHARED: u64 = 4;
/// Turns that other launches get for each turn of a launch that only spins.
const SPIN_INTERVAL: u64 = 8;
/// How long a host thread waits for others to queue work before spinning launches run again.
const NAP: Duration = Duration::from_millis(1);
/// Warp instructions and strong memory accesses after which a spinning launch counts as deadlocked, if no thread can
/// queue more work.
const DEADLOCK_EFFORT: (u64, u64) = (1 << 20, 1 << 10);

type Executed<T> = std::result::Result<T, Box<Fault>>;

impl Session<'_> {
    /// Executes queued work until the work that `until` selects is done.
    pub fn run(&mut self, until: Until) -> Result<()> {
        self.healthy()?;
        let taken = self.queue.take(until);
        self.due.extend(taken);
        let (id, due) = (self.id, self.due.iter());
        let named = due.filter(|item| until.matches(item)).map(QueuedWork::seq);
        let running = self.state().running_in(id).filter(|running| until.matches(&running.item));
        let Some(last) = named.chain(running.map(|running| running.item.seq())).max() else { return Ok(()) };
        let own = Waiting { context: id, last };
        self.state_mut().waiting.push(own);
        let mut stuck_since = None;
        while self.state().must_wait(own) {
            self.step(&mut stuck_since);
        }
        let waiting = &mut self.state_mut().waiting;
        if let Some(at) = waiting.iter().position(|waiting| *waiting == own) {
            waiting.swap_remove(at);
        }
        self.healthy()
    }

    /// Whether any work that `until` selects is unfinished.
    pub fn is_pending(&self, until: Until) -> bool {
        self.queue.is_pending(until)
            || self.due.iter().any(|item| until.matches(item))
            || self.state().running_in(self.id).any(|running| until.matches(&running.item))
    }

    /// Makes one step of progress in the group, or waits if no progress is possible. `stuck_since` is the time since
    /// which all launches have spun.
    fn step(&mut self, stuck_since: &mut Option<Instant>) {
        let (id, group) = (self.id, self.group);
        let nap = |state| group.changed.wait_timeout(state, NAP).unwrap_or_else(PoisonError::into_inner).0;
        if self.state().is_stepping {
            // Another thread does the work.
            return self.release(nap);
        }
        if let Some(item) = (!self.due.is_empty()).then(|| self.state_mut().next_ready(id)).flatten() {
            *stuck_since = None;
            return self.begin(id, item);
        }
        let spins = self.advance();
        if !self.state().is_shared() {
            return;
        }
        let begun = (spins || self.is_eager()) && self.begin_another();
        if begun || !spins {
            *stuck_since = None;
        } else if self.all_spin() && self.is_deadlocked(stuck_since) {
            self.give_up();
        } else if self.all_spin() && !self.all_wait() {
            self.state_mut().is_stepping = true;
            self.release(nap);
            self.state_mut().is_stepping = false;
        }
        if group.is_wanted() {
            self.state_mut().is_stepping = true;
            self.release(|state| {
                drop(state);
                while group.is_wanted() {
                    std::thread::yield_now();
                }
                group.lock()
            });
            self.state_mut().is_stepping = false;
        }
    }

    /// Runs a launch for a few rounds. Returns true if the launch only spun, or if no launch is running.
    fn advance(&mut self) -> bool {
        let state = self.state_mut();
        let is_shared = state.is_shared();
        let count = state.running.len();
        if count == 0 {
            return true;
        }
        let choice = splitmix::next(&mut state.random);
        let (index, rounds) = if is_shared {
            let first = (choice >> 8) as usize % count;
            let spinners_may_run = (choice >> 4).is_multiple_of(SPIN_INTERVAL);
            let may_run = |index: &usize| spinners_may_run || !state.running[*index].launch.spins();
            let index = (first..first + count).map(|index| index % count).find(may_run).unwrap_or(first);
            (index, 1 + (choice % ROUNDS_SHARED) as usize)
        } else {
            (count - 1, ROUNDS_ALONE)
        };
        let running = &mut state.running[index];
        let before = Instant::now();
        let advanced = kernel(&running.request.module, &running.request.kernel).and_then(|kernel| {
            let mut shared = Shared { memory: &mut state.device.memory, releases: &mut state.device.releases };
            running.launch.advance(kernel, &mut shared, rounds)
        });
        running.busy += before.elapsed();
        match advanced {
            Ok(Progress::Ended) => {
                self.end(index);
                false
            }
            Ok(Progress::Spins) => true,
            Ok(Progress::Runs) => {
                state.note_event();
                false
            }
            Err(fault) => {
                let context = running.context;
                state.fail(context, fault);
                false
            }
        }
    }

    /// Ends a launch and stores its report if the context collects reports.
    fn end(&mut self, index: usize) {
        let state = self.state_mut();
        let RunningWork { context, request, launch, .. } = state.end(index);
        let Ok(kernel) = kernel(&request.module, &request.kernel) else { return };
        if let Some(reports) = state.contexts.get_mut(&context).and_then(|context| context.reports.as_mut()) {
            let LaunchRequest { kernel: name, grid, block, dynamic_shared, dependent, .. } = request;
            let report = launch.report(kernel, &state.device.memory);
            reports.push(LaunchReport { kernel: name, grid, block, dynamic_shared, dependent, report });
        }
    }

    /// Begins ready work of any context in the group, including this one. Returns false if none is ready.
    fn begin_another(&mut self) -> bool {
        let state = self.state_mut();
        let mut ids: Vec<u32> = state.contexts.keys().copied().collect();
        splitmix::shuffle(&mut state.random, &mut ids);
        for id in ids {
            if let Some(item) = self.state_mut().next_ready(id) {
                self.begin(id, item);
                return true;
            }
        }
        false
    }

    /// Whether work of other contexts begins although no thread waits for it yet. Random orders (a nonzero seed) do
    /// this in one of eight turns.
    fn is_eager(&mut self) -> bool {
        self.launch_options.seed != 0 && splitmix::next(&mut self.state_mut().random).is_multiple_of(8)
    }

    /// Whether every running launch only spins.
    fn all_spin(&self) -> bool {
        self.state().running.iter().all(|running| running.launch.spins())
    }

    /// Whether the spinning launches can no longer make progress: no host thread is left to queue what they wait for,
    /// or the patience of the device options is over.
    fn is_deadlocked(&self, stuck_since: &mut Option<Instant>) -> bool {
        let state = self.state();
        let since = *stuck_since.get_or_insert_with(Instant::now);
        let waits_long = |running: &RunningWork| {
            let ((executed, polls), (then, polls_then)) = (running.launch.effort(), running.at_event);
            executed - then > DEADLOCK_EFFORT.0 && polls - polls_then > DEADLOCK_EFFORT.1
        };
        since.elapsed() > self.device_options.patience || state.running.iter().all(waits_long) && self.all_wait()
    }

    /// Whether every host thread with a context of this group is waiting and cannot queue more work.
    fn all_wait(&self) -> bool {
        let state = self.state();
        let waiting = state.waiting.iter().filter(|&&waiting| state.must_wait(waiting)).count();
        waiting >= current::threads_of(state.contexts.keys())
    }

    /// Fails every context with a running launch. Called when all of them spin.
    fn give_up(&mut self) {
        let state = self.state_mut();
        while let Some(running) = state.running.first() {
            let message = "waits for a write by another device, but no remaining work can make it".to_string();
            let fault = match kernel(&running.request.module, &running.request.kernel) {
                Ok(kernel) => running.launch.endless(kernel, message),
                Err(fault) => fault,
            };
            let context = running.context;
            state.fail(context, fault);
        }
    }

    /// Begins work of a context. A launch continues in later steps. All other work completes here.
    fn begin(&mut self, context: u32, item: QueuedWork<Work>) {
        self.state_mut().note_event();
        let began = self.state().start_of(context, &item);
        let (place, work) = item.parts();
        let begun = match work {
            Work::Launch(request) => self.begin_launch(context, (place, began), request),
            work => {
                let before = Instant::now();
                let executed = self.execute(context, (place.seq(), began), work);
                self.state_mut().note_done(context, &place, began + before.elapsed());
                executed
            }
        };
        if let Err(fault) = begun {
            self.state_mut().fail(context, fault);
        }
    }

    fn begin_launch(
        &mut self,
        id: u32,
        (item, began): (QueuedWork<()>, Instant),
        request: LaunchRequest,
    ) -> Executed<()> {
        let state = self.state_mut();
        let in_company = state.is_shared();
        let Some(context) = state.contexts.get(&id) else { return Ok(()) };
        let early = !context.launch_options.early_accesses || state.follows_launch(id, &item);
        let options = LaunchOptions {
            cluster: request.cluster,
            dependent: request.dependent && early,
            ..context.launch_options.clone()
        };
        let options = &options;
        if state.running.is_empty() {
            state.random = options.seed;
        }
        state.device.memory.map_host(&mapped_memory(|owner| state.contexts.contains_key(&owner)));
        let place = LaunchPlace {
            device: context.member,
            first_block: state.blocks,
            before: context.before.clone(),
            in_company,
        };
        let kernel = kernel(&request.module, &request.kernel)?;
        let LaunchRequest { grid, block, dynamic_shared, .. } = request;
        let cluster = cluster_of(kernel.entry, request.cluster);
        let config = LaunchConfig { grid, block, dynamic_shared, cluster };
        let launch = state.device.begin(kernel, config, options, &request.args, place)?;
        state.blocks = state.blocks.wrapping_add(config.blocks() as u32);
        state.running.push(RunningWork {
            context: id,
            item,
            request,
            launch,
            at_event: (0, 0),
            began,
            busy: Duration::ZERO,
        });
        Ok(())
    }

    fn execute(&mut self, id: u32, (seq, began): (u64, Instant), work: Work) -> Executed<()> {
        let wrong = |call: &str| {
            let call = call.to_string();
            move |error: MemoryError| Fault::of_call(FaultKind::OutOfBounds, &call, error.to_string())
        };
        let state = self.state_mut();
        if !matches!(work, Work::Record { .. } | Work::Wait) {
            state.last = None;
        }
        let Some(context) = state.contexts.get_mut(&id) else { return Ok(()) };
        let device = &mut state.device;
        device.memory.enter(context.member);
        match work {
            Work::Upload { to, from: UploadSource::Staged(bytes) } => {
                device.write(to, &bytes).map_err(wrong("copy to the device"))?;
            }
            Work::Upload { to, from: UploadSource::Pinned(bytes) } => {
                device.write(to, &bytes.read()).map_err(wrong("copy to the device"))?;
            }
            Work::Download { from, to } => {
                let options = &context.launch_options;
                let check_initialised = options.check_initialised && options.check_copies;
                device.fetch(from, to.len());
                to.write(&self.download(from, to.len(), check_initialised)?);
            }
            Work::PeerCopy { to: (there, to), from: (here, from), bytes } => {
                let member = |id| state.contexts.get(&id).map(|context| context.member);
                let (Some(there), Some(here)) = (member(there), member(here)) else { return Ok(()) };
                state.device.copy_between((there, to), (here, from), bytes).map_err(wrong("copy between devices"))?;
            }
            Work::Free { at } => {
                context.buffers.remove(&at);
                pools::note_freed(at);
                device.free(at).map_err(wrong("free of memory"))?;
            }
            Work::Copy { to, from, bytes } => device.copy(to, from, bytes).map_err(wrong("copy on the device"))?,
            Work::Fill { at, pattern, count } => device.write(at, &pattern.repeat(count)).map_err(wrong("fill"))?,
            Work::Record { event } => {
                if let Some(event) = context.events.get_mut(&event)
                    && matches!(event.recorded, Recorded::Queued(at) if at == seq)
                {
                    event.at = Some(began);
                }
            }
            Work::Wait | Work::Launch(_) => {}
            Work::Call { function, data } => {
                // SAFETY: only `cuLaunchHostFunc` creates this work. Its caller guarantees that the function may be
                // called with this data until the call is done.
                host_call::run(|| unsafe { function(std::ptr::with_exposed_provenance_mut(data)) });
            }
            Work::CallBack { function, stream, data } => {
                let stream = std::ptr::without_provenance_mut(stream);
                // SAFETY: only `cuStreamAddCallback` creates this work. Its caller guarantees that the function may be
                // called with this data until the call is done.
                host_call::run(|| unsafe { function(stream, 0, std::ptr::with_exposed_provenance_mut(data)) });
            }
        }
        Ok(())
    }

    fn download(&self, from: DeviceAddress, bytes: usize, check_initialised: bool) -> Executed<Vec<u8>> {
        let device = &self.state().device;
        let fault = |kind, error: MemoryError| Fault::of_call(kind, "copy to the host", error.to_string());
        device.check(from, bytes).map_err(|error| fault(FaultKind::OutOfBounds, error))?;
        if check_initialised {
            return device.read(from, bytes).map_err(|error| fault(FaultKind::Uninitialised, error));
        }
        device.read_any(from, bytes).map_err(|error| fault(FaultKind::OutOfBounds, error))
    }
}
