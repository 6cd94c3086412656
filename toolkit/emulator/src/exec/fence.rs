//! Fences, and what they order: a fence before a strong write releases, one after a strong read acquires.
//!
//! Release patterns are kept by the address of the write. Those of the scope of a block are kept with the block, the others
//! with the launch too.

use super::access::lanes;
use super::clock::{Others, View, join_others};
use super::machine::Machine;
use super::warp::Warp;
use crate::program::Order;
use crate::ptx::ast::Space;
use std::collections::HashMap;
use std::rc::Rc;

/// What was released by strong writes, by address.
pub(super) type Releases = HashMap<u64, Rc<Others>>;

/// What the fences of a lane were and will be good for.
#[derive(Debug, Default)]
struct Lane {
    /// Its view and epoch at its last fence, and whether that was for more than the block.
    fenced: Option<(Rc<View>, u32, bool)>,
    /// What its strong reads saw released, within the block and beyond: a fence acquires it.
    seen: [Option<Rc<Others>>; 2],
}

/// The lanes of a warp.
#[derive(Debug, Default)]
pub(super) struct Fences([Lane; 32]);

fn merge(into: &mut Option<Rc<Others>>, released: &Rc<Others>) {
    match into {
        Some(into) => join_others(into, released),
        None => *into = Some(Rc::clone(released)),
    }
}

impl Machine<'_> {
    fn orders_matter(&self) -> bool {
        self.options.check_races || self.options.check_global_races
    }

    /// A fence of some lanes; a `wide` one is for more than the block.
    pub(super) fn fence(&mut self, warp: &mut Warp, wide: bool, mask: u32) {
        if !self.orders_matter() {
            return;
        }
        for lane in lanes(mask) {
            self.acquire(warp, lane, wide);
            let fenced = (Rc::clone(warp.clock.view(lane)), warp.clock.epoch, wide);
            warp.fences.get_or_insert_default().0[lane].fenced = Some(fenced);
        }
        warp.clock.epoch += 1;
    }

    /// Takes what a lane's strong reads saw into its view.
    fn acquire(&mut self, warp: &mut Warp, lane: usize, wide: bool) {
        let Some(fences) = &mut warp.fences else { return };
        for seen in &mut fences.0[lane].seen[..1 + usize::from(wide)] {
            if let Some(seen) = seen.take() {
                warp.clock.view_mut(lane).acquire(self.block.number, &seen);
            }
        }
    }

    /// A lane's strong access, after it was done: it may end a release pattern, begin an acquire pattern, or both.
    pub(super) fn meet_others(
        &mut self,
        warp: &mut Warp,
        lane: usize,
        (space, at): (Space, u64),
        order: Order,
        (reads, writes): (bool, bool),
    ) {
        let nothing = self.releases.is_empty() && self.block.releases.is_empty() && warp.fences.is_none();
        if !self.orders_matter() || nothing && !order.release {
            return;
        }
        let shared = space == Space::Shared;
        let thread = warp.id * 32 + lane;
        let fences = warp.fences.get_or_insert_default();
        if reads {
            let sources = [self.block.releases.get(&at), self.releases.get(&at).filter(|_| !shared && order.wide)];
            for (seen, source) in fences.0[lane].seen.iter_mut().zip(sources) {
                if let Some(source) = source {
                    merge(seen, source);
                }
            }
        }
        let fenced = fences.0[lane].fenced.clone();
        if order.acquire {
            self.acquire(warp, lane, order.wide);
        }
        if !writes {
            return;
        }
        let released = if order.release {
            let epoch = warp.clock.epoch;
            warp.clock.epoch += 1;
            Some((warp.clock.view(lane).released(self.block.number, thread, epoch), order.wide))
        } else {
            fenced.map(|(view, epoch, wide)| (view.released(self.block.number, thread, epoch), wide && order.wide))
        };
        if !reads {
            // A store ends what earlier writes to the place released.
            self.block.releases.remove(&at);
            if !shared {
                self.releases.remove(&at);
            }
        }
        if let Some((released, wide)) = released {
            merge_at(&mut self.block.releases, at, &released);
            if wide && !shared {
                merge_at(&mut self.releases, at, &released);
            }
        }
    }
}

fn merge_at(releases: &mut Releases, at: u64, released: &Rc<Others>) {
    match releases.get_mut(&at) {
        Some(known) => join_others(known, released),
        None => drop(releases.insert(at, Rc::clone(released))),
    }
}
