//! A projection of all experts for many tokens on Hopper: `wgmma`, with weights that tensor copies bring.
//!
//! A block computes tiles of [`TOKENS`] rows of an expert by [`COLUMNS`] rows of its weight, one tile at a time. As in
//! [`gemm_hopper`](crate::gemm::hopper::gemm_hopper()), whose ring and products this kernel shares, one warp group
//! fills a ring in shared memory and two groups multiply. The rows of an expert may be anywhere, so all threads of the
//! fetching group gather them with `cp.async`. One of them also starts the tensor copies of the weight.
//!
//! | | |
//! | --- | --- |
//! | shapes | as for [`grouped_product`](super::product::grouped_product()) |
//! | grid | x: one block for each tile, up to the number that run at once. [`THREADS`] threads |
//! | shared memory | [`SHARED_BYTES`]: 225 KiB, one block an SM |
//! | floor | the weights of the experts that have tokens, and `2 slots n k` flops |
//!
//! # What limits it
//!
//! With full tiles, the tensor cores, as for `gemm_hopper`. A ring slot is 1,024 clocks of work. For it the fetching
//! group starts 1,024 copies of 16 bytes and one tensor copy of 32 KiB. With few rows for each expert, memory: a tile
//! reads its weight whatever its rows. Missing rows become zeros without a read. A group without rows only releases
//! the slots.
//!
//! Each sum adds up `k` in steps of 16 in order, so a token's result does not depend on its tile or on other tokens.
//! `wgmma` may round sums differently than `mma`, so the choice of the kernel may matter. It depends on the number of
//! tokens of the step.
//!
//! # Ladder
//!
//! 1. [`grouped_product`](super::product::grouped_product()): `mma.sync`, and each thread copies, loads fragments and
//!    multiplies in turn.
//! 2. (here) A warp group fetches, and no fragments are loaded. `docs/benchmarks` has the counts.

mod output;

use cuda_std::prelude::*;
use cuda_std::ptx::tensor::{self, CuTensorMap};
use cuda_std::ptx::{control, cp_async, fence, mbarrier, wgmma};
use cuda_std::shared::{dynamic_shared_mem, shared_offset};
use cuda_std::unroll::hidden;
use cuda_std::vector::Vector;
use cuda_std::warp::FULL_MASK;

use super::product::{GatherCopy, Group, GroupOutput};
use crate::element::{Bf16, Element, F16};
use crate::gemm::hopper::output::PASS_BYTES;
use crate::gemm::hopper::ring::{Ring, RingPlace, barrier_bytes};
use crate::gemm::hopper::{ALIGNMENT, GROUP_ROWS, GROUP_THREADS, READERS, ROWS, b_at, stage_bytes, stages};
use crate::gemm::operand::{DEPTH, ROW_BYTES};
use crate::gemm::split::tiles as tiles_of;

use output::RowOutput;

pub use crate::gemm::hopper::THREADS;

/// Rows of an expert in a tile.
pub const TOKENS: u32 = ROWS;

/// Rows of the weight in a tile.
pub const COLUMNS: u32 = 256;

/// Slots in the ring.
pub const STAGES: u32 = stages(COLUMNS);

/// Bytes of a ring slot: the gathered rows, then the weight.
const STAGE_BYTES: u32 = stage_bytes(COLUMNS);

/// Byte offset of the weight in a ring slot.
const WEIGHT_AT: u32 = b_at(COLUMNS, 0);

/// Slots whose gathered rows may still be on their way when the next slot is filled. The readers then have one slot
/// more while the fetching group waits for a free one.
const ON_THE_WAY: u32 = STAGES - 2;

/// Dynamic shared memory, in bytes: alignment padding, the ring, the output's tiles of both groups, and the
/// barriers.
pub const SHARED_BYTES: u32 = ALIGNMENT + STAGES * STAGE_BYTES + 2 * PASS_BYTES + barrier_bytes(STAGES);

