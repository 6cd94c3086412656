//! Exchanges between the lanes of a warp.

use crate::exec::state::constants::LaunchConstants;
use crate::exec::state::lane_mask::lanes;
use crate::exec::state::warp::Warp;
use crate::fault::{Checked, FaultKind, Violation};
use crate::lanes::Lanes;
use crate::program::{Collective, ReduxOp, ShuffleMode, VoteMode};
use crate::vectors::widest;

/// Writes a word to each lane of a mask.
fn put(warp: &mut Warp, slot: u32, values: &[u32; 32], mask: u32) {
    let target = &mut warp.registers.words[slot as usize];
    if mask == u32::MAX {
        target.0 = *values;
    } else {
        lanes(mask).for_each(|lane| target[lane] = values[lane]);
    }
}

/// Writes a predicate to each lane of a mask.
fn put_mask(warp: &mut Warp, slot: u32, value: u32, mask: u32) {
    let target = &mut warp.registers.masks[slot as usize];
    *target = *target & !mask | value & mask;
}

widest! {
    /// Returns the lane that each lane reads in a shuffle, and a mask of the lanes whose source is in range.
    fn sources(mode: ShuffleMode, offset: &Lanes<u32>, clamp: &Lanes<u32>) -> (Lanes<u32>, u32) {
        let (mut sources, mut inside) = (Lanes([0; 32]), 0);
        for lane in 0..32 {
            let own = lane as u32;
            let (segment, limit, offset) = (clamp[lane] >> 8 & 31, clamp[lane] & 31, offset[lane] & 31);
            let last = own & segment | limit & !segment;
            let (source, fits) = match mode {
                // For `up`, the clamp is the lowest lane of the segment.
                ShuffleMode::Up => (own.wrapping_sub(offset), own as i32 - offset as i32 >= last as i32),
                ShuffleMode::Down => (own + offset, own + offset <= last),
                ShuffleMode::Butterfly => (own ^ offset, own ^ offset <= last),
                ShuffleMode::Index => {
                    let source = own & segment | offset & !segment;
                    (source, source <= last)
                }
            };
            sources[lane] = if fits { source } else { own };
            inside |= u32::from(fits) << lane;
        }
        (sources, inside)
    }
}

widest! {
    /// Returns the value of each lane's source.
    fn pick(values: &Lanes<u32>, sources: &Lanes<u32>) -> Lanes<u32> {
        let mut picked = Lanes([0; 32]);
        for lane in 0..32 {
            picked[lane] = values[sources[lane] as usize % 32];
        }
        picked
    }
}

/// Executes a collective for each set of lanes that name the same members.
pub(crate) fn collective(
    launch: &LaunchConstants<'_>,
    warp: &mut Warp,
    op: &Collective,
    members: u32,
    mask: u32,
) -> Checked<()> {
    let named = warp.registers.words[members as usize];
    let mut rest = mask;
    while rest != 0 {
        let first = rest.trailing_zeros() as usize;
        let members = named[first];
        // Usually all lanes name the same members.
        let same = if named.iter().fold(0, |differs, &named| differs | named ^ members) == 0 {
            rest
        } else {
            lanes(rest).filter(|&lane| named[lane] == members).fold(0, |set, lane| set | 1 << lane)
        };
        let missing = members & warp.live & !same;
        if missing != 0 {
            let message = format!(
                "the collective names lanes {members:#010x}, but only lanes {same:#010x} of the living {:#010x} execute it together",
                warp.live
            );
            return Err(Violation::new(FaultKind::MissingLanes, message).lane(first));
        }
        if same & !members != 0 {
            let lane = (same & !members).trailing_zeros();
            let message = format!("lane {lane} executes a collective that names lanes {members:#010x}, not itself");
            return Err(Violation::new(FaultKind::MissingLanes, message).lane(lane as usize));
        }
        exchange(launch, warp, op, same)?;
        rest &= !same;
    }
    Ok(())
}

