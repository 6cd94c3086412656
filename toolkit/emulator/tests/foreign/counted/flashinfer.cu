// One of FlashInfer's attention kernels with paged KV and f16. KERNEL is PROMPT, DECODE or HOPPER, and HEAD is the head
// size. The other template arguments are those that FlashInfer's own dispatch chooses on an A100 or H100.
#define PROMPT 1
#define DECODE 2
#define HOPPER 3

#if KERNEL == HOPPER

#include <flashinfer/attention/hopper/default_params.cuh>
#include <flashinfer/attention/hopper/prefill_sm90.cuh>

using namespace flashinfer;

using Halves = cutlass::half_t;
using Params = BatchPrefillPagedParams<Halves, Halves, Halves, int32_t>;
// Threads copy keys and values page by page, in tiles of 96.
using Traits = AttentionKernelTraits<false, HEAD, HEAD, HEAD == 64 ? 192 : 128, 96, 2, Halves, Halves, Halves, int32_t,
                                     StandardAttention>;
using Mainloop = SparseCollectiveMainloop<Params::AdditionalParams, Traits, true>;
using Epilogue = CollectiveEpilogue<Traits>;
using Scheduler = BatchPrefillPersistentTileScheduler<int32_t>;

template __global__ void flashinfer::PrefillWithKVCacheKernel<Mainloop, Epilogue, Traits, false, true, Scheduler>(
    __grid_constant__ Mainloop::Params const, __grid_constant__ Epilogue::Params const, __grid_constant__ Scheduler::Params const);

#else

#include <flashinfer/attention/decode.cuh>
#include <flashinfer/attention/default_decode_params.cuh>
#include <flashinfer/attention/default_prefill_params.cuh>
#include <flashinfer/attention/prefill.cuh>
#include <flashinfer/attention/variants.cuh>

using namespace flashinfer;

// A sliding window and a softcap of the logits, if WINDOW and SOFTCAP are 1.
#ifndef WINDOW
#define WINDOW 0
#endif
#ifndef SOFTCAP
#define SOFTCAP 0
#endif
using Attention = DefaultAttention<false, WINDOW, SOFTCAP, false>;

#if KERNEL == PROMPT

// A block has ROWS query rows: 128 for prompts, 16 for decoding on tensor cores. A warp multiplies 16 * KEYS keys at
// once.
using Params = BatchPrefillPagedParams<half, half, half, int32_t>;
using Traits = KernelTraits<MaskMode::kCausal, ROWS, get_num_mma_q(ROWS), KEYS, HEAD / 16, HEAD / 16, get_num_warps_q(ROWS),
                            get_num_warps_kv(ROWS), PosEncodingMode::kNone, half, half, half, float, int32_t, Attention,
                            kPrefillLauncherRepacksFp4>;
static_assert(!Traits::IsInvalid());

template __global__ void flashinfer::BatchPrefillWithPagedKVCacheKernel<true, Traits, Params>(const __grid_constant__ Params);

#else

// GROUP query heads share a KV head. A lane holds 16 bytes of a token, and a block has 128 threads.
using Params = BatchDecodeParams<half, half, half, int32_t>;
constexpr uint32_t lanes = HEAD / 8;

template __global__ void flashinfer::BatchDecodeWithPagedKVCacheKernel<PosEncodingMode::kNone, 2, GROUP == 1 ? 4 : 1, 8, lanes, GROUP,
                                                           128 / (lanes * GROUP), Attention, Params>(const __grid_constant__ Params);

#endif
#endif