/// Multiplies sorted rows of activations with the weights of their experts.
///
/// `weight` is the tensor `[experts][n][k]` in tiles of 1 by [`COLUMNS`] by [`DEPTH`]. `tiles` has `most` tiles of up
/// to [`TOKENS`] slots, and tiles without slots are last.
/// [`grouped_product()`](super::product::grouped_product()) explains the other arguments. `out_stride` is a multiple of 8.
///
/// # Safety
/// As for [`grouped_product()`](super::product::grouped_product()).
#[kernel(dependent, arch = "sm_90a", max_threads = 384, min_blocks = 1, instances(T = [F16, Bf16]))]
pub unsafe fn grouped_hopper<T: Element>(
    weight: &CuTensorMap,
    x: *const u16,
    bias: *const u16,
    out: *mut u16,
    order: *const u32,
    tiles: *const Vector,
    most: u32,
    x_stride: u32,
    out_stride: u32,
    n: u32,
    all_rows: u32,
    k: u32,
    uses: u32,
    slope: f32,
    cubic: f32,
    limit: f32,
    shift: f32,
) {
    let memory: *mut u8 = dynamic_shared_mem();
    let memory = memory.wrapping_add((shared_offset(memory).wrapping_neg() % ALIGNMENT) as usize);
    let start = shared_offset(memory);
    let tiles_at = STAGES * STAGE_BYTES;
    let ring = Ring { tiles: start, barriers: start + tiles_at + 2 * PASS_BYTES, stages: STAGES };
    // The shuffle tells ptxas that all lanes have the same number.
    // SAFETY: all lanes of the warp are here together.
    let warp = unsafe { warp::warp_shuffle_idx(FULL_MASK, warp::warp_id(), 0, warp::WARP_SIZE) };
    if thread::thread_idx_x() == 0 {
        // SAFETY: no thread uses the barriers before the block's barrier below. The threads of the fetching group
        // arrive when they have gathered rows, and one of them also announces the weight.
        unsafe { ring.set_up_for(GROUP_THREADS + 1, READERS) };
    }
    thread::sync_threads();

    let in_group = thread::thread_idx_x() % GROUP_THREADS;
    let list = TileList { tiles, order, most, row_tiles: tiles_of(n, COLUMNS) };
    if warp >= READERS {
        // SAFETY: all threads of the warp group are here. They alone fill the ring.
        unsafe {
            control::give_registers::<56>();
            Fetch { weight, x, x_stride, k, uses, list, ring, thread: in_group }.run();
        }
        return;
    }
    // SAFETY: all threads of the warp group are here, and the fetching group gives up the registers that the others
    // take.
    unsafe { control::take_registers::<224>() };
    let group = warp / 4;
    let sync = || {
        // SAFETY: each group has its own barrier, and all of its threads reach it.
        unsafe { thread::sync_named(1 + group, GROUP_THREADS) };
    };
    let rows_memory = memory.wrapping_add((tiles_at + group * PASS_BYTES) as usize);
    // Descriptors of the factors in the first slot. Descriptors count in 16 bytes, so other slots add distance / 16.
    let [a, b] = [start + group * (GROUP_ROWS * ROW_BYTES), start + WEIGHT_AT].map(wgmma::row_descriptor);
    let factors = |at: RingPlace| [a, b].map(|first| [first + at.stage * (STAGE_BYTES / 16), 0]);
    let (mut at, mut tile, steps) = (RingPlace::default(), thread::block_idx_x(), tiles_of(k, DEPTH));
    // SAFETY: all threads of the group are here, and every branch depends on values that they share. A tile stays in
    // its slot while the products are computed. The group alone uses its memory for rows. The output is the group's, by
    // this kernel's contract.
    unsafe {
        while let Some((rows, row_tile)) = list.at(tile) {
            let own = rows.part(group * GROUP_ROWS, GROUP_ROWS);
            let mut step = 1;
            // The vote tells ptxas that the warp stays converged.
            if !warp::warp_vote_any(FULL_MASK, own.count != 0) {
                while step <= steps {
                    ring.read(&mut at, || ());
                    // Hidden, since the compiler would unroll the loop.
                    step = hidden(step + 1);
                }
                tile += thread::grid_dim_x();
                continue;
            }
            let [a, b] = factors(at);
            let mut sums = ring.read(&mut at, || T::multiply_first::<COLUMNS>(a, b));
            while step < steps {
                let [a, b] = factors(at);
                ring.read(&mut at, || T::multiply::<COLUMNS>(&mut sums, a, b));
                step += 1;
            }
            let column = hidden(row_tile) * COLUMNS;
            let bias = if bias.is_null() { bias } else { bias.add(own.expert as usize * all_rows as usize) };
            let output = GroupOutput { out, stride: out_stride, bias, n, uses, slope, cubic, limit, shift };
            RowOutput { output, memory: rows_memory, thread: in_group }.store::<T>(&mut sums, own, column, sync);
            tile += thread::grid_dim_x();
        }
    }
}

