//! Which requests may begin to run: what the paper's baselines decide otherwise than the engine's scheduler. They know nothing
//! of steps and times, and an engine that computes can be put behind them as well as a simulated one.

use std::collections::HashMap;

use crate::buddy::{Buddies, BuddyPiece};
use crate::memory::MemoryUse;
use crate::request::TraceRequest;

/// Decides when requests may begin to run. What it has admitted runs until it is complete.
pub trait AdmissionPolicy {
    /// Whether the request, which is named `id` from now on, may begin. If not, nothing has changed, and no later request is
    /// asked about before it.
    fn admit(&mut self, id: u64, request: &TraceRequest) -> bool;

    /// Takes back what a request had.
    fn release(&mut self, id: u64);

    /// Where the memory goes while each of the requests that run, by its name, has so many tokens in each of its sequences.
    fn memory(&self, running: &mut dyn Iterator<Item = (u64, usize)>) -> MemoryUse;
}

/// How much Orca reserves for an output (6.1 of the paper).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reservation {
    /// As much as the model can generate.
    Max,
    /// The next power of two of its true length.
    Pow2,
    /// Its true length, which no real system knows.
    Oracle,
}

/// Orca: each sequence has a contiguous piece of memory for all its tokens before it begins, from a buddy allocator.
#[derive(Clone, Debug)]
pub struct Contiguous {
    reservation: Reservation,
    /// Most tokens of a sequence.
    max_len: usize,
    region: Buddies,
    held: HashMap<u64, (TraceRequest, Vec<BuddyPiece>)>,
}

impl Reservation {
    /// Slots that are reserved for each sequence of a request, where a sequence has at most `max_len`.
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
    /// A memory of `slots` tokens, in which a sequence has at most `max_len`.
    pub fn new(reservation: Reservation, slots: usize, max_len: usize) -> Self {
        Contiguous { reservation, max_len, region: Buddies::new(slots), held: HashMap::new() }
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
        self.held.insert(id, (*request, pieces));
        true
    }

    fn release(&mut self, id: u64) {
        if let Some((_, pieces)) = self.held.remove(&id) {
            pieces.into_iter().for_each(|piece| self.region.free(piece));
        }
    }

    fn memory(&self, running: &mut dyn Iterator<Item = (u64, usize)>) -> MemoryUse {
        let mut of = MemoryUse { external: self.region.num_free() as f64, ..MemoryUse::default() };
        for (id, tokens) in running {
            let Some((request, pieces)) = self.held.get(&id) else { continue };
            let asked = self.reservation.slots(request, self.max_len);
            for piece in pieces {
                of.tokens += tokens as f64;
                of.reserved += (request.tokens() - tokens.min(request.tokens())) as f64;
                of.internal += (asked - request.tokens()) as f64;
                of.external += (piece.size() - asked) as f64;
            }
        }
        of
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
    fn what_is_reserved_is_what_each_policy_knows() {
        let of = |reservation: Reservation| reservation.slots(&request(100, 25, Method::Single), 2048);
        assert_eq!([of(Reservation::Max), of(Reservation::Pow2), of(Reservation::Oracle)], [2048, 132, 125]);
        assert_eq!(
            Reservation::Pow2.slots(&request(1500, 520, Method::Single), 2048),
            2048,
            "no more than there can be"
        );
    }

    #[test]
    fn every_slot_is_in_one_category() {
        let mut oracle = Contiguous::new(Reservation::Oracle, 1000, 512);
        assert!(
            oracle.admit(1, &request(100, 25, Method::Single)) && oracle.admit(2, &request(30, 2, Method::Samples(3)))
        );
        let of = oracle.memory(&mut [(1, 110), (2, 31)].into_iter());
        assert_eq!(of, MemoryUse { tokens: 110.0 + 93.0, reserved: 15.0 + 3.0, internal: 0.0, external: 3.0 + 776.0 });
        assert_eq!(of.total(), 1000.0);
        let mut max = Contiguous::new(Reservation::Max, 1000, 500);
        assert!(max.admit(1, &request(100, 25, Method::Single)));
        assert!(!max.admit(2, &request(1, 1, Method::Single)), "488 slots are left, and 500 are asked for");
        let of = max.memory(&mut [(1, 100)].into_iter());
        assert_eq!(of, MemoryUse { tokens: 100.0, reserved: 25.0, internal: 375.0, external: 12.0 + 488.0 });
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
