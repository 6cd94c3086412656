//! Blocks that hold states of recurrent layers. Few of a text's states are kept, and only if there is memory.

use super::blocks::Blocks;
use super::pages::Value;
use crate::kv::log::BlockEvent;
use crate::kv::prefix::{PrefixId, Text};

/// At least one in this many pages stays without references if a state is kept that no sequence needs.
const SPARE_PARTS: usize = 32;

impl Blocks {
    /// Allocates a block for a state that no sequence needs, if there is room beyond the announced allocations. A state
    /// that is not valuable takes no block with valuable contents.
    pub fn allocate_spare(&mut self, group: usize, is_valuable: bool) -> Option<u32> {
        let before = self.claims;
        self.claims.add(group, 1);
        if (is_valuable || self.is_next_cheap(group)) && self.fits(&self.claims, self.pages.len() / SPARE_PARTS) {
            return self.allocate(group);
        }
        self.claims = before;
        None
    }

    /// Whether the block that a group would allocate next has no contents, or only such as a window has left behind.
    fn is_next_cheap(&self, group: usize) -> bool {
        let own = &self.groups[group];
        let in_pages = own.cached_in_pages.first().map(|(worth, _)| worth.value);
        self.groups.len() > 1
            && (own.free.len() > 0
                || in_pages == Some(Value::Low)
                || self.pages.next_age().is_none_or(|(value, _)| value == Value::Low))
    }

    /// Whether a lookup has found a block.
    pub fn was_found(&self, group: usize, block: u32) -> bool {
        self.groups[group].worth.get(block as usize).is_some_and(|worth| worth.was_found)
            && self.prefix(group, block).is_some()
    }

    /// Empties a block that only one table references, because it will hold a later state.
    pub fn renew(&mut self, group: usize, block: u32) {
        if self.registered.remove(group, block).is_some() {
            self.record(group, BlockEvent::Evict(block));
        }
        self.unfill(group, block, 0);
    }

    /// Registers a block under a prefix that another group has registered.
    pub fn register_known(&mut self, group: usize, block: u32, text: &Text<'_>) {
        if let Some(prefix) = self.known(text) {
            self.register_prefix(group, block, &prefix);
        }
    }

    /// Gives a cached block of `prefix` another value. With `None`, drops its contents if they are worth little. Does
    /// nothing if the block is in use or holds another prefix.
    pub fn revalue(&mut self, group: usize, block: u32, prefix: Option<PrefixId>, value: Option<Value>) {
        let is_same = prefix.is_some() && self.prefix(group, block).map(|own| own.id()) == prefix;
        let is_low = self.groups[group].worth.get(block as usize).is_some_and(|worth| worth.value == Value::Low);
        if !is_same || self.num_refs(group, block) > 0 || (value.is_none() && !is_low) {
            return;
        }
        self.acquire(group, block);
        if value.is_none() {
            self.renew(group, block);
        }
        self.release_as(group, block, value.unwrap_or_default());
    }
}
