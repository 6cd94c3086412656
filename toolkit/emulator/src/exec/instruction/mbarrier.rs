//! Instructions on mbarriers: arrivals, expected bytes and phases.

use super::bulk_fill::end_fills;
use super::cluster::on_block;
use super::copy::end_arrivals;
use super::operand::shared_addresses;
use super::space::rank_of;
use crate::exec::state::block::BlockState;
use crate::exec::state::block_env::BlockEnv;
use crate::exec::state::constants::LaunchConstants;
use crate::exec::state::copy::{PendingArrival, PendingCopy};
use crate::exec::state::lane_access::LaneAccess;
use crate::exec::state::lane_mask::lanes;
use crate::exec::state::mbarrier::Mbarrier;
use crate::exec::state::warp::{Wait, Warp};
use crate::fault::{Checked, FaultKind, Violation};
use crate::program::{Address, MbarrierInstruction, MbarrierOp};
use crate::window::RANK_SHIFT;

/// The most arrivals that an mbarrier can count.
const MAX_COUNT: u32 = (1 << 20) - 1;

fn fault<T>(lane: usize, at: u64, message: String) -> Checked<T> {
    Err(Violation::new(FaultKind::Mbarrier, message).lane(lane).address(at).buffer("shared memory"))
}

/// Returns the mbarrier at an offset. Its initialisation must come before the lane's access.
pub(crate) fn mbarrier_at<'b>(
    launch: &LaunchConstants<'_>,
    block: &'b mut BlockState,
    warp: &Warp,
    lane: usize,
    at: u64,
) -> Checked<&'b mut Mbarrier> {
    let Some(barrier) = block.mbarriers.get_mut(&at) else {
        return fault(lane, at, format!("there is no mbarrier at offset {at:#x}: it was not initialised"));
    };
    let (thread, epoch) = barrier.creator;
    if launch.options.check_races
        && thread != warp.clock.warp * 32 + lane
        && !warp.clock.view(lane).knows(thread, epoch)
    {
        let message =
            format!("the mbarrier at offset {at:#x} that thread {thread} initialised, with no barrier between");
        return Err(Violation::new(FaultKind::SharedRace, message).lane(lane).address(at).buffer("shared memory"));
    }
    Ok(barrier)
}

/// Executes an instruction on the mbarriers of some lanes.
pub(crate) fn mbarrier(
    env: &mut BlockEnv<'_>,
    warp: &mut Warp,
    instruction: &MbarrierInstruction,
    mask: u32,
) -> Checked<()> {
    let at = shared_addresses(warp, instruction.address);
    if matches!(instruction.op, MbarrierOp::TestParity | MbarrierOp::TestState) {
        return test(env, warp, instruction, &at, mask);
    }
    let values = warp.registers.words[instruction.value as usize];
    for lane in lanes(mask) {
        let (at, value) = (at[lane], values[lane]);
        if env.launch.config.cluster_size() > 1
            && let Some(rank) = rank_of(at)
        {
            let at = at & ((1 << RANK_SHIFT) - 1);
            let is_own = rank == env.block.rank;
            let can_reach =
                instruction.result.is_none() && !matches!(instruction.op, MbarrierOp::Init | MbarrierOp::Invalidate);
            if !is_own && !can_reach {
                return fault(
                    lane,
                    at,
                    format!("an mbarrier of block {rank} of the cluster, which only that block may use in this way"),
                );
            }
            on_block(env, warp, (lane, rank, true), |env, warp| change(env, warp, instruction, lane, (at, value)))?;
        } else {
            change(env, warp, instruction, lane, (at, value))?;
        }
    }
    Ok(())
}

