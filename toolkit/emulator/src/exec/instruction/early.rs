//! Accesses of a dependent launch, which may begin before the launches ahead of it have ended.

use crate::exec::state::block_env::BlockEnv;
use crate::exec::state::lane_mask::lanes;
use crate::exec::state::warp::Warp;
use crate::fault::{Checked, FaultKind, Violation};
use crate::launch_options::LaunchOptions;
use crate::memory::DeviceAddress;
use std::sync::Arc;

/// Executes `griddepcontrol.wait` for some lanes. Accesses of the launches ahead come before their accesses from now
/// on.
pub(crate) fn wait_for_launches(env: &mut BlockEnv<'_>, warp: &mut Warp, mask: u32) {
    if env.launch.options.dependent {
        env.memory.last_waited = true;
        warp.clock.wait_for_launches(mask);
    }
}

/// Checks that accesses of some lanes do not come too early.
#[inline(always)]
pub(crate) fn check_early(
    env: &BlockEnv<'_>,
    warp: &Warp,
    mask: u32,
    at: &[DeviceAddress; 32],
    (bytes, stores): (usize, bool),
) -> Checked<()> {
    if is_checked(env) { check_lanes(env, warp, mask, at, (bytes, stores)) } else { Ok(()) }
}

#[inline(always)]
fn is_checked(env: &BlockEnv<'_>) -> bool {
    env.launch.options.dependent && env.launch.options.check_global_races
}

#[inline(never)]
fn check_lanes(
    env: &BlockEnv<'_>,
    warp: &Warp,
    mask: u32,
    at: &[DeviceAddress; 32],
    (bytes, stores): (usize, bool),
) -> Checked<()> {
    // Lanes usually share a view.
    let mut last = None;
    for lane in lanes(mask) {
        let view = warp.clock.view(lane);
        let waited = match last {
            Some((before, waited)) if Arc::ptr_eq(before, view) => waited,
            _ => view.has_waited(),
        };
        last = Some((view, waited));
        check_one(env, waited, at[lane], (bytes, stores)).map_err(|fault| fault.lane(lane))?;
    }
    Ok(())
}

/// Checks that a lane's copy does not access bytes too early.
pub(crate) fn check_early_copy(
    env: &BlockEnv<'_>,
    warp: &Warp,
    lane: usize,
    address: DeviceAddress,
    (bytes, stores): (usize, bool),
) -> Checked<()> {
    if !is_checked(env) {
        return Ok(());
    }
    check_one(env, warp.clock.view(lane).has_waited(), address, (bytes, stores))
}

/// Returns whether a thread that has not waited may make an access, if no launch ahead uses the bytes.
fn may_be_early(env: &BlockEnv<'_>, address: DeviceAddress, stores: bool) -> bool {
    let LaunchOptions { early_accesses, early_reads, .. } = env.launch.options;
    let is_named = |at: usize| early_reads.contains(&env.memory.buffers[at].name.as_str());
    *early_accesses || (!stores && env.memory.find(address).is_some_and(is_named))
}

fn check_one(env: &BlockEnv<'_>, waited: bool, address: DeviceAddress, (bytes, stores): (usize, bool)) -> Checked<()> {
    let access = if stores { "writes" } else { "reads" };
    let fault = |message: String| Violation::new(FaultKind::GlobalRace, message).address(address);
    if !waited && !may_be_early(env, address, stores) {
        return Err(fault(format!("{access} global memory in a dependent launch, with no griddepcontrol.wait before")));
    }
    let Some(buffer) = env.memory.too_early(address, bytes, stores, waited) else { return Ok(()) };
    let (name, what) = (&buffer.name, if stores { "accessed" } else { "wrote" });
    let lacks = if waited {
        "the wait covers only a launch between them, which never waited itself"
    } else {
        "there is no griddepcontrol.wait between"
    };
    let message = format!("{access} bytes of `{name}` in a dependent launch that a launch ahead of it {what}: {lacks}");
    Err(fault(message).buffer(name))
}
