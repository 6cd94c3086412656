//! `wgmma`: products of a warp group, with factors in shared memory.
//!
//! Each warp of the group computes its own sixteen rows. It does so at the latest moment, when it waits for the group
//! of products.

use super::fragment::{first_factor, position, store_row_sums, with_row_sums};
use crate::exec::state::block::BlockState;
use crate::exec::state::lane_access::LaneAccess;
use crate::exec::state::meter::Meter;
use crate::exec::state::product::{Descriptor, PendingProduct, Tile};
use crate::exec::state::warp::Warp;
use crate::exec::tensor_core::halves::RecentFactors;
use crate::exec::tensor_core::{Bits, DEPTH};
use crate::fault::{Checked, FaultKind, Violation};
use crate::program::{FirstFactor, Op, Product, Program};

/// Negates halves if `negates` is set.
fn negate<const S: usize>(bits: &mut Bits<S>, negates: bool) {
    if negates {
        bits.iter_mut().flatten().for_each(|bits| *bits ^= 0x8000);
    }
}

/// Starts a product, which reads its factors from now on.
pub(crate) fn start_product(
    meter: &mut Meter,
    block: &mut BlockState,
    warp: &mut Warp,
    product: &Product,
) -> Checked<()> {
    if warp.live != u32::MAX {
        return Err(Violation::new(FaultKind::MissingLanes, "a product of a warp group needs all 32 lanes"));
    }
    if !warp.product_fence {
        let message = "a product of a warp group with no `wgmma.fence` before it";
        return Err(Violation::new(FaultKind::AsyncRegion, message));
    }
    let descriptor = |slot: u32, transposed| Descriptor::decode(warp.registers.wides[slot as usize][0], transposed);
    let a = match product.a {
        FirstFactor::Registers(_) => None,
        FirstFactor::Descriptor { slot, transposed } => {
            Some(Tile { descriptor: descriptor(slot, transposed)?, first: warp.id % 4 * 16, count: 16 })
        }
    };
    let b = Tile { descriptor: descriptor(product.b.0, product.b.1)?, first: 0, count: product.columns };
    let predicate = |slot: u32| warp.registers.masks[slot as usize] & 1 == 1;
    let adds = product.accumulates.is_none_or(|(slot, negated)| predicate(slot) != negated);
    let pieces = a.map(Tile::pieces).into_iter().flatten().chain(b.pieces());
    let reads = block.shared.start_async_reads(pieces, LaneAccess::new(&warp.clock, 0, false), false)?;
    meter.current().tensor_flops += (2 * 16 * DEPTH * product.columns) as u64;
    warp.products.push_back(PendingProduct { pc: meter.pc, a, b, adds, groups: 0, reads });
    Ok(())
}

/// Closes the current group of products.
pub(crate) fn commit_products(warp: &mut Warp) {
    warp.products.iter_mut().for_each(|product| product.groups += 1);
}

/// Computes all groups of products except the latest `pending`.
pub(crate) fn wait_products(program: &Program, block: &mut BlockState, warp: &mut Warp, pending: u32) {
    while warp.products.front().is_some_and(|product| product.groups > pending) {
        let Some(ending) = warp.products.pop_front() else { return };
        if let Op::Product(product) = &program.code[ending.pc].op {
            compute(warp, &block.shared.data, product, &ending);
        }
        block.shared.end_async_reads(&ending.reads, LaneAccess::new(&warp.clock, 0, false));
    }
}

/// Computes a product that is in flight.
fn compute(warp: &mut Warp, memory: &[u8], product: &Product, pending: &PendingProduct) {
    let Warp { registers, factors, .. } = warp;
    let factors = factors.get_or_insert_with(|| Box::new(RecentFactors::new()));
    let mut a = [[0; DEPTH]; 16];
    match (&product.a, &pending.a) {
        (FirstFactor::Registers(slots), _) => first_factor(registers, slots, &mut a),
        (_, Some(tile)) => tile.read(memory, tile.first, |row| row, &mut a),
        (_, None) => {}
    }
    negate(&mut a, product.negates[0]);
    factors.set_rows(product.factor, &a);
    // Eight columns take four registers, or two registers of packed halves.
    let width = if product.half_sum { 2 } else { 4 };
    for (group, slots) in product.d.chunks_exact(width).enumerate() {
        factors.set_columns(|columns| {
            pending.b.read(memory, group * 8, position, columns);
            negate(columns, product.negates[1]);
        });
        let mut sums = [[0; 32]; 4];
        if pending.adds {
            with_row_sums(registers, slots, product.half_sum, |before| factors.multiply_add(before, &mut sums));
        } else {
            factors.multiply_add([&[0; 32]; 4], &mut sums);
        }
        store_row_sums(registers, slots, product.half_sum, &sums);
    }
}
