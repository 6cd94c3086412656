// Block and warp collectives of CUB, compiled by NVIDIA's compiler (`build.sh`). Each thread has four items in a
// blocked arrangement, unless the kernel's name says otherwise.

#include <cub/block/block_adjacent_difference.cuh>
#include <cub/block/block_discontinuity.cuh>
#include <cub/block/block_exchange.cuh>
#include <cub/block/block_histogram.cuh>
#include <cub/block/block_load.cuh>
#include <cub/block/block_merge_sort.cuh>
#include <cub/block/block_radix_sort.cuh>
#include <cub/block/block_reduce.cuh>
#include <cub/block/block_scan.cuh>
#include <cub/block/block_shuffle.cuh>
#include <cub/block/block_store.cuh>
#include <cub/warp/warp_merge_sort.cuh>
#include <cub/warp/warp_reduce.cuh>
#include <cub/warp/warp_scan.cuh>

constexpr int THREADS = 96;
constexpr int ITEMS = 4;
constexpr int TILE = THREADS * ITEMS;

__device__ void load(const int* in, int (&items)[ITEMS]) {
    for (int i = 0; i < ITEMS; i++) items[i] = in[blockIdx.x * TILE + threadIdx.x * ITEMS + i];
}

__device__ void store(int* out, const int (&items)[ITEMS]) {
    for (int i = 0; i < ITEMS; i++) out[blockIdx.x * TILE + threadIdx.x * ITEMS + i] = items[i];
}

// The sum of all items, the sum over the first 70 threads, and the maximum.
template <cub::BlockReduceAlgorithm ALGORITHM>
__device__ void reduce(const int* in, int* out) {
    using Reduce = cub::BlockReduce<int, THREADS, ALGORITHM>;
    __shared__ typename Reduce::TempStorage storage;
    int items[ITEMS];
    load(in, items);
    int sum = Reduce(storage).Sum(items);
    __syncthreads();
    int part = Reduce(storage).Sum(items[0], 70);
    __syncthreads();
    int greatest = Reduce(storage).Reduce(items[1], [](int a, int b) { return a > b ? a : b; });
    if (threadIdx.x == 0) {
        out[blockIdx.x * 3] = sum;
        out[blockIdx.x * 3 + 1] = part;
        out[blockIdx.x * 3 + 2] = greatest;
    }
}

extern "C" __global__ void reduce_raking(const int* in, int* out) { reduce<cub::BLOCK_REDUCE_RAKING>(in, out); }
extern "C" __global__ void reduce_commutative(const int* in, int* out) {
    reduce<cub::BLOCK_REDUCE_RAKING_COMMUTATIVE_ONLY>(in, out);
}
extern "C" __global__ void reduce_warps(const int* in, int* out) { reduce<cub::BLOCK_REDUCE_WARP_REDUCTIONS>(in, out); }

// Prefix sums over all tiles of a block. The total of the earlier tiles carries over to the next tile.
struct Running {
    int total;
    __device__ int operator()(int sum) {
        int before = total;
        total += sum;
        return before;
    }
};

template <cub::BlockScanAlgorithm ALGORITHM>
__device__ void scan(const int* in, int* exclusive, int* greatest, int tiles) {
    using Scan = cub::BlockScan<int, THREADS, ALGORITHM>;
    __shared__ typename Scan::TempStorage storage;
    Running running{0};
    for (int tile = 0; tile < tiles; tile++) {
        int items[ITEMS], sums[ITEMS];
        load(in + tile * TILE, items);
        Scan(storage).ExclusiveSum(items, sums, running);
        __syncthreads();
        store(exclusive + tile * TILE, sums);
        Scan(storage).InclusiveScan(items, sums, [](int a, int b) { return a > b ? a : b; });
        __syncthreads();
        store(greatest + tile * TILE, sums);
    }
}

