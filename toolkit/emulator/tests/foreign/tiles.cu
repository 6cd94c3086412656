// TMA copies of tiles of tensors with one to five dimensions, compiled by NVIDIA's compiler (`build.sh`). A kernel
// copies a tile to shared memory, writes it out as stored there, and copies it to a position in another tensor.

#include <cuda.h>
#include <cuda/ptx>

// The corners of a tile in both tensors, innermost dimension first.
struct Corners {
    int from[5];
    int to[5];
};

template <int RANK>
__device__ void copy(const CUtensorMap& from, const CUtensorMap& to, const Corners& corners, unsigned bytes, uint4* raw) {
    __shared__ __align__(1024) unsigned char tile[3072];
    __shared__ __align__(8) uint64_t arrived;
    int at[RANK], there[RANK];
    for (int i = 0; i < RANK; i++) {
        at[i] = corners.from[i];
        there[i] = corners.to[i];
    }
    if (threadIdx.x == 0) {
        cuda::ptx::mbarrier_init(&arrived, 1);
        cuda::ptx::fence_mbarrier_init(cuda::ptx::sem_release, cuda::ptx::scope_cluster);
        cuda::ptx::mbarrier_arrive_expect_tx(cuda::ptx::sem_release, cuda::ptx::scope_cta, cuda::ptx::space_shared, &arrived, bytes);
        cuda::ptx::cp_async_bulk_tensor(cuda::ptx::space_cluster, cuda::ptx::space_global, tile, &from, at, &arrived);
    }
    __syncthreads();
    while (!cuda::ptx::mbarrier_try_wait_parity(&arrived, 0)) {
    }
    uint4* pieces = reinterpret_cast<uint4*>(tile);
    for (int i = threadIdx.x; i < bytes / 16; i += blockDim.x) {
        uint4 piece = pieces[i];
        raw[i] = piece;
        // Invert the bits, so the tile copied back differs from the tile loaded.
        pieces[i] = make_uint4(~piece.x, ~piece.y, ~piece.z, ~piece.w);
    }
    cuda::ptx::fence_proxy_async(cuda::ptx::space_shared);
    __syncthreads();
    if (threadIdx.x == 0) {
        cuda::ptx::cp_async_bulk_tensor(cuda::ptx::space_global, cuda::ptx::space_shared, &to, there, tile);
        cuda::ptx::cp_async_bulk_commit_group();
        cuda::ptx::cp_async_bulk_wait_group_read(cuda::ptx::n32_t<0>());
    }
}

#define RANK(n)                                                                                                            \
    extern "C" __global__ void copy_##n(const __grid_constant__ CUtensorMap from, const __grid_constant__ CUtensorMap to, \
                                        const __grid_constant__ Corners corners, unsigned bytes, uint4* raw) {             \
        copy<n>(from, to, corners, bytes, raw);                                                                            \
    }
RANK(1)
RANK(2)
RANK(3)
RANK(4)
RANK(5)