/// Executes an instruction other than a test on the mbarrier of one lane.
fn change(
    env: &mut BlockEnv<'_>,
    warp: &mut Warp,
    instruction: &MbarrierInstruction,
    lane: usize,
    (at, value): (u64, u32),
) -> Checked<()> {
    env.block.shared.locate(at, 8).map_err(|fault| fault.lane(lane))?;
    match instruction.op {
        MbarrierOp::Init => set_up(env.block, warp, lane, at, value)?,
        MbarrierOp::Invalidate => {
            mbarrier_at(env.launch, env.block, warp, lane, at)?;
            env.block.mbarriers.remove(&at);
            env.block.shared.set_mbarrier(at as usize, false);
        }
        MbarrierOp::Expect => mbarrier_at(env.launch, env.block, warp, lane, at)?.bytes += i64::from(value),
        MbarrierOp::Complete => add_bytes(env, warp, lane, at, -i64::from(value))?,
        MbarrierOp::ArriveExpecting => {
            mbarrier_at(env.launch, env.block, warp, lane, at)?.bytes += i64::from(value);
            arrive(env, warp, instruction, lane, at, (1, false))?;
        }
        MbarrierOp::Arrive { drops } => arrive(env, warp, instruction, lane, at, (value, drops))?,
        MbarrierOp::TestParity | MbarrierOp::TestState => {}
    }
    Ok(())
}

/// Initialises an mbarrier for `count` arrivals.
fn set_up(block: &mut BlockState, warp: &mut Warp, lane: usize, at: u64, count: u32) -> Checked<()> {
    if !(1..=MAX_COUNT).contains(&count) {
        return fault(lane, at, format!("an mbarrier for {count} arrivals"));
    }
    if block.mbarriers.contains_key(&at) {
        return fault(lane, at, format!("an mbarrier already lives at offset {at:#x}"));
    }
    // Initialisation counts as an ordinary write.
    let who = LaneAccess::new(&warp.clock, lane, false);
    block.shared.write(at as usize, 8, who, false).map_err(|fault| fault.lane(lane))?;
    block.shared.set_mbarrier(at as usize, true);
    let agent = block.mbarriers.len() % 32;
    let barrier = Mbarrier::new(count, (warp.clock.warp * 32 + lane, warp.clock.epoch), agent);
    block.mbarriers.insert(at, barrier);
    Ok(())
}

/// Counts arrivals of a lane. With `drops`, later phases need that many fewer.
fn arrive(
    env: &mut BlockEnv<'_>,
    warp: &mut Warp,
    instruction: &MbarrierInstruction,
    lane: usize,
    at: u64,
    (count, drops): (u32, bool),
) -> Checked<()> {
    let clocks = env.launch.clocks();
    let barrier = mbarrier_at(env.launch, env.block, warp, lane, at)?;
    let before = barrier.phase;
    if count == 0 || count > barrier.pending {
        let message = format!("{count} arrivals are too many: {}", barrier.describe(at));
        return fault(lane, at, message);
    }
    barrier.arrived.add(&mut warp.clock, clocks, 1 << lane);
    barrier.pending -= count;
    if drops {
        barrier.count -= count;
    }
    barrier.step(clocks);
    env.block.events += 1;
    if let Some(result) = instruction.result {
        warp.registers.wides[result as usize][lane] = before;
    }
    Ok(())
}

/// Adds to the bytes that an mbarrier waits for, or subtracts from them.
fn add_bytes(env: &mut BlockEnv<'_>, warp: &Warp, lane: usize, at: u64, bytes: i64) -> Checked<()> {
    let clocks = env.launch.clocks();
    let barrier = mbarrier_at(env.launch, env.block, warp, lane, at)?;
    barrier.bytes += bytes;
    barrier.step(clocks);
    env.block.events += 1;
    Ok(())
}

