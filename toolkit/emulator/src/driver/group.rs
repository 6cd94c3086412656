//! Groups of contexts that can access each other's memory. A group shares one address space and one lock.
//!
//! A context is alone in its group until it gets access to another context's memory. Host threads call the driver one
//! at a time. A thread that waits for work executes it, along with work of other contexts that a launch of the group
//! may be waiting for.

use super::context::DriverContext;
use super::notice::{self, Notice};
use super::queue::{QueuedWork, StreamId};
use super::result_code::{Result, ResultCode};
use super::work::{LaunchRequest, Work};
use crate::device::EmulatedDevice;
use crate::exec::{RunningLaunch, forget_wait, join_others};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// A group of contexts under one lock.
#[derive(Default)]
pub(super) struct Group {
    state: Mutex<GroupState>,
    /// Signals that work was queued or has ended.
    pub changed: Condvar,
    /// The number of host threads that wait for the lock.
    wanted: AtomicUsize,
}

/// A launch that has begun.
pub(super) struct RunningWork {
    /// The id of its context.
    pub context: u32,
    pub item: QueuedWork<()>,
    pub request: LaunchRequest,
    pub launch: RunningLaunch,
    /// The launch's counts of warp instructions and strong memory accesses when work last began or ended in the group.
    pub at_event: (u64, u64),
    /// When the launch began on its stream's timeline.
    pub began: Instant,
    pub busy: Duration,
}

/// The launch that ended last.
#[derive(Clone, Copy)]
pub(super) struct LastLaunch {
    /// The id of its context.
    context: u32,
    stream: StreamId,
    /// The sequence number of the first work submitted after the launch ended.
    next: u64,
}

/// A host thread that waits for work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Waiting {
    /// The id of its context.
    pub context: u32,
    /// The sequence number of the last work item it waits for.
    pub last: u64,
}

/// The state that the contexts of a group share.
#[derive(Default)]
pub(super) struct GroupState {
    /// The contexts by id.
    pub contexts: BTreeMap<u32, DriverContext>,
    /// The memory of all contexts. Each context is one device in it.
    pub device: EmulatedDevice,
    /// Launches that have begun and not ended.
    pub running: Vec<RunningWork>,
    /// The number of blocks begun since no launch was running.
    pub blocks: u32,
    /// The last launch, if no other work has executed since.
    pub last: Option<LastLaunch>,
    /// The state of the random numbers that choose which launch runs next.
    pub random: u64,
    /// Host threads that wait for work.
    pub waiting: Vec<Waiting>,
    /// Whether a waiting thread that has released the lock for a moment is executing the work.
    pub is_stepping: bool,
}

impl Group {
    /// Creates a group of one context.
    pub fn with_context(id: u32, context: DriverContext) -> Arc<Self> {
        let device = EmulatedDevice::at(id.into());
        let state = GroupState { contexts: BTreeMap::from([(id, context)]), device, ..GroupState::default() };
        Arc::new(Self { state: Mutex::new(state), ..Self::default() })
    }

    /// Locks the group, counting the caller as waiting until it has the lock.
    pub fn lock(&self) -> MutexGuard<'_, GroupState> {
        self.wanted.fetch_add(1, Ordering::Relaxed);
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        self.wanted.fetch_sub(1, Ordering::Relaxed);
        state
    }

    /// Whether another thread waits for the lock.
    pub fn is_wanted(&self) -> bool {
        self.wanted.load(Ordering::Relaxed) != 0
    }

    /// Removes a context and its memory.
    pub fn remove(&self, id: u32) {
        let mut state = self.lock();
        let Some(context) = state.contexts.get_mut(&id) else { return };
        let member = context.member;
        context.queue.clear();
        context.due.clear();
        context.failed = Some(ResultCode::InvalidContext);
        state.running.retain(|running| running.context != id);
        state.device.memory.clear(member);
        state.note_event();
        // A waiting thread may be in a call for this context, so its entry must stay while any thread waits.
        if state.waiting.is_empty() {
            state.contexts.remove(&id);
        }
        self.changed.notify_all();
    }

    /// Moves all contexts of another group into this one and returns their ids. Fails if a launch is running or a
    /// thread is waiting in the other group, or if the address ranges of the groups overlap.
    pub fn absorb(&self, other: &Group) -> Result<Vec<u32>> {
        let (mut own, mut theirs) = (self.lock(), other.lock());
        if !theirs.running.is_empty() || !theirs.waiting.is_empty() {
            return Err(ResultCode::NotReady);
        }
        if own.device.memory.overlaps(&theirs.device.memory) {
            return Err(ResultCode::NotSupported);
        }
        let first = own.device.memory.devices();
        own.device.absorb(std::mem::take(&mut theirs.device));
        let contexts = std::mem::take(&mut theirs.contexts);
        let ids = contexts.keys().copied().collect();
        own.contexts.extend(contexts.into_iter().map(|(id, mut context)| {
            context.member += first;
            (id, context)
        }));
        Ok(ids)
    }
}

