//! The cost of memory requests: sectors of global memory, and wavefronts of shared memory.

use crate::exec::state::lane_mask::lanes;
use crate::exec::state::meter::Meter;
use crate::memory::{DeviceAddress, Memory};

/// Counts the sectors of a request to global memory, and records them as touched, and with `stores` also as stored to.
///
/// `buffer` has the index of the buffer that contains the whole request, if there is one. It also says whether all
/// lanes access contiguous bytes of it, in order.
#[inline(always)]
pub(crate) fn count_global(
    meter: &mut Meter,
    memory: &mut Memory,
    mask: u32,
    at: &[u64; 32],
    bytes: usize,
    (buffer, stores): ((Option<usize>, bool), bool),
) {
    let counts = meter.current();
    let asked = u64::from(mask.count_ones()) * bytes as u64;
    counts.global_bytes += asked;
    if let (Some(index), true) = buffer {
        let sectors = memory.touch_all(index, at[0], asked as usize, stores);
        counts.sectors += sectors;
        counts.ideal_sectors += asked.div_ceil(32).min(sectors);
        counts.peer_sectors += if memory.is_peers(index) { sectors } else { 0 };
        return;
    }
    // An aligned access is within one sector.
    if let (Some(index), 1..=32) = (buffer.0, bytes)
        && let Some(sectors) = memory.touch_ascending(index, lanes(mask).map(|lane| at[lane]), stores)
    {
        counts.sectors += sectors;
        counts.ideal_sectors += asked.div_ceil(32).min(sectors);
        counts.peer_sectors += if memory.is_peers(index) { sectors } else { 0 };
        return;
    }
    let sectors = sectors(mask, at, bytes);
    counts.sectors += sectors.len as u64;
    counts.ideal_sectors += asked.div_ceil(32).min(sectors.len as u64);
    let mut last = buffer.0;
    for &sector in &sectors.list[..sectors.len] {
        last = memory.touch(sector, last);
        if let Some(index) = last.filter(|_| stores) {
            memory.note_stored(index, sector << 5, 32);
        }
        counts.peer_sectors += u64::from(last.is_some_and(|buffer| memory.is_peers(buffer)));
    }
}

/// Counts the sectors of a bulk copy of contiguous bytes.
pub(crate) fn count_bulk(meter: &mut Meter, memory: &mut Memory, address: DeviceAddress, bytes: usize) {
    let (first, last) = (address / 32, (address + bytes as u64).div_ceil(32));
    let counts = meter.current();
    counts.global_bytes += bytes as u64;
    counts.sectors += last - first;
    counts.ideal_sectors += (bytes as u64).div_ceil(32);
    let mut buffer = None;
    for sector in first..last {
        buffer = memory.touch(sector, buffer);
    }
}

/// Counts the wavefronts of a request of some lanes to shared memory.
#[inline(always)]
pub(crate) fn count_shared(meter: &mut Meter, mask: u32, at: &[u64; 32], bytes: usize) {
    let (wavefronts, ideal) = wavefronts(mask, at, bytes);
    let counts = meter.current();
    counts.wavefronts += wavefronts;
    counts.ideal_wavefronts += ideal;
}

/// The distinct sectors of a request.
struct Sectors {
    list: [u64; 64],
    len: usize,
}

/// Returns the 32-byte sectors that the lanes of a request touch, each once.
#[inline(always)]
fn sectors(mask: u32, at: &[u64; 32], bytes: usize) -> Sectors {
    let mut found = Sectors { list: [0; 64], len: 0 };
    let mut highest = None;
    for lane in lanes(mask) {
        // An aligned request of at most 32 bytes is within one sector. A misaligned one becomes a fault later.
        let sector = at[lane] >> 5;
        let earlier = &found.list[..found.len];
        if Some(sector) > highest || earlier.last() != Some(&sector) && !earlier.contains(&sector) {
            found.list[found.len] = sector;
            found.len += 1;
        }
        highest = highest.max(Some(sector));
        let end = (at[lane].wrapping_add(bytes as u64 - 1)) >> 5;
        if end != sector && !found.list[..found.len].contains(&end) && found.len < 64 {
            found.list[found.len] = end;
            found.len += 1;
        }
    }
    found
}

