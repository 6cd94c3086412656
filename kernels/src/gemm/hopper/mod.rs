//! Many tokens on Hopper: `wgmma`, with tiles that tensor copies bring.
//!
//! A block has a tile of 128 tokens by `COLUMNS` (128 or 256) rows of the weight at a time. One warp group, of which one lane
//! works, fetches tiles of both operands into a ring in shared memory (`ring.rs`); two others multiply them, 64 tokens by
//! all columns each, in 128 registers a lane. As many blocks run as there are multiprocessors, and each goes through
//! several tiles of the product: while the groups store one, the ring fills with the operands of the next. Most outputs in 16
//! bits are stored by tensor copies (`output.rs`), all others by the code that all kernels share. What an output is added to comes
//! through the ring, behind the operands of its tile.
//!
//! Two blocks may be a cluster (`pair.rs`): their tiles are of different tokens and the same rows of the weight, of which
//! each fetches a half for both.
//!
//! | | |
//! | --- | --- |
//! | shapes | `x [m][k]`, `weight [n][k]`, `out [m][n]`; any `m` and `n`, `k` a multiple of 8 |
//! | grid | blocks that run at once, or one for each tile of the product, by splits of `k`; clusters of one or two along x; [`THREADS`] threads |
//! | shared memory | [`shared_bytes`]: 225 KiB, one block an SM |
//! | floor | `2 m n k` flops; `2 (m k + n k + m n)` bytes |
//!
//! # What limits it
//!
//! `wgmma` of 64 x 256 x 16 keeps the tensor cores busy for 128 clocks and reads 10 KiB of shared memory meanwhile, 8 of them
//! for both groups' sake: 80 clocks. A tile of the ring is 1,024 clocks of work for which 48 KiB come from L2, 48 bytes a
//! clock, or in pairs 32. A group waits for its products before it frees their tile; the other group's keep the tensor cores busy then.
//!
//! # Ladder
//!
//! 1. [`gemm`](super::prefill::gemm()): `mma.sync`, which has at most 63 % of the tensor cores; a warp copies, loads fragments
//!    and multiplies by turns, 2.2 instructions for 16 x 8 x 16.
//! 2. (here) The fetching is one lane's, the fragments are gone: see `BENCHMARKS.md` for the count.
//!
//! The shape is CUTLASS's "cooperative" one, and ThunderKittens': a producer, two consumers, a ring of full and empty
//! barriers, and registers that go from the one to the others. Simpler here: a group is on its own from the first wait to the
//! last store, so that there is no barrier of the block after the first.

pub mod decode;
mod output;
mod pair;
pub(crate) mod ring;
mod token_products;

use cuda_std::prelude::*;
use cuda_std::ptx::tensor::{self, CuTensorMap};
use cuda_std::ptx::{cluster, control, wgmma};
use cuda_std::shared::{dynamic_shared_mem, shared_offset};
use cuda_std::unroll;
use cuda_std::unroll::hidden;
use cuda_std::vector::{HalfVector, Vector};
use cuda_std::warp::FULL_MASK;

use super::epilogue::{ProductOutput, Staged};
use super::operand::{DEPTH, ROW_BYTES};
use super::prefill::place;
use super::split::{self, Meeting, share};
use crate::element::{Bf16, Element, F16};
pub use output::TILED;
use output::{PASS, PASS_BYTES, TILE, TILE_BYTES, TiledOutput, adds_tiles};
use pair::{Pair, SharedRing};
use ring::{Ring, RingPlace};

/// Tokens of a tile.
pub const ROWS: u32 = 128;

/// Threads of a block: two warp groups that multiply, and one that fetches.
pub const THREADS: u32 = 3 * GROUP_THREADS;

/// Threads of a warp group.
pub const GROUP_THREADS: u32 = 128;

/// Tokens of a warp group.
pub const GROUP_ROWS: u32 = ROWS / 2;

/// Warps that read tiles.
const READERS: u32 = 2 * GROUP_THREADS / warp::WARP_SIZE;

/// Tiles in the ring.
pub const fn stages(columns: u32) -> u32 {
    if columns == 256 { 4 } else { 3 }
}

/// Elements along `k` of a tile of the ring: of narrow tiles twice as many, for as much work between two waits.
pub const fn depth(columns: u32) -> u32 {
    if columns == 256 { DEPTH } else { 2 * DEPTH }
}

/// Bytes of a tile of both operands: tiles of [`DEPTH`] elements a row, first those of `x`.
const fn stage_bytes(columns: u32) -> u32 {
    (ROWS + columns) * depth(columns) * 2
}

