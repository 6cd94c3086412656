//! Adapters in the pool. The memory of a loaded adapter is counted in pages, which the pool takes out of use for blocks.
//!
//! ```text
//!   absent --- load ---> leased --- last lease is dropped ---> idle --- a page is needed ---> absent
//!                           ^                                   |
//!                           +------------- lease ---------------+
//! ```
//!
//! The pages of an idle adapter are in the list of cached pages, in the place of the time when it became idle. So it is
//! evicted in the same order as cached blocks, and as a whole.

use std::collections::HashMap;

use super::blocks::Blocks;
use super::pages::{NO_GROUP, Value};
use crate::load::adapter::AdapterDigest;

/// The loaded adapters, in slots.
#[derive(Debug, Default)]
pub struct Residents {
    slots: Vec<Option<Resident>>,
    by_digest: HashMap<AdapterDigest, u32>,
    /// The slot of the adapter that has a page.
    by_page: HashMap<u32, u32>,
    /// Slots whose adapters were evicted since the last [`Blocks::take_evicted_adapters`].
    evicted: Vec<u32>,
}

#[derive(Debug)]
struct Resident {
    digest: AdapterDigest,
    pages: Vec<u32>,
    /// The number of leases.
    leases: u32,
}

impl Residents {
    /// The pages of all adapters.
    pub fn num_pages(&self) -> usize {
        self.by_page.len()
    }

    /// The number of leases of the adapter that has a page. `None` if the page has no adapter.
    pub fn leases_of_page(&self, page: u32) -> Option<u32> {
        let slot = *self.by_page.get(&page)?;
        self.slots[slot as usize].as_ref().map(|resident| resident.leases)
    }

    /// The leases of each loaded adapter, by slot.
    pub fn leases(&self) -> impl Iterator<Item = (u32, u32)> {
        (0..).zip(&self.slots).filter_map(|(slot, resident)| Some((slot, resident.as_ref()?.leases)))
    }
}

impl Blocks {
    /// The free pages that a lease of an adapter of `pages` pages takes. 0 if it is leased already.
    pub fn pages_to_lease(&self, digest: &AdapterDigest, pages: usize) -> usize {
        let slot = self.residents.by_digest.get(digest);
        let resident = slot.and_then(|slot| self.residents.slots[*slot as usize].as_ref());
        if resident.is_some_and(|resident| resident.leases > 0) { 0 } else { pages }
    }

    /// Adds a lease of a loaded adapter and returns its slot. `None` if it is not loaded.
    pub fn lease(&mut self, digest: &AdapterDigest) -> Option<u32> {
        let slot = *self.residents.by_digest.get(digest)?;
        let resident = self.residents.slots[slot as usize].as_mut()?;
        if resident.leases == 0 {
            resident.pages.iter().for_each(|page| self.pages.reclaim(*page));
        }
        resident.leases += 1;
        Some(slot)
    }

    /// Takes `pages` pages for an adapter that is not loaded, with one lease. Returns its slot, or `None` if there are too
    /// few pages without references. Nothing is changed then.
    pub fn load_adapter(&mut self, digest: AdapterDigest, pages: usize) -> Option<u32> {
        if self.pages.num_free() < pages {
            return None;
        }
        let mut own = Vec::with_capacity(pages);
        for _ in 0..pages {
            let (page, cached) = self.pages.take(NO_GROUP)?;
            if let Some(group) = cached {
                self.vacate(page, group);
            }
            own.push(page);
        }
        let slots = &mut self.residents.slots;
        let at = slots.iter().position(Option::is_none).unwrap_or(slots.len());
        if at == slots.len() {
            slots.push(None);
        }
        let slot = at as u32;
        self.residents.by_page.extend(own.iter().map(|page| (*page, slot)));
        self.residents.by_digest.insert(digest, slot);
        self.residents.slots[at] = Some(Resident { digest, pages: own, leases: 1 });
        Some(slot)
    }

    /// Adds a lease of the adapter in a slot, which has one.
    pub fn share_lease(&mut self, slot: u32) {
        if let Some(resident) = &mut self.residents.slots[slot as usize] {
            resident.leases += 1;
        }
    }

    /// Drops a lease. Without leases the adapter is idle.
    pub fn end_lease(&mut self, slot: u32) {
        let Some(resident) = &mut self.residents.slots[slot as usize] else { return };
        resident.leases -= 1;
        if resident.leases == 0 {
            self.now += 1;
            let now = self.now;
            resident.pages.iter().for_each(|page| self.pages.release(*page, Some(Value::High), now));
        }
    }

    /// Empties a page that was taken out of the lists: evicts the blocks that `group` has there, or the adapter.
    pub(super) fn vacate(&mut self, page: u32, group: usize) {
        if let Some(slot) = self.residents.by_page.get(&page) {
            return self.evict_adapter(*slot, Some(page));
        }
        for block in self.groups[group].in_page(page) {
            self.evict(group, block);
        }
    }

    /// Evicts an idle adapter. Its pages become empty, except for `taken`, which is out of the lists.
    fn evict_adapter(&mut self, slot: u32, taken: Option<u32>) {
        let Some(resident) = self.residents.slots[slot as usize].take() else { return };
        self.residents.by_digest.remove(&resident.digest);
        self.residents.evicted.push(slot);
        for page in resident.pages {
            self.residents.by_page.remove(&page);
            if Some(page) != taken {
                self.pages.reclaim(page);
                self.pages.release(page, None, self.now);
            }
        }
    }

    /// Evicts all idle adapters.
    pub(super) fn evict_idle_adapters(&mut self) {
        let idle: Vec<u32> = self.residents.leases().filter(|(_, leases)| *leases == 0).map(|(slot, _)| slot).collect();
        idle.into_iter().for_each(|slot| self.evict_adapter(slot, None));
    }

    /// Returns the slots whose adapters were evicted since the last call, in order.
    pub fn take_evicted_adapters(&mut self) -> Vec<u32> {
        std::mem::take(&mut self.residents.evicted)
    }
}