/// Tests whether a phase is over. If the phase lacks only the bytes of bulk copies, these copies end now.
fn test(
    env: &mut BlockEnv<'_>,
    warp: &mut Warp,
    instruction: &MbarrierInstruction,
    at: &[u64; 32],
    mask: u32,
) -> Checked<()> {
    let mut done = 0;
    for lane in lanes(mask) {
        let at = at[lane];
        if env.launch.config.cluster_size() > 1 && rank_of(at).is_some() {
            return fault(lane, at, "a test of an mbarrier of another block of the cluster".into());
        }
        mbarrier_at(env.launch, env.block, warp, lane, at)?;
        let is_over = |barrier: &Mbarrier, warp: &Warp| match instruction.op {
            MbarrierOp::TestState => barrier.phase != warp.registers.wides[instruction.value as usize][lane],
            _ => barrier.phase & 1 != u64::from(warp.registers.words[instruction.value as usize][lane] & 1),
        };
        if !is_over(&env.block.mbarriers[&at], warp) && !env.block.arrivals.is_empty() {
            end_arrivals(env.block, env.memory, env.launch.clocks(), at)?;
        }
        let barrier = &env.block.mbarriers[&at];
        if !is_over(barrier, warp) && barrier.pending == 0 {
            end_fills(env.block, env.memory, env.launch.clocks(), at)?;
        }
        let barrier = &env.block.mbarriers[&at];
        if is_over(barrier, warp) {
            done |= 1 << lane;
        } else {
            warp.spins_on = Some(Wait { at, lane, pc: env.meter.pc });
        }
    }
    let opened = |lane: usize| env.block.mbarriers[&at[lane]].opened.as_ref();
    let mut rest: u32 = done;
    while env.launch.options.check_races && rest != 0 {
        let first = rest.trailing_zeros() as usize;
        let group = lanes(rest).filter(|&lane| at[lane] == at[first]).fold(0, |set, lane| set | 1 << lane);
        rest &= !group;
        if let Some(view) = opened(first) {
            warp.clock.learn(group, view);
        }
    }
    if let Some(result) = instruction.result {
        let target = &mut warp.registers.masks[result as usize];
        *target = *target & !mask | done;
    }
    Ok(())
}

/// Returns the fault of a warp that waits for a phase that can no longer end.
pub(crate) fn lost_phase(block: &BlockState, wait: &Wait) -> Box<Violation> {
    let state = block.mbarriers.get(&wait.at).map_or_else(String::new, |barrier| barrier.describe(wait.at));
    let message = format!("an endless wait: {state}, and no thread of the block does anything else");
    let fault = Violation::new(FaultKind::Deadlock, message);
    fault.lane(wait.lane).address(wait.at).buffer("shared memory")
}

/// Makes an mbarrier wait for all copies that lanes have started. Each lane arrives when its own copies have ended.
///
/// If `counted`, these arrivals are part of the mbarrier's count. If not, the phase expects one more arrival per lane.
pub(crate) fn arrive_after_copies(
    env: &mut BlockEnv<'_>,
    warp: &mut Warp,
    address: Address,
    counted: bool,
    mask: u32,
) -> Checked<()> {
    let (at, clocks) = (shared_addresses(warp, address), env.launch.clocks());
    for lane in lanes(mask) {
        let epoch = warp.clock.epoch;
        let barrier = mbarrier_at(env.launch, env.block, warp, lane, at[lane])?;
        barrier.pending += u32::from(!counted);
        barrier.arrived.add(&mut warp.clock, clocks, 1 << lane);
        let first = warp.closed_groups - warp.groups.len() as u64;
        let groups = (first..).zip(warp.groups.iter_mut().chain([&mut warp.copies]));
        let is_own = |copy: &mut PendingCopy| usize::from(copy.lane) == lane;
        let copies = groups.flat_map(|(number, group)| group.extract_if(.., is_own).map(move |copy| (number, copy)));
        let writer = (warp.clock.warp * 32 + lane, epoch);
        let arrival = PendingArrival { barrier: at[lane], warp: warp.id, writer, copies: copies.collect() };
        env.block.arrivals.push(arrival);
        env.block.events += 1;
    }
    Ok(())
}