/// Tiles of [`DEPTH`] elements a row, of each operand in a tile of the ring.
const fn parts(columns: u32) -> u32 {
    depth(columns) / DEPTH
}

/// Where part `part` of `x` is in a tile of the ring.
const fn a_at(part: u32) -> u32 {
    part * ROWS * ROW_BYTES
}

/// Where part `part` of the weight is in a tile of the ring.
const fn b_at(columns: u32, part: u32) -> u32 {
    a_at(parts(columns)) + part * columns * ROW_BYTES
}

/// Columns that a warp group stores at a time, where tensor copies do not.
const SLAB: u32 = 64;

/// Bytes in which a warp group passes sums on.
const SLAB_BYTES: u32 = GROUP_ROWS * SLAB * 4;

const _: () = assert!(SLAB_BYTES == PASS_BYTES && PASS == 2 * SLAB);

/// Bytes of what the output has in [`PASS`] columns: tiles of the first group, and then of the second.
const BEFORE_BYTES: u32 = 2 * PASS_BYTES;

const _: () = assert!(BEFORE_BYTES <= stage_bytes(128) && BEFORE_BYTES <= stage_bytes(256));

/// What tiles are aligned to, for the pattern that tensor copies leave.
const ALIGNMENT: u32 = 1024;

/// Dynamic shared memory, in bytes: what aligns the ring, the ring, the sums of both groups, and the barriers.
pub const fn shared_bytes(columns: u32) -> u32 {
    ALIGNMENT
        + stages(columns) * stage_bytes(columns)
        + 2 * SLAB_BYTES
        + ring::barrier_bytes(stages(columns))
        + FLAGS_BYTES
}

/// A flag for each group, with which one thread tells the others whether they are the last to arrive.
const FLAGS_BYTES: u32 = 2 * 4;

