//! Kernels that need Hopper: bulk copies, mbarriers, clusters and `stmatrix`.

use cuda_std::prelude::*;
use cuda_std::ptx::tensor::CuTensorMap;
use cuda_std::ptx::{bulk, cluster, control, fence, mbarrier, stmatrix, tensor};
use cuda_std::shared::shared_offset;
use cuda_std::vector::Vector;

kernels! {
    HOPPER (arch = "sm_90a", max_threads = 128)

    /// Adds 1 to each of 512 words, which bulk copies move to shared memory and back. Runs as one block of 128 threads.
    v_bulk(a: *const u32, out: *mut u32) {
        let (tile, barrier) = (shared_array![Vector; 128], shared_array![u64; 1]);
        let i = thread::thread_idx_x() as usize;
        let (to, barrier) = (shared_offset(tile), shared_offset(barrier));
        if i == 0 {
            mbarrier::init(barrier, 2);
            mbarrier::fence_init();
        }
        thread::sync_threads();
        if i == 0 {
            mbarrier::expect(barrier, 1024);
            mbarrier::arrive(barrier);
            bulk::load(to, a.cast(), 1024, barrier);
            mbarrier::arrive_expect(barrier, 1024);
            bulk::load(to + 1024, a.add(256).cast(), 1024, barrier);
        }
        while !mbarrier::try_wait(barrier, 0) {}
        mbarrier::wait(barrier, 0);
        let words = tile.add(i).cast::<u32>();
        for word in 0..4 {
            *words.add(word) += 1;
        }
        fence::proxy_async_shared();
        thread::sync_threads();
        if i == 0 {
            mbarrier::invalidate(barrier);
            bulk::store(out.cast(), to, 1024);
            bulk::commit();
            bulk::store(out.add(256).cast(), to + 1024, 1024);
            bulk::commit();
            bulk::wait_read::<1>();
            bulk::wait::<0>();
        }
    }

    /// Copies a tile of a tensor of rank `rank` that begins at `corner`, to the origin of another tensor. The tile has
    /// at most 4096 bytes.
    v_tensor(from: &CuTensorMap, to: &CuTensorMap, corner: *const i32, rank: u32, bytes: u32) {
        let (tile, barrier) = (shared_array![u8; 4096; 1024], shared_array![u64; 1]);
        let (tile, barrier) = (shared_offset(tile), shared_offset(barrier));
        if thread::thread_idx_x() == 0 {
            mbarrier::init(barrier, 1);
            mbarrier::fence_init();
            mbarrier::arrive_expect(barrier, bytes);
            let mut at = [0; 5];
            for (axis, at) in at.iter_mut().enumerate() {
                *at = *corner.add(axis);
            }
            let [a, b, c, d, e] = at;
            match rank {
                1 => tensor::load_1d(tile, from, [a], barrier),
                2 => tensor::load_2d(tile, from, [a, b], barrier),
                3 => tensor::load_3d(tile, from, [a, b, c], barrier),
                4 => tensor::load_4d(tile, from, [a, b, c, d], barrier),
                _ => tensor::load_5d(tile, from, [a, b, c, d, e], barrier),
            }
            mbarrier::wait(barrier, 0);
            match rank {
                1 => tensor::store_1d(to, [0], tile),
                2 => tensor::store_2d(to, [0; 2], tile),
                3 => tensor::store_3d(to, [0; 3], tile),
                4 => tensor::store_4d(to, [0; 4], tile),
                _ => tensor::store_5d(to, [0; 5], tile),
            }
            bulk::commit();
            bulk::wait::<0>();
        }
    }

    /// Runs as two clusters of two blocks of 32 threads. Writes to `out[4 * i ..]` the block's rank, the cluster size,
    /// the value that the other block's thread stored here, and the value read from the other block.
    v_cluster(a: *const u32, out: *mut u32) {
        let (own, barrier) = (shared_array![u32; 64], shared_array![u64; 1]);
        let (i, lane) = (thread::index_1d(), thread::thread_idx_x());
        let (mine, barrier) = (shared_offset(own.add(lane as usize)), shared_offset(barrier));
        let other = cluster::rank() ^ 1;
        if lane == 0 {
            mbarrier::init(barrier, 32);
            mbarrier::fence_init();
        }
        let value = *a.add(i as usize);
        *own.add(lane as usize + 32) = value;
        cluster::arrive();
        cluster::wait();
        cluster::store_u32(cluster::map(mine, other), value);
        mbarrier::arrive_remote(cluster::map(barrier, other));
        mbarrier::wait(barrier, 0);
        // The other block's arrivals come after its stores.
        let out = out.add(4 * i as usize);
        *out = cluster::rank();
        *out.add(1) = cluster::size();
        cluster::sync();
        *out.add(2) = *own.add(lane as usize);
        *out.add(3) = cluster::load_u32(cluster::map(mine + 128, other));
        cluster::sync();
    }

    /// One block of a cluster of two loads 256 bytes, and 64 x 2 16-bit elements of a matrix, for both blocks: `out[128
    /// * block ..]`.
    v_multicast(a: *const u8, matrix: &CuTensorMap, out: *mut u32) {
        let (tile, barrier) = (shared_array![u32; 128; 1024], shared_array![u64; 1]);
        let lane = thread::thread_idx_x() as usize;
        let (place, barrier) = (shared_offset(tile), shared_offset(barrier));
        if lane == 0 {
            mbarrier::init(barrier, 1);
            mbarrier::fence_init();
            mbarrier::arrive_expect(barrier, 512);
        }
        cluster::sync();
        if lane == 0 && cluster::rank() == 0 {
            bulk::load_multicast(place, a, 256, barrier, 3);
            tensor::load_2d_multicast(place + 256, matrix, [0, 0], barrier, 3);
        }
        mbarrier::wait(barrier, 0);
        for word in 0..4 {
            let at = 32 * word + lane;
            *out.add(128 * thread::block_idx_x() as usize + at) = *tile.add(at);
        }
        cluster::sync();
    }

    /// Writes for each of 128 threads whether it is its warp's elected thread.
    v_elect(out: *mut u32) {
        control::wait_for_earlier_launches();
        control::give_registers::<24>();
        let elected = control::elect();
        control::take_registers::<64>();
        *out.add(thread::thread_idx_x() as usize) = elected.into();
        fence::proxy_async();
        fence::proxy_async_global();
        control::let_later_launches_begin();
    }

    /// Stores the registers `a[4 * i ..]` of a warp with every form of `stmatrix`. `out` receives 8 rows of 16 bytes
    /// for each of 11 matrices.
    v_stmatrix(a: *const [u32; 4], out: *mut Vector) {
        let tile = shared_array![Vector; 88];
        let i = thread::thread_idx_x() as usize;
        let registers = *a.add(i);
        let [first, second, ..] = registers;
        let row = |matrices: usize| shared_offset(tile.add(matrices * 8 + i));
        let few = |matrices: usize, count: usize| shared_offset(tile.add(matrices * 8 + i % (8 * count)));
        stmatrix::store_x1(few(0, 1), [first]);
        stmatrix::store_x2(few(1, 2), [first, second]);
        stmatrix::store_x4(row(3), registers);
        stmatrix::store_x4_trans(row(7), registers);
        thread::sync_threads();
        let mut at = i;
        while at < 88 {
            *out.add(at) = *tile.add(at);
            at += 32;
        }
    }
}
