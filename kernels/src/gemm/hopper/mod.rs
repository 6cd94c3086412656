//! Many tokens on Hopper: `wgmma`, with operand tiles that tensor copies bring.
//!
//! A block computes tiles of 128 tokens by `COLUMNS` (128 or 256) rows of the weight, one tile at a time. One warp
//! group fetches tiles of both operands into a ring in shared memory (`ring.rs`). Only one of its lanes works. The two
//! other groups multiply the tiles, each 64 tokens by all columns, in 128 registers a lane. The grid has as many blocks
//! as the GPU has multiprocessors, and each block computes several tiles of the product. While the groups store one
//! tile, the ring fills with the operands of the next.
//!
//! Tensor copies store most 16-bit outputs (`output.rs`). The code that all kernels share stores the others. If the
//! product is added to the output, the ring also brings the previous output, after the operands of its tile.
//!
//! Two blocks may form a cluster (`pair.rs`). Their tiles have different tokens and the same rows of the weight, and
//! each block fetches half of these rows for both.
//!
//! | | |
//! | --- | --- |
//! | shapes | `x [m][k]`, `weight [n][k]`, `out [m][n]`, any `m` and `n`, `k` a multiple of 8 |
//! | grid | x: one block for each tile of the product, up to the number that run at once, in clusters of one or two. y: splits of `k`. [`THREADS`] threads |
//! | shared memory | [`shared_bytes`]: 225 KiB, one block an SM |
//! | floor | `2 m n k` flops and `2 (m k + n k + m n)` bytes |
//!
//! # What limits it
//!
//! A `wgmma` of 64 x 256 x 16 keeps the tensor cores busy for 128 clocks. Meanwhile it reads 10 KiB of shared memory,
//! which takes 80 clocks. 8 KiB of these are the weight's tile, which both groups read. A ring slot is 1,024 clocks of
//! work and needs 48 KiB from L2. That is 48 bytes a clock, or 32 in pairs. A group waits for its products before it
//! frees their slot. Meanwhile the other group's products keep the tensor cores busy.
//!
//! # Ladder
//!
//! 1. [`gemm`](super::prefill::gemm()): `mma.sync`, which reaches at most 63 % of the tensor cores' rate. A warp
//!    copies, loads fragments and multiplies in turn, with 2.2 instructions for each 16 x 8 x 16 product.
//! 2. (here) One lane does all the fetching, and no fragments are loaded. `docs/benchmarks` has the instruction count.
//!
//! The structure follows CUTLASS's "cooperative" kernels and ThunderKittens: a producer, two consumers, a ring with
//! full and empty barriers, and registers that move from the producer to the consumers. This kernel is simpler. Each
//! group runs independently from its first wait to its last store, so the block has no barrier after the first.

pub mod decode;
mod fetch;
pub(crate) mod output;
mod pair;
pub(crate) mod ring;
mod token_products;

use cuda_std::prelude::*;
use cuda_std::ptx::tensor::CuTensorMap;
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
use fetch::{Fetch, TileGrid};
pub use output::TILED;
use output::{PASS, PASS_BYTES, TiledOutput, adds_tiles};
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
pub(crate) const READERS: u32 = 2 * GROUP_THREADS / warp::WARP_SIZE;

/// Slots in the ring.
pub const fn stages(columns: u32) -> u32 {
    if columns == 256 { 4 } else { 3 }
}

/// Elements along `k` in a ring slot. Narrow tiles are twice as deep, which gives as much work between two waits.
pub const fn depth(columns: u32) -> u32 {
    if columns == 256 { DEPTH } else { 2 * DEPTH }
}

/// Bytes of a ring slot. It contains both operands in tiles of [`DEPTH`] elements a row, `x` first.
pub(crate) const fn stage_bytes(columns: u32) -> u32 {
    (ROWS + columns) * depth(columns) * 2
}

/// Tiles of [`DEPTH`] elements a row that each operand has in a ring slot.
const fn parts(columns: u32) -> u32 {
    depth(columns) / DEPTH
}

/// Returns the byte offset of part `part` of `x` in a ring slot.
const fn a_at(part: u32) -> u32 {
    part * ROWS * ROW_BYTES
}

