//! Changes to the adapters on the device, before a step computes.

use super::AdapterHandle;

/// A change to one of the device's slots for adapters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AdapterChange {
    /// Copies an adapter to an empty slot.
    Load {
        /// The slot.
        slot: u32,
        /// The adapter.
        adapter: AdapterHandle,
    },
    /// Empties a slot.
    Drop {
        /// The slot.
        slot: u32,
    },
}
