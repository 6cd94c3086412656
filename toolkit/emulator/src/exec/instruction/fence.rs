//! Fences and strong accesses: a fence before a strong write releases, and one after a strong read acquires.

use crate::exec::state::block_env::BlockEnv;
use crate::exec::state::fences::LastFence;
use crate::exec::state::lane_mask::lanes;
use crate::exec::state::warp::Warp;
use crate::program::{MemoryOrder, Scope};
use crate::ptx::ast::Space;
use std::sync::Arc;

/// Executes a fence for some lanes.
pub(crate) fn fence(env: &BlockEnv<'_>, warp: &mut Warp, scope: Scope, mask: u32) {
    if !env.launch.checks_order() {
        return;
    }
    for lane in lanes(mask) {
        acquire(env.block.number, warp, lane, scope);
        let last = LastFence { view: Arc::clone(warp.clock.view(lane)), epoch: warp.clock.epoch, scope };
        warp.fences.get_or_insert_default().0[lane].last = Some(last);
    }
    warp.clock.epoch += 1;
}

/// Adds the views that a lane's strong reads saw within a scope to the lane's view. `block` is the number of its
/// cluster.
fn acquire(block: u32, warp: &mut Warp, lane: usize, scope: Scope) {
    let Some(fences) = &mut warp.fences else { return };
    for seen in fences.0[lane].take_seen(scope) {
        warp.clock.view_mut(lane).acquire(block, &seen);
    }
}

/// Releases and acquires views after a lane's strong access. The access may end a release pattern, begin an acquire
/// pattern, or both.
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
    let (shared, block, device) = (space == Space::Shared, env.block.number, env.launch.device);
    let thread = warp.clock.warp * 32 + lane;
    let fences = &mut warp.fences.get_or_insert_default().0[lane];
    if reads {
        if let Some(released) = env.block.releases.get(at) {
            fences.see(Scope::Block, released);
        }
        for scope in [Scope::Device, Scope::System].into_iter().filter(|&scope| !shared && scope <= order.scope) {
            if let Some(released) = env.releases.get(scope, device, at) {
                fences.see(scope, released);
            }
        }
    }
    let last = fences.last.clone();
    if order.acquire {
        acquire(block, warp, lane, order.scope);
    }
    if !writes {
        return;
    }
    let released = if order.release {
        let epoch = warp.clock.epoch;
        warp.clock.epoch += 1;
        Some((warp.clock.view(lane).released(block, thread, epoch), order.scope))
    } else {
        last.map(|last| (last.view.released(block, thread, last.epoch), last.scope.min(order.scope)))
    };
    if !reads {
        // A store removes the views that earlier writes to the address released.
        env.block.releases.remove(at);
        if !shared {
            env.releases.remove(at);
        }
    }
    if let Some((released, scope)) = released {
        env.block.releases.add(at, &released);
        if !shared {
            env.releases.add(scope, device, at, &released);
        }
    }
}
