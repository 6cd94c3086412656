//! Products of one warp (`mma.sync`), and loads and stores of matrices (`ldmatrix`, `stmatrix`).

use super::fragment::{first_factor, second_factor, store_row_sums, with_row_sums};
use super::operand::shared_addresses;
use super::poison;
use super::traffic::count_shared;
use crate::exec::state::block_env::BlockEnv;
use crate::exec::state::lane_access::LaneAccess;
use crate::exec::state::lane_mask::lanes;
use crate::exec::state::warp::Warp;
use crate::exec::tensor_core::halves::RecentFactors;
use crate::fault::{Checked, FaultKind, Violation};
use crate::program::{Address, Factor, Mma};
use crate::ptx::ast::Width;

/// Returns the row and column of the two matrix elements that a lane has in a register.
#[inline(always)]
fn places(lane: usize, transposed: bool) -> [(usize, usize); 2] {
    let (row, column) = (lane / 4, lane % 4 * 2);
    [column, column + 1].map(|column| if transposed { (column, row) } else { (row, column) })
}

/// Loads one to four matrices of eight rows. Each lane has the address of one row.
pub(crate) fn load_matrix(
    env: &mut BlockEnv<'_>,
    warp: &mut Warp,
    address: Address,
    registers: &[u32],
    transposed: bool,
) -> Checked<()> {
    if warp.live != u32::MAX {
        return Err(Violation::new(FaultKind::MissingLanes, "a matrix load needs all 32 lanes"));
    }
    let at = shared_addresses(warp, address);
    count_shared(env.meter, u32::MAX >> (32 - 8 * registers.len()), &at, 16);
    let (mut rows, who) = ([[0u32; 4]; 32], LaneAccess::by_lane(&warp.clock, false));
    for (lane, words) in rows.iter_mut().enumerate().take(8 * registers.len()) {
        let offset = env.block.shared.locate(at[lane], 16).map_err(|fault| fault.lane(lane))?;
        env.block.shared.read(offset, 16, who(lane)).map_err(|fault| fault.lane(lane))?;
        for (word, bytes) in words.iter_mut().zip(env.block.shared.data[offset..offset + 16].as_chunks().0) {
            *word = u32::from_le_bytes(*bytes);
        }
    }
    let poisons = env.block.shared.take_unwritten() || warp.poison.is_some();
    for (matrix, (&register, rows)) in registers.iter().zip(rows.as_chunks::<8>().0).enumerate() {
        let target = &mut warp.registers.words[register as usize];
        if transposed {
            for (column, words) in target.chunks_exact_mut(4).enumerate() {
                let element = |row: usize| rows[row][column / 2] >> (column % 2 * 16) & 0xffff;
                for (pair, word) in words.iter_mut().enumerate() {
                    *word = element(2 * pair) | element(2 * pair + 1) << 16;
                }
            }
        } else {
            // Copy each row as it was written. A wider load would wait for the stores.
            target.chunks_exact_mut(4).zip(rows).for_each(|(words, row)| words.copy_from_slice(row));
        }
        if poisons {
            let written = |lane: usize| {
                places(lane, transposed)
                    .iter()
                    .all(|&(row, column)| env.block.shared.is_written(at[8 * matrix + row] as usize + 2 * column, 2))
            };
            let poisoned = lanes(u32::MAX).filter(|&lane| !written(lane)).fold(0, |set, lane| set | 1 << lane);
            let origin = (env.meter.pc as u32, at[8 * matrix]);
            poison::set_word(env.launch.program, warp, register, poisoned, origin);
        }
    }
    Ok(())
}

/// Stores one to four matrices of eight rows. Each lane has the address of one row.
pub(crate) fn store_matrix(
    env: &mut BlockEnv<'_>,
    warp: &mut Warp,
    address: Address,
    registers: &[u32],
    transposed: bool,
) -> Checked<()> {
    if warp.live != u32::MAX {
        return Err(Violation::new(FaultKind::MissingLanes, "a matrix store needs all 32 lanes"));
    }
    let at = shared_addresses(warp, address);
    for (matrix, &register) in registers.iter().enumerate() {
        let mut rows = [[0u16; 8]; 8];
        for (lane, &word) in warp.registers.words[register as usize].iter().enumerate() {
            for ((row, column), value) in places(lane, transposed).into_iter().zip([word as u16, (word >> 16) as u16]) {
                rows[row][column] = value;
            }
        }
        count_shared(env.meter, 0xff << (8 * matrix), &at, 16);
        for (row, values) in rows.iter().enumerate() {
            let lane = 8 * matrix + row;
            let offset = env.block.shared.locate(at[lane], 16).map_err(|fault| fault.lane(lane))?;
            let who = LaneAccess::new(&warp.clock, lane, false);
            env.block.shared.write(offset, 16, who, false).map_err(|fault| fault.lane(lane))?;
            for (bytes, value) in env.block.shared.data[offset..offset + 16].chunks_exact_mut(2).zip(values) {
                bytes.copy_from_slice(&value.to_le_bytes());
            }
        }
        if let Some(poison) = &warp.poison {
            for lane in lanes(poison.get((Width::B32, register))) {
                for (row, column) in places(lane, transposed) {
                    env.block.shared.mark_unwritten(at[8 * matrix + row] as usize + 2 * column, 2);
                }
            }
        }
    }
    Ok(())
}

/// Executes `mma.sync.m16n8k16` or `m16n8k8` on a warp's fragments.
pub(crate) fn mma(Warp { registers, factors, .. }: &mut Warp, mma: &Mma<Factor>) {
    let factors = factors.get_or_insert_with(|| Box::new(RecentFactors::new()));
    // A product of less depth is padded with zeros.
    let words =
        |slots: &[u32], index: usize| slots.get(index).map_or(&[0; 32], |&slot| &registers.words[slot as usize]);
    let (a, b) = (std::array::from_fn(|index| words(&mma.a, index)), std::array::from_fn(|index| words(&mma.b, index)));
    factors.set_rows_from_registers(mma.kind, a, |rows| first_factor(registers, &mma.a, rows));
    factors.set_columns_from_registers(b, |columns| second_factor(registers, &mma.b, columns));
    let mut sums = [[0; 32]; 4];
    with_row_sums(registers, &mma.c, mma.half_sum, |before| factors.multiply_add(before, &mut sums));
    store_row_sums(registers, &mma.d, mma.half_sum, &sums);
}
