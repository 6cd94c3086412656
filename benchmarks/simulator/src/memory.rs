//! The use of the memory for keys and values, in the categories of the paper's figure 2.

use serde_json::{Value, json};

/// Slots of the memory by use, at one moment or summed over time.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct MemoryUse {
    /// Slots that hold a token.
    pub tokens: f64,
    /// Slots that are reserved for a future token of a request.
    pub reserved: f64,
    /// Slots that belong to a request that will never use them.
    pub internal: f64,
    /// Slots that belong to no request: too few free slots for the next request, or slots lost to an allocator's
    /// rounding. The paper calls them "external fragmentation and others".
    pub external: f64,
}

impl MemoryUse {
    /// The names of the categories, in order.
    pub const NAMES: [&str; 4] = ["token states", "reserved", "internal fragmentation", "external fragmentation"];

    /// Returns the categories in order.
    pub fn parts(&self) -> [f64; 4] {
        [self.tokens, self.reserved, self.internal, self.external]
    }

    /// Returns the sum of all categories.
    pub fn total(&self) -> f64 {
        self.parts().iter().sum()
    }

    /// Adds another use, weighted by its duration.
    pub fn add(&mut self, other: &MemoryUse, seconds: f64) {
        self.tokens += seconds * other.tokens;
        self.reserved += seconds * other.reserved;
        self.internal += seconds * other.internal;
        self.external += seconds * other.external;
    }

    /// Returns each category as a share of the total. If the total is 0, all shares are 0.
    pub fn shares(&self) -> MemoryUse {
        let total = self.total();
        let share = |part: f64| if total > 0.0 { part / total } else { 0.0 };
        MemoryUse {
            tokens: share(self.tokens),
            reserved: share(self.reserved),
            internal: share(self.internal),
            external: share(self.external),
        }
    }

    /// Returns the shares as JSON.
    pub fn json(&self) -> Value {
        let shares = self.shares();
        json!({
            "token_states": shares.tokens,
            "reserved": shares.reserved,
            "internal_fragmentation": shares.internal,
            "external_fragmentation": shares.external,
        })
    }
}
