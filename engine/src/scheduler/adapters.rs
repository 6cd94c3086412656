//! Adapters of groups. A running group leases its adapter, and an adapter without leases is idle. Idle adapters are
//! evicted in the order of cached blocks when memory is needed, so they never keep a group from running.

use std::collections::BTreeSet;

use super::{Scheduler, Step};
use crate::adapter::AdapterChange;
use crate::group::SequenceGroup;
use crate::load::adapter::AdapterDigest;

impl Scheduler {
    /// The pages without references that a waiting group takes for its adapter.
    pub(super) fn adapter_pages(&self, group: &SequenceGroup) -> usize {
        let adapter = group.params.adapter.as_ref();
        adapter.map_or(0, |adapter| self.pool.pages_to_lease(adapter.digest(), adapter.pages()))
    }

    /// Whether a step may have a waiting group's adapter in addition to the adapters of running groups.
    pub(super) fn has_adapter_left(&self, group: &SequenceGroup) -> bool {
        self.have_adapters_left(group.params.adapter.iter().map(|adapter| *adapter.digest()))
    }

    /// Whether a step may have these adapters in addition to the adapters of running groups.
    pub(super) fn have_adapters_left(&self, wanted: impl IntoIterator<Item = AdapterDigest>) -> bool {
        let mut all: BTreeSet<AdapterDigest> = wanted.into_iter().collect();
        if all.is_empty() {
            return true;
        }
        let running = self.running.iter().filter_map(|group| group.params.adapter.as_ref());
        all.extend(running.map(|adapter| *adapter.digest()));
        all.len() <= self.options.max_loras
    }

    /// Leases the adapter of a group that is admitted. Loads it if it is not loaded. Returns false if there is no memory
    /// for it.
    pub(super) fn lease_adapter(&mut self, group: &mut SequenceGroup, step: &mut Step) -> bool {
        let Some(adapter) = &group.params.adapter else { return true };
        group.lease = self.pool.lease(adapter.digest());
        if group.lease.is_none() {
            group.lease = self.pool.load_adapter(*adapter.digest(), adapter.pages());
            self.drop_evicted(step);
            let load = |slot| AdapterChange::Load { slot, adapter: adapter.clone() };
            step.adapters.extend(group.lease.as_ref().map(|lease| load(lease.slot())));
        }
        group.lease.is_some()
    }

    /// Drops the adapters that were evicted so far from the device.
    pub(super) fn drop_evicted(&self, step: &mut Step) {
        let evicted = self.pool.take_evicted_adapters();
        step.adapters.extend(evicted.into_iter().map(|slot| AdapterChange::Drop { slot }));
    }
}
