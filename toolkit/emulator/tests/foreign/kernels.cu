// Kernels for the emulator's tests, compiled by NVIDIA's compiler (`build.sh`). They cover the same features as the
// emulator's handwritten tests, in the form that another compiler emits.

#include <cooperative_groups.h>
#include <cuda/barrier>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include <mma.h>

// `init` initialises the barrier.
#pragma nv_diag_suppress static_var_with_dynamic_init

namespace cg = cooperative_groups;
using namespace nvcuda;

struct Line {
    float slope;
    float offset;
    int steps[3];
};

// A struct passed by value. Each thread selects one of its elements.
extern "C" __global__ void by_value(Line line, float* out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = line.slope * i + line.offset + line.steps[i % 3];
}

__device__ __noinline__ int twice(int x) { return 2 * x; }
__device__ __noinline__ int square(int x) { return x * x; }
__device__ __noinline__ int less(int x) { return x - 1; }
typedef int (*Function)(int);
__device__ Function table[3] = {twice, square, less};

extern "C" __global__ void through_pointers(const int* which, int* out) {
    int i = threadIdx.x;
    out[i] = table[which[i]](i);
}

__device__ __noinline__ int ackermann(int m, int n) {
    if (m == 0) return n + 1;
    if (n == 0) return ackermann(m - 1, 1);
    return ackermann(m - 1, ackermann(m, n - 1));
}

extern "C" __global__ void recursive(int* out) { out[threadIdx.x] = ackermann(threadIdx.x % 3, threadIdx.x % 5); }

// A 16 x 16 f16 product with fragments. Each element of the sum is scaled.
extern "C" __global__ void fragments(const half* a, const half* b, float* d, float scale) {
    wmma::fragment<wmma::matrix_a, 16, 16, 16, half, wmma::row_major> fa;
    wmma::fragment<wmma::matrix_b, 16, 16, 16, half, wmma::col_major> fb;
    wmma::fragment<wmma::accumulator, 16, 16, 16, float> sum;
    wmma::fill_fragment(sum, 1.0f);
    wmma::load_matrix_sync(fa, a, 16);
    wmma::load_matrix_sync(fb, b, 16);
    wmma::mma_sync(sum, fa, fb, sum);
    for (int i = 0; i < sum.num_elements; i++) sum.x[i] *= scale;
    wmma::store_matrix_sync(d, sum, 16, wmma::mem_row_major);
}

// 8-bit integer fragments, loaded from shared memory.
extern "C" __global__ void byte_fragments(const signed char* a, const signed char* b, int* d) {
    __shared__ signed char sa[256], sb[256];
    for (int i = threadIdx.x; i < 256; i += 32) {
        sa[i] = a[i];
        sb[i] = b[i];
    }
    __syncwarp();
    wmma::fragment<wmma::matrix_a, 16, 16, 16, signed char, wmma::row_major> fa;
    wmma::fragment<wmma::matrix_b, 16, 16, 16, signed char, wmma::row_major> fb;
    wmma::fragment<wmma::accumulator, 16, 16, 16, int> sum;
    wmma::fill_fragment(sum, 0);
    wmma::load_matrix_sync(fa, sa, 16);
    wmma::load_matrix_sync(fb, sb, 16);
    wmma::mma_sync(sum, fa, fb, sum);
    wmma::store_matrix_sync(d, sum, 16, wmma::mem_row_major);
}

// To 8-bit floating point and back.
extern "C" __global__ void eight_bits(const float2* in, float2* e4m3, float2* e5m2) {
    int i = threadIdx.x;
    e4m3[i] = static_cast<float2>(__nv_fp8x2_e4m3(in[i]));
    e5m2[i] = static_cast<float2>(__nv_fp8x2_e5m2(in[i]));
}

// One where an element of `a` is greater than that of `b`, else zero.
extern "C" __global__ void compare_pairs(const half2* a, const half2* b, half2* out) {
    int i = threadIdx.x;
    out[i] = __hgt2(a[i], b[i]);
}

// A sum over a cluster. Each block reduces its part and reads the other blocks' parts through distributed shared
// memory.
extern "C" __global__ void __cluster_dims__(4, 1, 1) cluster_sum(const int* in, int* out) {
    __shared__ int sum;
    cg::cluster_group cluster = cg::this_cluster();
    if (threadIdx.x == 0) sum = 0;
    __syncthreads();
    atomicAdd(&sum, in[blockIdx.x * blockDim.x + threadIdx.x]);
    cluster.sync();
    if (threadIdx.x == 0) {
        int total = 0;
        for (unsigned rank = 0; rank < cluster.num_blocks(); rank++) total += *cluster.map_shared_rank(&sum, rank);
        out[blockIdx.x] = total;
    }
    cluster.sync();
}

// A histogram over a cluster. Each block holds a part of the bins.
extern "C" __global__ void __cluster_dims__(2, 1, 1) cluster_histogram(const int* in, int* bins, int n) {
    __shared__ int own[32];
    cg::cluster_group cluster = cg::this_cluster();
    if (threadIdx.x < 32) own[threadIdx.x] = 0;
    cluster.sync();
    for (int i = cluster.thread_rank(); i < n; i += cluster.num_threads()) {
        int bin = in[i] & 63;
        atomicAdd(cluster.map_shared_rank(own, bin / 32) + bin % 32, 1);
    }
    cluster.sync();
    if (threadIdx.x < 32) bins[cluster.block_rank() * 32 + threadIdx.x] = own[threadIdx.x];
}

// Copies to shared memory that a libcu++ barrier waits for.
extern "C" __global__ void async_copies(const int4* in, int4* out) {
    __shared__ int4 tile[64];
    __shared__ cuda::barrier<cuda::thread_scope_block> ready;
    if (threadIdx.x == 0) init(&ready, blockDim.x);
    __syncthreads();
    cuda::memcpy_async(&tile[threadIdx.x], &in[threadIdx.x], cuda::aligned_size_t<16>(16), ready);
    ready.arrive_and_wait();
    out[threadIdx.x] = tile[63 - threadIdx.x];
}

// A sum with a partial last warp. Lanes past the end read uninitialised memory and discard it.
extern "C" __global__ void masked_sum(const float* in, float* out, int n) {
    __shared__ float tile[64];
    if (threadIdx.x < n) tile[threadIdx.x] = in[threadIdx.x];
    __syncthreads();
    float value = tile[threadIdx.x];
    value = threadIdx.x < n ? value : 0.0f;
    for (int step = 16; step > 0; step /= 2) value += __shfl_xor_sync(0xffffffff, value, step);
    if (threadIdx.x % 32 == 0) out[threadIdx.x / 32] = value;
}