/// Returns the byte offset of part `part` of the weight in a ring slot.
pub(crate) const fn b_at(columns: u32, part: u32) -> u32 {
    a_at(parts(columns)) + part * columns * ROW_BYTES
}

/// Columns that a warp group stores at a time when it does not use tensor copies.
const SLAB: u32 = 64;

/// Bytes of a warp group's staging memory, which holds one slab of sums.
const SLAB_BYTES: u32 = GROUP_ROWS * SLAB * 4;

const _: () = assert!(SLAB_BYTES == PASS_BYTES && PASS == 2 * SLAB);

/// Bytes of the previous output in [`PASS`] columns: the first warp group's tiles, then the second's.
const BEFORE_BYTES: u32 = 2 * PASS_BYTES;

const _: () = assert!(BEFORE_BYTES <= stage_bytes(128) && BEFORE_BYTES <= stage_bytes(256));

/// Alignment of tiles in bytes, which the swizzle pattern of tensor copies needs.
pub(crate) const ALIGNMENT: u32 = 1024;

/// Dynamic shared memory, in bytes: alignment padding, the ring, the sums of both groups, the barriers and the flags.
pub const fn shared_bytes(columns: u32) -> u32 {
    ALIGNMENT
        + stages(columns) * stage_bytes(columns)
        + 2 * SLAB_BYTES
        + ring::barrier_bytes(stages(columns))
        + FLAGS_BYTES
}

/// Bytes of the flags, one for each group. One thread writes the flag to tell its group whether it is the last to
/// arrive.
const FLAGS_BYTES: u32 = 2 * 4;

