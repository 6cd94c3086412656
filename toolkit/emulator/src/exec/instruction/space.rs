//! Memory spaces of generic addresses.

use crate::exec::state::lane_mask::lanes;
use crate::fault::Checked;
use crate::ptx::ast::Space;
use crate::window::{LOCAL_WINDOW, PARAMETER_WINDOW, RANK_SHIFT, SHARED_WINDOW, WINDOW_BITS};

/// Returns the offset in shared memory of a generic or a shared address.
pub(crate) fn shared_offset(address: u64) -> u64 {
    if address >> WINDOW_BITS == SHARED_WINDOW >> WINDOW_BITS { address - SHARED_WINDOW } else { address }
}

/// Returns the block's rank in an address of shared memory, or `None` for the thread's own block.
pub(crate) fn rank_of(offset: u64) -> Option<usize> {
    ((offset >> RANK_SHIFT) as usize).checked_sub(1)
}

/// Returns the space of a generic address, and the address at which the space begins.
#[inline(always)]
pub(crate) fn space_of(address: u64) -> (Space, u64) {
    match address >> WINDOW_BITS {
        window if window == SHARED_WINDOW >> WINDOW_BITS => {
            let is_own = address - SHARED_WINDOW < 1 << RANK_SHIFT;
            (if is_own { Space::Shared } else { Space::Cluster }, SHARED_WINDOW)
        }
        window if window == LOCAL_WINDOW >> WINDOW_BITS => (Space::Local, LOCAL_WINDOW),
        window if window == PARAMETER_WINDOW >> WINDOW_BITS => (Space::Parameters, PARAMETER_WINDOW),
        _ => (Space::Global, 0),
    }
}

/// Calls `action` for each group of lanes whose addresses are in the same space, with the addresses in that space.
#[inline(always)]
pub(crate) fn by_space(
    space: Space,
    mask: u32,
    addresses: &mut [u64; 32],
    mut action: impl FnMut(Space, u32, &[u64; 32]) -> Checked<()>,
) -> Checked<()> {
    if space != Space::Generic {
        return action(space, mask, addresses);
    }
    let mut rest = mask;
    while rest != 0 {
        let (space, base) = space_of(addresses[rest.trailing_zeros() as usize]);
        let mut group = 0;
        for lane in lanes(rest) {
            if space_of(addresses[lane]).0 == space {
                group |= 1 << lane;
            }
        }
        rest &= !group;
        if base != 0 {
            lanes(group).for_each(|lane| addresses[lane] -= base);
        }
        action(space, group, addresses)?;
    }
    Ok(())
}