impl GroupState {
    /// Whether the group has several contexts.
    pub fn is_shared(&self) -> bool {
        self.contexts.len() > 1
    }

    /// Whether a thread must keep waiting: its context has not failed and its work has not ended.
    pub fn must_wait(&self, Waiting { context, last }: Waiting) -> bool {
        let Some(state) = self.contexts.get(&context).filter(|state| state.failed.is_none()) else { return false };
        state.due.front().is_some_and(|item| item.seq() <= last)
            || self.running_in(context).any(|running| running.item.seq() <= last)
    }

    /// The running launches of a context.
    pub fn running_in(&self, context: u32) -> impl Iterator<Item = &RunningWork> {
        self.running.iter().filter(move |running| running.context == context)
    }

    /// Records that work began or ended, which resets the deadlock counters of all running launches.
    pub fn note_event(&mut self) {
        for running in &mut self.running {
            running.at_event = running.launch.effort();
        }
    }

    /// Fails a context with a fault. Its queued work is dropped, and every later call returns the fault's code.
    pub fn fail(&mut self, id: u32, mut fault: Box<crate::fault::Fault>) {
        let several = self.is_shared();
        let Some(context) = self.contexts.get_mut(&id) else { return };
        fault.device = several.then_some(context.ordinal);
        notice::notify(Notice::Fault(&fault));
        context.queue.clear();
        context.due.clear();
        context.failed = Some(ResultCode::from_fault(fault.kind));
        context.fault = Some(fault);
        self.running.retain(|running| running.context != id);
        if self.running.is_empty() {
            self.clear_launch_order();
        }
        self.note_event();
    }

    /// Removes a launch that has ended, and orders later launches of its context after it.
    pub fn end(&mut self, index: usize) -> RunningWork {
        let ended = self.running.remove(index);
        self.last = self.contexts.get(&ended.context).map(|context| LastLaunch {
            context: ended.context,
            stream: ended.item.stream(),
            next: context.queue.next(),
        });
        self.note_done(ended.context, &ended.item, ended.began + ended.busy);
        if let (Some(handed_on), Some(context)) = (ended.launch.handed_on(), self.contexts.get_mut(&ended.context)) {
            let before = context.before.get_or_insert_default();
            join_others(before, handed_on);
            forget_wait(before);
        }
        if self.running.is_empty() {
            self.clear_launch_order();
        }
        self.note_event();
        ended
    }

    /// Whether a dependent launch could have overlapped the launch before it: no other work ran between them, and it
    /// was submitted before that launch ended. With several contexts, or while another launch is running, returns
    /// false: the launch is then treated as starting after all earlier work.
    pub fn follows_launch(&self, context: u32, item: &QueuedWork<()>) -> bool {
        let follows =
            |last: LastLaunch| last.context == context && last.stream == item.stream() && item.seq() < last.next;
        !self.is_shared() && self.running.is_empty() && self.last.is_some_and(follows)
    }

    /// The time when work of a context begins on its stream's timeline.
    pub fn start_of<W>(&self, context: u32, item: &QueuedWork<W>) -> Instant {
        self.contexts.get(&context).map_or_else(Instant::now, |context| context.timeline.start(item))
    }

    /// Records the time when work of a context ends on its stream's timeline.
    pub fn note_done<W>(&mut self, id: u32, item: &QueuedWork<W>, at: Instant) {
        let is_idle = self.running_in(id).next().is_none();
        if let Some(context) = self.contexts.get_mut(&id) {
            context.timeline.end(item, at);
            if is_idle && context.queue.is_empty() && context.due.is_empty() {
                context.timeline.clear();
            }
        }
    }

    /// Drops the ordering information of past launches. Called when no launch is running.
    fn clear_launch_order(&mut self) {
        self.blocks = 0;
        self.contexts.values_mut().for_each(|context| context.before = None);
    }

    /// Takes the next work of a context that can begin now.
    pub fn next_ready(&mut self, id: u32) -> Option<QueuedWork<Work>> {
        let running: Vec<QueuedWork<()>> = self.running_in(id).map(|running| running.item.clone()).collect();
        let context = self.contexts.get_mut(&id)?;
        match context.due.front() {
            Some(item) if item.waits_for(&running) => None,
            Some(_) => context.due.pop_front(),
            None => context.queue.take_ready(&running),
        }
    }
}