/// Returns the passes over the 32 banks that a request needs, and the passes that it would need without conflicts.
///
/// Requests of more than four bytes per lane are served in half or quarter warps.
#[inline(always)]
fn wavefronts(mask: u32, at: &[u64; 32], bytes: usize) -> (u64, u64) {
    let width = (128 / bytes.max(4)).min(32);
    let words = bytes.div_ceil(4) as u64;
    let (mut total, mut ideal) = (0, 0);
    for first in (0..32).step_by(width) {
        let part = mask & (u32::MAX >> (32 - width)) << first;
        if part == 0 {
            continue;
        }
        ideal += 1;
        // Usually all lanes take part.
        let differs = if part.count_ones() as usize == width {
            differ(at[first..first + width].iter().copied(), bytes)
        } else {
            differ(lanes(part).map(|lane| at[lane]), bytes)
        };
        if differs {
            total += 1;
            continue;
        }
        // Lists the distinct words. Two words in the same bank conflict.
        let mut banks = 0u32;
        let mut list = [0u64; 64];
        let (mut len, mut conflict) = (0, false);
        for lane in lanes(part) {
            for word in (at[lane] >> 2)..(at[lane] >> 2).wrapping_add(words).max(at[lane] >> 2) {
                let bank = 1 << (word & 31);
                if banks & bank == 0 || !list[..len].contains(&word) {
                    conflict |= banks & bank != 0;
                    banks |= bank;
                    list[len & 63] = word;
                    len = (len + 1).min(64);
                }
            }
        }
        total += if conflict { worst_bank(&list[..len]) } else { 1 };
    }
    (total, ideal)
}

/// Returns whether all lanes of a pass access different banks, as they usually do.
#[inline(always)]
fn differ(addresses: impl Iterator<Item = u64>, bytes: usize) -> bool {
    if !matches!(bytes, 4 | 8 | 16) {
        return false;
    }
    let (mut seen, mut repeated, mut offsets) = (0u32, 0, 0);
    let shift = bytes.trailing_zeros();
    for at in addresses {
        let place = 1 << (at >> shift & 127 >> shift);
        repeated |= seen & place;
        seen |= place;
        offsets |= at;
    }
    repeated == 0 && offsets & (bytes as u64 - 1) == 0
}

/// Returns the number of words in the fullest bank.
fn worst_bank(words: &[u64]) -> u64 {
    let mut counts = [0u8; 32];
    words.iter().for_each(|word| counts[(word & 31) as usize] += 1);
    counts.into_iter().max().unwrap_or(0).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(step: u64) -> [u64; 32] {
        std::array::from_fn(|lane| lane as u64 * step)
    }

    #[test]
    fn sectors_are_counted_once() {
        assert_eq!(sectors(!0, &at(4), 4).len, 4);
        assert_eq!(sectors(!0, &at(32), 4).len, 32);
        assert_eq!(sectors(!0, &at(0), 4).len, 1);
        assert_eq!(sectors(1, &at(16), 16).len, 1);
    }

    #[test]
    fn bank_conflicts_need_more_wavefronts() {
        assert_eq!(wavefronts(!0, &at(4), 4), (1, 1));
        assert_eq!(wavefronts(!0, &at(128), 4), (32, 1));
        assert_eq!(wavefronts(!0, &at(132), 4), (1, 1));
        assert_eq!(wavefronts(!0, &at(0), 4), (1, 1));
        assert_eq!(wavefronts(!0, &at(8), 4), (2, 1));
        assert_eq!(wavefronts(!0, &at(16), 16), (4, 4));
        assert_eq!(wavefronts(!0, &at(2), 2), (1, 1));
    }
}