/// Multiplies activations with a weight: `out = epilogue(x weight^T)`. See [`super`] for the arguments.
///
/// `x` and `weight` are tensors with tiles of [`ROWS`] and `COLUMNS` rows of [`DEPTH`] elements. In clusters of two,
/// the weight's tiles have half as many rows.
///
/// # Safety
/// The arrays have the shapes that the arguments state. The launch is one of a [`GemmPlan`](super::plan::GemmPlan):
/// every block has a tile of the product and at least one element of `k`, and a cluster has one or two blocks. If
/// `epilogue` has the bit [`TILED`], `tiles` is the output in tiles of [`GROUP_ROWS`] rows. Otherwise `tiles` is
/// unused. No launch writes the weight.
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
    // The shuffle tells ptxas that all lanes have the same number.
    // SAFETY: all lanes of the warp are here together.
    let warp = unsafe { warp::warp_shuffle_idx(FULL_MASK, warp::warp_id(), 0, warp::WARP_SIZE) };
    let pair = Pair::of_block();
    if thread::thread_idx_x() == 0 {
        // SAFETY: no thread uses the barriers before the cluster's barrier below.
        unsafe { ring.set_up(READERS * pair.blocks()) };
    }
    // SAFETY: all threads are here.
    unsafe { cluster::sync() };

    let steps = share(split::tiles(k, depth(COLUMNS)));
    let (first, last) = steps;
    // These count tiles of clusters. A cluster's tile is one column wide, and has a row of tiles for each block.
    let (rows, columns) = (split::tiles(m, ROWS << pair.shift), split::tiles(n, COLUMNS));
    let (tile, stride) = (thread::block_idx_x() >> pair.shift, thread::grid_dim_x() >> pair.shift);
    let mut at = RingPlace::default();
    if warp >= READERS {
        // SAFETY: all threads of the warp group reach the first call, and all lanes of a warp the second.
        unsafe {
            // The groups together keep the registers that a block of this size starts with, 168 a thread.
            control::give_registers::<40>();
            if warp != READERS || !control::elect() {
                return;
            }
        }
        let fetch = Fetch::<COLUMNS> {
            x,
            weight,
            tiles,
            ring,
            pair,
            grid: TileGrid { rows, columns, stride },
            steps,
            epilogue,
        };
        // SAFETY: this lane alone fills the ring. By this kernel's contract the tile exists and has a step.
        unsafe { fetch.run(tile) };
        return;
    }

    control::begin_dependent();
    // SAFETY: all threads of the warp group are here, and the fetching group gives up the registers that the others
    // take.
    unsafe { control::take_registers::<232>() };
    // Hidden, since the compiler would keep values that depend on it in registers across roles and tiles, and has too
    // few.
    let mut tile = hidden(tile);
    let group = warp / 4;
    let in_group = thread::thread_idx_x() % GROUP_THREADS;
    let lane = warp::lane_id();
    let sync = || {
        // SAFETY: each group has its own barrier, and all of its threads reach it.
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
    // Descriptors of the factors in the first slot. Descriptors count in 16 bytes, so other slots add distance / 16.
    let [a, b] = [start + group * (GROUP_ROWS * ROW_BYTES), start + b_at(COLUMNS, 0)].map(wgmma::row_descriptor);
    let factors = |at: RingPlace| {
        let further = at.stage * (stage_bytes(COLUMNS) / 16);
        let second = [a_at(1) / 16, COLUMNS * ROW_BYTES / 16];
        ([a + further, a + further + second[0]], [b + further, b + further + second[1]])
    };
    let shared = SharedRing::new(ring, pair);
    while tile < rows * columns {
        let (a, b) = factors(at);
        // SAFETY: all threads of the group are here, since every branch depends on values that they share. The tile
        // stays in its slot while the products are computed. A block ends only after the other blocks have released all
        // of its slots.
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
        // Computed only now. If these were kept across the products, a warp might have too few uniform registers.
        let (tile_m, tile_n) = place(tile, rows, columns);
        let row = ((tile_m << pair.shift) + pair.rank) * ROWS + group * GROUP_ROWS;
        let column = tile_n * COLUMNS;
        let part = ((tile << pair.shift) + pair.rank) * 2 + group;
        let meeting = Meeting { tile: part, thread: in_group, ..Meeting::of_block(workspace, counters) };
        // SAFETY: all threads of the group are here, and no other thread uses the group's memory.
        unsafe {
            let is_last = if COLUMNS == 256 {
                meeting.add_up::<GROUP_THREADS, 32>(&mut sums, || flag, sync)
            } else {
                meeting.add_up::<GROUP_THREADS, 16>(&mut sums, || flag, sync)
            };
            // The vote tells ptxas that the warp stays converged. It then keeps ring positions in uniform registers.
            if warp::warp_vote_any(FULL_MASK, is_last) && row < m {
                // Hidden, since the compiler would unroll the loop and keep values that depend on the epilogue for all
                // tiles.
                let epilogue = hidden(epilogue);
                let output = ProductOutput { out, stride: hidden(out_stride), bias, m, n, epilogue };
                if epilogue & TILED != 0 {
                    tiled.store::<T, COLUMNS>(&mut sums, [row, column], output, sync);
                    tile += stride;
                    continue;
                }
                store_slabs::<T, COLUMNS>(&sums, staged, output, [row, column], [warp, lane, in_group], sync);
            }
        }
        tile += stride;
    }
    tiled.finish();
}

/// Stores a warp group's sums of tokens from `row` on and weight rows from `column` on, one slab of columns at a time.
/// `thread` is the calling thread's warp, lane and number in the group.
///
/// # Safety
/// All threads of the group call this together, `sync` is their barrier, and no other thread uses the staging memory.
#[inline(always)]
unsafe fn store_slabs<T: Element, const COLUMNS: u32>(
    sums: &[[f32; 4]; 32],
    staged: Staged,
    output: ProductOutput,
    [row, column]: [u32; 2],
    thread: [u32; 3],
    sync: impl Fn(),
) {
    // Hidden, since the compiler would compute this path's addresses before all tiles, even for outputs that take the
    // other path.
    let [warp, lane, in_group] = thread.map(hidden);
    // Hidden, since the compiler would unroll the loop.
    let slabs = hidden(COLUMNS / SLAB);
    let mut slab = 0;
    while slab < slabs && column + slab * SLAB < output.n {
        // After this barrier all threads have read the previous slab.
        sync();
        let token = warp % 4 * 16 + lane / 4;
        let to = staged.row(token);
        // SAFETY: the sums are within the staging memory, which is this group's. All its threads are here.
        unsafe {
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
        }
        slab += 1;
    }
}