/// Returns an integer of 32 or 64 bits.
fn integer(warp: &Warp, slot: u32, wide: bool, lane: usize) -> u64 {
    if wide { warp.registers.wides[slot as usize][lane] } else { warp.registers.words[slot as usize][lane].into() }
}

/// Returns the function that combines two values.
fn fold(op: ReduxOp) -> fn(u32, u32) -> u32 {
    match op {
        ReduxOp::Add => u32::wrapping_add,
        ReduxOp::Min => u32::min,
        ReduxOp::Max => u32::max,
        ReduxOp::MinSigned => |a, b| (a as i32).min(b as i32) as u32,
        ReduxOp::MaxSigned => |a, b| (a as i32).max(b as i32) as u32,
        ReduxOp::And => |a, b| a & b,
        ReduxOp::Or => |a, b| a | b,
        ReduxOp::Xor => |a, b| a ^ b,
    }
}

/// Executes a collective for lanes that execute it together.
fn exchange(launch: &LaunchConstants<'_>, warp: &mut Warp, op: &Collective, mask: u32) -> Checked<()> {
    match *op {
        Collective::Barrier => {
            if launch.options.check_races {
                warp.clock.meet(launch.clocks(), mask);
            }
        }
        Collective::Shuffle { mode, result, valid, value, lane, clamp } => {
            let words = &warp.registers.words;
            let (sources, inside) = sources(mode, &words[lane as usize], &words[clamp as usize]);
            let takes_part = |lane: &usize| mask >> sources[*lane] & 1 == 1;
            if mask != u32::MAX
                && let Some(lane) = lanes(mask).find(|lane| !takes_part(lane))
            {
                let source = sources[lane];
                let message =
                    format!("a shuffle reads lane {source}, which does not take part (lanes {mask:#010x} do)");
                return Err(Violation::new(FaultKind::MissingLanes, message).lane(lane));
            }
            let values = pick(&words[value as usize], &sources);
            put(warp, result, &values, mask);
            if let Some(valid) = valid {
                put_mask(warp, valid, inside, mask);
            }
        }
        Collective::Vote { mode, result, predicate, negated } => {
            let predicate = warp.registers.masks[predicate as usize];
            let votes = mask & if negated { !predicate } else { predicate };
            let all = |yes: bool| if yes { u32::MAX } else { 0 };
            match mode {
                VoteMode::Ballot => put(warp, result, &[votes; 32], mask),
                VoteMode::All => put_mask(warp, result, all(votes == mask), mask),
                VoteMode::Any => put_mask(warp, result, all(votes != 0), mask),
                VoteMode::Uniform => put_mask(warp, result, all(votes == 0 || votes == mask), mask),
            }
        }
        Collective::Redux { op, result, value } => {
            let values = warp.registers.words[value as usize];
            let value = lanes(mask).map(|lane| values[lane]).reduce(fold(op)).unwrap_or(0);
            put(warp, result, &[value; 32], mask);
        }
        Collective::Elect { result, chosen } => {
            let leader = mask.trailing_zeros();
            put(warp, result, &[leader; 32], mask);
            put_mask(warp, chosen, 1 << leader, mask);
        }
        Collective::MatchAll { result, all, value, wide } => {
            let at = |lane: usize| integer(warp, value, wide, lane);
            let first = mask.trailing_zeros() as usize;
            let same = lanes(mask).all(|lane| at(lane) == at(first));
            put(warp, result, &[if same { mask } else { 0 }; 32], mask);
            if let Some(all) = all {
                put_mask(warp, all, if same { mask } else { 0 }, mask);
            }
        }
        Collective::MatchAny { result, value, wide } => {
            let at = |lane: usize| integer(warp, value, wide, lane);
            let mut values = [0; 32];
            for lane in lanes(mask) {
                values[lane] =
                    lanes(mask).filter(|&other| at(other) == at(lane)).fold(0, |set, other| set | 1 << other);
            }
            put(warp, result, &values, mask);
        }
    }
    Ok(())
}