extern "C" __global__ void scan_raking(const int* in, int* a, int* b, int tiles) {
    scan<cub::BLOCK_SCAN_RAKING>(in, a, b, tiles);
}
extern "C" __global__ void scan_memoize(const int* in, int* a, int* b, int tiles) {
    scan<cub::BLOCK_SCAN_RAKING_MEMOIZE>(in, a, b, tiles);
}
extern "C" __global__ void scan_warps(const int* in, int* a, int* b, int tiles) {
    scan<cub::BLOCK_SCAN_WARP_SCANS>(in, a, b, tiles);
}

// Sorts keys together with their original positions.
extern "C" __global__ void radix_sort(const int* in, int* keys, int* values) {
    using Sort = cub::BlockRadixSort<int, THREADS, ITEMS, int>;
    __shared__ typename Sort::TempStorage storage;
    int key[ITEMS], value[ITEMS];
    load(in, key);
    for (int i = 0; i < ITEMS; i++) value[i] = threadIdx.x * ITEMS + i;
    Sort(storage).Sort(key, value);
    store(keys, key);
    store(values, value);
}

// Sorts floats in descending order. The result is striped: each thread stores every 96th item.
extern "C" __global__ void radix_sort_descending(const float* in, float* out) {
    using Sort = cub::BlockRadixSort<float, THREADS, ITEMS>;
    __shared__ typename Sort::TempStorage storage;
    float key[ITEMS];
    for (int i = 0; i < ITEMS; i++) key[i] = in[blockIdx.x * TILE + threadIdx.x * ITEMS + i];
    Sort(storage).SortDescendingBlockedToStriped(key);
    for (int i = 0; i < ITEMS; i++) out[blockIdx.x * TILE + i * THREADS + threadIdx.x] = key[i];
}

// Sorts with 64 threads, because merge sort needs a power of two.
extern "C" __global__ void merge_sort(const int* in, int* out) {
    using Sort = cub::BlockMergeSort<int, 64, ITEMS>;
    __shared__ typename Sort::TempStorage storage;
    int items[ITEMS], first = (blockIdx.x * 64 + threadIdx.x) * ITEMS;
    for (int i = 0; i < ITEMS; i++) items[i] = in[first + i];
    Sort(storage).Sort(items, [](int a, int b) { return a < b; });
    for (int i = 0; i < ITEMS; i++) out[first + i] = items[i];
}

// Blocked to striped, a round trip through the warp-striped arrangement, and a scatter to given positions.
extern "C" __global__ void exchange(const int* in, int* striped, int* back, int* scattered) {
    using Exchange = cub::BlockExchange<int, THREADS, ITEMS>;
    __shared__ typename Exchange::TempStorage storage;
    int items[ITEMS], places[ITEMS];
    load(in, items);
    Exchange(storage).BlockedToStriped(items);
    __syncthreads();
    store(striped, items);
    Exchange(storage).StripedToBlocked(items);
    __syncthreads();
    Exchange(storage).BlockedToWarpStriped(items);
    __syncthreads();
    Exchange(storage).WarpStripedToBlocked(items);
    __syncthreads();
    store(back, items);
    for (int i = 0; i < ITEMS; i++) places[i] = (threadIdx.x * ITEMS + i) * 5 % TILE;
    Exchange(storage).ScatterToBlocked(items, places);
    store(scattered, items);
}

// A partial tile, transposed through shared memory when loaded and by warp when stored.
extern "C" __global__ void load_and_store(const int* in, int* out, int count) {
    using Load = cub::BlockLoad<int, THREADS, ITEMS, cub::BLOCK_LOAD_TRANSPOSE>;
    using Store = cub::BlockStore<int, THREADS, ITEMS, cub::BLOCK_STORE_WARP_TRANSPOSE>;
    __shared__ union {
        typename Load::TempStorage load;
        typename Store::TempStorage store;
    } storage;
    int items[ITEMS];
    Load(storage.load).Load(in, items, count, -1);
    for (int i = 0; i < ITEMS; i++) items[i] = items[i] * 3 + (int)threadIdx.x;
    __syncthreads();
    Store(storage.store).Store(out, items, count);
}

