//! Loads and stores of shared memory.

use super::operand::{gather, gather_row, scatter, scatter_row};
use super::poison;
use super::traffic::count_shared;
use crate::exec::state::block_env::BlockEnv;
use crate::exec::state::lane_access::LaneAccess;
use crate::exec::state::lane_mask::lanes;
use crate::exec::state::warp::Warp;
use crate::fault::Checked;
use crate::program::Access;

/// The most bytes of one access, for all lanes together.
const ROW: usize = 32 * 32;

/// Executes a load from shared memory.
pub(crate) fn load_shared(
    env: &mut BlockEnv<'_>,
    warp: &mut Warp,
    access: &Access,
    mask: u32,
    at: &[u64; 32],
) -> Checked<()> {
    let bytes = access.bytes();
    count_shared(env.meter, mask, at, bytes);
    let (mut data, who) = ([0; ROW], LaneAccess::by_lane(&warp.clock, access.order.is_some()));
    for lane in lanes(mask) {
        let offset = env.block.shared.locate(at[lane], bytes).map_err(|fault| fault.lane(lane))?;
        env.block.shared.read(offset, bytes, who(lane)).map_err(|fault| fault.lane(lane))?;
        data[lane * bytes..][..bytes].copy_from_slice(&env.block.shared.data[offset..offset + bytes]);
    }
    if mask == u32::MAX {
        scatter_row(warp, access, &data[..32 * bytes]);
    } else {
        lanes(mask).for_each(|lane| scatter(warp, access, lane, &data[lane * bytes..][..bytes]));
    }
    if env.block.shared.take_unwritten() || warp.poison.is_some() {
        poison::loaded_from_shared(env, warp, access, mask, at);
    }
    Ok(())
}

/// Executes a store to shared memory.
pub(crate) fn store_shared(
    env: &mut BlockEnv<'_>,
    warp: &mut Warp,
    access: &Access,
    mask: u32,
    at: &[u64; 32],
) -> Checked<()> {
    let bytes = access.bytes();
    count_shared(env.meter, mask, at, bytes);
    let (mut data, who) = ([0; ROW], LaneAccess::by_lane(&warp.clock, access.order.is_some()));
    if mask == u32::MAX {
        gather_row(warp, access, &mut data[..32 * bytes]);
    } else {
        lanes(mask).for_each(|lane| gather(warp, access, lane, &mut data[lane * bytes..][..bytes]));
    }
    for lane in lanes(mask) {
        let offset = env.block.shared.locate(at[lane], bytes).map_err(|fault| fault.lane(lane))?;
        let data = &data[lane * bytes..][..bytes];
        let same = env.block.shared.data[offset..offset + bytes] == *data;
        env.block.shared.write(offset, bytes, who(lane), same).map_err(|fault| fault.lane(lane))?;
        env.block.shared.data[offset..offset + bytes].copy_from_slice(data);
    }
    if warp.poison.is_some() {
        poison::stored_to_shared(env, warp, access, mask, at);
    }
    Ok(())
}
