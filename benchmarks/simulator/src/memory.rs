//! Where the memory for keys and values goes, in the categories of the paper's figure 2.

use serde_json::{Value, json};

/// Slots of the memory, at one moment or summed over time.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct MemoryUse {
    /// They hold a token.
    pub tokens: f64,
    /// A token will come that they are kept for.
    pub reserved: f64,
    /// They belong to a request that will never use them.
    pub internal: f64,
    /// They belong to no request: free, but of no use to the next one, or lost to the rounding of an allocator. The paper's
    /// "external fragmentation and others".
    pub external: f64,
}

impl MemoryUse {
    /// The names of the categories, in order.
    pub const NAMES: [&str; 4] = ["token states", "reserved", "internal fragmentation", "external fragmentation"];

    /// The categories in order.
    pub fn parts(&self) -> [f64; 4] {
        [self.tokens, self.reserved, self.internal, self.external]
    }

    /// All slots.
    pub fn total(&self) -> f64 {
        self.parts().iter().sum()
    }

    /// Adds another use, for so many seconds.
    pub fn add(&mut self, other: &MemoryUse, seconds: f64) {
        self.tokens += seconds * other.tokens;
        self.reserved += seconds * other.reserved;
        self.internal += seconds * other.internal;
        self.external += seconds * other.external;
    }

    /// Each category as a part of all; all 0 if there is nothing.
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

    /// The shares as JSON.
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