// Counts each of 16 values, by sorting and by atomics.
template <cub::BlockHistogramAlgorithm ALGORITHM>
__device__ void histogram(const int* in, int* out) {
    using Histogram = cub::BlockHistogram<unsigned char, THREADS, ITEMS, 16, ALGORITHM>;
    __shared__ typename Histogram::TempStorage storage;
    __shared__ int bins[16];
    unsigned char items[ITEMS];
    for (int i = 0; i < ITEMS; i++) items[i] = in[blockIdx.x * TILE + threadIdx.x * ITEMS + i] & 15;
    Histogram(storage).Histogram(items, bins);
    __syncthreads();
    if (threadIdx.x < 16) out[blockIdx.x * 16 + threadIdx.x] = bins[threadIdx.x];
}

extern "C" __global__ void histogram_sort(const int* in, int* out) { histogram<cub::BLOCK_HISTO_SORT>(in, out); }
extern "C" __global__ void histogram_atomic(const int* in, int* out) { histogram<cub::BLOCK_HISTO_ATOMIC>(in, out); }

// The heads and tails of runs, the difference of each item from the one before, and a rotation.
extern "C" __global__ void neighbours(const int* in, int* heads, int* tails, int* differences, int* rotated) {
    using Discontinuity = cub::BlockDiscontinuity<int, THREADS>;
    using Difference = cub::BlockAdjacentDifference<int, THREADS>;
    using Shuffle = cub::BlockShuffle<int, THREADS>;
    __shared__ union {
        typename Discontinuity::TempStorage discontinuity;
        typename Difference::TempStorage difference;
        typename Shuffle::TempStorage shuffle;
    } storage;
    int items[ITEMS], head[ITEMS], tail[ITEMS], difference[ITEMS];
    load(in, items);
    Discontinuity(storage.discontinuity).FlagHeadsAndTails(head, tail, items, [](int a, int b) { return a != b; });
    __syncthreads();
    Difference(storage.difference).SubtractLeft(items, difference, [](int a, int b) { return a - b; });
    __syncthreads();
    int turned;
    Shuffle(storage.shuffle).Rotate(items[0], turned, 7);
    store(heads, head);
    store(tails, tail);
    store(differences, difference);
    rotated[blockIdx.x * THREADS + threadIdx.x] = turned;
}

// Sums and prefix sums of groups of 8 lanes, sums of flagged segments, and a sort of a warp's items.
extern "C" __global__ void warps(const int* in, int* sums, int* before, int* segments, int* sorted) {
    using Reduce = cub::WarpReduce<int, 8>;
    using Scan = cub::WarpScan<int, 8>;
    using Segments = cub::WarpReduce<int>;
    using Sort = cub::WarpMergeSort<int, ITEMS, 32>;
    __shared__ typename Reduce::TempStorage reduce_storage[THREADS / 8];
    __shared__ typename Scan::TempStorage scan_storage[THREADS / 8];
    __shared__ typename Segments::TempStorage segment_storage[THREADS / 32];
    __shared__ typename Sort::TempStorage sort_storage[THREADS / 32];
    int items[ITEMS], group = threadIdx.x / 8, warp = threadIdx.x / 32;
    load(in, items);
    int sum = Reduce(reduce_storage[group]).Sum(items[0]);
    if (threadIdx.x % 8 == 0) sums[blockIdx.x * THREADS / 8 + group] = sum;
    int earlier;
    Scan(scan_storage[group]).ExclusiveSum(items[0], earlier);
    before[blockIdx.x * THREADS + threadIdx.x] = earlier;
    int head = threadIdx.x % 5 == 0;
    sum = Segments(segment_storage[warp]).HeadSegmentedSum(items[1], head);
    segments[blockIdx.x * THREADS + threadIdx.x] = head || threadIdx.x % 32 == 0 ? sum : 0;
    Sort(sort_storage[warp]).Sort(items, [](int a, int b) { return a < b; });
    store(sorted, items);
}
