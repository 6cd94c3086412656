//! Clusters of blocks: their barrier, and access to the shared memory of other blocks.

use super::barrier::divergent;
use super::operand::addresses;
use super::space::{by_space, rank_of};
use crate::exec::state::block_env::BlockEnv;
use crate::exec::state::lane_mask::lanes;
use crate::exec::state::warp::Warp;
use crate::fault::{Checked, FaultKind, Violation};
use crate::program::Address;
use crate::ptx::ast::Space;
use crate::window::RANK_SHIFT;

/// Executes `barrier.cluster.arrive`.
pub(crate) fn arrive(env: &mut BlockEnv<'_>, warp: &mut Warp, releases: bool, mask: u32) -> Checked<()> {
    let repeated = (warp.cluster.arrived | warp.cluster.passed) & mask;
    if repeated != 0 {
        let message = "arrives at the cluster's barrier again without waiting there first";
        return Err(Violation::new(FaultKind::DivergentBarrier, message).lane(repeated.trailing_zeros() as usize));
    }
    warp.cluster.arrived |= mask;
    env.block.cluster.has_arrivals = true;
    if releases {
        env.block.cluster.views.add(&mut warp.clock, env.launch.clocks(), mask);
    }
    env.block.events += 1;
    Ok(())
}

/// Executes `barrier.cluster.wait`. Returns whether the warp must wait.
pub(crate) fn wait(env: &BlockEnv<'_>, warp: &mut Warp, mask: u32) -> Checked<bool> {
    let missing = mask & !(warp.cluster.arrived | warp.cluster.passed);
    if missing != 0 {
        let message = "waits at the cluster's barrier without arriving there first";
        return Err(Violation::new(FaultKind::DivergentBarrier, message).lane(missing.trailing_zeros() as usize));
    }
    if warp.cluster.passed & mask != mask {
        // Diverged lanes of a warp do not run in turns, so the other lanes would never arrive.
        if warp.live & !(warp.cluster.arrived | warp.cluster.passed) != 0 {
            return Err(divergent(mask, warp.live));
        }
        warp.cluster.waiting = Some(mask);
        return Ok(true);
    }
    warp.cluster.passed &= !mask;
    if let Some(view) = &env.block.cluster.opened {
        warp.clock.learn(mask, view);
    }
    Ok(false)
}

/// Runs an action with the block of a rank in place of the thread's own block.
///
/// `visits` says that the action accesses shared memory as a thread does. The other block must then not end before this
/// access.
pub(crate) fn on_block<T>(
    env: &mut BlockEnv<'_>,
    warp: &mut Warp,
    (lane, rank, visits): (usize, usize, bool),
    action: impl FnOnce(&mut BlockEnv<'_>, &mut Warp) -> Checked<T>,
) -> Checked<T> {
    let own = env.block.rank;
    if rank == own {
        return action(env, warp);
    }
    let size = env.launch.config.cluster_size();
    let fault =
        |message: String| Err(Violation::new(FaultKind::OutOfBounds, message).lane(lane).buffer("shared memory"));
    let Some(peer) = env.peers.get(own, rank) else {
        return fault(format!("shared memory of block {rank} of a cluster of {size}"));
    };
    if peer.ended() {
        return fault(format!("shared memory of block {rank} of the cluster, whose threads have all exited"));
    }
    std::mem::swap(env.block, &mut peer.state);
    if visits {
        env.block.visitors.insert(warp.clock.warp * 32 + lane, warp.clock.epoch);
    }
    let result = action(env, warp);
    if let Some(peer) = env.peers.get(own, rank) {
        std::mem::swap(env.block, &mut peer.state);
    }
    result
}

/// Calls `action` for each group of lanes whose addresses are in the same space, with the addresses in that space. The
/// space of a cluster is split into the shared memory of its blocks.
#[inline(always)]
pub(crate) fn by_place(
    env: &mut BlockEnv<'_>,
    warp: &mut Warp,
    (space, address): (Space, Address),
    mask: u32,
    action: impl Fn(&mut BlockEnv<'_>, &mut Warp, Space, u32, &[u64; 32]) -> Checked<()>,
) -> Checked<()> {
    let mut at = addresses(&warp.registers, address);
    by_space(space, mask, &mut at, |space, mask, at| match space {
        Space::Cluster => {
            by_rank(env, warp, mask, at, |env, warp, mask, at| action(env, warp, Space::Shared, mask, at))
        }
        space => action(env, warp, space, mask, at),
    })
}

/// Calls `action` for each group of lanes whose addresses are in the same block's shared memory, with the offsets
/// there.
fn by_rank(
    env: &mut BlockEnv<'_>,
    warp: &mut Warp,
    mask: u32,
    at: &[u64; 32],
    mut action: impl FnMut(&mut BlockEnv<'_>, &mut Warp, u32, &[u64; 32]) -> Checked<()>,
) -> Checked<()> {
    if env.launch.config.cluster_size() == 1 {
        return action(env, warp, mask, at);
    }
    let own = env.block.rank;
    let ranks = at.map(|at| rank_of(at).unwrap_or(own));
    let offsets = at.map(|at| at & ((1 << RANK_SHIFT) - 1));
    let mut rest = mask;
    while rest != 0 {
        let rank = ranks[rest.trailing_zeros() as usize];
        let group = lanes(rest).filter(|&lane| ranks[lane] == rank).fold(0, |set, lane| set | 1 << lane);
        rest &= !group;
        let first = group.trailing_zeros() as usize;
        let epoch = warp.clock.epoch;
        let visitors = warp.clock.warp * 32;
        on_block(env, warp, (first, rank, false), |env, warp| {
            if rank != own {
                env.block.visitors.extend(lanes(group).map(|lane| (visitors + lane, epoch)));
            }
            action(env, warp, group, &offsets)
        })?;
    }
    Ok(())
}

/// Checks that all accesses of other blocks to the shared memory of an ending block come before its end.
pub(crate) fn check_visitors(env: &BlockEnv<'_>, warps: &[Warp]) -> Checked<()> {
    if !env.launch.options.check_races {
        return Ok(());
    }
    let is_ordered = |thread: usize, epoch: u32| {
        warps.iter().any(|warp| (0..32).any(|lane| warp.clock.view(lane).knows(thread, epoch)))
    };
    let Some((thread, _)) = env.block.visitors.iter().find(|&(&thread, &epoch)| !is_ordered(thread, epoch)) else {
        return Ok(());
    };
    let threads = env.launch.warps() * 32;
    let message = format!(
        "the block ends while thread {} of block {} of the cluster may still access its shared memory: nothing orders the two",
        thread % threads,
        thread / threads
    );
    Err(Violation::new(FaultKind::SharedRace, message).buffer("shared memory"))
}
