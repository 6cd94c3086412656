//! Fences and strong accesses: a fence before a strong write releases, and one after a strong read acquires.

use crate::exec::state::block_env::BlockEnv;
use crate::exec::state::fences::LastFence;
use crate::exec::state::lane_mask::lanes;
use crate::exec::state::warp::Warp;
use crate::program::MemoryOrder;
use crate::ptx::ast::Space;
use std::rc::Rc;

/// A fence of some lanes. A `wide` one is for more than the block.
pub(crate) fn fence(env: &BlockEnv<'_>, warp: &mut Warp, wide: bool, mask: u32) {
    if !env.launch.checks_order() {
        return;
    }
    for lane in lanes(mask) {
        acquire(env.block.number, warp, lane, wide);
        let last = LastFence { view: Rc::clone(warp.clock.view(lane)), epoch: warp.clock.epoch, wide };
        warp.fences.get_or_insert_default().0[lane].last = Some(last);
    }
    warp.clock.epoch += 1;
}

/// Adds what a lane's strong reads saw to the lane's view. `block` is the index of its block.
fn acquire(block: u32, warp: &mut Warp, lane: usize, wide: bool) {
    let Some(fences) = &mut warp.fences else { return };
    for seen in fences.0[lane].take_seen(wide) {
        warp.clock.view_mut(lane).acquire(block, &seen);
    }
}

/// What a lane's strong access hands on and takes over, after the access was done. It may end a release pattern, begin an
/// acquire pattern, or both.
pub(crate) fn meet_others(
    env: &mut BlockEnv<'_>,
    warp: &mut Warp,
    lane: usize,
    (space, at): (Space, u64),
    order: MemoryOrder,
    (reads, writes): (bool, bool),
) {
    let nothing = env.releases.is_empty() && env.block.releases.is_empty() && warp.fences.is_none();
    if !env.launch.checks_order() || nothing && !order.release {
        return;
    }
    let (shared, block) = (space == Space::Shared, env.block.number);
    let thread = warp.id * 32 + lane;
    let fences = &mut warp.fences.get_or_insert_default().0[lane];
    if reads {
        let beyond = env.releases.get(at).filter(|_| !shared && order.wide);
        for (scope, released) in [env.block.releases.get(at), beyond].into_iter().enumerate() {
            if let Some(released) = released {
                fences.see(scope, released);
            }
        }
    }
    let last = fences.last.clone();
    if order.acquire {
        acquire(block, warp, lane, order.wide);
    }
    if !writes {
        return;
    }
    let released = if order.release {
        let epoch = warp.clock.epoch;
        warp.clock.epoch += 1;
        Some((warp.clock.view(lane).released(block, thread, epoch), order.wide))
    } else {
        last.map(|last| (last.view.released(block, thread, last.epoch), last.wide && order.wide))
    };
    if !reads {
        // A store ends what earlier writes to the place released.
        env.block.releases.remove(at);
        if !shared {
            env.releases.remove(at);
        }
    }
    if let Some((released, wide)) = released {
        env.block.releases.add(at, &released);
        if wide && !shared {
            env.releases.add(at, &released);
        }
    }
}
