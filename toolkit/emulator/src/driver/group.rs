//! Contexts that can reach each other's memory: they share addresses and one lock.
//!
//! A context is alone in its group until it gets access to another's memory. Host threads call the driver one at a time;
//! while a thread waits for work it does that work, and that of the others where a launch waits for one of theirs.

use super::context::DriverContext;
use super::notice::{self, Notice};
use super::queue::{QueuedWork, StreamId};
use super::result_code::{Result, ResultCode};
use super::work::{LaunchRequest, Work};
use crate::device::EmulatedDevice;
use crate::exec::{Orders, RunningLaunch, forget_wait, join_others};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Contexts under one lock.
#[derive(Default)]
pub(super) struct Group {
    state: Mutex<GroupState>,
    /// Something was queued, or is over.
    pub changed: Condvar,
    /// Host threads that want the lock.
    wanted: AtomicUsize,
}

/// A launch that has begun.
pub(super) struct RunningWork {
    /// The number of its context.
    pub context: u32,
    pub item: QueuedWork<()>,
    pub request: LaunchRequest,
    pub launch: RunningLaunch,
    /// Instructions that it had executed when last something began or ended in the group, and how often it had accessed
    /// memory then as threads do that wait for others.
    pub at_event: (u64, u64),
    /// When it began as its stream sees it, and how long it has run since.
    pub began: Instant,
    pub busy: Duration,
}

/// A launch that is over.
#[derive(Clone, Copy)]
pub(super) struct LastLaunch {
    /// The number of its context.
    context: u32,
    stream: StreamId,
    /// The number of the first work that was asked for after it was over.
    next: u64,
}

/// A thread of the host that waits for work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Waiting {
    /// The number of its context.
    pub context: u32,
    /// The number of the last piece of work that it waits for.
    pub last: u64,
}

/// What the contexts of a group share.
#[derive(Default)]
pub(super) struct GroupState {
    /// By their numbers.
    pub contexts: BTreeMap<u32, DriverContext>,
    /// The memory of all, in which each is a device.
    pub device: EmulatedDevice,
    /// Launches that have begun and are not over.
    pub running: Vec<RunningWork>,
    /// Blocks of the launches that have begun since none was running.
    pub blocks: u32,
    /// What was done last, if that is a launch that a dependent one may follow.
    pub last: Option<LastLaunch>,
    /// What decides which launch goes on.
    pub orders: Orders,
    /// Host threads that wait for work.
    pub waiting: Vec<Waiting>,
    /// Whether one of them, which has let go of the lock for now, does the work.
    pub is_stepping: bool,
}

impl Group {
    /// A group of one context.
    pub fn of(id: u32, context: DriverContext) -> Arc<Self> {
        let device = EmulatedDevice::at(id.into());
        let state = GroupState { contexts: BTreeMap::from([(id, context)]), device, ..GroupState::default() };
        Arc::new(Self { state: Mutex::new(state), ..Self::default() })
    }

    /// Waits for the lock.
    pub fn lock(&self) -> MutexGuard<'_, GroupState> {
        self.wanted.fetch_add(1, Ordering::Relaxed);
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        self.wanted.fetch_sub(1, Ordering::Relaxed);
        state
    }

    /// Whether another thread wants the lock.
    pub fn is_wanted(&self) -> bool {
        self.wanted.load(Ordering::Relaxed) != 0
    }

    /// Does away with a context and its memory.
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
        // A thread that waits may be in a call for this context. Then only its name is left of it.
        if state.waiting.is_empty() {
            state.contexts.remove(&id);
        }
        self.changed.notify_all();
    }

    /// Takes over all contexts of another group. Fails if a launch is running in it, or if addresses would mean two things.
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
    /// Whether there are several contexts.
    pub fn is_company(&self) -> bool {
        self.contexts.len() > 1
    }

    /// Whether a thread must go on waiting: its context has not failed, and its work is not over. One that need not may not
    /// have heard of it yet.
    pub fn must_wait(&self, Waiting { context, last }: Waiting) -> bool {
        let Some(of) = self.contexts.get(&context).filter(|of| of.failed.is_none()) else { return false };
        of.due.front().is_some_and(|item| item.seq() <= last)
            || self.running_of(context).any(|running| running.item.seq() <= last)
    }

    /// The launches of a context that are running.
    pub fn running_of(&self, context: u32) -> impl Iterator<Item = &RunningWork> {
        self.running.iter().filter(move |running| running.context == context)
    }

    /// Notes that something began or ended, so that what waits may go on.
    pub fn note_event(&mut self) {
        for running in &mut self.running {
            running.at_event = running.launch.effort();
        }
    }

    /// Ends a context: its work is dropped, and every later call gets the fault's code.
    pub fn fail(&mut self, id: u32, mut fault: Box<crate::fault::Fault>) {
        let several = self.is_company();
        let Some(context) = self.contexts.get_mut(&id) else { return };
        fault.device = several.then_some(context.ordinal);
        notice::tell(Notice::Fault(&fault));
        context.queue.clear();
        context.due.clear();
        context.failed = Some(ResultCode::of_fault(fault.kind));
        context.fault = Some(fault);
        self.running.retain(|running| running.context != id);
        if self.running.is_empty() {
            self.forget_launches();
        }
        self.note_event();
    }

    /// Takes a launch out that has ended, and lets later ones of its context come after it.
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
            self.forget_launches();
        }
        self.note_event();
        ended
    }

    /// Whether a dependent launch, were it not for its waits, might have begun before the launch ahead of it was over: nothing else lies
    /// between them, and it was asked for before that one was over. With several contexts or streams at work it is taken for one
    /// that begins after all before it.
    pub fn follows_launch(&self, context: u32, item: &QueuedWork<()>) -> bool {
        let follows =
            |last: LastLaunch| last.context == context && last.stream == item.stream() && item.seq() < last.next;
        !self.is_company() && self.running.is_empty() && self.last.is_some_and(follows)
    }

    /// When work of a context begins, as its stream sees it.
    pub fn start_of<W>(&self, context: u32, item: &QueuedWork<W>) -> Instant {
        self.contexts.get(&context).map_or_else(Instant::now, |context| context.timeline.start(item))
    }

    /// Notes when work of a context is over, as its stream sees it.
    pub fn note_done<W>(&mut self, id: u32, item: &QueuedWork<W>, at: Instant) {
        let is_idle = self.running_of(id).next().is_none();
        if let Some(context) = self.contexts.get_mut(&id) {
            context.timeline.end(item, at);
            if is_idle && context.queue.is_empty() && context.due.is_empty() {
                context.timeline.forget();
            }
        }
    }

    /// Forgets how launches are ordered that are over.
    fn forget_launches(&mut self) {
        self.blocks = 0;
        self.contexts.values_mut().for_each(|context| context.before = None);
    }

    /// Takes out work of a context that can begin now.
    pub fn next_ready(&mut self, id: u32) -> Option<QueuedWork<Work>> {
        let running: Vec<QueuedWork<()>> = self.running_of(id).map(|running| running.item.clone()).collect();
        let context = self.contexts.get_mut(&id)?;
        match context.due.front() {
            Some(item) if item.waits_for(&running) => None,
            Some(_) => context.due.pop_front(),
            None => context.queue.take_ready(&running),
        }
    }
}
