//! Loads and stores, by memory space.

use super::cluster::by_place;
use super::fence::meet_others;
use super::global::{load_global, store_global};
use super::private::{load_parameters, load_private, store_private, write_of_parameters};
use super::shared::{load_shared, store_shared};
use crate::exec::state::block_env::BlockEnv;
use crate::exec::state::lane_mask::lanes;
use crate::exec::state::warp::Warp;
use crate::fault::Checked;
use crate::program;
use crate::ptx::ast::Space;

/// Executes a load for some lanes.
pub(crate) fn load(env: &mut BlockEnv<'_>, warp: &mut Warp, access: &program::Access, mask: u32) -> Checked<()> {
    by_place(env, warp, (access.space, access.address), mask, |env, warp, space, mask, at| {
        load_from(env, warp, access, space, mask, at)
    })
}

#[inline(always)]
fn load_from(
    env: &mut BlockEnv<'_>,
    warp: &mut Warp,
    access: &program::Access,
    space: Space,
    mask: u32,
    at: &[u64; 32],
) -> Checked<()> {
    match space {
        Space::Shared => load_shared(env, warp, access, mask, at)?,
        Space::Local | Space::Param => load_private(env.launch.program.private, warp, access, mask, at)?,
        Space::Parameters => load_parameters(env.launch.parameters, warp, access, mask, at)?,
        _ => load_global(env, warp, access, mask, at)?,
    }
    if let Some(order) = access.order {
        lanes(mask).for_each(|lane| meet_others(env, warp, lane, (space, at[lane]), order, (true, false)));
    }
    Ok(())
}

/// Executes a store for some lanes.
pub(crate) fn store(env: &mut BlockEnv<'_>, warp: &mut Warp, access: &program::Access, mask: u32) -> Checked<()> {
    by_place(env, warp, (access.space, access.address), mask, |env, warp, space, mask, at| {
        store_to(env, warp, access, space, mask, at)
    })
}

#[inline(always)]
fn store_to(
    env: &mut BlockEnv<'_>,
    warp: &mut Warp,
    access: &program::Access,
    space: Space,
    mask: u32,
    at: &[u64; 32],
) -> Checked<()> {
    match space {
        Space::Shared => store_shared(env, warp, access, mask, at)?,
        Space::Local | Space::Param => store_private(env.launch.program.private, warp, access, mask, at)?,
        Space::Parameters => return Err(write_of_parameters()),
        _ => store_global(env, warp, access, mask, at)?,
    }
    if let Some(order) = access.order {
        lanes(mask).for_each(|lane| meet_others(env, warp, lane, (space, at[lane]), order, (false, true)));
    }
    Ok(())
}
