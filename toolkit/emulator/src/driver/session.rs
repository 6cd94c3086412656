//! A session: one driver call, with its context's group locked.

use super::context::DriverContext;
use super::group::{Group, GroupState};
use crate::device::EmulatedDevice;
use std::ops::{Deref, DerefMut};
use std::sync::MutexGuard;

/// A context for the duration of a call, with its group locked.
pub(super) struct Session<'a> {
    pub group: &'a Group,
    /// `None` only while a wait hands the lock to other threads.
    state: Option<MutexGuard<'a, GroupState>>,
    /// The id of the context.
    pub id: u32,
}

impl<'a> Session<'a> {
    /// Locks the group for a call to one of its contexts. Returns `None` if the context is not in the group.
    pub fn new(group: &'a Group, id: u32) -> Option<Self> {
        let state = group.lock();
        state.contexts.contains_key(&id).then_some(Self { group, state: Some(state), id })
    }

    pub fn state(&self) -> &GroupState {
        self.state.as_ref().unwrap_or_else(|| unreachable!("the lock is held but for `release`"))
    }

    pub fn state_mut(&mut self) -> &mut GroupState {
        self.state.as_mut().unwrap_or_else(|| unreachable!("the lock is held but for `release`"))
    }

    /// Gives the lock to other threads while `wait` runs. They do not remove the context, because this thread is
    /// registered as waiting.
    pub fn release(&mut self, wait: impl FnOnce(MutexGuard<'a, GroupState>) -> MutexGuard<'a, GroupState>) {
        self.state = self.state.take().map(wait);
    }

    /// The group's memory, set to access it as this context's device.
    pub fn device(&mut self) -> &mut EmulatedDevice {
        let member = self.member;
        let device = &mut self.state_mut().device;
        device.memory.enter(member);
        device
    }
}

impl Deref for Session<'_> {
    type Target = DriverContext;

    fn deref(&self) -> &DriverContext {
        &self.state().contexts[&self.id]
    }
}

impl DerefMut for Session<'_> {
    fn deref_mut(&mut self) -> &mut DriverContext {
        let id = self.id;
        self.state_mut()
            .contexts
            .get_mut(&id)
            .unwrap_or_else(|| unreachable!("`new` found it, and it stays while a thread waits"))
    }
}

impl Drop for Session<'_> {
    fn drop(&mut self) {
        if !self.state().waiting.is_empty() {
            self.group.changed.notify_all();
        }
    }
}
