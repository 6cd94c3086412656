//! Loads and stores of shared memory.

use super::operand::{gather, scatter};
use super::poison;
use super::traffic::count_shared;
use crate::exec::state::block_env::BlockEnv;
use crate::exec::state::lane_access::LaneAccess;
use crate::exec::state::lane_mask::lanes;
use crate::exec::state::warp::Warp;
use crate::fault::Checked;
use crate::program::Access;

/// A load from shared memory.
pub(crate) fn load_shared(
    env: &mut BlockEnv<'_>,
    warp: &mut Warp,
    access: &Access,
    mask: u32,
    at: &[u64; 32],
) -> Checked<()> {
    let bytes = access.bytes();
    count_shared(env.meter, mask, at, bytes);
    for lane in lanes(mask) {
        let offset = env.block.shared.locate(at[lane], bytes).map_err(|fault| fault.lane(lane))?;
        let who = LaneAccess::of(warp, lane, access.order.is_some());
        env.block.shared.read(offset, bytes, who).map_err(|fault| fault.lane(lane))?;
        scatter(warp, access, lane, &env.block.shared.data[offset..offset + bytes]);
    }
    if env.block.shared.take_unwritten() || warp.poison.is_some() {
        poison::loaded_from_shared(env, warp, access, mask, at);
    }
    Ok(())
}

/// A store to shared memory.
pub(crate) fn store_shared(
    env: &mut BlockEnv<'_>,
    warp: &mut Warp,
    access: &Access,
    mask: u32,
    at: &[u64; 32],
) -> Checked<()> {
    let bytes = access.bytes();
    count_shared(env.meter, mask, at, bytes);
    let mut data = [0; 32];
    for lane in lanes(mask) {
        let offset = env.block.shared.locate(at[lane], bytes).map_err(|fault| fault.lane(lane))?;
        gather(warp, access, lane, &mut data[..bytes]);
        let same = env.block.shared.data[offset..offset + bytes] == data[..bytes];
        let who = LaneAccess::of(warp, lane, access.order.is_some());
        env.block.shared.write(offset, bytes, who, same).map_err(|fault| fault.lane(lane))?;
        env.block.shared.data[offset..offset + bytes].copy_from_slice(&data[..bytes]);
    }
    if warp.poison.is_some() {
        poison::stored_to_shared(env, warp, access, mask, at);
    }
    Ok(())
}