/// The list of the experts' tiles.
#[derive(Clone, Copy)]
struct TileList {
    tiles: *const Vector,
    order: *const u32,
    /// The length of the list.
    most: u32,
    /// Tiles of a weight's rows.
    row_tiles: u32,
}

impl TileList {
    /// Returns the rows of tile `tile` of the product, and the number of its tile of weight rows. Returns `None` after
    /// the last tile with rows.
    ///
    /// # Safety
    /// The list is as declared.
    #[inline(always)]
    unsafe fn at(&self, tile: u32) -> Option<(Group, u32)> {
        if tile >= self.most * self.row_tiles {
            return None;
        }
        // SAFETY: the tile is in the list, as just checked.
        let (rows, row_tile) = unsafe { Group::of_tile(self.tiles, self.order, self.row_tiles, tile) };
        if rows.count == 0 { None } else { Some((rows, row_tile)) }
    }
}

/// The fetching group's arguments.
struct Fetch<'a> {
    /// The weights of all experts.
    weight: &'a CuTensorMap,
    x: *const u16,
    x_stride: u32,
    k: u32,
    uses: u32,
    list: TileList,
    ring: Ring,
    /// The thread's number in the group.
    thread: u32,
}

impl Fetch<'_> {
    /// Fetches all of the block's tiles.
    ///
    /// # Safety
    /// All threads of the fetching group call this together, and only they fill the ring. The list and the operands
    /// are as [`grouped_hopper()`] demands.
    #[inline(always)]
    unsafe fn run(&self) {
        let Self { ring, list, .. } = *self;
        let (mut at, mut arrived, mut on_the_way) = (RingPlace::default(), RingPlace::default(), 0);
        let mut tile = thread::block_idx_x();
        // SAFETY: the slots are free after the wait. The tensor copy brings exactly the announced bytes. The rows are
        // the list's, by this function's contract.
        unsafe {
            while let Some((rows, row_tile)) = list.at(tile) {
                let source = GatherCopy::<TOKENS>::new(self.x, self.x_stride, self.k, rows, self.uses, self.thread);
                let (column, expert) = ((row_tile * COLUMNS) as i32, rows.expert as i32);
                let mut along = 0;
                while along < self.k {
                    let (to, full) = (ring.tiles + at.stage * STAGE_BYTES, ring.full(at));
                    mbarrier::wait(ring.empty(at), at.parity ^ 1);
                    if self.thread == 0 {
                        mbarrier::arrive_expect(full, COLUMNS * ROW_BYTES);
                        tensor::load_3d(to + WEIGHT_AT, self.weight, [along as i32, column, expert], full);
                    }
                    source.copy(to, along);
                    cp_async::commit();
                    at.advance(STAGES);
                    if on_the_way == ON_THE_WAY {
                        cp_async::wait::<{ ON_THE_WAY }>();
                        self.tell(&mut arrived);
                    } else {
                        on_the_way += 1;
                    }
                    along += DEPTH;
                }
                tile += thread::grid_dim_x();
            }
            cp_async::wait::<0>();
            while on_the_way > 0 {
                self.tell(&mut arrived);
                on_the_way -= 1;
            }
        }
    }

    /// Tells the readers that this thread's rows of a slot have arrived, and advances `arrived`.
    ///
    /// # Safety
    /// The thread has waited for its copies.
    #[inline(always)]
    unsafe fn tell(&self, arrived: &mut RingPlace) {
        // `wgmma` reads shared memory through another path than the copies wrote it.
        fence::proxy_async_shared();
        // SAFETY: the barriers are set up, and each thread arrives once in a phase.
        unsafe { mbarrier::arrive(self.ring.full(*arrived)) };
        arrived.advance(STAGES);
    }
}
