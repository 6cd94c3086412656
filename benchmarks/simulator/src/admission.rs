//! Admission policies: they decide when a request may begin to run. They implement the paper's baselines where these
//! differ from the engine's scheduler.
//!
//! A policy knows nothing about steps or times, so it can control the real engine as well as a simulated one.

use std::collections::HashMap;

use crate::buddy::{Buddies, BuddyPiece};
use crate::memory::MemoryUse;
use crate::request::TraceRequest;

/// Decides when requests may begin to run. An admitted request runs until it is complete.
pub trait AdmissionPolicy {
    /// Returns whether the request, named `id` from now on, may begin.
    ///
    /// If not, the policy is unchanged, and the caller asks about no later request before this one is admitted.
    fn admit(&mut self, id: u64, request: &TraceRequest) -> bool;

    /// Frees the memory of a request.
    fn release(&mut self, id: u64);

    /// Returns how the memory is used. `running` yields the `id` of each running request and the tokens in each of its
    /// sequences.
    fn memory(&self, running: &mut dyn Iterator<Item = (u64, usize)>) -> MemoryUse;
}

/// How much memory Orca reserves for an output (section 6.1 of the paper).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reservation {
    /// Enough for the longest sequence of the model.
    Max,
    /// The output's true length, rounded up to a power of two.
    Pow2,
    /// The output's true length, which no real system knows.
    Oracle,
}

/// Orca's policy: before a sequence begins, a buddy allocator gives it contiguous memory for all its tokens.
#[derive(Clone, Debug)]
pub struct Contiguous {
    reservation: Reservation,
    /// Maximum tokens per sequence.
    max_len: usize,
    region: Buddies,
    allocated: HashMap<u64, (TraceRequest, Vec<BuddyPiece>)>,
}

impl Reservation {
    /// Returns the slots reserved for each sequence of a request, if a sequence has at most `max_len` tokens.
    pub fn slots(self, request: &TraceRequest, max_len: usize) -> usize {
        match self {
            Reservation::Max => max_len,
            Reservation::Pow2 => (request.prompt + request.output.next_power_of_two()).min(max_len),
            Reservation::Oracle => request.tokens(),
        }
        .max(request.tokens())
    }
}

impl Contiguous {
    /// Creates the policy for a memory of `slots` tokens and sequences of at most `max_len` tokens.
    pub fn new(reservation: Reservation, slots: usize, max_len: usize) -> Self {
        Contiguous { reservation, max_len, region: Buddies::new(slots), allocated: HashMap::new() }
    }
}

impl AdmissionPolicy for Contiguous {
    fn admit(&mut self, id: u64, request: &TraceRequest) -> bool {
        let slots = self.reservation.slots(request, self.max_len);
        let width = request.method.width();
        let pieces: Vec<BuddyPiece> = (0..width).map_while(|_| self.region.allocate(slots)).collect();
        if pieces.len() < width {
            pieces.into_iter().for_each(|piece| self.region.free(piece));
            return false;
        }
        self.allocated.insert(id, (*request, pieces));
        true
    }

    fn release(&mut self, id: u64) {
        if let Some((_, pieces)) = self.allocated.remove(&id) {
            pieces.into_iter().for_each(|piece| self.region.free(piece));
        }
    }

    fn memory(&self, running: &mut dyn Iterator<Item = (u64, usize)>) -> MemoryUse {
        let mut usage = MemoryUse { external: self.region.num_free() as f64, ..MemoryUse::default() };
        for (id, tokens) in running {
            let Some((request, pieces)) = self.allocated.get(&id) else { continue };
            let asked = self.reservation.slots(request, self.max_len);
            for piece in pieces {
                usage.tokens += tokens as f64;
                usage.reserved += (request.tokens() - tokens.min(request.tokens())) as f64;
                usage.internal += (asked - request.tokens()) as f64;
                usage.external += (piece.size() - asked) as f64;
            }
        }
        usage
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::Method;

    fn request(prompt: usize, output: usize, method: Method) -> TraceRequest {
        TraceRequest { arrival: 0.0, prompt, prefix: 0, output, method }
    }

    #[test]
    fn each_policy_reserves_its_own_number_of_slots() {
        let slots = |reservation: Reservation| reservation.slots(&request(100, 25, Method::Single), 2048);
        assert_eq!([slots(Reservation::Max), slots(Reservation::Pow2), slots(Reservation::Oracle)], [2048, 132, 125]);
        assert_eq!(
            Reservation::Pow2.slots(&request(1500, 520, Method::Single), 2048),
            2048,
            "a reservation is at most max_len"
        );
    }

    #[test]
    fn every_slot_is_in_one_category() {
        let mut oracle = Contiguous::new(Reservation::Oracle, 1000, 512);
        assert!(
            oracle.admit(1, &request(100, 25, Method::Single)) && oracle.admit(2, &request(30, 2, Method::Samples(3)))
        );
        let usage = oracle.memory(&mut [(1, 110), (2, 31)].into_iter());
        assert_eq!(
            usage,
            MemoryUse { tokens: 110.0 + 93.0, reserved: 15.0 + 3.0, internal: 0.0, external: 3.0 + 776.0 }
        );
        assert_eq!(usage.total(), 1000.0);
        let mut max = Contiguous::new(Reservation::Max, 1000, 500);
        assert!(max.admit(1, &request(100, 25, Method::Single)));
        assert!(!max.admit(2, &request(1, 1, Method::Single)), "488 slots are left, and 500 are asked for");
        let usage = max.memory(&mut [(1, 100)].into_iter());
        assert_eq!(usage, MemoryUse { tokens: 100.0, reserved: 25.0, internal: 375.0, external: 12.0 + 488.0 });
    }

    #[test]
    fn a_request_is_admitted_whole_or_not_at_all() {
        let mut oracle = Contiguous::new(Reservation::Oracle, 512, 512);
        assert!(!oracle.admit(1, &request(100, 28, Method::Samples(5))));
        assert!(
            oracle.admit(1, &request(100, 28, Method::Samples(4))) && !oracle.admit(2, &request(1, 1, Method::Single))
        );
        oracle.release(1);
        assert!(oracle.admit(2, &request(400, 112, Method::Single)));
    }
}