/// Multiplies activations with a weight: `out = epilogue(x weight^T)`, see [`super`] for the arguments; `x` and `weight` are
/// tensors of tiles of [`ROWS`] and `COLUMNS` rows of [`DEPTH`] elements, the weight in clusters of two in tiles of half as many.
///
/// # Safety
/// The arrays have the shapes that the arguments say, and the launch is the [`GemmPlan`](super::plan::GemmPlan)'s: every
/// block has a tile of the product, and at least one element of `k` of each, and clusters have one block or two. If `epilogue` has the bit [`TILED`], `tiles` is the output, in tiles of
/// [`GROUP_ROWS`] rows, and else not used. No launch writes the weight.
#[kernel(dependent = "waits", arch = "sm_90a", max_threads = 384, min_blocks = 1, instances(T = [F16, Bf16], COLUMNS = [128, 256]))]
pub unsafe fn gemm_hopper<T: Element, const COLUMNS: u32>(
    x: &CuTensorMap,
    weight: &CuTensorMap,
    tiles: &CuTensorMap,
    bias: *const u16,
    out: *mut u8,
    workspace: *mut Vector,
    counters: *mut u32,
    out_stride: u32,
    m: u32,
    n: u32,
    k: u32,
    epilogue: u32,
) {
    let memory: *mut u8 = dynamic_shared_mem();
    let memory = memory.wrapping_add((shared_offset(memory).wrapping_neg() % ALIGNMENT) as usize);
    let start = shared_offset(memory);
    let ring_bytes = stages(COLUMNS) * stage_bytes(COLUMNS);
    let ring = Ring { tiles: start, barriers: start + ring_bytes + 2 * SLAB_BYTES, stages: stages(COLUMNS) };
    // The shuffle tells the assembler that all lanes have the same number.
    // SAFETY: all lanes of the warp are here together.
    let warp = unsafe { warp::warp_shuffle_idx(FULL_MASK, warp::warp_id(), 0, warp::WARP_SIZE) };
    let pair = Pair::of_block();
    if thread::thread_idx_x() == 0 {
        // SAFETY: nobody uses the barriers before the cluster's barrier below.
        unsafe { ring.set_up(READERS * pair.blocks()) };
    }
    // SAFETY: all threads are here.
    unsafe { cluster::sync() };

    let (first, last) = share(split::tiles(k, depth(COLUMNS)));
    // Tiles are those of clusters: as many rows of tiles as they have blocks, and a column.
    let (rows, columns) = (split::tiles(m, ROWS << pair.shift), split::tiles(n, COLUMNS));
    let (mut tile, stride) = (thread::block_idx_x() >> pair.shift, thread::grid_dim_x() >> pair.shift);
    let mut at = RingPlace::default();
    if warp >= READERS {
        // SAFETY: all threads of the warp group are here; then all lanes of a warp.
        unsafe {
            // Together the groups have the registers that a block of so many threads begins with, 168 a thread.
            control::give_registers::<40>();
            if warp != READERS || !control::elect() {
                return;
            }
        }
        // Where a tile of the product begins.
        let origin = |tile: u32| {
            let (tile_m, tile_n) = place(tile, rows, columns);
            ((((tile_m << pair.shift) + pair.rank) * ROWS) as i32, (tile_n * COLUMNS) as i32)
        };
        let load_x = |to: u32, step: u32, row: i32, full: u32| {
            unroll!(part in [0 1] {
                if part < parts(COLUMNS) {
                    let along = (step * depth(COLUMNS) + part * DEPTH) as i32;
                    // SAFETY: the tile's place is free, and has room for it; the map is that of the activations.
                    unsafe { tensor::load_2d(to + a_at(part), x, [along, row], full) };
                }
            });
        };
        let load_weight = |to: u32, step: u32, column: i32, full: u32| {
            unroll!(part in [0 1] {
                if part < parts(COLUMNS) {
                    let along = (step * depth(COLUMNS) + part * DEPTH) as i32;
                    // SAFETY: as for the activations, in all blocks of the cluster.
                    unsafe { pair.load_weight::<COLUMNS>(to + b_at(COLUMNS, part), weight, [along, column], full) };
                }
            });
        };
        // No launch writes the weight: as much of it as the ring holds comes while those ahead still run.
        let (row, column) = origin(tile);
        // SAFETY: this lane alone fills the ring, nothing of which is in use; the copies bring so many bytes, and there is a tile.
        let mut step = unsafe {
            ring.fill_first(
                &mut at,
                (first, last),
                stage_bytes(COLUMNS),
                |to, step, full| load_weight(to, step, column, full),
                |to, step, full| load_x(to, step, row, full),
            )
        };
        while tile < rows * columns {
            let (row, column) = origin(tile);
            while step < last {
                let to = ring.tiles + at.stage * stage_bytes(COLUMNS);
                let load = |full: u32| {
                    load_x(to, step, row, full);
                    load_weight(to, step, column, full);
                };
                // SAFETY: this lane alone fills the ring, and the copies bring so many bytes: in clusters some are other blocks'.
                unsafe { ring.fill(&mut at, stage_bytes(COLUMNS), load) };
                step += 1;
            }
            if adds_tiles(epilogue) && thread::block_idx_y() == 0 {
                let mut pass = 0;
                while pass < COLUMNS {
                    let to = ring.tiles + at.stage * stage_bytes(COLUMNS);
                    let load = |full: u32| {
                        unroll!(part in [0 1 2 3] {
                            let (row, column) = (row + part / 2 * GROUP_ROWS as i32, column + pass as i32 + part % 2 * TILE as i32);
                            // SAFETY: the place is free, and has room for all; the map is that of the output.
                            unsafe { tensor::load_2d(to + part as u32 * TILE_BYTES, tiles, [column, row], full) };
                        });
                    };
                    // SAFETY: this lane alone fills the ring, and the copies bring so many bytes.
                    unsafe { ring.fill(&mut at, BEFORE_BYTES, load) };
                    pass += PASS;
                }
            }
            step = first;
            tile += stride;
        }
        if pair.shift != 0 {
            // Another block gives places back as long as it reads.
            // SAFETY: this lane alone has filled the ring.
            unsafe { ring.drain(at) };
        }
        return;
    }

    control::begin_dependent();
    // SAFETY: all threads of the warp group are here, and the fetching one gives back what the two take.
    unsafe { control::take_registers::<232>() };
    // What the compiler knows to be the same it keeps in registers across roles and tiles, and of these there are too few.
    let mut tile = hidden(tile);
    let group = warp / 4;
    let in_group = thread::thread_idx_x() % GROUP_THREADS;
    let lane = warp::lane_id();
    let sync = || {
        // SAFETY: both groups have a barrier of their own, which all of their threads reach.
        unsafe { thread::sync_named(1 + group, GROUP_THREADS) };
    };
    let staged = Staged {
        sums: memory.wrapping_add((ring_bytes + group * SLAB_BYTES) as usize).cast(),
        rows: GROUP_ROWS,
        columns: SLAB,
        pitch: SLAB,
        is_permuted: true,
    };
    let at_slab = start + ring_bytes + group * SLAB_BYTES;
    let tiled = TiledOutput { tiles, at: at_slab, thread: in_group };
    let flag_at = ring_bytes + 2 * SLAB_BYTES + ring::barrier_bytes(stages(COLUMNS)) + 4 * group;
    let flag: *mut u32 = memory.wrapping_add(flag_at as usize).cast();
    // Descriptors of the first place's factors; those of others are a 16th of the distance greater.
    let [a, b] = [start + group * (GROUP_ROWS * ROW_BYTES), start + b_at(COLUMNS, 0)].map(wgmma::row_descriptor);
    let factors = |at: RingPlace| {
        let further = at.stage * (stage_bytes(COLUMNS) / 16);
        let second = [a_at(1) / 16, COLUMNS * ROW_BYTES / 16];
        ([a + further, a + further + second[0]], [b + further, b + further + second[1]])
    };
    let shared = SharedRing::new(ring, pair);
    while tile < rows * columns {
        let (a, b) = factors(at);
        // SAFETY: all threads of the group are here: every branch is on values that they share. The tile is there while the products
        // are computed. Blocks end when all others have given all places back.
        let mut sums = unsafe { shared.read(&mut at, || T::multiply_first::<COLUMNS>(a, b)) };
        let mut step = first + 1;
        while step < last {
            let (a, b) = factors(at);
            // SAFETY: as for the first.
            unsafe { shared.read(&mut at, || T::multiply::<COLUMNS>(&mut sums, a, b)) };
            step += 1;
        }
        if adds_tiles(epilogue) && thread::block_idx_y() == 0 {
            // SAFETY: as for the products.
            unsafe {
                let before = |at: RingPlace| start + at.stage * stage_bytes(COLUMNS) + group * PASS_BYTES;
                let from = before(at);
                shared.read(&mut at, || tiled.add_before::<T, 0>(&mut sums, from));
                if COLUMNS == 256 {
                    let from = before(at);
                    shared.read(&mut at, || tiled.add_before::<T, 16>(&mut sums, from));
                }
            }
        }
        // Only now: there are few registers of a warp, too, and what is kept there across the products may be too much.
        let (tile_m, tile_n) = place(tile, rows, columns);
        let row = ((tile_m << pair.shift) + pair.rank) * ROWS + group * GROUP_ROWS;
        let column = tile_n * COLUMNS;
        let part = ((tile << pair.shift) + pair.rank) * 2 + group;
        let meeting = Meeting { tile: part, thread: in_group, ..Meeting::of_block(workspace, counters) };
        // SAFETY: all threads of the group are here; nobody else uses the group's memory.
        unsafe {
            let is_last = if COLUMNS == 256 {
                meeting.add_up::<GROUP_THREADS, 32>(&mut sums, || flag, sync)
            } else {
                meeting.add_up::<GROUP_THREADS, 16>(&mut sums, || flag, sync)
            };
            // The vote tells the assembler that a warp stays together: it then keeps places in the ring in uniform registers.
            if warp::warp_vote_any(FULL_MASK, is_last) && row < m {
                // The compiler would write the loop's body out several times, and keep what follows from the epilogue for all tiles.
                let (slabs, epilogue) = (hidden(COLUMNS / SLAB), hidden(epilogue));
                let output = ProductOutput { out, stride: hidden(out_stride), bias, m, n, epilogue };
                if epilogue & TILED != 0 {
                    tiled.store::<T, COLUMNS>(&mut sums, [row, column], output, sync);
                    tile += stride;
                    continue;
                }
                // Else this way's addresses would be computed once ahead of all tiles, and for outputs that do not take it, too.
                let [warp, lane, in_group] = [warp, lane, in_group].map(hidden);
                let mut slab = 0;
                while slab < slabs && column + slab * SLAB < n {
                    // All have read the slab before.
                    sync();
                    let token = warp % 4 * 16 + lane / 4;
                    let to = staged.row(token);
                    unroll!(part in [0 1 2 3] {
                        if part == slab && part * SLAB < COLUMNS {
                            unroll!(j in [0 1 2 3 4 5 6 7] {
                                let [a, b, c, d] = sums[(part * 8 + j) as usize];
                                let to = to.add(staged.place(token, j * 8 + lane % 4 * 2) as usize);
                                *to.cast() = HalfVector::from_f32([a, b]);
                                *to.add(8 * SLAB as usize).cast() = HalfVector::from_f32([c, d]);
                            });
                        }
                    });
                    sync();
                    output.store::<T, GROUP_THREADS, 4>(staged, in_group, row, column + slab * SLAB);
                    slab += 1;
                }
            }
        }
        tile += stride;
    }
    tiled.finish();
}
